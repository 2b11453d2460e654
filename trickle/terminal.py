"""Parts that several commands share: options for tokens and certificates, amounts in arguments, numbers in reports.

No other module of :mod:`tricklecast.trickle` needs typer or reads the environment: only commands import this one.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeAlias, TypeVar

import typer

from tricklecast.trickle.errors import InvalidInput

S = TypeVar("S")
T = TypeVar("T")

TOKEN_VARIABLE: Final = "TRICKLECAST_TOKEN"
"""The environment variable that may hold a token. Unlike an argument, other users of the machine cannot read it."""

_TOKEN: Final = re.compile(r"[\x21-\x7e]+", re.ASCII)

Token: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        help="Access token. Every user of this machine can read the arguments of a command: prefer --token-file.",
    ),
]
TokenFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="File with the access token, read for each request; the default is the variable TRICKLECAST_TOKEN.",
        dir_okay=False,
    ),
]
CaFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--ca-file", help="Certificates (PEM) that an https server is checked against.", dir_okay=False),
]


def checked(option: str, parse: Callable[[S], T], value: S, allowed: str = "") -> T:
    """Parse the value of an option.

    Args:
        option: its name, as in ``--start``.
        parse: turns the value into what the command works with; raises ``ValueError`` for a wrong one.
        value: as the user gave it.
        allowed: the allowed values, for a message that is better than the parser's.

    Raises:
        typer.BadParameter: the parser refused the value.
    """
    try:
        return parse(value)
    except ValueError as error:  # InvalidInput included
        raise typer.BadParameter(f"use {allowed}" if allowed else str(error), param_hint=option) from None


# Access tokens.


class HasHeaders(Protocol):
    """A request of httpx."""

    @property
    def headers(self) -> MutableMapping[str, Any]:
        """The headers of the request."""


R = TypeVar("R", bound=HasHeaders)


class Bearer:
    """Adds ``Authorization: Bearer`` to each request; httpx takes it as ``auth``.

    Args:
        read: returns the token. It is called for each request, so that the token can be renewed while a command runs.
    """

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    def __call__(self, request: R) -> R:
        request.headers["Authorization"] = f"Bearer {self._read()}"
        return request


def bearer_for(token: str | None, file: Path | None, environment: Mapping[str, str] = os.environ) -> Bearer | None:
    """Choose the token of a command: its argument, else its file, else :data:`TOKEN_VARIABLE`.

    Args:
        token: the value of ``--token``.
        file: the value of ``--token-file``. The file is read for each request.
        environment: the variables of the process.

    Returns:
        The ``auth`` of an httpx client; ``None`` if there is no token.

    Raises:
        InvalidInput: the token is unusable, the file cannot be read, or both options were given.
    """
    if token is not None and file is not None:
        raise InvalidInput("give --token or --token-file, not both")
    if file is not None:
        source = _TokenSource(file)
        source()
        return Bearer(source)
    text = environment.get(TOKEN_VARIABLE) or None if token is None else token
    if text is None:
        return None
    usable = _usable_token(text, "the token")
    return Bearer(lambda: usable)


class _TokenSource:
    """A token in a file that may be replaced at any time. While it cannot be read, the last token stays in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token: str | None = None

    def __call__(self) -> str:
        try:
            self._token = _usable_token(self._path.read_text(encoding="ascii", errors="replace"), f"{self._path}")
        except OSError as error:
            if self._token is None:
                raise InvalidInput(f"cannot read {self._path}: {error.strerror or error}") from None
        except InvalidInput:
            if self._token is None:
                raise
        return self._token


def _usable_token(text: str, name: str) -> str:
    token = text.strip()
    if not _TOKEN.fullmatch(token):  # the message does not repeat the text: it may be a part of a secret
        raise InvalidInput(f"{name} is empty, or contains a character that is not visible ASCII")
    return token


def tls_context(ca_file: Path | None) -> ssl.SSLContext | None:
    """Load the certificates of ``--ca-file``.

    Returns:
        A context that trusts these authorities only; ``None`` without a file: the caller uses the system's authorities.

    Raises:
        InvalidInput: the file cannot be read, or contains no certificates.
    """
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # SSLError included
        raise InvalidInput(f"cannot read certificates from {ca_file}: {error.strerror or error}") from None


# Amounts in arguments.

_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES: Final = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BINARY_BYTES: Final = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_BITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_AMOUNT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]*)", re.ASCII)


def parse_duration(text: str, *, zero: bool = False) -> float:
    """Read a duration, in seconds: ``30``, ``30s``, ``500ms``, ``2min``, ``1.5h`` or ``7d``.

    Args:
        text: the argument.
        zero: whether a duration of 0 is allowed.

    Raises:
        InvalidInput: the text is not a duration.
    """
    value = _parse(text, _SECONDS)
    if value is None or not (value or zero):
        raise InvalidInput(f"not a duration: {text[:40]!r} (30s, 500ms, 2min or 1h)")
    return value


def parse_size(text: str) -> int:
    """Read a size, in bytes: ``4096``, ``64KiB`` (powers of 1024) or ``1.5 MB`` (powers of 1000).

    Raises:
        InvalidInput: the text is not a size, or the size is below 1 byte.
    """
    value = _parse(text, _BYTES | _BINARY_BYTES)
    if value is None or value < 1:
        raise InvalidInput(f"not a size: {text[:40]!r} (64KiB, 500MB)")
    return int(value)


def parse_bitrate(text: str) -> int:
    """Read a bit rate, in bits per second: ``800k``, ``2.5M`` or ``64000``.

    Raises:
        InvalidInput: the text is not a bit rate, or the rate is below 1 bit per second.
    """
    value = _parse(text, _BITS)
    if value is None or value < 1:
        raise InvalidInput(f"not a bit rate: {text[:40]!r} (800k, 2.5M or 64000)")
    return round(value)


def _parse(text: str, units: Mapping[str, float]) -> float | None:
    match = _AMOUNT.fullmatch(text.strip().lower())
    unit = None if match is None else units.get(match[2])
    return None if match is None or unit is None else float(match[1]) * unit


# Numbers in reports.


def size(number: float) -> str:
    """Write a number of bytes in powers of 1000: ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def rate(bits_per_s: float) -> str:
    """Write a bit rate in powers of 1000: ``64 kbit/s``, ``2.35 Mbit/s``."""
    if bits_per_s < 1e6:
        return f"{bits_per_s / 1e3:.0f} kbit/s"
    return f"{bits_per_s / 1e6:.2f} Mbit/s"


def count(number: int, noun: str, plural: str = "") -> str:
    """Write a number with its noun: ``1 segment``, ``2 segments``.

    Args:
        number: how many there are.
        noun: the singular.
        plural: the plural; the noun with an ``s`` by default.
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
