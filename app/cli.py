"""The `tricklecast` command: mounts the sub-commands of all packages, and loads each only when it is called.

It also writes the help of all commands: typer's own help shows Python types (``<str>``), and needs libraries that take
longer to load than 0.3 s.
"""

from __future__ import annotations

import errno
import functools
import importlib
import importlib.util
import inspect
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from time import monotonic
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from tricklecast.trickle import version_line
from tricklecast.trickle.errors import ConnectionLost, InvalidChannelName, InvalidURL, MissingExtra, TrickleError, needs

T = TypeVar("T")

ONE_SIGNAL_S: Final = 1.0
"""Signals within one second count as one: ``timeout -s INT`` sends two, to its child and to the child's group."""


OTHERS: Final = 0o027
"""The rights that private files lack: those of other users, and of the group all but reading."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A sub-command that is not loaded yet.

    Attributes:
        module, function: the command's function; it may be a coroutine function, and its docstring is the help.
        summary: the command's line in the list of commands.
        group: the heading under which the list shows it.
        extra: the optional dependency that the command needs, and that dependency's import name. Without it: what
            the extra `server` has, and most commands need no more of that than typer.
    """

    module: str
    function: str
    summary: str
    group: str = ""
    extra: tuple[str, str] | None = None


_LIVE: Final = "Publish and subscribe"
_SERVER: Final = "Server"
_STORMS: Final = "Access logs and retry storms"
_ANALYTICS: Final = ("analytics", "duckdb")
_TESTS: Final = "Tests and examples"

COMMANDS: Final = {
    "serve": Mount("tricklecast.app.serve_cli", "serve", "Run a server.", _LIVE, ("server", "uvicorn")),
    "publish": Mount("tricklecast.publisher.cli", "publish", "Publish media or plain bytes to a channel.", _LIVE),
    "subscribe": Mount(
        "tricklecast.subscriber.command.cli", "subscribe", "Write a channel to a file, folder or pipe.", _LIVE
    ),
    "clip": Mount("tricklecast.subscriber.command.cli", "clip", "Cut a file out of a channel's past.", _LIVE),
    "ingest": Mount(
        "tricklecast.publisher.ingest.cli", "ingest", "Publish the streams of encoders (RTMP, SRT).", _LIVE
    ),
    "relay": Mount("tricklecast.subscriber.relay.cli", "relay", "Push a channel to an RTMP or SRT server.", _LIVE),
    "gateway webrtc": Mount(
        "tricklecast.subscriber.gateway.cli", "webrtc", "Give channels to browsers by WebRTC (WHEP).", _LIVE
    ),
    "channels": Mount("tricklecast.subscriber.command.cli", "channels", "List a server's channels.", _LIVE),
    "check": Mount(
        "tricklecast.subscriber.check.cli", "check", "Test a live channel: segments, timestamps, pace, latency.", _LIVE
    ),
    "health": Mount("tricklecast.app.health", "health", "Check the local server's health.", _SERVER),
    "cluster status": Mount("tricklecast.app.nodes.cli", "status", "Show the nodes of a cluster.", _SERVER),
    "cluster move": Mount("tricklecast.app.nodes.cli", "move", "Move a channel to another node.", _SERVER),
    "cluster drain": Mount("tricklecast.app.nodes.cli", "drain", "Move all channels of a node to others.", _SERVER),
    "mirror": Mount("tricklecast.app.mirror_cli", "mirror", "Copy a server's channels to another site.", _SERVER),
    "mirror status": Mount("tricklecast.app.mirror_cli", "status", "Show how far the copies are.", _SERVER),
    "mirror promote": Mount(
        "tricklecast.app.mirror_cli", "promote", "Let the copies take the source's place.", _SERVER
    ),
    "mirror back": Mount("tricklecast.app.mirror_cli", "back", "Make the former source a mirror.", _SERVER),
    "mirror stop": Mount("tricklecast.app.mirror_cli", "stop", "Copy nothing more.", _SERVER),
    "mirror resync": Mount("tricklecast.app.mirror_cli", "resync", "Make copies again.", _SERVER),
    "mirror reverify": Mount("tricklecast.app.mirror_cli", "reverify", "Compare copies again.", _SERVER),
    "token create": Mount("tricklecast.app.access.cli", "create", "Sign an access token.", _SERVER, ("tokens", "jwt")),
    "token inspect": Mount(
        "tricklecast.app.access.cli", "inspect", "Show the claims of an access token.", _SERVER, ("tokens", "jwt")
    ),
    "store ls": Mount("tricklecast.app.storage.cli", "ls", "List the contents of a data directory.", _SERVER),
    "store check": Mount(
        "tricklecast.app.storage.cli", "check", "Compare a data directory with its checksums.", _SERVER
    ),
    "store export": Mount(
        "tricklecast.app.storage.cli", "export", "Write segments of a data directory to files.", _SERVER
    ),
    "store prune": Mount(
        "tricklecast.app.storage.cli", "prune", "Remove the oldest segments of a data directory.", _SERVER
    ),
    "storms": Mount(
        "tricklecast.analytics.cli.storms", "storms", "Find retry storms in access logs.", _STORMS, _ANALYTICS
    ),
    "storms check": Mount(
        "tricklecast.analytics.cli.check", "check", "Show what is understood of an access log.", _STORMS, _ANALYTICS
    ),
    "storms mute": Mount("tricklecast.analytics.cli.mute", "mute", "Mute incidents of a kind.", _STORMS, _ANALYTICS),
    "storms unmute": Mount("tricklecast.analytics.cli.mute", "unmute", "Mute them no longer.", _STORMS, _ANALYTICS),
    "storms watch": Mount(
        "tricklecast.analytics.cli.watch", "watch", "Report retry storms while they happen.", _STORMS, _ANALYTICS
    ),
    "storms stream": Mount(
        "tricklecast.analytics.cli.stream",
        "stream",
        "Report retry storms in logs that arrive as files or messages, with Spark.",
        _STORMS,
        _ANALYTICS,
    ),
    "logs tail": Mount("tricklecast.analytics.cli.logs", "tail", "Show access logs as they grow.", _STORMS, _ANALYTICS),
    "logs compact": Mount(
        "tricklecast.analytics.cli.logs",
        "compact",
        "Turn access logs into hourly Parquet files.",
        _STORMS,
        _ANALYTICS,
    ),
    "logs schema": Mount(
        "tricklecast.analytics.cli.logs", "schema", "Print the JSON Schema of the access log.", _STORMS
    ),
    "simulate": Mount(
        "tricklecast.analytics.simulate.cli",
        "simulate",
        "Write access logs with known retry storms in them.",
        _STORMS,
        _ANALYTICS,
    ),
    "demo": Mount("tricklecast.app.tools.demo.cli", "demo", "Show everything at work, in a minute.", _TESTS),
    "stress": Mount(
        "tricklecast.app.tools.stress.cli", "stress", "Load a server, and compare every byte received.", _TESTS
    ),
    "conformance": Mount(
        "tricklecast.app.tools.conformance.cli", "conformance", "Test a server against the wire protocol.", _TESTS
    ),
}


# Help.

_TYPES: Final = {"int": "N", "int range": "N", "float": "N", "float range": "N", "file": "FILE", "path": "PATH"}


def help_record(param: Any, ctx: Any) -> tuple[str, str] | None:
    """One line of a help: the option or argument with its value, and its meaning.

    Python types are replaced: ``--jobs <int range>  [default: 16; 1<=x<=128]`` becomes ``--jobs N  [default: 16]``.

    Returns:
        ``None`` for a hidden parameter.
    """
    record = param.get_help_record(ctx)
    if record is None:
        return None
    name, text = record

    def value(match: re.Match[str]) -> str:
        kind = match[1].removeprefix("list[").removesuffix("]")
        return kind if "|" in kind else _TYPES.get(kind, "TEXT")

    is_argument = param.param_type_name == "argument"
    name = re.sub(r" ?<[^<>]+>", "", name) if is_argument else re.sub(r"<([^<>]+)>", value, name)
    text = re.sub(r"(?:; )?[-0-9.]*(?:<=?|>=?)?x(?:<=?|>=?)[-0-9.]+(?=\])|(?:; )?required(?=\])", "", text)
    text = re.sub(r"\[default: \((.*?)\)(?=[];])", r"[default: \1", text.replace("  []", ""))
    return name.strip("[]").upper() if is_argument else name, text.strip()


class Command(TyperCommand):
    """A command whose help has a heading for each group of options (``rich_help_panel``)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # typer asks pydantic, whose words these are
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        needed = [param for param in self.params if param.required and param.param_type_name == "option"]
        pieces = [*(f"{param.opts[0]} {param.metavar}" for param in needed), "[OPTIONS]"]
        for param in self.params:
            if param.param_type_name == "argument":
                name = (param.metavar or param.name or "").strip("[].").upper() + ("..." if param.nargs == -1 else "")
                pieces.append(name if param.required else f"[{name}]")
        return pieces

    def grouped(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """The lines of the help, by their headings."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if (record := help_record(param, ctx)) is not None:
                usual = "Arguments" if param.param_type_name == "argument" else "Options"
                panel = "Other options" if param.name == "help" else getattr(param, "rich_help_panel", None)
                groups.setdefault(panel or usual, []).append(record)
        if set(groups) == {"Arguments", "Options", "Other options"}:
            groups["Options"] += groups.pop("Other options")
        return {name: records for name, records in groups.items() if records}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for name, records in self.grouped(ctx).items():
            with formatter.section(name):
                formatter.write_dl(records, col_max=26)


def wanted_help(args: list[str]) -> str | None:
    """The name of the command of which the arguments want the help: ``""`` for the list of commands.

    Returns:
        ``None`` if they are no request for help.
    """
    if args == ["--help"]:
        return ""
    for name in (" ".join(args[:2]), *args[:1]):
        if name in COMMANDS:
            options = args[: args.index("--")] if "--" in args else args
            return name if "--help" in options else None
    return None


def show_help(name: str) -> None:
    """Print the help of a command. Typer would load pydantic in order to parse ``--help``."""
    command = load(name, to_run=False) if name else typer.main.get_command(cli)
    typer.echo(command.get_help(typer.Context(command, info_name=f"tricklecast {name}".strip())))


class LazyGroup(TyperGroup):
    """A group that lists its commands from :data:`COMMANDS`, and loads one when it is called.

    A command's name may have two words: with the second word ``watch``, say, ``storms`` is the command ``storms
    watch``; with one that no command has, or none, it is the command ``storms``.

    Attributes:
        words: prefix of its commands' names in the table: empty, or a first word and a space.
    """

    words = ""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name.removeprefix(self.words) for name in COMMANDS if name.startswith(self.words)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        mount = COMMANDS.get(self.words + cmd_name)
        return None if mount is None else Command(cmd_name, help=mount.summary)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands, by groups."""
        names = self.list_commands(ctx)
        width = max(map(len, names))
        for group in dict.fromkeys(COMMANDS[self.words + name].group for name in names):
            found = [(name, COMMANDS[self.words + name]) for name in names]
            rows = [(name.ljust(width), mount.summary) for name, mount in found if mount.group == group]
            with formatter.section(group if len(names) == len(COMMANDS) else "Commands"):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if " ".join(args[:2]) in COMMANDS:
            args = [" ".join(args[:2]), *args[2:]]
        elif args[0] not in COMMANDS and any(name.startswith(f"{args[0]} ") for name in COMMANDS):
            return args[0], _first_word(args[0]), args[1:]
        if args[0] not in (names := self.list_commands(ctx)) and (near := get_close_matches(args[0], names, n=1)):
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{near[0]}'?")
        name, command, rest = super().resolve_command(ctx, args)
        return name, (load(self.words + name) if command is not None and name is not None else command), rest


def _first_word(word: str) -> LazyGroup:
    """A group of the commands whose names begin with this word; alone it prints its help."""
    group = LazyGroup(name=word, no_args_is_help=True, rich_markup_mode=None)
    group.words = f"{word} "
    return group


def load(name: str, *, to_run: bool = True) -> Any:
    """Load a sub-command.

    Args:
        to_run: rather than for its help, for which most commands need no extra.

    Raises:
        MissingExtra: a package that it needs is not installed.
    """
    mount = COMMANDS[name]
    try:
        if to_run and mount.extra is not None and importlib.util.find_spec(mount.extra[1]) is None:
            raise ModuleNotFoundError(name=mount.extra[1])
        function: Callable[..., Any] = getattr(importlib.import_module(mount.module), mount.function)
    except ModuleNotFoundError as error:
        raise _missing(name, mount, error) from None
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=Command)(runnable(function, private=is_private(name, mount)))
    return typer.main.get_command(single)


def is_private(name: str, mount: Mount) -> bool:
    """Whether a command writes files about channels and clients, which are private, rather than media for its user."""
    return name == "serve" or mount.group in (_SERVER, _STORMS)


def _missing(name: str, mount: Mount, error: ModuleNotFoundError) -> Exception:
    package = (error.name or "").partition(".")[0]
    if package == "tricklecast":
        return error
    return MissingExtra(f"{name} {needs(package, mount.extra[0] if mount.extra else 'server')}")


def runnable(function: Callable[..., Any], *, private: bool = False) -> Callable[..., Any]:
    """A command's function as a plain function with the same parameters.

    Args:
        function: the command's.
        private: whether no file that the command makes may be read by every user of the machine. Data directories,
            access logs and reports name channels and clients.
    """
    if not private and not inspect.iscoroutinefunction(inspect.unwrap(function)):
        return function

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        mask = os.umask(OTHERS)
        os.umask(mask | OTHERS if private else mask)
        try:
            called = function(*args, **kwargs)
            return run(called) if inspect.iscoroutine(called) else called
        finally:
            os.umask(mask)

    return command


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command that is a coroutine.

    The first SIGINT, SIGTERM or SIGHUP cancels it, and one that comes later than :data:`ONE_SIGNAL_S` cancels its
    clean-up. A closing terminal sends SIGHUP; a command that was started with ``nohup`` ignores it. After the first
    signal, the process ignores them once the coroutine is over: it is about to exit with the code of the first one.

    The signals cancel in the event loop. ``asyncio.run`` would cancel between any two bytecodes, possibly in the middle
    of a change to a future.

    Raises:
        typer.Exit: a signal has interrupted it; the code is 128 plus the signal's number, as in shells.
    """
    import asyncio  # takes longer to load than `--help` takes

    caught: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if handlers[signal.SIGHUP] is signal.SIG_IGN:
        del handlers[signal.SIGHUP]

    async def interruptible() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        ignored_until = 0.0

        def stop(number: int, _frame: object) -> None:
            nonlocal ignored_until
            now = monotonic()
            if now >= ignored_until:
                caught.append(number)
                ignored_until = now + ONE_SIGNAL_S
                with suppress(RuntimeError):  # the loop is closed: the command is over
                    loop.call_soon_threadsafe(task.cancel)

        for number in handlers:
            # Not the loop's add_signal_handler: when the loop is closed, that gives the signals back to Python, and one
            # that comes then kills the process.
            signal.signal(number, stop)
        return await main

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        if not caught:
            raise
        raise typer.Exit(128 + caught[0]) from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_IGN if caught else handler)


cli = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    # Importing rich, for coloured help, would take longer than everything else.
    rich_markup_mode=None,
    help="Segmented HTTP pub/sub for live media: publish numbered segments, and read them while they are written.",
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(version_line())
        raise typer.Exit


@cli.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run the command line. A :exc:`TrickleError` is one line on standard error, and an exit code.

    The exit code is the error's own, 2 (wrong usage) for a URL that cannot be used, and otherwise 1.
    """
    try:
        if (name := wanted_help(sys.argv[1:])) is not None:
            show_help(name)
        else:
            cli()
    except (InvalidURL, InvalidChannelName) as error:
        sys.stderr.write(f"tricklecast: {error}\n")
        sys.exit(2)
    except TrickleError as error:
        refused = isinstance(error, ConnectionLost) and error.detail == os.strerror(errno.ECONNREFUSED)
        sys.stderr.write(f"tricklecast: {error}{'; start one with `tricklecast serve`' if refused else ''}\n")
        sys.exit(getattr(error, "exit_code", 1))
    except BrokenPipeError:
        # The reader of our output has gone. Without this the interpreter would flush once more at exit.
        sys.stdout = None
        sys.exit(141)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stdout = None  # as above, if it was standard output that did not fit
        sys.stderr.write(f"tricklecast: {error.strerror}\n")
        sys.exit(1)
