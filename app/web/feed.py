"""The dashboard's feed: what has changed on the server, about once a second, made once for all followers.

Rules kept here (docs/reference/dashboard-feed.md):

- Nothing is computed while nobody follows.
- A frame holds only what has changed since the frame before. All values are absolute: a follower that has missed a
  frame, or comes late, gets a snapshot, which has the same form and holds everything.
- The bytes of a frame are made once and written to every follower. Only a follower whose token shows some of the
  channels gets its own.
- Frames are compressed once, too: each is a series of deflate blocks that refer to nothing before them (RFC 1951), so
  any series of frames behind a gzip header is a valid stream.
- A follower that does not take its frames is not waited for, and nothing is kept for it: when it takes data again it
  gets a snapshot.
- The event loop is never held for long: channels are looked at in parts of :data:`PART`.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from tricklecast.app.control_plane.event_stream import (
    EVENT_STREAM,
    RETRY_MS,
    STOPS,
    EventStream,
    come_back_later,
    come_back_s,
    why_over,
)
from tricklecast.app.control_plane.middleware import RECORD, MayManage, Visible, everything
from tricklecast.app.control_plane.models import ProblemModel
from tricklecast.app.core.limits import Capacity
from tricklecast.app.core.publishers import Presence
from tricklecast.app.core.segment import OPEN, State
from tricklecast.app.core.state import Channel
from tricklecast.app.core.window import Eviction
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.encoding import encode
from tricklecast.app.usage import Use, lagging
from tricklecast.app.web.assets import takes_gzip
from tricklecast.app.web.events import ORDINARY, Events, Happened
from tricklecast.trickle import __version__
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.records import AccessRecord, Reason

EVERY_S: Final = 1.0
LONGEST_S: Final = 5.0
"""How often there is a frame, at least and at most."""

SHARE: Final = 1 / 45
"""Frames take at most this share of a core: a frame that takes 30 ms is followed by the next one after 1.35 s. So open
dashboards cost a server with many channels no more than one with a thousand."""

LOOK_S: Final = 0.25
"""How often the feed looks whether the server shuts down, so that followers are told before they are cut."""

MAX_FOLLOWERS: Final = 200
"""Dashboards that are open at a time. Each costs the server 0.1 ms of CPU a second with 2,000 channels."""

PART: Final = 200
"""Channels that are looked at, or encoded, in one turn of the event loop: about a millisecond."""

WOKEN: Final = 8
"""Followers that are written to in one turn of the event loop."""

STALLED_S: Final = 3.0
"""A segment that is open for so long without a new byte has stalled. Live encoders write several times a second."""

IDLE_S: Final = 5.0
"""A channel without an open segment to which nothing was published for so long is idle: longer than the usual pause
between two segments."""

FIRST: Final = 200
"""Channels that the page shows without its script."""

SHOWN: Final = 12
"""Closed segments of each channel that a snapshot has."""

MOST: Final = 64
"""Segments of one channel that a frame has; older ones that closed within the same second are left out."""

IDLE, LIVE, STALLED, DRAINING = range(4)
"""The state of a channel, as a number."""

STATES: Final = ("idle", "live", "stalled", "draining")

SEGMENT_STATES: Final = tuple(map(str, State))
_CODES: Final = {state: code for code, state in enumerate(State)}
_OPEN: Final = _CODES[OPEN]
GONE: Final = len(SEGMENT_STATES)
"""The code of a segment that has vanished: nobody waits for it any more, or it has left the window."""

STATE, READERS, RECEIVED, SENT, KEPT, PUBLISHER, FIGURES = 1, 3, 5, 6, 7, 9, 10
"""Places in a row; the segments begin after its figures."""

WRITING, PRECONNECTED, ORPHANED = 1, 2, 4
"""Bits: a publisher writes, a publisher is connected and has not begun, an open segment has lost its publisher."""

GZIP_HEADER: Final = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
"""RFC 1952, section 2.3. The end of the stream has no checksum: that of its parts cannot be put together."""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Row:
    """What followers have been told of one channel, in one of its lives.

    Attributes:
        number: stands for the channel in frames. channel: the channel.
        told: number, state, next_seq, readers, lag, bytes in and out per second, segments and bytes of the window,
            publisher's bits, and then seq, state, size and milliseconds of each segment that closed meanwhile or is
            not closed.
        about: number, name, epoch, content type, publisher, when it was created.
        evicted: segments that have left the window because memory was short.
    """

    __slots__ = (
        "about", "bytes_in", "bytes_out", "channel", "content_type", "evicted", "number", "presence", "quiet", "seen",
        "told", "unclosed",
    )  # fmt: skip

    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.told: list[int] = []
        self.about: list[Any] = []
        self.content_type = ""
        self.presence: Presence | None = None
        self.bytes_in, self.bytes_out = channel.bytes_in, channel.bytes_out
        self.evicted = channel.window.evicted[Eviction.BUDGET]
        self.seen = max(0, channel.next_seq - SHOWN)
        self.unclosed: list[int] = []
        self.quiet = False

    def is_still(self) -> bool:
        """Whether nothing can have changed: asked of channels on which nothing happened when they were last told."""
        channel, told = self.channel, self.told
        return (
            channel.bytes_in == self.bytes_in
            and channel.bytes_out == self.bytes_out
            and channel.next_seq == self.seen
            and channel.audience == told[READERS]
            and len(channel.window) == told[KEPT]
            and not channel.unclosed
            and channel.ended == (told[STATE] == DRAINING)
        )

    def look(self, now: float, elapsed_s: float, lag: int, began: float) -> list[int] | None:
        """What is to be told, or ``None`` if nothing has changed. This is most of what a dashboard costs.

        Args:
            now: the time in seconds. elapsed_s: since the last look; infinite at the first one.
            lag: body bytes that the furthest of its readers is behind.
            began: the time from which milliseconds of open segments are counted.
        """
        channel = self.channel
        window, segments, head = channel.window, channel.segments, channel.next_seq
        bytes_in, bytes_out = channel.bytes_in, channel.bytes_out
        received, sent = int((bytes_in - self.bytes_in) / elapsed_s), int((bytes_out - self.bytes_out) / elapsed_s)
        self.bytes_in, self.bytes_out = bytes_in, bytes_out
        told = [self.number, LIVE, head, channel.audience, lag, received, sent, len(window), window.bytes, 0]
        first = self.seen if head - self.seen <= MOST else head - MOST
        self.seen = head
        for seq in self.unclosed:
            segment = segments.get(seq)
            if segment is None:
                told += (seq, GONE, 0, 0)
            elif seq < first and (closed_at := segment.closed_at) is not None:
                opened_at = segment.opened_at or closed_at
                told += (seq, _CODES[segment.state], segment.size, int(1000 * (closed_at - opened_at)))
        for seq in range(first, head):
            segment = segments.get(seq)
            if segment is not None and (closed_at := segment.closed_at) is not None:
                opened_at = segment.opened_at or closed_at
                told += (seq, _CODES[segment.state], segment.size, int(1000 * (closed_at - opened_at)))
        unclosed = []
        publisher, is_open = 0, False
        for segment in channel.unclosed:
            seq = segment.seq
            unclosed.append(seq)
            if segment.state is OPEN:
                is_open = True
                publisher |= ORPHANED if segment.writer is None else WRITING
                told += (seq, _OPEN, segment.size, int(1000 * (segment.opened_at - began)))
            else:
                if segment.writer is not None:
                    publisher |= PRECONNECTED
                told += (seq, 0, 0, 0)
        self.unclosed = unclosed
        told[PUBLISHER] = publisher
        silent_s = now - channel.active_at
        self.quiet = False
        if channel.ended or (silent_s >= IDLE_S and not is_open):
            told[STATE] = DRAINING if channel.ended else IDLE
            self.quiet = not (received or sent or lag or unclosed)
        elif is_open and silent_s >= STALLED_S:
            told[STATE] = STALLED
        if told == self.told:
            return None
        self.told = told
        return told

    def may_differ(self) -> bool:
        """Whether :meth:`describe` has to be asked."""
        last, told = self.channel.publishers.last, self.presence
        return last is not told or last is None or self.channel.content_type is not self.content_type

    def describe(self, to_wall: float) -> bool:
        """Bring :attr:`about` up to date; whether it has changed.

        Args:
            to_wall: what turns the registry's time into seconds since 1970, added to it.
        """
        channel = self.channel
        presence = channel.publishers.last or next(iter(channel.publishers), None)
        if presence is self.presence and channel.content_type == self.content_type and self.about:
            return False
        self.presence, self.content_type = presence, channel.content_type
        client = None if presence is None else presence.client
        publisher = "" if client is None else client.name or client.address
        created = round(channel.created_at + to_wall, 3)
        self.about = [self.number, channel.name, channel.epoch, channel.content_type, publisher, created]
        return True

    def whole(self, began: float) -> list[int]:
        """Its figures as they were told last, with its newest segments."""
        told = self.told[:FIGURES]
        found = map(self.channel.segments.get, range(max(0, self.seen - SHOWN), self.seen))
        for segment in (*(one for one in found if one is not None and one.closed), *self.channel.unclosed):
            opened_at, closed_at = segment.opened_at, segment.closed_at
            since, until = (began, opened_at) if closed_at is None else (opened_at, closed_at)
            ms = int(1000 * (until - since)) if opened_at else 0
            told += (segment.seq, _CODES[segment.state], segment.size, ms)
        return told


@dataclass(slots=True)
class Frame:
    """What has changed by one moment; or, as a snapshot, everything.

    Attributes:
        number: counts frames from 1. kind: ``frame`` or ``snapshot``. data: the encoded event.
        packed: the same, compressed, when a follower has asked for that.
        about, rows, gone, server, events: what it is made of, for followers that may see only some channels.
    """

    number: int
    kind: bytes
    about: list[list[Any]]
    rows: list[list[int]]
    gone: list[int]
    server: dict[str, Any]
    events: list[Happened]
    data: bytes = b""
    packed: bytes = b""

    def compressed(self) -> bytes:
        """:attr:`data` as deflate blocks, made once."""
        if not self.packed:
            self.packed = pack(self.data)
        return self.packed

    def encoded(self) -> bytes:
        """One Server-Sent Event."""
        content = {
            "frame": self.number,
            "server": self.server,
            "about": self.about,
            "rows": self.rows,
            "gone": self.gone,
            "events": self.events,
        }
        return b"event: %b\ndata: %b\n\n" % (self.kind, encode(content))

    def shown_to(self, visible: MayManage, numbers: set[int]) -> Frame:
        """The same with nothing but the channels that a follower may see.

        Args:
            visible: whether it may see the channel of this name.
            numbers: of the channels that it has been told of; brought up to date.
        """
        about = [each for each in self.about if visible(each[1])]
        numbers |= {each[0] for each in about}
        rows = [row for row in self.rows if row[0] in numbers]
        gone = [number for number in self.gone if number in numbers]
        numbers -= set(gone)
        events = [event for event in self.events if event.channel and visible(event.channel)]
        server = {name: self.server[name] for name in OPEN_TO_ALL if name in self.server}
        part = Frame(self.number, self.kind, about, rows, gone, server, events)
        part.data = part.encoded()
        return part


OPEN_TO_ALL: Final[tuple[str, ...]] = (
    "time",
    "ms",
    "instance",
    "version",
    "base_path",
    "limits_of_window",
    "stalled_s",
)
"""What a follower that may see only some channels learns of the server."""


def pack(data: bytes) -> bytes:
    """Deflate blocks that stand for themselves. A tenth of a millisecond per 10 kB."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)


class Process:
    """The server's process: its CPU time and its memory."""

    def __init__(self) -> None:
        self._cpu_s, self._at = time.process_time(), time.monotonic()
        self._statm = Path("/proc/self/statm")

    def cpu(self) -> float:
        """Share of one core since the last call."""
        cpu_s, at = time.process_time(), time.monotonic()
        share = (cpu_s - self._cpu_s) / max(at - self._at, 1e-3)
        self._cpu_s, self._at = cpu_s, at
        return round(share, 4)

    def memory(self) -> int | None:
        """Resident bytes; ``None`` where the system does not tell."""
        try:
            return int(self._statm.read_bytes().split()[1]) * _PAGE
        except OSError:
            return None


class Feed:
    """Makes the frames while somebody follows.

    Args:
        plane: the data plane.
        events: the newest ones; the plane's witness.
        uses: gives the limits of the server and their use; its argument is the feed's own limit.

    Attributes:
        followers: requests that follow. frame: the newest one.
        snapshots: how many were made.
    """

    def __init__(self, plane: DataPlane, events: Events, uses: Callable[[Capacity], list[Use]]) -> None:
        self.plane = plane
        self.followers = Capacity(MAX_FOLLOWERS)
        self.events = events
        self.frame: Frame | None = None
        self.snapshots = 0
        self._uses = uses
        self._process = Process()
        self._rows: dict[Channel, Row] = {}
        self._number = self._frames = self._told_events = 0
        self._at = self._began = self._cpu_s = 0.0
        self._lag_counts: list[int] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._snapshot: asyncio.Task[Frame] | None = None

    def first_view(self) -> dict[str, Any]:
        """What the page shows before its script runs: the first channels, by their names."""
        plane, now = self.plane, self.plane.clock()
        channels = [channel for name, channel in plane.registry.channels.items() if not is_reserved(name)]
        rows = []
        for channel in nsmallest(FIRST, channels, key=lambda channel: channel.name):
            row = Row(0, channel)
            row.describe(0.0)
            told = row.look(now, math.inf, 0, now) or row.told
            rows.append(
                {
                    "name": channel.name,
                    "state": STATES[told[STATE]],
                    "publisher": row.about[4],
                    "readers": told[READERS],
                    "segments": told[KEPT],
                }
            )
        return {
            "channels": rows,
            "total": len(channels),
            "readers": sum(channel.audience for channel in channels),
            "connections": len(plane.connections),
        }

    # For followers.

    def join(self) -> None:
        """A follower comes; its request has been admitted. It gives itself back to :meth:`leave`."""
        self.followers.take()
        if self._task is None:
            self._began = self.plane.clock()
            self._lag_counts = list(self.plane.loop_lag.counts)
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    def leave(self) -> None:
        """A follower leaves. With the last one everything is forgotten."""
        self.followers.give_back()
        if not self.followers.used and (task := self._task) is not None:
            self._forget()  # at once: the next follower may come before the task has noticed
            task.cancel()

    async def follow(self, visible: MayManage | None, over: Callable[[], str | None]) -> AsyncIterator[Frame]:
        """The frames for one follower, a snapshot first, until there is a reason to end.

        Args:
            visible: whether it may see the channel of this name; ``None`` if it may see all.
            over: why it ends now, if it does.
        """
        numbers: set[int] = set()
        seen = 0
        while over() is None and self._task is not None:
            frame = self.frame
            if frame is None or frame.number == seen:
                await self._next()
                continue
            if not seen or frame.number != seen + 1:
                # It is new, or has not taken its frames in time.
                frame = await self._whole(frame)
                numbers.clear()
            seen = frame.number
            yield frame if visible is None else frame.shown_to(visible, numbers)

    async def _next(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def _whole(self, frame: Frame) -> Frame:
        """A snapshot as of the newest frame: made once for all that need it before the next one."""
        if self._snapshot is None:
            self._snapshot = asyncio.get_running_loop().create_task(self._take_snapshot(frame))
        return await asyncio.shield(self._snapshot)

    # The computation.

    def _ended(self, task: asyncio.Task[None]) -> None:
        """If a fault has ended the task, its followers end, too, and come back."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.plane.fault("in the dashboard's feed", error)
        if self._task is task:
            self._forget()

    def _forget(self) -> None:
        """Go back to the beginning, where nobody follows."""
        self._task = self.frame = self._snapshot = None
        self._rows.clear()
        self._frames = self._told_events = 0
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time()
        while True:
            self._cpu_s = 0.0
            await self._tick()
            every_s = min(max(EVERY_S, self._cpu_s / SHARE), LONGEST_S)
            at = max(at + every_s, loop.time() + every_s / 2)
            while (left := at - loop.time()) > 0:
                await asyncio.sleep(min(left, LOOK_S))
                if self.plane.registry.shutting_down:
                    await self._wake()  # they end by themselves

    async def _tick(self) -> None:
        """Make the next frame, and wake the followers."""
        plane, begun = self.plane, time.thread_time()
        now = plane.clock()
        elapsed_s = now - self._at if self._frames else math.inf
        to_wall = plane.wall_us() / 1e6 - now
        lags: dict[Channel, int] = {}
        for reader in lagging(plane):
            lags[reader.channel] = max(reader.lag(), lags.get(reader.channel, 0))
        about: list[list[Any]] = []
        rows: list[list[int]] = []
        known, began = self._rows, self._began
        channels = list(plane.registry.channels.values())
        for at, channel in enumerate(channels):
            if not (at + 1) % PART:
                self._cpu_s += time.thread_time() - begun
                await asyncio.sleep(0)
                begun = time.thread_time()
            row = known.get(channel)
            if row is None:
                if is_reserved(channel.name):
                    continue
                self._number += 1
                row = known[channel] = Row(self._number, channel)
            elif row.quiet and channel not in lags and row.is_still():
                continue
            if row.may_differ() and row.describe(to_wall):
                about.append(row.about)
            told = row.look(now, elapsed_s if row.told else math.inf, lags.get(channel, 0) if lags else 0, began)
            if (evicted := channel.window.evicted[Eviction.BUDGET]) != row.evicted:
                self.events.note("evicted", "total_bytes", channel.name, count=evicted - row.evicted)
                row.evicted = evicted
            if told is not None:
                rows.append(told)
        gone: list[int] = []
        alive = set(channels)
        if not known.keys() <= alive:
            gone = [known.pop(channel).number for channel in list(known) if channel not in alive]
        self._at = now
        self._frames += 1
        self.events.seal()
        events = self.events.after(self._told_events)
        if events:
            self._told_events = events[-1].number
        server = self._server(now, to_wall)
        frame = Frame(self._frames, b"frame", about, rows, gone, server, events)
        frame.data = frame.encoded()
        self._cpu_s += time.thread_time() - begun
        self._snapshot = None
        self.frame = frame
        await self._wake()

    async def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for count, waiter in enumerate(waiters, 1):
            if not waiter.done():
                waiter.set_result(None)
            if not count % WOKEN:
                await asyncio.sleep(0)

    async def _take_snapshot(self, frame: Frame) -> Frame:
        self.snapshots += 1
        about: list[list[Any]] = []
        rows: list[list[int]] = []
        for count, row in enumerate(list(self._rows.values()), 1):
            about.append(row.about)
            rows.append(row.whole(self._began))
            if not count % PART:
                await asyncio.sleep(0)
        server = frame.server | self._constants()
        whole = Frame(frame.number, b"snapshot", about, rows, [], server, self.events.after(0))
        whole.data = whole.encoded()
        whole.packed = await asyncio.to_thread(pack, whole.data)  # half a megabyte takes several milliseconds
        return whole

    def _server(self, now: float, to_wall: float) -> dict[str, Any]:
        """The figures of the server."""
        plane = self.plane
        registry = plane.registry
        received = sent = readers = 0
        for row in self._rows.values():
            readers += row.told[READERS]
            received += row.told[RECEIVED]
            sent += row.told[SENT]
        counts = list(plane.loop_lag.counts)
        slowest = max((at for at, (n, before) in enumerate(zip(counts, self._lag_counts, strict=True)) if n > before),
                      default=0)  # fmt: skip
        self._lag_counts = counts
        bounds = plane.loop_lag.bounds
        uses = self._uses(self.followers)
        requests = refused = 0
        for (_, status, reason), count in plane.exchanges.items():
            requests += count
            if status >= 400 and reason not in ORDINARY:
                refused += count
        return {
            "time": round(now + to_wall, 3),
            "ms": int(1000 * (now - self._began)),
            "cpu": self._process.cpu(),
            "memory": self._process.memory(),
            "loop_lag_ms": bounds[min(slowest, len(bounds) - 1)] / 1000,
            "connections": len(plane.connections),
            "readers": readers,
            "dashboards": self.followers.used,
            "bytes_in": received,
            "bytes_out": sent,
            "limits": [[one.limit, one.used, one.most, one.joinable is not False] for one in uses],
            "counters": {
                "requests": requests,
                "refused": refused,
                "held": plane.holds,
                "cut_off": sum(plane.slow_peers.cut_offs.values()),
                "faults": plane.faults,
                **{f"segments_{state}": n for state, n in registry.journal.closed.items()},
            },
            "draining": registry.shutting_down,
        }

    def _constants(self) -> dict[str, Any]:
        """What does not change while the server runs."""
        plane = self.plane
        limits = plane.registry.limits
        return {
            "instance": plane.registry.instance,
            "version": __version__,
            "node": plane.node,
            "base_path": plane.options.base_path,
            "limits_of_window": {
                "segments": limits.window_segments, "bytes": limits.window_bytes, "age_s": limits.window_age_s
            },
            "stalled_s": STALLED_S,
            "storm_guard": plane.guard is not None,
        }  # fmt: skip


async def _events(feed: Feed, request: Request, visible: MayManage, *, gzip: bool) -> AsyncIterator[bytes]:
    """The feed for one follower, as Server-Sent Events."""
    plane = feed.plane
    retry = b"retry: %d\n\n" % RETRY_MS
    yield GZIP_HEADER + pack(retry) if gzip else retry
    async for frame in feed.follow(None if visible is everything else visible, lambda: why_over(request, plane)):
        yield frame.compressed() if gzip else frame.data
    record: AccessRecord = request.scope[RECORD]
    record.reason = reason = why_over(request, plane) or Reason.ERROR
    retry_ms = 1000 * come_back_s(plane) if reason == Reason.SHUTDOWN else RETRY_MS
    end = b"retry: %d\nevent: end\ndata: %b\n\n" % (retry_ms, encode({"reason": reason}))
    yield pack(end) if gzip else end


def feed_router(feed: Feed) -> APIRouter:
    """The route ``/api/v1/dashboard``."""
    router = APIRouter(tags=["dashboard"])
    plane = feed.plane

    @router.get(
        "/api/v1/dashboard",
        summary="Follow the whole server",
        responses={200: {"content": {EVENT_STREAM: {}}}, 503: {"model": ProblemModel}},
        response_class=StreamingResponse,
    )
    async def dashboard(request: Request, visible: Visible) -> Response:
        """What the dashboard shows: a snapshot, and about once a second what has changed, as Server-Sent Events."""
        if plane.registry.shutting_down:
            return come_back_later(request, plane, STOPS)
        if not feed.followers.admits(join=False):
            record: AccessRecord = request.scope[RECORD]
            record.reason = Reason.limit("dashboards")
            return come_back_later(request, plane, "limit reached: dashboards")
        gzip = takes_gzip(request.headers.get("accept-encoding", ""))
        return EventStream(_events(feed, request, visible, gzip=gzip), feed.join, feed.leave, gzip=gzip)

    return router
