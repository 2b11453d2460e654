"""``tricklecast publish``."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from publisher.core import parse_start
from publisher.raw import Splitter, parse_by
from trickle import wire
from trickle.errors import InvalidInput
from trickle.paths import ChannelURL

T = TypeVar("T")

_DEFAULT_BY: Final = "size:1MiB"


def publish(
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
    if _run(job.run()).lost:
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


def _run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end. Ctrl-C and SIGTERM end it in order, the channel first; a second one breaks that off.

    The signal is taken by the event loop: the way of ``asyncio.run`` cancels between any two bytecodes, and can meet
    a future in the middle of a change.
    """
    caught: list[int] = []

    async def interruptible() -> T:
        task = asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            caught.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        return await main

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise typer.Exit(128 + caught[0]) from None
