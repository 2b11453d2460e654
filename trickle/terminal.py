"""Parts that several commands share: options, access tokens, amounts in arguments and reports, lines on a terminal.

The commands of server, clients and analytics must read ``30s`` and write ``1.5 MB`` alike, so the grammar of amounts
stands here once. This is the only module of :mod:`tricklecast.trickle` that needs typer or reads the environment.
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
from tricklecast.trickle.wire import printable, redacted_urls

S = TypeVar("S")
T = TypeVar("T")

TOKEN_VARIABLE: Final = "TRICKLECAST_TOKEN"
"""An environment variable with the access token. Other users of the machine can read an argument, but not this."""

_TOKEN: Final = re.compile(r"[\x21-\x7e]+", re.ASCII)


def option(metavar: str | None, text: str, *names: str, group: str | None = None, default: str | None = None) -> Any:
    """Declare an option of a command.

    Args:
        metavar: the name of its value in the help; ``None`` for a flag, or for a choice.
        text: its help.
        names: its names, such as ``--ca-file``, if they do not follow from the parameter's name.
        group: the help shows the option under this heading.
        default: the help shows this text instead of the parameter's default value.
    """
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=group, show_default=default or True)


_CHANNEL_HELP: Final = (
    "The channel: http://HOST:PORT/trickle/CHANNEL. Of a cluster, one for each node, with commas between: when a node "
    "fails, another one is asked."
)
_CONNECTION: Final = "Connection"
_TOKEN_HELP: Final = "Access token. Visible in process listings; prefer --token-file."
_FILE_HELP: Final = f"File with the access token, read again for each request. Default: the variable {TOKEN_VARIABLE}."
_CA_HELP: Final = "Trust these certificates (PEM) for https, instead of the system's."
_CERT_HELP: Final = "Show this certificate (PEM) to a server that wants one of its clients (mTLS)."
_KEY_HELP: Final = "Private key (PEM) of --cert, if it is not in the same file."

ChannelUrls: TypeAlias = Annotated[str, typer.Argument(metavar="URL", help=_CHANNEL_HELP)]
Token: TypeAlias = Annotated[str | None, option("TOKEN", _TOKEN_HELP, group=_CONNECTION)]
TokenFile: TypeAlias = Annotated[Path | None, option("FILE", _FILE_HELP, group=_CONNECTION)]
CaFile: TypeAlias = Annotated[Path | None, option("FILE", _CA_HELP, "--ca-file", group=_CONNECTION)]
ClientCert: TypeAlias = Annotated[Path | None, option("FILE", _CERT_HELP, "--cert", group=_CONNECTION)]
ClientKey: TypeAlias = Annotated[Path | None, option("FILE", _KEY_HELP, "--key", group=_CONNECTION)]


def checked(option: str, parse: Callable[[S], T], value: S, allowed: str = "") -> T:
    """Parse the value of an option.

    Args:
        option: its name, for example ``--start``.
        parse: the parser; raises ``ValueError`` for a wrong value.
        value: the user's value.
        allowed: the allowed values. The message then names them instead of the parser's reason.

    Raises:
        typer.BadParameter: the parser refused the value.
    """
    try:
        return parse(value)
    except ValueError as error:  # InvalidInput included
        raise typer.BadParameter(f"use {allowed}" if allowed else str(error), param_hint=option) from None


def no_channel(error: ChannelNotFound, url: str, hint: str = "") -> TrickleError:
    """Turn a client's error into a command's message that the channel does not exist.

    Args:
        error: the client's error.
        url: the channel.
        hint: a sentence that says what the user can do.
    """
    if error.detail and error.detail not in NOT_FOUND_WORDS:  # the server says more than that
        return error
    return TrickleError(f"no channel at {redacted_urls(url)}; is its publisher running?{hint and f' {hint}'}")


# Access tokens.


class HasHeaders(Protocol):
    """A request of httpx, which this module does not import."""

    @property
    def headers(self) -> MutableMapping[str, Any]:
        """The headers of the request."""


R = TypeVar("R", bound=HasHeaders)


class Bearer:
    """Adds ``Authorization: Bearer`` to each request: pass it to httpx as ``auth``.

    Args:
        read: returns the token. It is called for each request, so a token can be renewed while a command runs.
    """

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    def __call__(self, request: R) -> R:
        request.headers["Authorization"] = f"Bearer {self.token}"
        return request

    @property
    def token(self) -> str:
        """The token as it is now."""
        return self._read()


def bearer_for(token: str | None, file: Path | None, environment: Mapping[str, str] = os.environ) -> Bearer | None:
    """Choose the token of a command: its argument, else its file, else :data:`TOKEN_VARIABLE`.

    Args:
        token: the value of ``--token``.
        file: the value of ``--token-file``. The file is read for each request.
        environment: the environment variables.

    Returns:
        The ``auth`` for an httpx client; ``None`` if there is no token.

    Raises:
        InvalidInput: a header cannot carry the token, the file cannot be read, or both options were given.
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
    """A token in a file that may be replaced at any time. While the file is unreadable, the last token stays in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token: str | None = None  # the last token that was read

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

    Args:
        token: the token.
        name: stands in the message instead of the token, which is a secret.

    Raises:
        InvalidInput: a header cannot carry it.
    """
    if token[:7].lower() == "bearer ":
        raise InvalidInput(f"{name} begins with the word Bearer; leave it out, since the client adds it")
    if not _TOKEN.fullmatch(token):
        raise InvalidInput(f"{name} is empty, or contains a character that is not visible ASCII")


def tls_context(ca_file: Path | None) -> ssl.SSLContext | None:
    """Load the certificates of ``--ca-file``.

    Returns:
        A context that trusts these authorities only; ``None`` without a file: use the system's authorities then.

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
        The context for https; ``None`` if none of these options was given.

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
        zero: allow a duration of 0.

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
    """Write a number with its noun: ``1 segment``, ``2 segments``. The plural is the noun with an ``s`` by default."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def transferred(verb: str, segments: int, number: int, seconds: float) -> str:
    """Write the beginning of a summary: ``received 3 segments (1.5 MB) in 2.0 s``.

    Args:
        verb: ``published`` or ``received``.
        segments: number of segments.
        number: their size in bytes.
        seconds: duration of the run.
    """
    return f"{verb} {count(segments, 'segment')} ({size(number)}) in {seconds:.1f} s"


class RateMeter:
    """The bit rate of the last seconds. An average since the start would hide each change.

    Args:
        clock: returns monotonic seconds.
    """

    WINDOW_S: Final = 5.0
    """Longer than most segments, so that the rate does not swing with each of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # (time, bytes until then) of each call in the window, behind the last one before the window
        self._samples: deque[tuple[float, int]] = deque([(clock(), 0)])

    def bits_per_s(self, total: int) -> float:
        """Return the rate. Call it several times within :data:`WINDOW_S`.

        Args:
            total: all bytes since the start.
        """
        now = self._clock()
        while len(self._samples) > 1 and self._samples[1][0] <= now - self.WINDOW_S:
            self._samples.popleft()
        since, before = self._samples[0]
        self._samples.append((now, total))
        return 8 * (total - before) / max(now - since, 0.1)


# Lines on a terminal.


class Screen:
    """Prints lines on standard error and, if that is a terminal, keeps one more line below them up to date.

    Standard output stays free for data. A closed or unread standard error does not stop the command.

    Args:
        stream: used instead of standard error.
        width: number of columns; by default the terminal's own.
    """

    REFRESH_S: Final = 0.25
    """The live line is printed again after this time, in seconds."""

    def __init__(self, stream: TextIO | None = None, width: int | None = None) -> None:
        self._stream = stream or sys.stderr
        self._width = width
        self._lock = threading.Lock()  # held while something is printed
        self._line: Callable[[int], str] | None = None  # the live line; None outside of live()

    def say(self, text: str) -> None:
        """Print a line, from any thread. Control characters become question marks: a server may have sent them."""
        with self._lock:
            self._write(f"{self._cleared}{printable(text)}\n{self._live_line()}")

    @contextmanager
    def live(self, line: Callable[[int], str]) -> Iterator[None]:
        """Keep a line up to date while the block runs, if standard error is a terminal.

        Args:
            line: takes the number of columns and returns the line. It is called in another thread.
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
        return printable(self._line(width))[: width - 1]

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a closed pipe, a closed file
            self._stream.write(text)
            self._stream.flush()
