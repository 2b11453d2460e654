"""Which access token the commands send."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from tricklecast.trickle.bearer import Bearer, bearer_for

Token: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="TOKEN", help="Access token; everybody on this machine can see it: better is the next one."),
]
TokenFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="File with the access token, read for each request. Without, TRICKLECAST_TOKEN counts.", dir_okay=False
    ),
]
"""Options of a command."""


def chosen(token: str | None, token_file: Path | None) -> Bearer | None:
    """What adds the token to requests; ``None`` if there is none.

    Raises:
        InvalidInput: it is no token, or two were given.
    """
    return bearer_for(token, token_file, os.environ)
