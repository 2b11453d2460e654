"""Parts that several commands share: options, amounts in arguments, numbers in reports, and lines on a terminal.

No other module of :mod:`tricklecast.trickle` needs typer or reads the environment: only commands import this one.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TextIO, TypeAlias, TypeVar

import typer

from tricklecast.trickle.errors import NOT_FOUND_WORDS, ChannelNotFound, InvalidInput, TrickleError
from tricklecast.trickle.wire import redacted

S = TypeVar("S")
T = TypeVar("T")

TOKEN_VARIABLE: Final = "TRICKLECAST_TOKEN"
"""The environment variable that may hold a token. Unlike an argument, other users of the machine cannot read it."""

_TOKEN: Final = re.compile(r"[\x21-\x7e]+", re.ASCII)


def option(metavar: str | None, text: str, *names: str, group: str | None = None, default: str | None = None) -> Any:
    """An option of a command.

    Args:
        metavar: the name of its value; ``None`` for a flag, or for a choice.
        text: its help.
        names: how it is written, if that does not follow from the parameter's name.
        group: the heading under which the help shows it.
        default: what the help shows as the default value, if that is not the parameter's.
    """
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=group, show_default=default or True)


_CONNECTION: Final = "Connection"
_TOKEN_HELP: Final = "Access token. Visible in process listings; prefer --token-file."
_FILE_HELP: Final = f"File with the access token, read again for each request. Default: the variable {TOKEN_VARIABLE}."
_CA_HELP: Final = "Trust these certificates (PEM) for https, instead of the system's."
_CERT_HELP: Final = "Show this certificate (PEM) to a server that wants one of its clients (mTLS)."
_KEY_HELP: Final = "Private key (PEM) of --cert, if it is not in the same file."

Token: TypeAlias = Annotated[str | None, option("TOKEN", _TOKEN_HELP, group=_CONNECTION)]
TokenFile: TypeAlias = Annotated[Path | None, option("FILE", _FILE_HELP, group=_CONNECTION)]
CaFile: TypeAlias = Annotated[Path | None, option("FILE", _CA_HELP, "--ca-file", group=_CONNECTION)]
ClientCert: TypeAlias = Annotated[Path | None, option("FILE", _CERT_HELP, "--cert", group=_CONNECTION)]
ClientKey: TypeAlias = Annotated[Path | None, option("FILE", _KEY_HELP, "--key", group=_CONNECTION)]


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


def no_channel(error: ChannelNotFound, url: str, hint: str = "") -> TrickleError:
    """What a command says if there is no channel.

    Args:
        error: as the client raised it.
        url: the channel.
        hint: what the user can do about it.
    """
    if error.detail and error.detail not in NOT_FOUND_WORDS:  # the path is wrong, and the server says how
        return error
    return TrickleError(f"no channel at {redacted(url)}; is its publisher running?{hint and f' {hint}'}")


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
    check_token(token, name)
    return token


def check_token(token: str, name: str) -> None:
    """Check that a header can carry a token.

    Raises:
        InvalidInput: it cannot. The message has the ``name``, and nothing of the token: it may be a part of a secret.
    """
    if token[:7].lower() == "bearer ":
        raise InvalidInput(f"{name} begins with the word Bearer; leave it out, since the client adds it")
    if not _TOKEN.fullmatch(token):
        raise InvalidInput(f"{name} is empty, or contains a character that is not visible ASCII")


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


def client_tls(ca_file: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Load the files of ``--ca-file``, ``--cert`` and ``--key``.

    Returns:
        The context for https; ``None`` if there is none of these options.

    Raises:
        typer.BadParameter: a file cannot be used, or there is a key without a certificate.
    """
    context = checked("--ca-file", tls_context, ca_file)
    if cert is None:
        if key is not None:
            raise typer.BadParameter("give its certificate, too: --cert", param_hint="--key")
        return context
    context = context or ssl.create_default_context()
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # SSLError included
        why = f"cannot use {cert}{f' with {key}' if key else ''}: {error.strerror or error}"
        raise typer.BadParameter(why, param_hint="--cert") from None
    return context


# Amounts in arguments.

_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_BYTES: Final = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BINARY_BYTES: Final = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_BITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_AMOUNT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]*)", re.ASCII)


def parse_duration(text: str, *, zero: bool = False) -> float:
    """Read a duration, in seconds: ``30``, ``30s``, ``500ms``, ``2min``, ``1.5h``, ``7d`` or ``4w``.

    Args:
        text: the argument.
        zero: whether a duration of 0 is allowed.

    Raises:
        InvalidInput: the text is not a duration.
    """
    value = _parse(text, _SECONDS)
    if value is None or not (value or zero):
        raise InvalidInput(f"not a duration: {text[:40]!r} (30s, 500ms, 2min, 1h or 7d)")
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


def duration(seconds: float) -> str:
    """Write a time as :func:`parse_duration` reads it, in the largest unit that needs no fraction: ``7d``, ``90s``."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


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


def transferred(verb: str, segments: int, number: int, seconds: float) -> str:
    """Write the beginning of a summary: ``received 3 segments (1.5 MB) in 2.0 s``.

    Args:
        verb: ``published`` or ``received``.
        segments: how many segments.
        number: how many bytes.
        seconds: how long it took.
    """
    return f"{verb} {count(segments, 'segment')} ({size(number)}) in {seconds:.1f} s"


class RateMeter:
    """The bit rate of the last seconds. An average since the start would hide each change.

    Args:
        clock: monotonic seconds.
    """

    WINDOW_S: Final = 5.0
    """Longer than most segments, so that the rate does not swing with each of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque([(clock(), 0)])

    def bits_per_s(self, total: int) -> float:
        """The rate, given all bytes so far. Call it several times within :data:`WINDOW_S`."""
        now = self._clock()
        while len(self._samples) > 1 and self._samples[1][0] <= now - self.WINDOW_S:
            self._samples.popleft()
        since, before = self._samples[0]
        self._samples.append((now, total))
        return 8 * (total - before) / max(now - since, 0.1)


# Lines on a terminal.


class Screen:
    """Lines on standard error, and below them, on a terminal, one line that is kept up to date.

    Standard output stays free for data. A command goes on if standard error is closed or nobody reads it.

    Args:
        stream: where lines go; standard error by default.
        width: columns of the terminal; by default its own.
    """

    REFRESH_S: Final = 0.25

    def __init__(self, stream: TextIO | None = None, width: int | None = None) -> None:
        self._stream = stream or sys.stderr
        self._width = width
        self._lock = threading.Lock()
        self._line: Callable[[int], str] | None = None

    def say(self, text: str) -> None:
        """Print a line. May be called in any thread; control characters, as in a server's error, are not sent."""
        with self._lock:
            self._write(f"{self._cleared}{_printable(text)}\n{self._live_line()}")

    @contextmanager
    def live(self, line: Callable[[int], str]) -> Iterator[None]:
        """Keep a line up to date while the block runs, on a terminal only.

        Args:
            line: returns the line; it gets the number of columns. It is called in another thread.
        """
        if not self.is_terminal:
            yield
            return
        over = threading.Event()

        def refresh() -> None:
            while not over.wait(self.REFRESH_S):
                with self._lock:
                    self._write(self._cleared + self._live_line())

        self._line = line
        thread = threading.Thread(target=refresh, name="tricklecast live line", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            with self._lock:
                self._write(self._cleared)
                self._line = None

    @property
    def is_terminal(self) -> bool:
        """Whether a person may be watching."""
        return self._stream.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def _cleared(self) -> str:
        return "" if self._line is None else "\r\x1b[2K"

    def _live_line(self) -> str:
        if self._line is None:
            return ""
        width = self._width or shutil.get_terminal_size().columns
        return _printable(self._line(width))[: width - 1]

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a closed pipe, a closed file
            self._stream.write(text)
            self._stream.flush()


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
