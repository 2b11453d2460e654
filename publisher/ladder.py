"""One run of ``tricklecast publish --ladder``: one for each rung, all at once; their segments have equal numbers."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

import anyio

from tricklecast.publisher.feed import Totals
from tricklecast.publisher.run import run
from tricklecast.publisher.steps import Source
from tricklecast.trickle.client.arguments import channel_urls
from tricklecast.trickle.client.channel import Channel
from tricklecast.trickle.client.tasks import first_error
from tricklecast.trickle.errors import ChannelNotFound
from tricklecast.trickle.media.ladder import Rung, channel_of
from tricklecast.trickle.paths import UNIX
from tricklecast.trickle.terminal import Lines, Screen
from tricklecast.trickle.wire import LADDER_PARAMETER, PLAYLIST_ROUTE, redacted_urls

BETWEEN: Final = ","


async def run_ladder(
    url: str,
    sources: Sequence[Source],
    ladder: tuple[Rung, ...],
    *,
    start: int | Literal["resume"],
    screen: Screen | None = None,
    auth: Any = None,
    verify: ssl.SSLContext | bool = True,
    **options: Any,
) -> Totals:
    """Publish all rungs until their input ends.

    Args:
        url: of the highest rung's channel, and so of the ladder; several with commas between for a cluster.
        sources: of the rungs, in the order of the ladder.
        start: the first segment; ``"resume"``: where the one that is furthest has its head.
        options: as of :func:`~tricklecast.publisher.run.run`.

    Raises:
        TrickleError: the first one of any rung; all of them have stopped.
    """
    screen = screen or Screen()
    urls = [_url_of(url, rung, ladder) for rung in ladder]
    first = max([await _head(one, auth, verify) for one in urls]) if start == "resume" else start
    at = replace(channel_urls(url)[0], query="")
    if not at.root.startswith(UNIX):  # no player comes by a socket
        names = BETWEEN.join(rung.name for rung in ladder)
        playlist = f"{redacted_urls(str(at))}/{PLAYLIST_ROUTE}?{LADDER_PARAMETER}={names}"
        screen.say(f"players of HLS choose among its sizes at {playlist}")
    done: list[Totals] = []

    async def one(rung: int, where: str, source: Source) -> None:
        # The live line is the highest rung's.
        beside = Lines(lambda text: screen.say(f"{ladder[rung].name}: {text}")) if rung else screen
        done.append(await run(where, source, start=first, screen=beside, auth=auth, verify=verify, **options))

    try:
        async with anyio.create_task_group() as group:
            for rung, (where, source) in enumerate(zip(urls, sources, strict=True)):
                group.start_soon(partial(one, rung, where, source))
    except BaseExceptionGroup as error:
        raise first_error(error) from None
    return Totals(
        segments=sum(totals.segments for totals in done),
        bytes=sum(totals.bytes for totals in done),
        lost=sum(totals.lost for totals in done),
        dropped=sum(totals.dropped for totals in done),
    )


def _url_of(url: str, rung: Rung, ladder: tuple[Rung, ...]) -> str:
    """The URL of a rung's channel, at each node."""
    return BETWEEN.join(str(replace(one, channel=channel_of(one.channel, rung, ladder))) for one in channel_urls(url))


async def _head(url: str, auth: Any, verify: ssl.SSLContext | bool) -> int:
    """The number with which a channel goes on; 0 if it begins anew."""
    try:
        head = await Channel(url, auth=auth, verify=verify).head()
    except ChannelNotFound:
        return 0
    return 0 if head.ended else head.next_seq
