"""The `tricklecast` command: mounts the sub-commands of all packages, and loads each only when it is called."""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from tricklecast.trickle import __version__
from tricklecast.trickle.errors import InvalidChannelName, InvalidURL, TrickleError


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a sub-command lives.

    Attributes:
        module, function: its function, which may be a coroutine, and whose docstring is its help.
        summary: its line in the list of commands, known without loading it.
        extra: the optional dependency that it needs, and that dependency's import name.
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
    "subscribe": Mount("tricklecast.subscriber.command.cli", "subscribe", "Receive a channel into a file or a pipe."),
    "check": Mount(
        "tricklecast.subscriber.check.cli", "check", "Judge a live channel: segments, timestamps, pace, latency."
    ),
    "channels": Mount("tricklecast.subscriber.command.cli", "channels", "List a server's channels."),
    "token create": Mount("tricklecast.app.access.cli", "create", "Sign an access token.", ("tokens", "jwt")),
    "token inspect": Mount(
        "tricklecast.app.access.cli", "inspect", "Show what an access token says.", ("tokens", "jwt")
    ),
    "storms": Mount("tricklecast.analytics.command.cli", "storms", "Find retry storms in access logs."),
    "storms watch": Mount("tricklecast.analytics.watch.cli", "watch", "Tell of retry storms while they happen."),
    "logs compact": Mount("tricklecast.analytics.logs.cli", "compact", "Turn access logs into hourly Parquet."),
    "logs tail": Mount("tricklecast.analytics.logs.cli", "tail", "Show access logs, for people, as they grow."),
    "logs schema": Mount("tricklecast.analytics.logs.cli", "schema", "Print the schema of the access log."),
    "simulate": Mount(
        "tricklecast.analytics.simulate.cli", "simulate", "Write access logs with storms of known place and kind."
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
    """A group whose commands are listed from a table, and loaded when they are called.

    A command's name may have two words: ``storms watch`` is called where the second word says so, and ``storms`` where
    it says anything else.

    Attributes:
        words: what the names of its commands begin with in the table: nothing, or a first word and a space.
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
        name, command, rest = super().resolve_command(ctx, args)
        return name, (load(self.words + name) if command is not None and name is not None else command), rest


def _first_word(word: str) -> LazyGroup:
    """The commands whose names begin with this word; it does nothing by itself."""
    group = LazyGroup(name=word, no_args_is_help=True, rich_markup_mode=None)
    group.words = f"{word} "
    return group


def load(name: str) -> Any:
    """Load a sub-command.

    Raises:
        TrickleError: a package that it needs is not installed.
    """
    from tricklecast.app.running import runnable  # brings asyncio along, which takes longer than `--help`

    mount = COMMANDS[name]
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(mount.module), mount.function)
        if mount.extra is not None:
            importlib.import_module(mount.extra[1])
    except ModuleNotFoundError as error:
        raise _missing(name, mount, error) from None
    single = typer.Typer(add_completion=False)
    single.command(name)(runnable(function))
    return typer.main.get_command(single)


def _missing(name: str, mount: Mount, error: ModuleNotFoundError) -> Exception:
    package = (error.name or "").partition(".")[0]
    if mount.extra is None or package == "tricklecast":
        return error
    return TrickleError(f'{name} needs {package}: pip install "tricklecast[{mount.extra[0]}]"')


cli = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    # Plain help: importing rich takes longer than all the rest.
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
        # Whoever read our output has gone; there is nobody to tell. Keep the interpreter from trying again at exit.
        sys.stdout = None
        sys.exit(141)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stdout = None  # where a report did not fit, perhaps: as above
        sys.stderr.write(f"tricklecast: {error.strerror}\n")
        sys.exit(1)
