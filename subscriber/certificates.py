"""Whom the commands trust with https: the system's authorities, or those of a file."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from tricklecast.trickle.errors import InvalidInput

CaFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--ca-file", help="Certificates (PEM) that an https server is checked against.", dir_okay=False),
]
"""The option of a command."""


def trusted(ca_file: Path | None) -> ssl.SSLContext | None:
    """What connections are checked against; ``None``: the system's authorities.

    Raises:
        InvalidInput: the file holds no certificates.
    """
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # SSLError included
        raise InvalidInput(f"cannot read certificates from {ca_file}: {error.strerror or error}") from None
