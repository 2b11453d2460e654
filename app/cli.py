"""The `tricklecast` command: mounts the sub-commands of all packages, and loads each only when it is called."""

from __future__ import annotations

import errno
import functools
import importlib
import inspect
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from tricklecast.trickle import __version__
from tricklecast.trickle.errors import InvalidChannelName, InvalidURL, TrickleError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Mount:
    """A sub-command that is not loaded yet.

    Attributes:
        module, function: the command's function; it may be a coroutine function, and its docstring is the help.
        summary: the command's line in the list of commands.
        extra: the optional dependency that the command needs, and that dependency's import name.
    """

    module: str
    function: str
    summary: str
    extra: tuple[str, str] | None = None


COMMANDS: Final = {
    "serve": Mount("tricklecast.app.serve_cli", "serve", "Run a server."),
    "health": Mount("tricklecast.app.health", "health", "Ask the server on this machine whether it lives."),
    "publish": Mount(
        "tricklecast.publisher.cli", "publish", "Publish a media file, a stream or plain bytes to a channel."
    ),
    "ingest": Mount("tricklecast.publisher.ingest.cli", "ingest", "Publish the streams of encoders (RTMP, SRT)."),
    "subscribe": Mount("tricklecast.subscriber.command.cli", "subscribe", "Receive a channel into a file or a pipe."),
    "check": Mount(
        "tricklecast.subscriber.check.cli", "check", "Judge a live channel: segments, timestamps, pace, latency."
    ),
    "channels": Mount("tricklecast.subscriber.command.cli", "channels", "List a server's channels."),
    "store check": Mount("tricklecast.app.storage.cli", "check", "Compare a data directory with its checksums."),
    "store ls": Mount("tricklecast.app.storage.cli", "ls", "List what a data directory holds."),
    "store export": Mount("tricklecast.app.storage.cli", "export", "Write segments of a data directory to files."),
    "store prune": Mount("tricklecast.app.storage.cli", "prune", "Remove the oldest segments of a data directory."),
    "token create": Mount("tricklecast.app.access.cli", "create", "Sign an access token.", ("tokens", "jwt")),
    "token inspect": Mount(
        "tricklecast.app.access.cli", "inspect", "Show what an access token says.", ("tokens", "jwt")
    ),
    "storms": Mount("tricklecast.analytics.cli.storms", "storms", "Find retry storms in access logs."),
    "storms watch": Mount("tricklecast.analytics.watch.cli", "watch", "Tell of retry storms while they happen."),
    "logs compact": Mount("tricklecast.analytics.logs.cli", "compact", "Turn access logs into hourly Parquet."),
    "logs tail": Mount("tricklecast.analytics.logs.cli", "tail", "Show access logs, for people, as they grow."),
    "logs schema": Mount("tricklecast.analytics.logs.cli", "schema", "Print the schema of the access log."),
    "simulate": Mount(
        "tricklecast.analytics.simulate.cli",
        "simulate",
        "Write access logs with storms of known place and kind.",
        ("analytics", "msgspec"),
    ),
    "stress": Mount(
        "tricklecast.app.tools.stress.cli", "stress", "Publish and subscribe at once, and compare every byte."
    ),
    "conformance": Mount(
        "tricklecast.app.tools.conformance.cli", "conformance", "Check a server against the wire protocol."
    ),
    "demo": Mount("tricklecast.app.tools.demo", "demo", "Show all of it at work, in about a minute.", ("all", "av")),
}


class LazyGroup(TyperGroup):
    """A group that lists its commands from :data:`COMMANDS`, and loads one when it is called.

    A command's name may have two words: with the second word ``watch``, ``storms`` is the command ``storms watch``;
    with any other, or none, it is the command ``storms``.

    Attributes:
        words: prefix of its commands' names in the table: empty, or a first word and a space.
    """

    words = ""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name.removeprefix(self.words) for name in COMMANDS if name.startswith(self.words)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        mount = COMMANDS.get(self.words + cmd_name)
        return None if mount is None else TyperCommand(cmd_name, help=mount.summary)

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


def load(name: str) -> Any:
    """Load a sub-command.

    Raises:
        TrickleError: a package that it needs is not installed.
    """
    mount = COMMANDS[name]
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(mount.module), mount.function)
        if mount.extra is not None:
            importlib.import_module(mount.extra[1])
    except ModuleNotFoundError as error:
        raise _missing(name, mount, error) from None
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name)(runnable(function))
    return typer.main.get_command(single)


def _missing(name: str, mount: Mount, error: ModuleNotFoundError) -> Exception:
    package = (error.name or "").partition(".")[0]
    if mount.extra is None or package == "tricklecast":
        return error
    return TrickleError(f'{name} needs {package}: pip install "tricklecast[{mount.extra[0]}]"')


def runnable(function: Callable[..., Any]) -> Callable[..., Any]:
    """A coroutine function as a plain function with the same parameters; a plain function as it is."""
    if not inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        return run(function(*args, **kwargs))

    return command


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command that is a coroutine.

    The first SIGINT, SIGTERM or SIGHUP cancels it, and a second one cancels its clean-up. A closing terminal sends
    SIGHUP; a command that was started with ``nohup`` ignores it.

    The event loop takes the signals. ``asyncio.run`` would cancel between any two bytecodes, possibly in the middle of
    a change to a future.

    Raises:
        typer.Exit: a signal has interrupted it; the code is 128 plus the signal's number, as in shells.
    """
    import asyncio  # takes longer to load than `--help` takes

    caught: list[int] = []

    async def interruptible() -> T:
        task = asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            caught.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, stop, number)
        return await main

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        if not caught:
            raise
        raise typer.Exit(128 + caught[0]) from None


cli = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    # Importing rich, for coloured help, would take longer than all the rest.
    rich_markup_mode=None,
    help="Segmented HTTP pub/sub for live media: publish numbered segments, and read them while they are written.",
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"tricklecast {__version__}")
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
        cli()
    except (InvalidURL, InvalidChannelName) as error:
        sys.stderr.write(f"tricklecast: {error}\n")
        sys.exit(2)
    except TrickleError as error:
        sys.stderr.write(f"tricklecast: {error}\n")
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
