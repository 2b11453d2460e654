"""Parts that several commands share: options, access tokens, a rate that is shown, lines on a terminal.

This is the only module of :mod:`tricklecast.trickle` that needs typer or reads the environment. So only commands import
it: parts that programs need as well are in :mod:`~tricklecast.trickle.amounts` and :mod:`~tricklecast.trickle.bearer`.
"""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TextIO, TypeAlias, TypedDict, TypeVar

import typer

from tricklecast.trickle.bearer import TOKEN_VARIABLE, Bearer, check_token
from tricklecast.trickle.errors import (
    NOT_FOUND_WORDS,
    ChannelNotFound,
    InvalidChannelName,
    InvalidInput,
    InvalidURL,
    TrickleError,
)
from tricklecast.trickle.wire import printable, redacted_urls

S = TypeVar("S")
T = TypeVar("T")


def option(metavar: str | None, text: str, *names: str, group: str | None = None, default: str | None = None) -> Any:
    """Declare an option of a command.

    Args:
        metavar: the name of its value in the help; ``None`` for a flag, or for a choice.
        names: its names, such as ``--ca-file``, if they do not follow from the parameter's name.
        group: the help shows the option under this heading.
        default: the help shows this text instead of the parameter's default value.
    """
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=group, show_default=default or True)


_CHANNEL_HELP: Final = (
    "The channel: http://HOST:PORT/trickle/CHANNEL. Of a cluster, one for each node, with commas between: when a node "
    "fails, the command asks another one."
)
_CONNECTION: Final = "Connection"
_RECONNECT_HELP: Final = "How long to try again when a server that was there is away: 60s, 10min, forever."
_TOKEN_HELP: Final = "Access token. Visible in process listings; prefer --token-file."
_FILE_HELP: Final = f"File with the access token, read again for each request. Default: the variable {TOKEN_VARIABLE}."
_CA_HELP: Final = "Trust these certificates (PEM) for https, instead of the system's."
_CERT_HELP: Final = "Show this certificate (PEM) to a server that wants one of its clients (mTLS)."
_KEY_HELP: Final = "Private key (PEM) of --cert, if it is not in the same file."

ChannelUrls: TypeAlias = Annotated[str, typer.Argument(metavar="URL", help=_CHANNEL_HELP)]
Wait: TypeAlias = Annotated[
    str, option("TIME|forever", "Wait this long for a channel that does not exist yet.", "--wait")
]
ReconnectFor: TypeAlias = Annotated[str, option("TIME|forever", _RECONNECT_HELP, "--reconnect-for", group=_CONNECTION)]
Token: TypeAlias = Annotated[str | None, option("TOKEN", _TOKEN_HELP, group=_CONNECTION)]
TokenFile: TypeAlias = Annotated[Path | None, option("FILE", _FILE_HELP, group=_CONNECTION)]
CaFile: TypeAlias = Annotated[Path | None, option("FILE", _CA_HELP, "--ca-file", group=_CONNECTION)]
ClientCert: TypeAlias = Annotated[Path | None, option("FILE", _CERT_HELP, "--cert", group=_CONNECTION)]
ClientKey: TypeAlias = Annotated[Path | None, option("FILE", _KEY_HELP, "--key", group=_CONNECTION)]


def checked(option: str, parse: Callable[[S], T], value: S) -> T:
    """Parse the value of an option.

    Args:
        option: its name, for example ``--start``.
        parse: the parser; raises ``ValueError`` for a wrong value.

    Raises:
        typer.BadParameter: the parser refused the value.
        InvalidURL, InvalidChannelName: it is the URL of no channel or server, which each command tells in one line.
    """
    try:
        return parse(value)
    except (InvalidURL, InvalidChannelName):
        raise
    except ValueError as error:  # InvalidInput included
        raise typer.BadParameter(str(error), param_hint=option) from None


def no_channel(error: ChannelNotFound, url: str, wait_s: float | None = None) -> TrickleError:
    """Turn a client's error into a command's message that the channel does not exist.

    Args:
        wait_s: the value of ``--wait``, in seconds; ``None``: the command has no such option.
    """
    if error.detail and error.detail not in NOT_FOUND_WORDS:  # the server says more than that
        error.hint = ""  # it is for programs
        return error
    hint = " --wait 10s waits for it" if wait_s == 0 else ""
    return TrickleError(f"no channel at {redacted_urls(url)}; is its publisher running?{hint}")


# Credentials of commands.


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


def client_tls(ca_file: Path | None, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext | None:
    """Load the files of ``--ca-file``, ``--cert`` and ``--key``.

    Returns:
        The context for https, which trusts the authorities of ``ca_file`` only, or the system's; ``None`` if none of
        these options was given.

    Raises:
        typer.BadParameter: a file cannot be used, the key has a password, or there is a key without a certificate.
    """
    if cert is None and key is not None:
        raise typer.BadParameter("give its certificate, too: --cert", param_hint="--key")
    if ca_file is None and cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # SSLError included
        why = f"cannot read certificates from {ca_file}: {error.strerror or error}"
        raise typer.BadParameter(why, param_hint="--ca-file") from None

    def password() -> str:
        # OpenSSL would ask for it at the terminal, also that of a command in the background.
        why = f"{key or cert} is encrypted; give a key without a password: openssl pkey -in {key or cert}"
        raise typer.BadParameter(why, param_hint="--key" if key else "--cert")

    try:
        if cert is not None:
            context.load_cert_chain(cert, key, password)
    except OSError as error:
        why = f"cannot use {cert}{f' with {key}' if key else ''}: {error.strerror or error}"
        raise typer.BadParameter(why, param_hint="--cert") from None
    return context


class ClientArguments(TypedDict):
    """How a client reaches a server."""

    verify: ssl.SSLContext | bool
    auth: Bearer | None


@dataclass(frozen=True, slots=True)
class Credentials:
    """How a command reaches a server, as its user says with the options of :func:`with_credentials`.

    Attributes:
        tls: for https; ``None``: any server that the system's authorities know.
        auth: adds the access token to requests; ``None``: there is none.
    """

    tls: ssl.SSLContext | None = None
    auth: Bearer | None = None

    @property
    def arguments(self) -> ClientArguments:
        """The same as arguments of a client."""
        return {"verify": self.tls or True, "auth": self.auth}


LOSS_EXIT_CODE: Final = 3
"""The exit code of a command that has not received or sent all that it should."""

NO_CREDENTIALS: Final = Credentials()
"""Without any of the options."""


def _credentials(
    ca_file: CaFile = None,
    cert: ClientCert = None,
    key: ClientKey = None,
    token: Token = None,
    token_file: TokenFile = None,
) -> Credentials:
    tls = client_tls(ca_file, cert, key)
    try:
        return Credentials(tls, bearer_for(token, token_file))
    except InvalidInput as error:
        source = TOKEN_VARIABLE if token is None else "--token"
        raise typer.BadParameter(str(error), param_hint=source if token_file is None else "--token-file") from None


_OPTIONS: Final = inspect.signature(_credentials, eval_str=True).parameters


def with_credentials(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command the options ``--ca-file``, ``--cert``, ``--key``, ``--token`` and ``--token-file``.

    They stand in the place of its parameter ``credentials``, which gets the :class:`Credentials` that they describe.
    """

    @functools.wraps(command)
    def called(*arguments: Any, **given: Any) -> T:
        credentials = _credentials(**{name: given.pop(name) for name in _OPTIONS if name in given})
        return command(*arguments, **given, credentials=credentials)

    signature = inspect.signature(command, eval_str=True)
    own = signature.parameters.values()
    parameters = [option for one in own for option in (_OPTIONS.values() if one.name == "credentials" else [one])]
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return called


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
    """

    REFRESH_S: Final = 0.25
    """The live line is printed again after this time, in seconds."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()  # held while something is printed
        self._line: Callable[[], str] | None = None  # the live line; None outside of live()

    def say(self, text: str) -> None:
        """Print a line, from any thread. Control characters become question marks: a server may have sent them."""
        with self._lock:
            self._write(f"{self._cleared}{printable(text)}\n{self._live_line()}")

    @contextmanager
    def live(self, line: Callable[[], str]) -> Iterator[None]:
        """Keep a line up to date while the block runs, if standard error is a terminal.

        Args:
            line: returns the line, of which the terminal's width is shown. It is called in another thread.
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
        return printable(self._line())[: shutil.get_terminal_size().columns - 1]

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a closed pipe, a closed file
            self._stream.write(text)
            self._stream.flush()


class Lines(Screen):
    """The screen of one part of a command, whose lines another one shows. It has no live line.

    Args:
        say: shows a line; called from any thread.
    """

    is_terminal = False

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def say(self, text: str) -> None:
        self._say(text)
