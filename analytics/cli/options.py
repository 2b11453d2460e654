"""Options that commands share."""

from __future__ import annotations

from typing import Annotated

import typer

LogFormat = Annotated[
    str,
    typer.Option(
        "--format", metavar="NAME|FILE", help="auto, tricklecast, nginx, envoy, caddy, traefik, or a field map."
    ),
]
ClientKey = Annotated[
    str | None,
    typer.Option(metavar="FIELD[+FIELD]", help="The fields that tell clients apart in proxies' logs: ip+ua, ip."),
]
PathPrefix = Annotated[str | None, typer.Option(metavar="PATH", help="The path before /CHANNEL/SEQ in proxies' logs.")]
ParamsFile = Annotated[
    str | None, typer.Option("--params", metavar="FILE", help="Thresholds, as a TOML file of names and numbers.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One threshold; may be given again.")
]
