"""``tricklecast storms watch``: its options."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from dataclasses import fields, replace
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from tricklecast.analytics.errors import AnalyticsError
from tricklecast.analytics.rules.params import Params
from tricklecast.trickle.wire import redacted


class Beginning(StrEnum):
    """Where a first run begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


class FailOn(StrEnum):
    """The severity from which a storm is a failure."""

    MINOR = "minor"
    WARN = "warn"
    CRITICAL = "critical"
    NEVER = "never"


def watch(
    logs: Annotated[
        list[str], typer.Argument(metavar="LOG...", help="Files that grow, folders of them, or - (stdin).")
    ],
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep here what must survive a restart.", file_okay=False)
    ] = None,
    beginning: Annotated[
        Beginning, typer.Option("--from", help="Where a first run begins; a later one goes on.")
    ] = Beginning.LATEST,
    json: Annotated[bool, typer.Option("--json", help="Print alerts as JSON, one per line.")] = False,
    webhook: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="POST alerts there, as JSON; may be given again.")
    ] = None,
    alertmanager: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Send alerts to this Alertmanager; may be given again.")
    ] = None,
    fail_on: Annotated[
        FailOn, typer.Option(help="Exit with 1 if there was a storm from this severity on.")
    ] = FailOn.NEVER,
    for_time: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End after so long, such as 10m.")
    ] = None,
    log_format: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", help="auto, tricklecast, nginx, envoy, caddy, or a field map (TOML)."
        ),
    ] = "auto",
    client_key: Annotated[
        str | None, typer.Option(metavar="FIELDS", help="Whom a line is from, such as client,ip+ua.")
    ] = None,
    path_prefix: Annotated[
        str | None, typer.Option(metavar="PATH", help="What the paths of the channels begin with.")
    ] = None,
    params: Annotated[
        str | None, typer.Option(metavar="FILE", help="Thresholds, as a TOML file of names and numbers.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One threshold; may be given again.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Nothing but alerts and errors.")] = False,
) -> None:
    """Tell of retry storms while they happen: within a second of the tenth request, from logs that still grow.

    Ctrl-C or SIGTERM end it. With --state, the next run goes on where this one ended, and tells nothing twice.

    Exit codes: 0 ended as asked, 1 storms from --fail-on upwards, 2 usage, or the state is in use, 3 bad input (no such
    log, one of which nothing is understood, or a state that is another watch's).
    """
    # They bring DuckDB along, which takes longer than a usage error.
    from tricklecast.analytics.cli.times import parse_duration
    from tricklecast.analytics.lines import BadFormat, Reading
    from tricklecast.analytics.rules.incidents import Severity
    from tricklecast.analytics.watch.run import WatchRequest, run

    try:
        reading = Reading(log_format, client_key, path_prefix)
        reading.check()
        request = WatchRequest(
            logs=tuple(logs),
            reading=reading,
            params=load_params(params, settings or ()),
            earliest=beginning is Beginning.EARLIEST,
            state=state,
            json=json,
            webhooks=tuple(map(_url, webhook or ())),
            alertmanagers=tuple(map(_url, alertmanager or ())),
            for_s=None if for_time is None else parse_duration(for_time) / 1e6,
            quiet=quiet,
        )
    except (ValueError, BadFormat) as error:
        raise typer.BadParameter(str(error)) from None
    try:
        found = run(request)
    except AnalyticsError as error:
        print(f"tricklecast: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    severities = list(Severity)
    if fail_on is not FailOn.NEVER and any(
        severities.index(worst) >= severities.index(Severity(fail_on.value)) for worst in found.began.values()
    ):
        raise typer.Exit(1)


def load_params(file: str | None, settings: Iterable[str]) -> Params:
    """The thresholds of a run.

    Args:
        file: a TOML file with a ``[storms]`` table, or with the names at its top level.
        settings: ``NAME=VALUE`` each; they override the file.

    Raises:
        ValueError: with the file's name or the setting, and what is wrong.
    """
    changes: dict[str, Any] = {}
    if file is not None:
        try:
            document = tomllib.loads(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"cannot read {file!r}: {getattr(error, 'strerror', None) or error}") from None
        changes |= document.get("storms", document)
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"{setting!r} is not NAME=VALUE")
        changes[name.strip()] = float(value) if _is_number(value) else value
    known = {field.name: getattr(Params(), field.name) for field in fields(Params)}
    for name, value in changes.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise ValueError(f"there is no threshold {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        whole = isinstance(known[name], int)
        if isinstance(value, bool) or not isinstance(value, int | float) or (whole and value != int(value)):
            raise ValueError(f"{name} is a {'whole ' if whole else ''}number, not {value!r}")
        if not 0 < value <= (1.0 if name.endswith("share") or name == "early" else 1e9):
            raise ValueError(f"{name} = {value}: out of range")
        changes[name] = int(value) if whole else float(value)
    return replace(Params(), **changes)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"{redacted(url)!r} is no http:// or https:// URL")
    return url
