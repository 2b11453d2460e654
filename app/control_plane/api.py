"""The control plane's routes: list, describe, create and end channels; health checks."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import reduce
from itertools import islice
from typing import Annotated, Final, NamedTuple, Protocol
from zlib import crc32

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Route

from tricklecast.app.clock import to_us
from tricklecast.app.control_plane.middleware import RECORD, MayManage, Visible, everything
from tricklecast.app.control_plane.models import (
    ChannelModel,
    ChannelsModel,
    NewChannelModel,
    ProblemModel,
    SegmentModel,
    SegmentsModel,
    channel_model,
    segment_model,
)
from tricklecast.app.core.results import Cause, Refusal
from tricklecast.app.core.state import Channel, SegmentSummary, summarize
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.responses import OVERLOAD_RETRY_S, memory_reply
from tricklecast.app.data_plane.upload import store_half_chunks
from tricklecast.app.encoding import encode
from tricklecast.trickle import wire
from tricklecast.trickle.amounts import parse_duration
from tricklecast.trickle.errors import InvalidChannelName, InvalidInput
from tricklecast.trickle.paths import is_reserved, parse_channel
from tricklecast.trickle.records import AccessRecord, Reason
from tricklecast.trickle.wire import LAST_SEQ

CHEAP_S: Final = 0.005
"""A page that takes at most 5 ms of CPU time is made anew for every request. Metrics take 2 ms, a list of 300 channels
5 ms."""

REST: Final = 10
"""A page that takes longer, for example 20 ms, is sent again for ten times as long (200 ms), so that a client that
requests it in a loop takes at most a tenth of the event loop's time."""

MAX_SEGMENTS: Final = 1000
"""Segments that one response lists; that takes a few milliseconds."""

STATUS_OF_REFUSAL = {
    Cause.NOT_FOUND: 404,
    Cause.ENDED: 404,
    Cause.NO_SEGMENT: 404,
    Cause.RESERVED: 403,
    Cause.LIMIT: 503,
    Cause.STORAGE: 503,
    Cause.REPLICA: 503,
    Cause.MIRROR: 503,
    Cause.SHUTDOWN: 503,
}

CHECKED_BYTES: Final = 8 << 20
"""Bytes of segments that one answer reads for their checksums: less than 10 ms."""

ChannelName = Annotated[str, Path(description="The channel's name.")]


class Page(NamedTuple):
    """A text that takes long to make where there are many channels.

    Attributes:
        cost_s: the CPU time that it took. age_s: the time since it was made.
        problem: the reason why the text is not whole.
        missing: nodes of the cluster that have not answered. The text is good all the same, without their part.
    """

    text: bytes
    cost_s: float = 0.0
    age_s: float = 0.0
    problem: str = ""
    missing: tuple[str, ...] = ()


class RateLimitedPage:
    """A page that is made on request, but not so often that the event loop starves.

    An expensive one is sent again for a while. All requests that come while a page is made wait for the next one, which
    has what their clients did before they asked.

    Args:
        make: makes it. clock: seconds.
    """

    def __init__(self, make: Callable[[], Awaitable[Page]], clock: Callable[[], float] = time.monotonic) -> None:
        self._make, self._clock = make, clock
        self._making = asyncio.Lock()
        self._page = Page(b"")  # the last one
        self._begun_at = self._made_at = -math.inf  # when it was begun, and made
        self._until = -math.inf  # it is sent again until then

    async def get(self) -> Page:
        """The page, made anew unless the last one was expensive and is recent."""
        came = self._clock()
        async with self._making:
            begun = self._clock()
            if begun >= self._until and self._begun_at < came:
                page = await self._make()
                now = self._clock()
                self._page, self._begun_at, self._made_at = page, begun, now - page.age_s
                self._until = now + REST * page.cost_s if page.cost_s > CHEAP_S and not page.problem else now
        return self._page._replace(age_s=self._clock() - self._made_at)


def measured(make: Callable[[], bytes], cpu: Callable[[], float] = time.thread_time) -> Callable[[], Awaitable[Page]]:
    """Make a page of the text that a function returns.

    Args:
        cpu: CPU seconds of this thread.
    """

    async def measure() -> Page:
        begun = cpu()
        text = make()
        return Page(text, cpu() - begun)

    return measure


Troubles = tuple[list[str], bool]
"""The parts of the running server that do not work at present, by name, and whether it is shutting down."""


def health_router(troubles: Callable[[], Awaitable[Troubles]]) -> APIRouter:
    """The routes ``/healthz`` and ``/readyz``."""
    router = APIRouter(tags=["health"])

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", summary="Is the process alive?")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz", summary="Does it take new work?", responses={503: {"description": "Shutting down"}})
    async def readyz(response: Response) -> dict[str, str | list[str]]:
        reasons, draining = await troubles()
        if draining:
            response.status_code = 503
            return {"status": "draining"}
        if reasons:
            # Not 503: readers are served, and another server would not have these channels.
            return {"status": "degraded", "reasons": reasons}
        return {"status": "ready"}

    return router


def method_not_allowed(routers: Iterable[APIRouter]) -> Callable[[Request, Exception], Awaitable[Response]]:
    """A handler that answers 405 with all methods of the path: Starlette names those of one route of several.

    Args:
        routers: all of the application's.
    """
    routes = [route for router in routers for route in router.routes if isinstance(route, Route)]

    async def handler(request: Request, error: Exception) -> Response:
        assert isinstance(error, StarletteHTTPException)
        path = request.scope["path"]
        allow = {method for route in routes if route.path_regex.match(path) for method in route.methods or ()}
        error.headers = {"Allow": ", ".join(sorted(allow))}
        return await http_exception_handler(request, error)

    return handler


async def invalid_input(request: Request, error: Exception) -> Response:
    """Answer 422 and name the problem. The input itself is left out, since JSON may be unable to hold it."""
    del request
    assert isinstance(error, RequestValidationError)
    detail = [{key: problem[key] for key in ("type", "loc", "msg")} for problem in error.errors()]
    return Response(json.dumps({"detail": detail}), 422, media_type="application/json")


def out_of_memory(plane: DataPlane) -> Callable[[Request, Exception], Awaitable[Response]]:
    """A handler that answers 503 where the process could not get memory, and counts it."""

    async def handler(request: Request, error: Exception) -> Response:
        plane.fault("in a request of the control plane", error)
        reply = memory_reply(plane.jitter)
        request.scope[RECORD].reason = reply.reason
        return PlainTextResponse(reply.body, reply.status, {"Retry-After": str(reply.retry_after_s)})

    return handler


class Created(NamedTuple):
    """The answer to a request for a new channel.

    Attributes:
        text: JSON: the channel (:class:`ChannelModel`), or the problem.
        reason: of a refusal, for the access record; ``""``: the one that the status has.
    """

    status: int
    headers: dict[str, str]
    text: str
    reason: str = ""


class Overview(Protocol):
    """A server as a whole, in however many processes it runs: its channels, its metrics, its troubles."""

    async def channels(self, visible: MayManage) -> Page:
        """The channels that a caller may see, as :class:`ChannelsModel`; all of them may be a few seconds old."""

    async def create(self, name: str, content_type: str) -> Created:
        """Make a channel, unless it is there."""

    async def metrics(self) -> Page:
        """In Prometheus' text format."""

    async def troubles(self) -> Troubles:
        """The parts that do not work at present."""


class OwnOverview:
    """The :class:`Overview` of this process.

    Args:
        plane: its registry has the channels.
        metrics: makes their text in Prometheus' format. troubles: finds the parts that do not work.
    """

    def __init__(self, plane: DataPlane, metrics: Callable[[], bytes], troubles: Callable[[], list[str]]) -> None:
        self._plane, self._registry, self._to_wall = plane, plane.registry, _wall
        self._node = plane.node or ""
        self._channels = RateLimitedPage(measured(lambda: self._listed(everything)))
        self._metrics = RateLimitedPage(measured(metrics))
        self._troubles = troubles

    async def metrics(self) -> Page:
        """In Prometheus' text format."""
        return await self._metrics.get()

    async def troubles(self) -> Troubles:
        """The parts that do not work at present."""
        return self._troubles(), self._registry.shutting_down

    async def channels(self, visible: MayManage) -> Page:
        """The channels that a caller may see; all of them may be a few seconds old."""
        return await self._channels.get() if visible is everything else Page(self._listed(visible))

    def _listed(self, visible: MayManage) -> bytes:
        channels = self._registry.channels
        own = {name: channel for name, channel in channels.items() if channel.belongs}
        shown = [channel.statistics() for name, channel in own.items() if visible(name)]
        # A total over all channels would tell the caller about channels that it may not see.
        is_all = len(shown) == len(own)
        model = ChannelsModel(
            channels=[channel_model(channel, self._to_wall, self._node) for channel in shown],
            readers=sum(channel.readers for channel in shown),
            bytes_held=self._registry.budget.used if is_all else sum(channel.bytes for channel in shown),
        )
        return model.model_dump_json().encode()

    async def create(self, name: str, content_type: str) -> Created:
        """Make a channel, unless it is there."""
        existed = self._registry.live(name) is not None
        channel = self._registry.create(name, content_type, self._plane.clock(), force=not is_reserved(name))
        reason = ""
        try:
            if isinstance(channel, Refusal):
                refused, reason = _refused(channel, self._plane.jitter)
                raise refused
            await _stored(self._plane)
        except HTTPException as error:
            text = encode({"detail": error.detail}).decode()
            return Created(error.status_code, dict(error.headers or {}), text, reason)
        text = channel_model(channel.statistics(), self._to_wall, self._node).model_dump_json()
        return Created(200 if existed else 201, {}, text)


def _wall(at: float) -> float:
    """The registry's time as seconds since 1970: of one moment always the same."""
    return to_us(at) / 1e6


def channels_router(plane: DataPlane, overview: Overview) -> APIRouter:
    """The routes below ``/api/v1/channels``.

    Args:
        plane: of this process, which owns every channel for whose route a request comes.
        overview: of the server.
    """
    router = APIRouter(prefix="/api/v1/channels", tags=["channels"])
    registry = plane.registry
    to_wall, node = _wall, plane.node or ""

    def found(name: str, visible: MayManage) -> Channel:
        channel = registry.channels.get(checked(name, visible))
        if channel is None:
            raise HTTPException(404, "no such channel")
        return channel

    @router.get("", summary="List all channels", response_model=ChannelsModel)
    async def list_channels(visible: Visible) -> Response:
        """With hundreds of channels the list may be a few seconds old: `Age` says how many.

        In a cluster these are the channels of all nodes that answer; `unreachable` and the header `Lp-Trickle-Degraded`
        name the others.
        """
        page = await overview.channels(visible)
        headers = {"Age": str(int(page.age_s))} if visible is everything or page.age_s >= 1 else {}
        if page.missing:
            headers[wire.DEGRADED] = f"no answer from {', '.join(page.missing)}"
        return Response(page.text, headers=headers, media_type="application/json")

    @router.get("/{name}", summary="Describe a channel", responses={404: {"model": ProblemModel}})
    async def describe_channel(name: ChannelName, visible: Visible) -> ChannelModel:
        return channel_model(found(name, visible).statistics(), to_wall, node)

    @router.get(
        "/{name}/segments",
        summary="List the segments that can be read",
        responses={400: {"model": ProblemModel}, 404: {"model": ProblemModel}},
    )
    async def list_segments(
        name: ChannelName,
        visible: Visible,
        since: Annotated[
            str | None,
            Query(description="Only segments closed since this time (2026-11-23T18:00:00Z), or this long ago (10m)."),
        ] = None,
        first: Annotated[int, Query(alias="from", ge=0, le=LAST_SEQ, description="Only this seq and higher ones.")] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_SEGMENTS, description="Maximum number of segments.")] = MAX_SEGMENTS,
        checksum: Annotated[
            bool, Query(description="Read segments in memory whose checksum is not known; the answer may be shorter.")
        ] = False,
    ) -> SegmentsModel:
        """Closed segments of the window and of the data directory, and those that are being written."""
        channel = found(name, visible)
        since_us = 0 if since is None else _since_us(since, time.time())
        segments = list(islice(channel.listed(first, since_us, to_us), limit + 1))
        shown, is_cut = _with_checksums(channel, segments[:limit]) if checksum else (segments[:limit], False)
        return SegmentsModel(
            channel=name,
            epoch=channel.epoch,
            next_seq=channel.next_seq,
            segments=[segment_model(segment) for segment in shown],
            more=is_cut or len(segments) > limit,
        )

    @router.post(
        "",
        summary="Create a channel",
        status_code=201,
        response_model=ChannelModel,
        responses={200: {"model": ChannelModel, "description": "It exists already"}, 400: {"model": ProblemModel}},
    )
    async def create_channel(new: NewChannelModel, request: Request, visible: Visible) -> Response:
        made = await overview.create(checked(new.name, visible), new.content_type)
        _note(request, made.reason, made.headers)
        return Response(made.text, made.status, made.headers, "application/json")

    @router.delete("/{name}", summary="End a channel", responses={404: {"model": ProblemModel}})
    async def end_channel(name: ChannelName, request: Request, visible: Visible) -> ChannelModel:
        channel = registry.channels.get(checked(name, visible))
        store_half_chunks(registry.live(name))
        refusal = registry.end(name, plane.clock())
        if refusal is not None:
            error, reason = _refused(refusal, plane.jitter)
            _note(request, reason, error.headers)
            raise error
        assert channel is not None, "the registry has just ended it"
        await _stored(plane)
        return channel_model(channel.statistics(), to_wall, node)

    @router.delete(
        "/{name}/segments/{seq}",
        summary="Close a segment",
        responses={400: {"model": ProblemModel}, 404: {"model": ProblemModel}},
    )
    async def close_segment(
        name: ChannelName,
        seq: Annotated[int, Path(ge=0, le=LAST_SEQ, description="The segment's number.")],
        request: Request,
        visible: Visible,
    ) -> SegmentModel:
        """A segment with bytes closes as truncated, one without as empty; its publisher is told. A closed one stays."""
        channel = registry.live(checked(name, visible))
        segment = None if channel is None else channel.segments.get(seq)  # closing may evict it
        store_half_chunks(channel, seq)
        refusal = registry.close_segment(name, seq, plane.clock(), truncate=True)
        if refusal is not None:
            error, reason = _refused(refusal, plane.jitter)
            _note(request, reason, error.headers)
            raise error
        assert segment is not None, "the registry has just closed it"
        await _stored(plane)
        return segment_model(summarize(segment, to_us))

    return router


def checked(name: str, visible: MayManage) -> str:
    """The channel's name, if it can be one, and the caller may see and manage it."""
    try:
        # Starlette has decoded the path; parse_channel would decode a percent sign in the name once more.
        channel = parse_channel(name.replace("%", "%25"))
    except InvalidChannelName as error:
        raise HTTPException(400, str(error)) from None
    if not visible(channel):
        # The same answer for a missing channel: the caller learns nothing about channels that it may not see.
        raise HTTPException(403, "not allowed")
    return channel


def _with_checksums(channel: Channel, segments: Iterable[SegmentSummary]) -> tuple[list[SegmentSummary], bool]:
    """Segments with their checksums, until :data:`CHECKED_BYTES` are read; and whether some are left out."""
    checked: list[SegmentSummary] = []
    left = CHECKED_BYTES
    for one in segments:
        segment = channel.segments.get(one.seq)
        if one.crc is None and segment is not None and segment.closed:
            if left <= 0:
                return checked, True
            left -= segment.size
            one = one._replace(crc=reduce(lambda crc, chunk: crc32(chunk, crc), segment.payload(), 0))
        checked.append(one)
    return checked, False


async def _stored(plane: DataPlane) -> None:
    """Wait until storage has the change, if publishers wait for storage, too (``--ack``)."""
    durability = plane.durability
    if durability is not None and durability.delays and not await durability.flush():
        raise HTTPException(503, "storage has failed", {"Retry-After": str(plane.jitter(*OVERLOAD_RETRY_S))})


def _since_us(text: str, now: float) -> int:
    """Read a time, or a duration before now, as microseconds since 1970."""
    try:
        return round((now - parse_duration(text)) * 1e6)
    except InvalidInput:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        problem = f"since={text!r} is neither a time (2026-11-23T18:00:00Z) nor a duration (10m)"
        raise HTTPException(400, problem) from None
    return round(at.replace(tzinfo=at.tzinfo or UTC).timestamp() * 1e6)


def _note(request: Request, reason: str, headers: Mapping[str, str] | None) -> None:
    """Note in the access record why a request was refused, and when its client is to come back."""
    record: AccessRecord = request.scope[RECORD]
    record.reason = reason or record.reason
    if headers is not None and (wait_s := headers.get("Retry-After")) is not None:
        record.retry_after_ms = int(wait_s) * 1000


def _refused(refusal: Refusal, jitter: Callable[[int, int], int]) -> tuple[HTTPException, str]:
    """The answer to a refusal, and its reason for the access record, unless the status says it."""
    detail = {
        Cause.RESERVED: "names that begin with _ belong to the server",
        Cause.LIMIT: f"limit reached: {refusal.limit}",
        Cause.STORAGE: "storage has failed, so publishing is not possible now",
        Cause.REPLICA: "another server owns this channel",
        Cause.MIRROR: refusal.detail,
        Cause.SHUTDOWN: "the server is shutting down",
        Cause.NO_SEGMENT: "no such segment",
    }.get(refusal.why, "no such channel")
    headers = None
    if STATUS_OF_REFUSAL[refusal.why] == 503:
        headers = {"Retry-After": str(jitter(*refusal.come_back_s))}
    reason = "" if refusal.limit is None else Reason.limit(refusal.limit)
    if refusal.why is Cause.MIRROR:
        reason = Reason.MIRROR
    return HTTPException(STATUS_OF_REFUSAL[refusal.why], detail, headers), reason
