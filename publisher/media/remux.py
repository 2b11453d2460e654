"""Packets become segments, in any container, without being re-encoded.

A segment begins at a keyframe of the first video stream (without video: after a time) and stands alone, with tables or
an init segment of its own. Timestamps go on from segment to segment and from source to source, so that joined segments
are one valid stream. The first frame of each segment brings the wall-clock time at which it left the source.

Everything here blocks and runs in a worker thread (:mod:`tricklecast.publisher.worker`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tricklecast.publisher.media.muxer import Container, Times, codec_name
from tricklecast.publisher.media.pace import Pace
from tricklecast.publisher.media.source import MediaSource, reason
from tricklecast.publisher.media.timestamps import CLOCK_HZ, Timeline, fill_first_dts
from tricklecast.publisher.media.turning import Turn
from tricklecast.publisher.steps import Chunk, Cut, Step
from tricklecast.trickle.errors import InvalidInput

if TYPE_CHECKING:
    from av import Packet
    from av.stream import Stream

TOLERANCE_S: Final = 0.05
"""How much a segment may be too short: a source whose timestamps jitter must not get segments of one and of two groups
of pictures in turn."""

MAX_BLIND_S: Final = 10.0
"""How long the first keyframe of a source is waited for. After it, segments begin anywhere: better than none at all."""


@dataclass(frozen=True, slots=True)
class Cutting:
    """Where segments end.

    Attributes:
        min_segment_s: with video, at the first keyframe that is so many seconds after the segment's beginning.
        segment_s: without video, after so many seconds.
    """

    min_segment_s: float = 1.0
    segment_s: float = 2.0


class SourceBroke(InvalidInput):
    """A source could be opened, and broke later; what was read before has been handed out."""


class Remuxer:
    """Turns the packets of sources, one after the other, into the chunks of segments.

    Args:
        container: what segments are written in.
        cutting: where they end.
        warn: is told about every stream that is left out.
        pace: makes a new clock that packets wait for; without it, they go on as they come.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        container: Container,
        *,
        cutting: Cutting | None = None,
        warn: Callable[[str], None],
        pace: Callable[[], Pace] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._container = container
        self._cutting = Cutting() if cutting is None else cutting
        self._warn = warn
        self._make_pace = pace
        self._pace: Pace | None = None
        self._clock = clock
        self._timeline = Timeline()
        self._arrived_at: float | None = None

    def choose(self, source: MediaSource, name: str) -> list[Stream]:
        """The streams that the container can carry; the others are named to ``warn``.

        Raises:
            InvalidInput: there is no video or audio among them; the source is closed.
        """
        carried = [stream for stream in source.streams if self._is_carried(stream)]
        others = [stream for stream in source.streams if stream not in carried]
        if not any(stream.type in ("video", "audio") for stream in carried):
            codecs = ", ".join(sorted({codec_name(stream) for stream in others})) or "none at all"
            none = f"{name} has no video or audio that {self._container.name} can carry ({codecs})"
            advice = _advice(others)
            source.close()  # its streams are gone with it
            raise InvalidInput(none + advice)
        for stream in others:
            self._warn(f"left out: stream {stream.index} ({stream.type}, {codec_name(stream)}){_advice([stream])}")
        if not self._container.turns and any(stream.type == "video" and Turn.of(stream).filters for stream in carried):
            self._warn(f"the picture is to be turned, and {self._container.name} cannot say so: --transcode turns it")
        return carried

    def steps(self, source: MediaSource, name: str, *, live: bool = False) -> Iterator[Step]:
        """Read a source to its end, remux and cut; blocks as the source does.

        What follows another source goes on with its time line, and must begin a segment.

        Args:
            source: is closed at the end.
            name: what to call it in messages.
            live: the time since the last packet of the source before it has passed in the media, too.

        Raises:
            InvalidInput: the container can carry nothing of it.
            SourceBroke: it broke.
        """
        from av.error import FFmpegError

        failure: Exception | None = None
        with closing(source):
            segments = _Segments(self._container, self.choose(source, name), self._cutting)
            packets = (packet for packet in self._arriving(source, live) if packet.stream_index in segments.indexes)
            try:
                for packet in fill_first_dts(packets):
                    pts, dts = self._timeline.stamp(packet, packet.time_base)
                    captured_us = self._wait(dts, packet.opaque)
                    yield from segments.add(packet, Times(pts, dts), captured_us)
            except (FFmpegError, OSError) as error:
                failure = error
            yield from segments.end()
        if failure is not None:
            raise SourceBroke(f"reading {name} failed half-way: {reason(failure)}") from failure

    def _arriving(self, source: MediaSource, live: bool) -> Iterator[Packet[Stream]]:
        begins = True
        for packet in source.packets():
            now = self._clock()
            if begins and self._arrived_at is not None:
                self._timeline.rebase(now - self._arrived_at if live else 0.0)
            begins, self._arrived_at = False, now
            yield packet

    def _wait(self, dts: int, captured: object) -> int:
        """Wait until a packet is due, if it must; when it was captured, in microseconds of Unix time."""
        if self._make_pace is None:
            return captured if isinstance(captured, int) else time.time_ns() // 1000
        if self._pace is None:
            self._pace = self._make_pace()
        elapsed_s = self._timeline.elapsed_s(dts)
        self._pace.wait(elapsed_s)
        return self._pace.unix_us(elapsed_s)

    def _is_carried(self, stream: Stream) -> bool:
        return stream.type in ("video", "audio", "subtitle") and codec_name(stream) in self._container.carried


class _Segments:
    """Divides the packets of one source into segments."""

    def __init__(self, container: Container, streams: list[Stream], cutting: Cutting) -> None:
        self._lead = min(streams, key=lambda stream: (stream.type != "video", stream.type != "audio"))
        self._muxer = container.muxer(streams, self._lead)
        self._min_s = cutting.min_segment_s - TOLERANCE_S if self._lead.type == "video" else cutting.segment_s
        self._begun_at: int | None = None
        self._has_lead = False
        self._blind_since: int | None = None
        self._saw_keyframe = False
        self.indexes = {stream.index for stream in streams}

    def add(self, packet: Packet[Stream], times: Times, captured_us: int) -> Iterator[Step]:
        is_lead = packet.stream_index == self._lead.index
        begins = is_lead and packet.is_keyframe
        if self._is_blind(is_lead, begins, times.dts):
            return
        if begins and self._is_over(times.dts):
            yield from self.end()
            yield Cut()
        if self._begun_at is None or (is_lead and not self._has_lead):
            self._begun_at = times.dts
        if is_lead and not self._has_lead:
            self._has_lead = True
            times = replace(times, captured_us=captured_us)
        yield from _chunk(self._muxer.add(packet, times))

    def end(self) -> Iterator[Step]:
        """The rest of the segment under way."""
        self._begun_at, self._has_lead = None, False
        yield from _chunk(self._muxer.end())

    def _is_over(self, dts: int) -> bool:
        return self._begun_at is not None and self._has_lead and dts - self._begun_at >= self._min_s * CLOCK_HZ

    def _is_blind(self, is_lead: bool, begins: bool, dts: int) -> bool:
        """Whether the source was joined in the middle of a group of pictures, which nobody can decode."""
        self._saw_keyframe |= begins
        if self._saw_keyframe or self._lead.type != "video":
            return False
        if self._blind_since is None and is_lead:
            self._blind_since = dts
        return self._blind_since is not None and dts - self._blind_since < MAX_BLIND_S * CLOCK_HZ


def _chunk(data: bytes) -> Iterator[Chunk]:
    if data:
        yield Chunk(data)


def _advice(streams: list[Stream]) -> str:
    """How streams that cannot be carried may be published after all, if they may."""
    from av.stream import Disposition

    moving = (stream for stream in streams if not stream.disposition & Disposition.attached_pic)
    return "; --transcode may help" if any(stream.type in ("video", "audio") for stream in moving) else ""
