"""Options that commands share."""

from __future__ import annotations

from typing import Annotated, Final

import typer

FORMAT: Final = "Log format"
THRESHOLDS: Final = "Thresholds"

LogFormat = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="NAME|FILE",
        help="Format of the logs: auto, nginx, apache, envoy, caddy, traefik, haproxy, alb, w3c …; a field map's file.",
        rich_help_panel=FORMAT,
    ),
]
ClientKey = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD[+FIELD]",
        help="In proxies' logs: the fields that identify a client, such as ip or ip+ua.",
        rich_help_panel=FORMAT,
    ),
]
PathPrefix = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="In proxies' logs: the path before /CHANNEL/SEQ.", rich_help_panel=FORMAT),
]
ParamsFile = Annotated[
    str | None,
    typer.Option(
        "--params", metavar="FILE", help="TOML file of thresholds (slow_hits = 50).", rich_help_panel=THRESHOLDS
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set one threshold. May be repeated.",
        rich_help_panel=THRESHOLDS,
    ),
]
