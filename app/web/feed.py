"""The dashboard's feed: about once a second a frame with the changes on the server, made once for all followers.

**The problem.** A page shows thousands of channels as they change, on many screens, and must cost the server's media
next to nothing.

**The idea.** The feed compares each channel with its *row*, a list of numbers that followers have. A frame has the rows
that differ. Values are absolute, so a follower that has missed a frame, or comes late, gets a snapshot: a frame with
all rows. The format is in docs/reference/dashboard-feed.md.

**What keeps it cheap.**

- Without a follower the feed computes nothing. It reads counters that the core has anyway.
- The bytes of a frame are made once, and written to every follower. Only a follower whose token shows some of the
  channels gets frames of its own.
- Frames are compressed once, too. Each is a series of deflate blocks that refer to nothing before them (RFC 1951), so
  any series of frames behind a gzip header is a valid stream.
- A follower that does not read delays no other, and the feed stores no frame for it.
- A turn of the event loop looks at :data:`TURN_CHANNELS` channels, about a millisecond.

**Several workers.** Each has a feed. Followers are at the front's, which asks the others for their frames and adds them
to its own (:mod:`app.workers.dashboard`).
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from tricklecast.app.content_coding import takes_gzip
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
from tricklecast.app.core.segment import OPEN, Segment, State
from tricklecast.app.core.state import Channel
from tricklecast.app.core.window import Eviction
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.encoding import encode
from tricklecast.app.usage import Use, lagging
from tricklecast.app.web.events import ORDINARY, DashboardEvent, Events
from tricklecast.trickle import __version__
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.records import AccessRecord, Reason

EVERY_S: Final = 1.0
LONGEST_S: Final = 5.0
"""The shortest and the longest time between two frames."""

SHARE: Final = 1 / 45
"""Frames take at most this share of a core: a frame that takes 30 ms is followed by the next one after 1.35 s. So open
dashboards cost a server with many channels no more than one with a thousand."""

LOOK_S: Final = 0.25
"""The feed checks this often whether the server shuts down, so that followers are told before they are cut off."""

MAX_FOLLOWERS: Final = 200
"""Followers at a time. Each costs the server 0.1 ms of CPU a second with 2,000 channels."""

FRONT_LEFT_S: Final = 10.0
"""A worker drops all state when the front has not asked for a frame for so long. While a dashboard is open, it asks
after 6 s at the latest."""

TURN_CHANNELS: Final = 200
"""Channels that the feed looks at, or encodes, in one turn of the event loop."""

TURN_FOLLOWERS: Final = 8
"""Followers that the feed wakes in one turn of the event loop."""

STALLED_S: Final = 3.0
"""A segment that is open for this time without a new byte has stalled. Live encoders write several times a second."""

IDLE_S: Final = 5.0
"""A channel without an open segment, and without a new byte for this time, is idle. The usual pause between two
segments is shorter."""

SNAPSHOT_SEGMENTS: Final = 12
"""Closed segments of each channel in a snapshot."""

FRAME_SEGMENTS: Final = 64
"""Segments of one channel in a frame. If more have closed since the frame before, the older ones are left out."""

IDLE, LIVE, STALLED, DRAINING = range(4)
"""The state of a channel, as a number."""

SEGMENT_STATES: Final = tuple(map(str, State))
_CODES: Final = {state: code for code, state in enumerate(State)}
GONE: Final = len(SEGMENT_STATES)
"""The code of a segment that is gone: no client waits for it any more, or it has left the window."""

STATE, READERS, RECEIVED, SENT, SEGMENTS, PUBLISHER, FIGURES = 1, 3, 5, 6, 7, 9, 10
"""Places in a row; the segments begin after its figures."""

WRITING, PRECONNECTED, ORPHANED = 1, 2, 4
"""Bits: a publisher writes, a publisher is connected and has not begun, an open segment has lost its publisher."""

GZIP_HEADER: Final = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
"""RFC 1952, section 2.3. A stream ends without a checksum, which would be another one for each follower."""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class ChannelView:
    """One channel in one epoch, as followers know it from the last frame."""

    __slots__ = (
        "about",
        "bytes_in",
        "bytes_out",
        "channel",
        "content_type",
        "evicted",
        "number",
        "presence",
        "quiet",
        "row",
        "seen",
        "unclosed",
    )  # fmt: skip

    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number  # stands for the channel in frames
        self.channel = channel
        # Number, state, next_seq, readers, lag, bytes in and out per second, segments and bytes of the window, bits of
        # the publisher; then seq, state, size and milliseconds of each segment that closed since the last look, or is
        # open. Empty before the first look.
        self.row: list[int] = []
        self.about: list[Any] = []  # number, name, epoch, content type, publisher, time of creation
        self.content_type = ""  # as in `about`
        self.presence: Presence | None = None  # the publisher in `about`
        self.bytes_in, self.bytes_out = channel.bytes_in, channel.delivered  # at the last look
        self.evicted = channel.window.evicted[Eviction.BUDGET]  # segments that the server's memory had no room for
        self.seen = max(0, channel.next_seq - SNAPSHOT_SEGMENTS)  # the head at the last look
        self.unclosed: list[int] = []  # seqs of segments that were not closed at the last look
        self.quiet = False  # nothing moved at the last look, so the next one may begin with is_still()

    def is_still(self) -> bool:
        """Whether a channel that was quiet at the last look still is. This is quick."""
        channel, row = self.channel, self.row
        return (
            channel.bytes_in == self.bytes_in
            and channel.delivered == self.bytes_out
            and channel.next_seq == self.seen
            and channel.readers == row[READERS]
            and len(channel.window) == row[SEGMENTS]
            and not channel.unclosed
            and channel.ended == (row[STATE] == DRAINING)
        )

    def look(self, now: float, elapsed_s: float, lag: int, began: float) -> list[int] | None:
        """Make the row anew; return it if it differs from the last one. This is most of the cost of a dashboard.

        Args:
            now: the time in seconds. elapsed_s: seconds since the last look; infinite at the first one.
            lag: body bytes that the slowest reader lacks.
            began: the time from which milliseconds of open segments count.
        """
        channel = self.channel
        window, segments, head = channel.window, channel.segments, channel.next_seq
        bytes_in, bytes_out = channel.bytes_in, channel.delivered
        received, sent = int((bytes_in - self.bytes_in) / elapsed_s), int((bytes_out - self.bytes_out) / elapsed_s)
        self.bytes_in, self.bytes_out = bytes_in, bytes_out
        row = [self.number, LIVE, head, channel.readers, lag, received, sent, len(window), window.bytes, 0]
        first = self.seen if head - self.seen <= FRAME_SEGMENTS else head - FRAME_SEGMENTS
        self.seen = head
        for seq in self.unclosed:
            segment = segments.get(seq)
            if segment is None:
                row += (seq, GONE, 0, 0)
            elif seq < first and segment.closed:
                row += _figures(segment, began)
        for seq in range(first, head):
            segment = segments.get(seq)
            if segment is not None and segment.closed:
                row += _figures(segment, began)
        unclosed = []
        publisher, is_open = 0, False
        for segment in channel.unclosed:
            unclosed.append(segment.seq)
            row += _figures(segment, began)
            if segment.state is OPEN:
                is_open = True
                publisher |= ORPHANED if segment.writer is None else WRITING
            elif segment.writer is not None:
                publisher |= PRECONNECTED
        self.unclosed = unclosed
        row[PUBLISHER] = publisher
        silent_s = now - channel.active_at
        self.quiet = False
        if channel.ended or (silent_s >= IDLE_S and not is_open):
            row[STATE] = DRAINING if channel.ended else IDLE
            self.quiet = not (received or sent or lag or unclosed)
        elif is_open and silent_s >= STALLED_S:
            row[STATE] = STALLED
        if row == self.row:
            return None
        self.row = row
        return row

    def may_differ(self) -> bool:
        """Whether :attr:`about` may be out of date. This is quick."""
        last = self.channel.publishers.last
        return last is not self.presence or last is None or self.channel.content_type is not self.content_type

    def describe(self, to_wall: float) -> bool:
        """Bring :attr:`about` up to date. Returns whether it has changed.

        Args:
            to_wall: seconds to add to the registry's time for the time since 1970.
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

    def snapshot(self, began: float) -> list[int]:
        """The row for a snapshot: its figures, and the newest segments."""
        row = self.row[:FIGURES]
        found = map(self.channel.segments.get, range(max(0, self.seen - SNAPSHOT_SEGMENTS), self.seen))
        for segment in (*(one for one in found if one is not None and one.closed), *self.channel.unclosed):
            row += _figures(segment, began)
        return row


def _figures(segment: Segment, began: float) -> tuple[int, int, int, int]:
    """A segment in a row: seq, state, size, and the milliseconds that it took, or at which it began if it is open."""
    opened_at, closed_at = segment.opened_at, segment.closed_at
    since, until = (began, opened_at) if closed_at is None else (opened_at, closed_at)
    ms = int(1000 * (until - since)) if opened_at else 0
    return segment.seq, _CODES[segment.state], segment.size, ms


@dataclass(slots=True)
class Frame:
    """The changes since the frame before; or, as a snapshot, all values."""

    number: int  # counts frames from 1
    kind: bytes  # ``frame`` or ``snapshot``
    about: list[list[Any]]  # of channels that are new or have changed: ChannelView.about
    rows: list[list[int]]  # of channels that have changed: ChannelView.row
    gone: list[int]  # numbers of channels that are no more
    server: dict[str, Any]  # figures of the server
    events: list[DashboardEvent]  # that are new
    cpu_s: float = 0.0  # CPU time that it took, at the worker that needed most
    data: bytes = b""  # the Server-Sent Event
    packed: bytes = b""  # the same, compressed, when a follower has needed it

    def compressed(self) -> bytes:
        """:attr:`data` as deflate blocks, made once."""
        if not self.packed:
            self.packed = pack(self.data)
        return self.packed

    def content(self) -> dict[str, Any]:
        """As in docs/reference/dashboard-feed.md."""
        return {
            "frame": self.number,
            "server": self.server,
            "about": self.about,
            "rows": self.rows,
            "gone": self.gone,
            "events": self.events,
        }

    def encoded(self) -> bytes:
        """The frame as a Server-Sent Event."""
        return b"event: %b\ndata: %b\n\n" % (self.kind, encode(self.content()))

    def shown_to(self, visible: MayManage, numbers: set[int]) -> Frame:
        """The frame with only those channels that a follower may see.

        Args:
            visible: whether it may see the channel of this name.
            numbers: of the channels that it knows; this call brings them up to date.
        """
        about = [each for each in self.about if visible(each[1])]
        numbers |= {each[0] for each in about}
        rows = [row for row in self.rows if row[0] in numbers]
        gone = [number for number in self.gone if number in numbers]
        numbers -= set(gone)
        events = [event for event in self.events if event.channel and visible(event.channel)]
        server = {name: self.server[name] for name in PUBLIC_FIGURES if name in self.server}
        if "sources" in self.server:
            server["sources"] = [one for one in self.server["sources"] if visible(one["name"])]
        shown = Frame(self.number, self.kind, about, rows, gone, server, events)
        shown.data = shown.encoded()
        return shown


class Others(Protocol):
    """The feeds of the other workers of a server, for the front's."""

    async def add_news(self, frame: Frame, channels: int, began: float) -> None:
        """Add their changes since the last call to a frame of the front. Their events have numbers of their own.

        Args:
            channels: the number of the front's. began: the time from which milliseconds count.
        """

    async def add_all(self, snapshot: Frame) -> None:
        """Add all of their channels to a snapshot of the front."""

    def forget(self) -> None:
        """Drop all state, since nobody follows any more."""


CHANGING: Final[dict[str, Any]] = {"mirror": None, "sources": [], "troubles": []}
"""The server's figures that change seldom, as they are before a follower has heard of them. A frame has those that
differ from the one before, and a snapshot has all."""

PUBLIC_FIGURES: Final[tuple[str, ...]] = (
    "time",
    "ms",
    "instance",
    "version",
    "base_path",
    "limits_of_window",
    "stalled_s",
)
"""The server's figures for a follower that may see only some channels."""


def pack(data: bytes) -> bytes:
    """Compress to deflate blocks that refer to nothing before them. That takes 0.1 ms per 10 kB."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)


class ProcessUse:
    """CPU time and memory of the server's process."""

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
        """Resident bytes; ``None`` without /proc."""
        try:
            return int(self._statm.read_bytes().split()[1]) * _PAGE
        except OSError:
            return None


class DashboardFeed:
    """Makes the frames while there are followers.

    Args:
        events: the newest events, which the plane notes as its witness.
        uses: returns the limits of the server and their use; its argument is the capacity for followers.
        numbers: of its channels, none of them twice in a server; ``None``: from 1 on.
        others: the other workers, where this one shows the whole server.
        mirror: how the mirror of this server stands; it returns ``None`` if there is none.
        sources: how the sources of this process stand (:meth:`app.sources.service.Sources.described`).
        ailments: the parts that do not work at present, each with why.
    """

    def __init__(
        self,
        plane: DataPlane,
        events: Events,
        uses: Callable[[Capacity], list[Use]],
        *,
        numbers: Iterator[int] | None = None,
        others: Others | None = None,
        mirror: Callable[[], dict[str, Any] | None] = lambda: None,
        sources: Callable[[], list[dict[str, Any]]] = list,
        ailments: Callable[[], dict[str, str]] = dict,
    ) -> None:
        self.plane = plane
        self.followers = Capacity(MAX_FOLLOWERS)  # requests that follow
        self.events = events
        self.frame: Frame | None = None  # the newest one
        self._uses, self._others, self._mirror = uses, others, mirror
        self._sources, self._ailments = sources, ailments
        self._told = CHANGING  # as in the newest frame
        self._process = ProcessUse()
        self._views: dict[Channel, ChannelView] = {}
        self._numbers = numbers or itertools.count(1)  # of channels
        self._frames = self._last_event = 0  # the last numbers of a frame and an event
        self._at = 0.0  # the time of the last frame
        self._began = 0.0  # the time at which the first follower came
        self._lag_counts: list[int] = []  # the histogram of the event loop's lag at the last frame
        self._waiters: list[asyncio.Future[None]] = []  # followers that wait for the next frame
        self._task: asyncio.Task[None] | None = None  # makes frames; None without followers
        # In a worker that is not the front, which asks for frames, one after the other.
        self._asking = asyncio.Lock()
        self._forgetting: asyncio.TimerHandle | None = None  # if the front asks no more
        self._snapshot: asyncio.Task[Frame] | None = None  # of the newest frame, as soon as a follower needs it

    # For followers.

    def join(self) -> None:
        """Count a follower whose request was admitted. It calls :meth:`leave` at its end."""
        self.followers.take()
        if self._task is None:
            self._began = self.plane.clock()
            self._lag_counts = list(self.plane.loop_lag.counts)
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    def leave(self) -> None:
        """Count a follower no longer. With the last one all state is dropped."""
        self.followers.give_back()
        if not self.followers.used and (task := self._task) is not None:
            self._forget()  # at once: the next follower may come before the task has noticed
            task.cancel()

    async def follow(self, visible: MayManage | None, over: Callable[[], str | None]) -> AsyncGenerator[Frame]:
        """The frames for one follower, a snapshot first, until there is a reason to end.

        Args:
            visible: whether it may see the channel of this name; ``None`` if it may see all.
            over: returns the reason to end now, or ``None``.
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

    async def next_frame(self, seen: int, began: float) -> Frame:
        """The next frame for the front, which has the followers.

        Args:
            seen: the last frame that the front has of this worker. If that is not the newest one, frames begin anew:
                this one is the first, and has everything.
            began: the time from which milliseconds count then.
        """
        async with self._asking:
            if not seen or seen != self._frames:
                self._forget()
                self._began, self._lag_counts = began, list(self.plane.loop_lag.counts)
            if self._forgetting is not None:
                self._forgetting.cancel()
            self._forgetting = asyncio.get_running_loop().call_later(FRONT_LEFT_S, self._forget)
            return await self._tick()

    async def _next(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def _whole(self, frame: Frame) -> Frame:
        """A snapshot of the newest frame, made once for all followers that need it before the next frame."""
        if self._snapshot is None:
            self._snapshot = asyncio.get_running_loop().create_task(self._take_snapshot(frame))
        return await asyncio.shield(self._snapshot)

    # The computation.

    def _ended(self, task: asyncio.Task[None]) -> None:
        """End all followers if a fault has ended the task: they come back."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.plane.fault("in the dashboard's feed", error)
        if self._task is task:
            self._forget()

    def _forget(self) -> None:
        """Drop all state, as before the first follower."""
        self._task = self.frame = self._snapshot = None
        self._told = CHANGING
        self._views.clear()
        self._frames = self._last_event = 0
        if self._others is not None:
            self._others.forget()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time()
        while True:
            frame = await self._tick()
            every_s = min(max(EVERY_S, frame.cpu_s / SHARE), LONGEST_S)
            at = max(at + every_s, loop.time() + every_s / 2)
            while (left := at - loop.time()) > 0:
                await asyncio.sleep(min(left, LOOK_S))
                if self.plane.registry.shutting_down:
                    await self._wake()  # each of them ends itself

    async def _tick(self) -> Frame:
        """Make the next frame, and wake the followers."""
        plane, begun, cpu_s = self.plane, time.thread_time(), 0.0
        now = plane.clock()
        elapsed_s = now - self._at if self._frames else math.inf
        to_wall = plane.wall_us() / 1e6 - now
        lags: dict[Channel, int] = {}
        for reader in lagging(plane):
            lags[reader.channel] = max(reader.lag(), lags.get(reader.channel, 0))
        about: list[list[Any]] = []
        rows: list[list[int]] = []
        known, began = self._views, self._began
        channels = list(plane.registry.channels.values())
        for at, channel in enumerate(channels):
            if not (at + 1) % TURN_CHANNELS:
                cpu_s += time.thread_time() - begun
                await asyncio.sleep(0)
                begun = time.thread_time()
            view = known.get(channel)
            if view is None:
                if is_reserved(channel.name) or not channel.belongs:
                    continue
                view = known[channel] = ChannelView(next(self._numbers), channel)
            elif view.quiet and channel not in lags and view.is_still():
                continue
            if view.may_differ() and view.describe(to_wall):
                about.append(view.about)
            row = view.look(now, elapsed_s if view.row else math.inf, lags.get(channel, 0) if lags else 0, began)
            if (evicted := channel.window.evicted[Eviction.BUDGET]) != view.evicted:
                self.events.note("evicted", "total_bytes", channel.name, count=evicted - view.evicted)
                view.evicted = evicted
            if row is not None:
                rows.append(row)
        gone: list[int] = []
        alive = set(channels)
        if not known.keys() <= alive:
            gone = [known.pop(channel).number for channel in list(known) if channel not in alive]
        self._at = now
        self.events.seal()
        frame = Frame(self._frames + 1, b"frame", about, rows, gone, self._server(now, to_wall), [])
        if self._others is not None:
            cpu_s += time.thread_time() - begun
            await self._others.add_news(frame, len(known), began)
            begun = time.thread_time()
            self.events.add(frame.events, self._last_event)
        told, self._told = self._told, {name: frame.server[name] for name in CHANGING}
        frame.server = {name: value for name, value in frame.server.items() if name not in told or value != told[name]}
        self._frames = frame.number
        frame.events = self.events.after(self._last_event)
        if frame.events:
            self._last_event = frame.events[-1].number
        frame.data = frame.encoded()
        frame.cpu_s = max(frame.cpu_s, cpu_s + time.thread_time() - begun)
        self._snapshot = None
        self.frame = frame
        await self._wake()
        return frame

    async def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for count, waiter in enumerate(waiters, 1):
            if not waiter.done():
                waiter.set_result(None)
            if not count % TURN_FOLLOWERS:
                await asyncio.sleep(0)

    async def _take_snapshot(self, frame: Frame) -> Frame:
        whole = await self.all_of(frame)
        whole.packed = await asyncio.to_thread(pack, whole.data)  # half a megabyte takes several milliseconds
        return whole

    async def all_of(self, frame: Frame) -> Frame:
        """A snapshot of the newest frame."""
        about: list[list[Any]] = []
        rows: list[list[int]] = []
        for count, view in enumerate(list(self._views.values()), 1):
            about.append(view.about)
            rows.append(view.snapshot(self._began))
            if not count % TURN_CHANNELS:
                await asyncio.sleep(0)
        events = [event for event in self.events.after(0) if event.number <= self._last_event]
        whole = Frame(frame.number, b"snapshot", about, rows, [], frame.server | self._constants(), events)
        if self._others is not None:
            await self._others.add_all(whole)
        whole.data = whole.encoded()
        return whole

    def _server(self, now: float, to_wall: float) -> dict[str, Any]:
        """The figures of the server."""
        plane = self.plane
        registry = plane.registry
        received = sent = readers = 0
        for view in self._views.values():
            readers += view.row[READERS]
            received += view.row[RECEIVED]
            sent += view.row[SENT]
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
            "mirror": self._mirror(),
            "sources": self._sources(),
            "troubles": [list(each) for each in self._ailments().items()],
        }

    def _constants(self) -> dict[str, Any]:
        """Values that do not change while the server runs, or change seldom, for snapshots."""
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
            **self._told,
        }  # fmt: skip


async def _events(feed: DashboardFeed, request: Request, visible: MayManage, *, gzip: bool) -> AsyncIterator[bytes]:
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


def feed_router(feed: DashboardFeed) -> APIRouter:
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
        """The dashboard's data as Server-Sent Events: a snapshot, and about once a second a frame with the changes."""
        if plane.registry.shutting_down:
            return come_back_later(request, plane, STOPS)
        if not feed.followers.admits(join=False):
            record: AccessRecord = request.scope[RECORD]
            record.reason = Reason.limit("dashboards")
            return come_back_later(request, plane, "limit reached: dashboards")
        gzip = takes_gzip(request.headers.get("accept-encoding", ""))
        return EventStream(_events(feed, request, visible, gzip=gzip), feed.join, feed.leave, gzip=gzip)

    return router
