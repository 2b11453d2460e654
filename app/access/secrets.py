"""Secrets: read from files, compared in constant time, never shown."""

from __future__ import annotations

import hmac
from hashlib import sha256
from pathlib import Path
from typing import Final

from tricklecast.trickle.errors import InvalidInput

MIN_BYTES: Final = 32
"""What HMAC with SHA-256 wants (RFC 7518, section 3.2): a shorter one could be guessed from what it has signed."""

MAX_BYTES: Final = 64 << 10


class InvalidSecret(InvalidInput):
    """A file does not hold what is expected; the message names the file and never says what it holds."""


class Secret:
    """Bytes that nobody gets to see by accident: not in ``repr``, not in a traceback that shows values."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "Secret(...)"

    def reveal(self) -> bytes:
        """The bytes, for the one that signs or checks with them."""
        return self._value

    def equals(self, given: bytes) -> bool:
        """Whether this is the secret, in a time that tells neither how much of it is right nor how long it is."""
        return hmac.compare_digest(sha256(given).digest(), sha256(self._value).digest())


def read_secret(path: Path, *, least: int = MIN_BYTES) -> Secret:
    """A secret from a file; white space around it is none of it.

    Args:
        path: of the file.
        least: how many bytes it must have.

    Raises:
        InvalidSecret: the file cannot be read, or its secret is too short, or too long.
    """
    value = read_file(path).strip()
    if len(value) < least:
        make = f"(openssl rand -hex {least})"
        raise InvalidSecret(f"{path} holds {len(value)} bytes, and a secret has at least {least} {make}")
    return Secret(value)


def read_file(path: Path) -> bytes:
    """A small file.

    Raises:
        InvalidSecret: it cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidSecret(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise InvalidSecret(f"{path} is larger than {MAX_BYTES >> 10} KiB")
    return data
