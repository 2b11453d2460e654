"""`tricklecast serve`: its options are made from the settings, so that no setting lacks one."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, TextIO, get_args
from urllib.parse import urlsplit

import typer
from pydantic import ByteSize
from pydantic.fields import FieldInfo

from tricklecast.app.access.settings import is_duration
from tricklecast.app.data_plane.cors import ANY
from tricklecast.app.server_log import LogFormat, configure, writes_json
from tricklecast.app.settings import CONFIG_VARIABLE, TABLES, Loaded, Settings, load, unknown_variables
from tricklecast.app.source_settings import SourceSettings
from tricklecast.trickle.amounts import duration
from tricklecast.trickle.errors import TrickleError

_LOGGER = logging.getLogger(__name__)

ANNOUNCEMENT: Final = "tricklecast is listening on "
"""Beginning of the line that the server prints when it announced; its URL follows."""


_METAVARS: Final = {
    "trusted_proxies": "NETWORKS",
    "allowed_hosts": "NAMES",
    "cors_read_origins": "ORIGINS",
    "cors_write_origins": "ORIGINS",
    "data_dir": "FOLDER",
    "reports": "FOLDER",
    "workers": "N|auto",
    "cluster": "URLS",
    "advertise_url": "URL",
}


_GROUPS: Final = (
    (
        "Options",
        (
            "config",
            "host",
            "port",
            "unix_socket",
            "data_dir",
            "access_log",
            "workers",
            "web",
            "quiet",
            "show_config",
            "base_path",
            "autocreate",
        ),
    ),
    ("TLS", ("tls_",)),
    ("Cluster", ("cluster", "cluster_", "advertise_url")),
    ("Access control", ("jwt_", "jwks_", "revoked_file", "token_", "control_token_", "webhook_")),
    ("Limits", ("max_", "per_ip_", "window_", "metrics_channels")),
    ("Data directory", ("ack", "on_disk_full", "retain_")),
    (
        "Access log and monitoring",
        ("access_log_", "log_", "reports", "node", "health_file", "metrics_open", "changefeed"),
    ),
    ("Network", ("trusted_proxies", "allowed_hosts", "cors_", "control_")),
    ("Slow readers and storms", ("reader_", "publisher_wait_", "peer_", "storm_")),
    ("Shutdown", ("shutdown_",)),
    ("Timeouts", ("",)),
)
"""The headings of the help, and the names or prefixes of the options below each; the first one that fits counts."""


def _group(name: str) -> tuple[int, int]:
    """The place of an option in the help: the number of its heading, and its place below it."""
    for number, (_, beginnings) in enumerate(_GROUPS):
        for place, beginning in enumerate(beginnings):
            if name == beginning or (name.startswith(beginning) and (not beginning or beginning.endswith("_"))):
                return number, place
    raise AssertionError(f"no heading fits {name}")


def _option(name: str, field: FieldInfo) -> Any:
    """The command-line option of one setting; without it the value comes from the environment or the file."""
    default: Any = {None: "off", (): "none", (ANY,): ANY}.get(field.default, field.default)
    # In parentheses: typer takes brackets for markup and drops them.
    default = str(default).lower() if isinstance(default, bool) else default
    if is_duration(name) and default != "off":
        default = duration(float(default))
    elif field.annotation is ByteSize and field.default_factory is None:
        default = default.human_readable().replace(".0", "")
    text = field.description or ""
    if "(default: " not in text:  # there are defaults that depend on other settings or on the machine
        text += f" (default: {default})"
    flag = "--" + name.replace("_", "-")
    panel = _GROUPS[_group(name)[0]][0]
    if field.annotation is bool:
        return Annotated[
            bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", help=text, show_default=False, rich_help_panel=panel)
        ]
    kinds = [kind for kind in (get_args(field.annotation) or (field.annotation,)) if isinstance(kind, type)]
    metavar = {"ByteSize": "SIZE", "float": "N", "Path": "FILE", "int": "N"}.get(
        kinds[0].__name__ if kinds else type(get_args(field.annotation)[0]).__name__, "TEXT"
    )
    if kinds and issubclass(kinds[0], StrEnum):
        metavar = "|".join(kinds[0])
    metavar = "TIME" if is_duration(name) else metavar
    metavar = _METAVARS.get(name, metavar)
    return Annotated[
        str | None, typer.Option(flag, help=text, metavar=metavar, show_default=False, rich_help_panel=panel)
    ]


def serve(*, config: Path | None, show_config: bool, quiet: bool, **values: Any) -> None:
    """Run a server.

    Every option is also an environment variable (--max-channels is TRICKLECAST_MAX_CHANNELS), and a key of the TOML
    file that --config names (max_channels). The command line wins over the environment, and that over the file.

    A table [source.NAME] of the file, with url = "rtsp://...", is an input that the server publishes to the channel
    NAME itself: always, or with when = "demand" from its first reader on.

    On a terminal the server shows which publishers and readers come and leave. On Ctrl-C or SIGTERM it sends waiting
    clients away, and lets segments that are being written finish. A second signal stops it at once.

    Examples:

    \b
      tricklecast serve
      tricklecast serve --host 0.0.0.0 --port 8080 --data-dir /var/lib/tricklecast
      tricklecast serve --config tricklecast.toml --access-log access.jsonl
      tricklecast serve --workers auto
    """
    if (values.get("log_format") or os.environ.get("TRICKLECAST_LOG_FORMAT")) == LogFormat.JSON:
        configure(LogFormat.JSON)  # the settings may be wrong
    try:
        _load_and_run(config, show_config, quiet, values)
    except Exception as error:
        if not writes_json():
            raise  # the command line tells it
        if isinstance(error, TrickleError):
            _LOGGER.critical("%s", error)
        else:
            _LOGGER.critical("a fault of the server has ended it", exc_info=error)
        raise typer.Exit(getattr(error, "exit_code", 1)) from None


def _load_and_run(config: Path | None, show_config: bool, quiet: bool, values: dict[str, Any]) -> None:
    loaded = load(values, config)
    if not show_config:
        configure(loaded.settings.log_format)
    if (warning := unknown_variables(os.environ)) is None:
        pass
    elif writes_json():
        _LOGGER.warning(warning)
    else:
        typer.echo(f"tricklecast: {warning}", err=True)
    if show_config:
        typer.echo(describe(loaded))
        return
    from tricklecast.app.access_log import STDOUT
    from tricklecast.app.server import serve as run

    # Among the lines of an access log on standard output the announcement would be no JSON.
    print_address = _announce_on_stderr if loaded.settings.access_log == STDOUT else _announce_on_stdout
    is_interactive = not quiet and sys.stderr is not None and sys.stderr.isatty()
    announced: list[str] = []

    def announce(address: str) -> None:
        announced.append(address)
        _announce(print_address, loaded.settings, is_interactive, address)

    with _ending_once(announced):
        show = _show if is_interactive else None
        run(loaded.settings, announce, show=show, reread=lambda: load(values, config).settings)


@contextlib.contextmanager
def _ending_once(announced: Sequence[str]) -> Iterator[None]:
    """Ignore signals from the moment at which a server gives them back: the process is about to exit.

    A second Ctrl-C, or a reload that comes then, would kill it and change its exit code.

    Args:
        announced: addresses; none before the server has begun, when a signal does what it does to every process.
    """
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}

    def stray(number: int, frame: FrameType | None) -> None:
        del frame
        if not announced:
            signal.signal(number, former[signal.Signals(number)])
            signal.raise_signal(number)

    for number, handler in former.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(number, stray)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_IGN if announced else handler)


def _show(lines: list[str]) -> None:
    """Show on the terminal which clients have come and left."""
    if lines:
        now = time.strftime("%H:%M:%S")
        _write(sys.stderr, "".join(f"{now} {line}\n" for line in lines))


def _write(stream: TextIO | None, text: str) -> None:
    """Write to a standard stream, or drop the text.

    The server must not wait for a terminal that its user has stopped (Ctrl-S), nor for a pipe without a reader.
    """
    with contextlib.suppress(OSError):
        if stream is not None and select.select([], [stream], [], 0)[1]:
            os.write(stream.fileno(), text.encode())


def _announce(print_address: Callable[[str], None], settings: Settings, is_interactive: bool, address: str) -> None:
    """Print a listener's address, and on a terminal that of the web pages behind it."""
    print_address(address)
    url, _, is_of_control_plane = address.partition(" ")
    scheme, host = urlsplit(url)[:2]
    if is_interactive and settings.web and (settings.control_port is None or is_of_control_plane) and "+" not in scheme:
        _write(sys.stderr, f"open {scheme}://{host}/ in a browser to see and publish channels\n")


def _announce_on_stdout(address: str) -> None:
    _write(sys.stdout, f"{ANNOUNCEMENT}{address}\n")


def _announce_on_stderr(address: str) -> None:
    if writes_json():
        _LOGGER.info("%s%s", ANNOUNCEMENT, address)
        return
    _write(sys.stderr, f"{ANNOUNCEMENT}{address}\n")


def describe(loaded: Loaded) -> str:
    """Every setting as a TOML line, with the source of its value as a comment."""
    lines = []
    for name, source in loaded.sources.items():
        value = getattr(loaded.settings, name)
        if name not in TABLES:
            lines.append((_toml(name, value), source))
    # Tables stand at the end: what follows one belongs to it.
    for name, table in loaded.settings.source.items():
        lines.append((f"[source.{_quoted(name)}]", loaded.sources["source"]))
        lines += [
            (_toml(key, getattr(table, key)), loaded.sources["source"])
            for key in SourceSettings.model_fields
            if key in table.model_fields_set
        ]
    width = max(len(line) for line, _ in lines)
    return "\n".join(f"{line:<{width}}  # {source}" for line, source in lines)


def _toml(name: str, value: object) -> str:
    match value:
        case None:
            return f"# {name} is off"
        case bool():
            return f"{name} = {str(value).lower()}"
        case int() | float():
            return f"{name} = {value}"
        case dict():
            pairs = (f"{_quoted(key)} = {_quoted(item)}" for key, item in value.items())
            return f"{name} = {{ {', '.join(pairs)} }}"
        case tuple():
            return f"{name} = [{', '.join(_quoted(item) for item in value)}]"
        case _:
            return f"{name} = {_quoted(value)}"


def _quoted(value: object) -> str:
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _signature() -> inspect.Signature:
    config = Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar=CONFIG_VARIABLE,
            help=f"TOML file with settings. Default: the variable {CONFIG_VARIABLE}.",
            show_default=False,
            show_envvar=False,
        ),
    ]
    show = Annotated[bool, typer.Option("--show-config", help="Print every setting and its source, and exit.")]
    quiet = Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Do not show which publishers and readers come and leave."),
    ]
    options = {"config": (config, None), "show_config": (show, False), "quiet": (quiet, False)}
    options |= {
        name: (_option(name, field), None) for name, field in Settings.model_fields.items() if name not in TABLES
    }
    options = dict(sorted(options.items(), key=lambda item: _group(item[0])))
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, (annotation, default) in options.items()
        ]
    )


serve.__signature__ = _signature()  # type: ignore[attr-defined]
serve.__annotations__ = {name: parameter.annotation for name, parameter in _signature().parameters.items()}
