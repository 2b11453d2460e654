"""WHEP, the HTTP by which viewers come and go (draft-ietf-wish-whep): a viewer posts an offer, and gets the answer.

=======================  =====================================================================================
``POST /whep/CHANNEL``   an SDP offer. 201 with the answer, and the viewer's own URL in ``Location``
``DELETE`` on that URL   the viewer leaves; 200 however often
``PATCH`` on that URL    405: all candidates stand in the answer, and there is no restart of ICE
``OPTIONS``              a browser's question before it posts from another site (CORS)
=======================  =====================================================================================

A refusal is one line of text. :class:`Gateway` has the channels and viewers, :func:`make_app` is the HTTP around it,
and :func:`serve` runs both.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tricklecast.subscriber.gateway.channel import Channel, NoMedia
from tricklecast.subscriber.gateway.pictures import CannotPass
from tricklecast.subscriber.gateway.viewer import BadOffer, NothingInCommon, Viewer
from tricklecast.trickle.errors import ChannelEnded, ChannelNotFound, InvalidChannelName, TrickleError
from tricklecast.trickle.paths import ChannelURL, parse_channel
from tricklecast.trickle.terminal import Credentials

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MAX_OFFER: Final = 64 * 1024
"""Bytes of an offer; a browser's has 5,000."""

CONNECT_S: Final = 20.0
"""A viewer that is not connected this long after its answer has gone, in seconds."""

CHECK_S: Final = 5.0
"""The gateway checks its viewers every so often, in seconds."""

REPORT_S: Final = 60.0
"""How often the log tells of each viewer, in seconds."""

MAX_LOST: Final = 0.25
LOSING: Final = 3
"""The gateway lets a viewer go that loses more than that share of its packets in this many checks in a row: it sees no
picture."""

_SDP: Final = "application/sdp"
_CORS: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization",
    "Access-Control-Expose-Headers": "Location",
    "Access-Control-Max-Age": "86400",
}


class Full(TrickleError):
    """There is no room for another viewer."""


_STATUS: Final[tuple[tuple[type[TrickleError], int], ...]] = (
    (BadOffer, 400),
    (InvalidChannelName, 400),
    (ChannelNotFound, 404),
    (ChannelEnded, 404),
    (CannotPass, 406),
    (NothingInCommon, 406),
    (Full, 503),
    (NoMedia, 504),
)
"""The HTTP status of each failure; all others are those of the server behind the gateway: 502."""


class Gateway:
    """Gives channels to viewers.

    Args:
        servers: the channels' server, at each node of a cluster.
        say: gets a line, for people, when a viewer comes or goes.
        max_viewers: viewers at a time, of all channels.
        stun: the address of a STUN server, by which the gateway learns its public address; ``None``: it has none.
        reconnect_s: how long a server that was there may be away; ``None``: for ever.
    """

    def __init__(
        self,
        servers: tuple[ChannelURL, ...],
        credentials: Credentials,
        say: Callable[[str], None],
        *,
        max_viewers: int,
        stun: str | None,
        reconnect_s: float | None,
    ) -> None:
        self._servers = servers
        self._credentials = credentials
        self._say = say
        self._max_viewers = max_viewers
        self._stun = stun
        self._reconnect_s = reconnect_s
        self._channels: dict[str, Channel] = {}
        self._viewers: dict[str, Viewer] = {}  # by key
        self._joining: list[str] = []  # the channels of the offers that are being answered
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def join(self, channel: str, offer: str, address: str) -> tuple[str, str]:
        """Take a viewer; returns its key and the answer.

        Raises:
            TrickleError: see :data:`_STATUS`.
        """
        if len(self._viewers) + len(self._joining) >= self._max_viewers:
            raise Full(f"the gateway has {self._max_viewers} viewers, and takes no more")
        self._joining.append(channel)
        try:
            source = self._channels.get(channel) or self._open(channel)
            kinds = await source.kinds()
            self._count += 1
            name = f"{channel}: viewer {self._count} ({address})"
            viewer = Viewer(secrets.token_urlsafe(16), name, partial(self._left, channel), self._stun)
            try:
                answer = await viewer.answer(offer, kinds)
            except BaseException:
                await viewer.close()
                raise
            if self._channels.get(channel) is not source:
                await viewer.close()
                raise NoMedia("the channel has ended")
            source.viewers.add(viewer)
            self._viewers[viewer.key] = viewer
            self._say(f"{name} has come")
            return viewer.key, answer
        finally:
            self._joining.remove(channel)
            self._close_unused(channel)

    def leave(self, key: str) -> None:
        """A viewer has said that it goes. One that is not there, or no longer, is none of its errors."""
        if (viewer := self._viewers.get(key)) is not None:
            viewer.leave("it has left")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look after viewers until the block ends, and close everything then."""
        looking = asyncio.create_task(self._look_after())
        try:
            yield
        finally:
            looking.cancel()
            for viewer in list(self._viewers.values()):
                viewer.leave("the gateway ends")
            for channel in list(self._channels):
                self._close_unused(channel)
            await asyncio.gather(looking, *self._tasks, return_exceptions=True)

    def _open(self, name: str) -> Channel:
        def over(channel: Channel, reason: str) -> None:
            if self._channels.get(name) is channel:
                del self._channels[name]
            for viewer in list(channel.viewers):
                viewer.leave(reason)

        urls = [str(replace(server, channel=name)) for server in self._servers]
        channel = Channel(urls, self._credentials, self._reconnect_s, over, lambda line: self._say(f"{name}: {line}"))
        self._channels[name] = channel
        return channel

    def _close_unused(self, name: str) -> None:
        channel = self._channels.get(name)
        if channel is not None and not channel.viewers and name not in self._joining:
            del self._channels[name]
            self._start(channel.close())

    def _left(self, name: str, viewer: Viewer, reason: str) -> None:
        self._viewers.pop(viewer.key, None)
        if (channel := self._channels.get(name)) is not None:
            channel.viewers.discard(viewer)
            self._close_unused(name)
        self._start(self._say_good_bye(viewer, reason))

    async def _say_good_bye(self, viewer: Viewer, reason: str) -> None:
        seconds = asyncio.get_running_loop().time() - viewer.since
        self._say(f"{viewer.name} is gone after {seconds:.1f} s: {reason}; {await viewer.quality()}")
        await viewer.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        report_at = loop.time() + REPORT_S
        while True:
            await asyncio.sleep(CHECK_S)
            now = loop.time()
            for viewer in list(self._viewers.values()):
                await self._look_at(viewer, now, report=now >= report_at)
            report_at = now + REPORT_S if now >= report_at else report_at

    async def _look_at(self, viewer: Viewer, now: float, *, report: bool) -> None:
        if not viewer.is_connected:
            if now - viewer.since > CONNECT_S:
                viewer.leave(f"it was not connected for {CONNECT_S:.0f} s: UDP does not reach it")
            return
        quality = await viewer.quality()
        viewer.losing = viewer.losing + 1 if quality.lost > MAX_LOST else 0
        if viewer.losing >= LOSING:
            viewer.leave("it lags: its connection is too slow for the channel")
        elif report:
            self._say(f"{viewer.name}: {quality}")


def make_app(gateway: Gateway) -> Starlette:
    """The HTTP of a gateway."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    def refused(status: int, line: str, **headers: str) -> Response:
        return PlainTextResponse(f"{line}\n", status, headers={**_CORS, **headers})

    async def post(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _SDP:
            return refused(415, f"post an offer as {_SDP}", **{"Accept-Post": _SDP})
        offer = bytearray()
        async for chunk in request.stream():
            offer += chunk
            if len(offer) > MAX_OFFER:
                return refused(413, f"an offer has at most {MAX_OFFER} bytes")
        address = request.client.host if request.client else "-"
        try:
            channel = parse_channel(request.path_params["channel"].replace("%", "%25"))
            key, answer = await gateway.join(channel, offer.decode(errors="replace"), address)
        except TrickleError as error:
            status = next((status for kind, status in _STATUS if isinstance(error, kind)), 502)
            return refused(status, str(error), **({"Retry-After": "5"} if status == 503 else {}))
        location = f"{request.url.path.rstrip('/')}/{key}"
        return Response(answer, 201, {**_CORS, "Location": location, "Content-Type": _SDP})

    async def channel(request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={**_CORS, "Accept-Post": _SDP})
        if request.method == "POST":
            return await post(request)
        return refused(405, "post an offer here", Allow="POST, OPTIONS")

    async def viewer(request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=_CORS)
        if request.method == "DELETE":
            gateway.leave(request.path_params["key"])
            return Response(status_code=200, headers=_CORS)
        return refused(405, "candidates are all in the answer; delete this to leave", Allow="DELETE, OPTIONS")

    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    return Starlette(
        routes=[
            Route("/whep/{channel}", channel, methods=methods),
            Route("/whep/{channel}/{key}", viewer, methods=methods),
        ]
    )


async def serve(gateway: Gateway, listener: socket.socket) -> None:
    """Answer viewers until cancelled, which ends their connections."""
    import uvicorn

    class Server(uvicorn.Server):
        """uvicorn without signal handlers: the command line has them."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        make_app(gateway), log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
    )
    server = Server(config)
    async with gateway.running():
        serving = asyncio.create_task(server.serve([listener]))
        try:
            await asyncio.shield(serving)
        finally:
            server.should_exit = True
            await serving
