"""Divides packets into segments, in any container, without re-encoding.

A segment begins at a keyframe of the first video stream (without video: after a time) and stands alone, with tables or
an init segment of its own. Two kinds of sources would make a segment that never ends:

- Where no more pictures come, segments are cut by the sound.
- Where no keyframe comes in time, a segment ends at :data:`MAX_BYTES`. The next one has tables, but its first picture
  may refer to others, which its packets say of themselves, as of any picture between keyframes.

Timestamps go on from segment to segment and from source to source, so that joined segments
are one valid stream. In front of the first frame of each segment stands the wall-clock time of its capture.

Text subtitles follow: they neither begin nor end a segment, have no say in the time line, and nothing waits for them or
with them, wherever the source has them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tricklecast.publisher.media.muxers import CONTAINERS, TELETEXT, ContainerName, Muxer, Times
from tricklecast.publisher.media.pace import Pace
from tricklecast.publisher.media.texts import MAX_CUES, is_text
from tricklecast.publisher.steps import Chunk, SegmentEnd, Step
from tricklecast.trickle.media.timeline import CLOCK_HZ, Timeline, ticks
from tricklecast.trickle.pyav import codec_name

if TYPE_CHECKING:
    from av import Packet
    from av.stream import Stream

TOLERANCE_S: Final = 0.05
"""A segment may be shorter by this many seconds: a source whose timestamps jitter must not get segments of one and of
two groups of pictures in turn."""

MAX_BLIND_S: Final = 10.0
"""A segmenter waits this many seconds for the first keyframe of a source. After that, segments begin anywhere."""

PAUSE_S: Final = 3.0
"""After this many seconds of sound without a picture, pictures have stopped. Shared screens pause for a while, too."""

MAX_BYTES: Final = 32 * 1024 * 1024
"""A segment ends at this size, keyframe or not: half of the size that servers take by default."""

WITHOUT_LEAD: Final = 1.5
"""Where the leading stream is silent, another one ends the segment at this multiple of that size."""

MIN_BYTES: Final = 16 * 1024
"""The least size at which it may have to end, however little a server takes."""

MIN_SEGMENT_S: Final = 1.0
SEGMENT_S: Final = 2.0


class Segmenter:
    """Turns packets into the chunks of segments. It blocks only for its pace.

    Args:
        container: the format of the segments.
        min_segment_s: with video, a segment ends at the first keyframe that is this many seconds behind its beginning.
        segment_s: without video, a segment ends after this many seconds.
        pace: makes the clock that packets wait for; without it, they go on as they come.
    """

    def __init__(
        self,
        container: ContainerName = "mpegts",
        *,
        min_segment_s: float = MIN_SEGMENT_S,
        segment_s: float = SEGMENT_S,
        pace: Callable[[], Pace] | None = None,
    ) -> None:
        self.container = CONTAINERS[container]()
        self.timeline = Timeline()
        self._min_segment_s = min_segment_s
        self._segment_s = segment_s
        self._make_pace = pace
        self._pace: Pace | None = None
        self._muxer: Muxer | None = None
        self._lead = 0
        self._leads_video = False
        self._streams: Mapping[int, Stream] = {}  # of the present source
        self._sounds: set[int] = set()  # those of them that are sound
        self._texts: set[int] = set()  # those of them that are text
        self._early: list[tuple[int, Packet[Stream]]] = []  # text that came before the time line
        self._begun_at: int | None = None  # the segment under way
        self._leader = -1  # the stream that leads it
        self._has_lead = False  # it has a packet of that stream
        self._quiet_since: int | None = None  # the first sound behind the newest picture
        self._size = 0  # bytes of the segment under way
        self._max_bytes = MAX_BYTES
        self._text_left_out = 0
        self._is_forced = False  # the segment under way did not begin at a keyframe
        self._is_cut = False  # it ends as soon as another one can begin
        self.forced = 0  # segments so far that ended for their size
        self.blind = 0  # packets so far that were left out in front of a first keyframe
        self.is_blind = False  # the newest one is among them
        self._blind_since: int | None = None
        self._saw_keyframe = False

    def carries(self, stream: Stream) -> bool:
        """Whether the container can carry a stream, and PyAV, or the muxer itself, can write it."""
        if stream.codec_context is None and stream.type != "data" and codec_name(stream) != TELETEXT:
            return False
        return stream.type in ("video", "audio", "subtitle", "data") and codec_name(stream) in self.container.carried

    def start(self, streams: Mapping[int, Stream], *, goes_on: bool = False) -> None:
        """Take packets of these streams from now on; call :meth:`end` for those before.

        Args:
            streams: by the numbers under which their packets are added; the container carries all of them.
            goes_on: the pictures are those of the stream before, so that none has to wait for a keyframe.
        """
        self._lead = min(streams, key=lambda track: (streams[track].type != "video", streams[track].type != "audio"))
        self._leads_video = streams[self._lead].type == "video"
        self._sounds = {track for track, stream in streams.items() if stream.type == "audio"}
        self._texts = {track for track, stream in streams.items() if is_text(stream)}
        self._early.clear()
        self._quiet_since = None
        self._streams, self._leader = streams, -1
        self._write(sound_only=False)
        if not goes_on:
            self._blind_since, self._saw_keyframe = None, False

    def _write(self, *, sound_only: bool) -> None:
        """Begin a segment whose tables name the coming streams: where pictures have stopped, the sound alone, and text.

        Players wait for pictures that tables announce, and take their clock from them.
        """
        named = self._sounds | self._texts if sound_only else self._streams.keys()
        streams = {track: stream for track, stream in self._streams.items() if track in named}
        leader = self._leader_of(sound_only)
        if leader != self._leader:
            self._leader = leader
            self._muxer = self.container.muxer(streams, leader)

    def _leader_of(self, sound_only: bool) -> int:
        return min(self._sounds) if sound_only else self._lead

    def add(self, track: int, packet: Packet[Stream]) -> Iterator[Step]:
        """Take a packet, which is changed.

        Args:
            packet: each stream's come in decoding order. Its ``opaque`` is the wall-clock time of its capture, in
                microseconds of Unix time, if that is known; otherwise the time is now.

        Raises:
            OSError: the packet does not fit (PyAV's ``FFmpegError``, too).
        """
        assert self._muxer is not None, "streams are given first"
        if track in self._texts:
            self._add_text(track, packet)
            return
        times = Times(*self.timeline.stamp(track, packet, packet.time_base))
        if self._early and self.timeline.shift is not None:
            early, self._early = self._early, []
            for number, text in early:
                self._add_text(number, text)
        captured_us = self._wait(times.dts, packet.opaque)
        is_lead = track == self._lead
        begins = is_lead and packet.is_keyframe
        self.is_blind = self._is_blind(is_lead, begins, times.dts)
        if self.is_blind:
            self.blind += 1
            return
        if self._is_over(track, times.dts, begins=begins):
            self.forced += is_lead and not begins and self._size >= self._max_bytes
            sound_only = self._leads_video and track in self._sounds and self._have_stopped(times.dts)
            yield from self.finish() if self._leader_of(sound_only) != self._leader else self.end(last=False)
            yield SegmentEnd()
            self._is_forced = not begins
            self._write(sound_only=sound_only)
        leads = track == self._leader
        if self._begun_at is None or (leads and not self._has_lead):
            self._begun_at = times.dts
        if leads and not self._has_lead:
            self._has_lead = True
            times = replace(times, captured_us=captured_us)
        size = packet.size
        data = self._muxer.add(track, packet, times)
        self._size += len(data) or size  # bytes that the muxer holds count, too
        if data:
            yield Chunk(data)

    def _add_text(self, track: int, packet: Packet[Stream]) -> None:
        assert self._muxer is not None
        shift, time = self.timeline.shift, packet.pts
        if time is None:
            self._text_left_out += 1
        elif shift is not None:
            shown = ticks(time, packet.time_base) + shift
            self._muxer.add(track, packet, Times(shown, shown))
        elif len(self._early) < MAX_CUES:
            self._early.append((track, packet))
        else:
            self._text_left_out += 1

    @property
    def left_out(self) -> int:
        """Packets of these streams that nobody could decode, and text that was too much or had no time."""
        return self._text_left_out + (0 if self._muxer is None else self._muxer.left_out)

    def shorten(self, size: int) -> None:
        """A server refused a segment as too large when it had this size: the next ones stay well below.

        It may be called in any thread.
        """
        self._max_bytes = max(MIN_BYTES, min(self._max_bytes, size) // 2)

    def cut(self) -> None:
        """End the segment under way in front of the next keyframe, however short it is."""
        self._is_cut = True

    def finish(self) -> Iterator[Step]:
        """The rest of all streams; a stream that began too late for the segment under way gets a segment of its own."""
        yield from self.end(last=True)
        if self._muxer is not None and (data := self._muxer.end(last=True)):
            yield from (SegmentEnd(), Chunk(data))

    def end(self, *, last: bool) -> Iterator[Step]:
        """The rest of the segment under way."""
        self._begun_at, self._has_lead, self._size = None, False, 0
        self._is_forced = self._is_cut = False
        if self._muxer is not None and (data := self._muxer.end(last=last)):
            yield Chunk(data)

    def _wait(self, dts: int, captured: object) -> int:
        """Wait until a packet is due; returns when it was captured, in microseconds of Unix time."""
        if self._make_pace is None:
            return captured if isinstance(captured, int) else time.time_ns() // 1000
        self._pace = self._pace or self._make_pace()
        elapsed_s = self.timeline.elapsed_s(dts)
        self._pace.wait(elapsed_s)
        return self._pace.unix_us(elapsed_s)

    def _is_over(self, track: int, dts: int, *, begins: bool) -> bool:
        """Whether the segment under way ends in front of this packet."""
        if track == self._lead:
            self._quiet_since = None
        elif self._quiet_since is None and track in self._sounds:
            self._quiet_since = dts
        if self._begun_at is None:
            return False
        if self._size >= self._max_bytes * (1 if track == self._lead else WITHOUT_LEAD):
            return True
        length_s = (dts - self._begun_at) / CLOCK_HZ
        if begins and (self._has_lead or self._is_forced):
            least_s = self._min_segment_s - TOLERANCE_S if self._leads_video else self._segment_s
            return self._is_forced or self._is_cut or length_s >= least_s
        if track not in self._sounds or self._quiet_since is None:
            return self._leader != self._lead
        return self._leads_video and self._have_stopped(dts) and length_s >= self._segment_s

    def _have_stopped(self, dts: int) -> bool:
        """Whether no more pictures come."""
        return self._quiet_since is not None and dts - self._quiet_since >= PAUSE_S * CLOCK_HZ

    def _is_blind(self, is_lead: bool, begins: bool, dts: int) -> bool:
        """Whether the source was joined in the middle of a group of pictures, which nobody can decode."""
        self._saw_keyframe |= begins
        if self._saw_keyframe or not self._leads_video:
            return False
        if self._blind_since is None and is_lead:
            self._blind_since = dts
        return self._blind_since is not None and dts - self._blind_since < MAX_BLIND_S * CLOCK_HZ
