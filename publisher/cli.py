"""``tricklecast publish``."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from publisher.core import parse_start
from publisher.raw import Splitter, parse_by
from trickle import wire
from trickle.errors import InvalidInput
from trickle.paths import ChannelURL

T = TypeVar("T")

_DEFAULT_BY: Final = "size:1MiB"


async def publish(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The channel, as in http://localhost:2939/trickle/CHANNEL.")
    ],
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A media file, a URL that PyAV opens, or - for standard input.")
    ],
    realtime: Annotated[
        bool, typer.Option(help="Publish media at the pace at which it plays, or as fast as it can be read.")
    ] = True,
    raw: Annotated[bool, typer.Option("--raw", help="Publish plain bytes instead of media.")] = False,
    by: Annotated[
        str | None,
        typer.Option(help="How --raw is split into segments: size:1MiB, line or time:1s.", show_default=_DEFAULT_BY),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            help="The first segment: resume (where the channel is), reset (the same, and close what an earlier"
            " publisher left open), or a number."
        ),
    ] = "resume",
    content_type: Annotated[
        str | None,
        typer.Option(
            help="Media type of the segments.",
            show_default=f"{wire.MPEG_TS}; with --raw {wire.DEFAULT_CONTENT_TYPE}",
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the channel open at the end.")] = False,
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates (PEM) that an https server is checked against.", dir_okay=False)
    ] = None,
) -> None:
    """Publish media, or plain bytes, to a channel.

    Media is not re-encoded: every group of pictures becomes one MPEG-TS segment, which is readable while it is still
    being written. At the end, and on Ctrl-C, the channel is ended, unless --keep is given.
    """
    ChannelURL.parse(url)
    from publisher.job import Job

    job = Job(
        url=url,
        source=source,
        splitter=_splitter(raw, by),
        realtime=realtime,
        start=_checked(parse_start, start),
        content_type=content_type or (wire.DEFAULT_CONTENT_TYPE if raw else wire.MPEG_TS),
        keep=keep,
        verify=True if ca_file is None else _context(ca_file),
    )
    if (await job.run()).lost:
        raise typer.Exit(1)


def _splitter(raw: bool, by: str | None) -> Splitter | None:
    if raw:
        return _checked(parse_by, by or _DEFAULT_BY)
    if by is not None:
        raise typer.BadParameter("--by needs --raw: media is split at its keyframes")
    return None


def _checked(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error


def _context(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # SSLError included
        raise InvalidInput(f"cannot read certificates from {ca_file}: {error.strerror}") from error
