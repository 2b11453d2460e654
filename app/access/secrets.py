"""Secrets: the server reads them from files, compares them in constant time, and never shows them."""

from __future__ import annotations

import hmac
import logging
import stat
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from pydantic import SecretBytes

from tricklecast.trickle.errors import InvalidInput

MIN_BYTES: Final = 32
"""The least that HMAC with SHA-256 needs (RFC 7518, section 3.2): signed texts would give a shorter secret away."""

MAX_BYTES: Final = 64 << 10
"""The longest file with a secret or keys, and the longest key set behind a URL."""


logger = logging.getLogger("tricklecast.secrets")


class InvalidKey(InvalidInput):
    """A file or a key set has no usable secret or key. The message never shows its content."""


def read_secret(path: Path, *, least: int = MIN_BYTES) -> SecretBytes:
    """Read a secret from a file, without the white space around it.

    Args:
        least: the number of bytes that the secret must have at least.

    Raises:
        InvalidKey: the file cannot be read, or its secret is too short or too long.
    """
    warn_of_readers(path)
    value = read_file(path).strip()
    if len(value) < least:
        make = f"(openssl rand -hex {least})"
        raise InvalidKey(f"{path} has {len(value)} bytes; a secret needs at least {least} {make}")
    return SecretBytes(value)


def warn_of_readers(path: Path) -> None:
    """Log a warning if every user of the machine may read a file that holds a secret."""
    with suppress(OSError):  # read_file reports it
        if path.stat().st_mode & stat.S_IROTH:
            logger.warning(
                "every user of this machine can read the secret in %s; take that right away: chmod o= %s", path, path
            )


def read_file(path: Path, *, most: int = MAX_BYTES) -> bytes:
    """Read a file of at most this many bytes.

    Raises:
        InvalidKey: it cannot be read, or is larger.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise InvalidKey(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > most:
        raise InvalidKey(f"{path} is larger than {most >> 10} KiB")
    return data


def is_secret(secret: SecretBytes, given: bytes) -> bool:
    """Compare a client's text with a secret, in a time that does not depend on either."""
    return hmac.compare_digest(sha256(given).digest(), sha256(secret.get_secret_value()).digest())
