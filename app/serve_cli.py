"""`tricklecast serve`: its options are made from the settings, so that none can be forgotten."""

from __future__ import annotations

import inspect
import logging
import os
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo

from tricklecast.app.access.settings import AccessSettings
from tricklecast.app.environment import overlooked
from tricklecast.app.settings import Loaded, Settings, load


def _option(name: str, field: FieldInfo) -> Any:
    """The command-line option of one setting; not given means: look elsewhere."""
    default = {None: "off", (): "none"}.get(field.default, field.default)
    # Not in brackets: those would be taken for markup, and vanish from the help.
    text = f"{field.description} (default: {str(default).lower() if isinstance(default, bool) else default})"
    flag = "--" + name.replace("_", "-")
    if field.annotation is bool:
        return Annotated[bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", help=text, show_default=False)]
    kinds = [kind for kind in (get_args(field.annotation) or (field.annotation,)) if isinstance(kind, type)]
    metavar = {"ByteSize": "SIZE", "float": "SECONDS", "Path": "FILE", "int": "N"}.get(
        kinds[0].__name__ if kinds else type(get_args(field.annotation)[0]).__name__, "TEXT"
    )
    metavar = "N" if name.endswith("_per_s") else "NETWORKS" if field.default == () else metavar
    return Annotated[str | None, typer.Option(flag, help=text, metavar=metavar, show_default=False)]


def _serve(config: Path | None, show_config: bool, **values: Any) -> None:
    """Run a server.

    Every option is also an environment variable (--max-channels is TRICKLECAST_MAX_CHANNELS) and a key of the
    TOML file given by --config (max_channels). The command line wins over the environment, and that over the file.
    SIGTERM and Ctrl-C drain: waiting clients are sent away, running segments may finish; a second one stops at once.
    """
    loaded = load(values, config)
    if (warning := overlooked(os.environ)) is not None:
        typer.echo(f"tricklecast: {warning}", err=True)
    if show_config:
        typer.echo(describe(loaded))
        return
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    from tricklecast.app.access_log import STDOUT
    from tricklecast.app.announcing import announce_on_stderr, announce_on_stdout
    from tricklecast.app.server import serve as run

    run(loaded.settings, announce_on_stderr if loaded.settings.access_log == STDOUT else announce_on_stdout)


def describe(loaded: Loaded) -> str:
    """Every setting as a TOML line, with where its value came from."""
    lines = []
    for name, origin in loaded.origins.items():
        value = getattr(loaded.settings, name)
        lines.append((_toml(name, value), origin))
    width = max(len(line) for line, _ in lines)
    return "\n".join(f"{line:<{width}}  # {origin}" for line, origin in lines)


def _toml(name: str, value: object) -> str:
    match value:
        case None:
            return f"# {name} is off"
        case bool():
            return f"{name} = {str(value).lower()}"
        case int() | float():
            return f"{name} = {value}"
        case tuple():
            return f"{name} = [{', '.join(_quoted(item) for item in value)}]"
        case _:
            return f"{name} = {_quoted(value)}"


def _quoted(value: object) -> str:
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _signature() -> inspect.Signature:
    config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings.", show_default=False)]
    show = Annotated[bool, typer.Option("--show-config", help="Print every setting and where it came from, and stop.")]
    options = {"config": (config, None), "show_config": (show, False)}
    # Who may do what comes last, as in the documentation: what is inherited would come first.
    fields = sorted(Settings.model_fields.items(), key=lambda item: item[0] in AccessSettings.model_fields)
    options |= {name: (_option(name, field), None) for name, field in fields}
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, (annotation, default) in options.items()
        ]
    )


def serve(**values: Any) -> None:
    _serve(**values)


serve.__doc__ = _serve.__doc__
serve.__signature__ = _signature()  # type: ignore[attr-defined]
serve.__annotations__ = {name: parameter.annotation for name, parameter in _signature().parameters.items()}
