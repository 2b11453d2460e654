"""Frames and packets of a program, published as media: :class:`MediaPublisher`.

:meth:`MediaPublisher.write` puts frames into a queue; a background task encodes them in a worker thread, divides them
into segments, and publishes these. Where live media is too fast for the encoder, the oldest waiting picture is dropped
before it is encoded; where it is too fast for the network, the oldest segment is. Both are counted.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, Unpack, cast

import anyio
from anyio import to_thread

from tricklecast.publisher.client import Publisher, WriterOptions
from tricklecast.publisher.events import PublisherEvent
from tricklecast.publisher.feed import STEPS_AHEAD, Feed, Totals
from tricklecast.publisher.media.encode import (
    AudioCodec,
    Encoder,
    Encoding,
    Preset,
    VideoEncoder,
    VideoShape,
    encoder_for,
)
from tricklecast.publisher.media.muxers import CONTAINERS, ContainerName
from tricklecast.publisher.media.segmenter import Segmenter
from tricklecast.publisher.steps import SegmentEnd, Step
from tricklecast.trickle.amounts import count
from tricklecast.trickle.client.arguments import URLs, check_number, check_options
from tricklecast.trickle.client.reports import Event, Reporter
from tricklecast.trickle.client.tasks import BackgroundTask, Notifier, first_error
from tricklecast.trickle.errors import ClosedHere, InvalidInput, LocalProtocolError
from tricklecast.trickle.media.clock import UNIX_S
from tricklecast.trickle.media.timeline import CLOCK_HZ, MAX_BACK, MAX_JUMP, fraction
from tricklecast.trickle.pyav import codec_name, copied, need_pyav

if TYPE_CHECKING:
    import numpy as np
    from av import Packet
    from av.audio.frame import AudioFrame
    from av.stream import Stream
    from av.video.frame import VideoFrame

    Picture: TypeAlias = np.ndarray[Any, Any] | VideoFrame

logger = logging.getLogger("tricklecast.publisher")

PICTURES_AHEAD: Final = 4
"""Pictures that may wait for the encoder."""

ROOM_S: Final = 0.01
"""A picture waits this many seconds for room before the oldest one is dropped. An encoder that is fast enough takes
one meanwhile, also where the program writes without a pause, or keeps the event loop between its pictures."""

ITEMS_AHEAD: Final = 256
"""Pictures, pieces of sound and packets that may wait together: more than 2 s of sound."""

START_S: Final = 1.0
"""The first segment waits this many seconds for a frame of each announced stream, so that its tables name them all."""

MAX_REFUSED: Final = 8
"""If this many frames in a row cannot be encoded, no other one can."""

MAX_SIDE: Final = 16_384
"""x264 takes no picture with a longer side, in pixels, and libavutil none with much more than 2**28 of them."""

MAX_TIME_S: Final = 10**12
"""Times up to this many seconds fit into 64 bits also in microseconds, as filters count."""

APART_S: Final = 0.2
"""Where the times of capture that a program gives and those of the media go apart by more than this, in seconds, a
segment begins: each one tells the time of its first frame only, and readers count on from there."""

_TRACKS: Final = {"video": 0, "audio": 1}


class FramesDropped(Event):
    """Pictures were dropped, because the encoder was too slow for them, or frames and packets were left out.

    Attributes:
        count: in all, since the start.
        undecodable: of them, packets that came in front of their stream's first keyframe.
        out_of_order: of them, pictures and pieces of sound that were not later than those before.
        refused: of them, frames that could not be encoded, and packets that do not fit.
        reason: why the newest of these could not be.
    """

    count: int
    undecodable: int = 0
    out_of_order: int = 0
    refused: int = 0
    reason: str = ""

    def __str__(self) -> str:
        slow = self.count - self.undecodable - self.out_of_order - self.refused
        reasons = [f"the encoder is too slow: {count(slow, 'picture')} dropped so far"] if slow else []
        if self.undecodable:
            packets = count(self.undecodable, "packet")
            reasons.append(f"a stream did not begin with a keyframe: {packets} before one left out so far")
        if self.out_of_order:
            frames = count(self.out_of_order, "frame")
            reasons.append(f"times go back: {frames} not later than those before left out so far")
        if self.refused:
            reasons.append(f"{self.reason}: {count(self.refused, 'frame')} left out so far")
        return "; ".join(reasons)


MediaEvent: TypeAlias = PublisherEvent | FramesDropped


@dataclass(frozen=True, slots=True)
class MediaStatistics:
    """Counters of a :class:`MediaPublisher`.

    Attributes:
        frames: frames and packets that were taken.
        frames_dropped: pictures that were dropped, because the encoder was too slow, packets that were left out,
            because they came in front of their stream's first keyframe, and frames that were not later than those
            before, or could not be encoded.
        segments: segments that the server has confirmed.
        segments_dropped: segments that were given up, because the network was too slow.
        segments_lost: segments that failed.
        bytes: bytes that were written.
        seq: the newest segment; ``None`` before the first one.
    """

    frames: int
    frames_dropped: int
    segments: int
    segments_dropped: int
    segments_lost: int
    bytes: int
    seq: int | None


@dataclass(slots=True)
class _Item:
    """A frame or packet that waits; its time is given where it has none of its own."""

    kind: str
    data: Any
    captured_us: int
    pts: int | None = None
    time_base: Fraction | None = None
    stream: Stream | None = None  # of a packet, which is encoded already
    is_told: bool = False  # the program has said when it was captured

    @property
    def is_picture(self) -> bool:
        """Whether it is a picture that is still to be encoded."""
        return self.kind == "video" and self.stream is None


class TargetOptions(WriterOptions, total=False):
    """The arguments of :class:`MediaPublisher` that a relay passes on to it."""

    fps: float
    bitrate: int | None
    gop_s: float
    container: ContainerName
    audio_codec: AudioCodec
    preset: Preset
    when_full: Literal["drop", "wait"]
    on_event: Callable[[MediaEvent], None] | None


class MediaPublisher:
    """Publishes the frames and packets of a program::

        async with MediaPublisher("http://127.0.0.1:2939/trickle/cam") as publisher:
            await publisher.write(picture)  # a numpy array, HxWx3, uint8; or a frame of PyAV

    A frame keeps the time that it has (``pts`` and ``time_base``); without one, its time is now. Where times go back by
    more than 0.2 s, as those of a clip that is played again, the media goes on behind the last frame; a frame that is
    nearer behind the one before it is left out and counted (``frames_dropped``). Pictures are encoded as H.264, sound
    as AAC or Opus; :meth:`write_packet` publishes packets that are encoded already. A picture of another size begins a
    new segment; odd sides lose or gain a pixel, since H.264 has even ones only. At the end of the block the channel
    ends; after an exception the last segment is truncated, and the channel stays for a successor.

    Args:
        url: the channel, or its URLs at the nodes of a cluster, as for :class:`~tricklecast.publisher.Publisher`.
        video: whether pictures will come. The first segment waits up to 1 s for each announced stream.
        audio: whether sound will come.
        fps: the usual number of pictures per second: a hint for the encoder. Their times decide.
        bitrate: of the picture, in bits per second; ``None``: constant quality.
        gop_s: from keyframe to keyframe, and so the length of segments, in seconds.
        container: ``"mpegts"`` or ``"fmp4"``.
        audio_codec: ``"aac"`` or ``"opus"``.
        preset: x264's, from ``ultrafast`` to ``veryslow``.
        when_full: the remedy when the encoder or the network is too slow. ``"drop"``, for live media: the oldest
            picture that waits for the encoder is dropped, and so are the oldest segments in a full buffer;
            ``"wait"``: :meth:`write` waits, and nothing is dropped for want of time or room.
        start: the first segment's number, as for :class:`~tricklecast.publisher.Publisher`.
        on_event: is called with :class:`FramesDropped`, and with the events of the publisher; it must not block.
            An exception that it raises is logged, and publishing goes on.
        publisher: further arguments of :class:`~tricklecast.publisher.Publisher`, as in ``auth=`` or ``takeover=``.

    Raises:
        InvalidInput: an argument is wrong, or PyAV is not installed.
    """

    def __init__(
        self,
        url: URLs,
        *,
        video: bool = True,
        audio: bool = False,
        fps: float = 30.0,
        bitrate: int | None = None,
        gop_s: float = 1.0,
        container: ContainerName = "mpegts",
        audio_codec: AudioCodec = "aac",
        preset: Preset = "ultrafast",
        when_full: Literal["drop", "wait"] = "drop",
        start: int | Literal["resume", "reset"] = "resume",
        on_event: Callable[[MediaEvent], None] | None = None,
        **publisher: Unpack[WriterOptions],
    ) -> None:
        need_pyav()
        check_options("MediaPublisher()", publisher, WriterOptions.__optional_keys__)
        check_number("fps", fps, above=0)
        check_number("gop_s", gop_s, above=0)
        if container not in CONTAINERS:
            raise InvalidInput(f"container is 'mpegts' or 'fmp4', not {container!r}")
        kinds = {kind for kind, wanted in (("video", video), ("audio", audio)) if wanted}
        encoding = Encoding(bitrate, gop_s, preset, audio_codec)
        segmenter = Segmenter(container, min_segment_s=gop_s, segment_s=gop_s)
        self._pipeline = _Pipeline(segmenter, kinds, encoding, Fraction(fps).limit_denominator(1001))
        self._drops = when_full == "drop"
        content_type = segmenter.container.content_type
        self._publisher = Publisher(
            url, content_type=content_type, start=start, when_full=when_full, on_event=on_event, **publisher
        )
        self._report = Reporter[FramesDropped](logger, self._publisher.url.channel, on_event)
        self._feed: Feed | None = None
        self._task: BackgroundTask | None = None
        self._waiting: deque[_Item] = deque()
        self._changed = Notifier()
        self._is_over = False
        self._is_done = False
        self._error: Exception | None = None
        self._begun_ns: int | None = None
        self._taken = self._dropped = 0
        self._undecodable = 0  # that were told
        self._left_out = (0, 0)  # frames out of order, and refused ones, that were told
        # Not anyio's own limiter, whose 40 threads the program may keep busy: live media would be dropped meanwhile.
        self._threads = anyio.CapacityLimiter(1)

    def statistics(self) -> MediaStatistics:
        """The counters at this moment."""
        totals = Totals() if self._feed is None else self._feed.totals
        return MediaStatistics(
            frames=self._taken,
            frames_dropped=self._dropped + self._pipeline.left_out,
            segments=totals.segments,
            segments_dropped=totals.dropped,
            segments_lost=totals.lost,
            bytes=totals.bytes,
            seq=totals.seq,
        )

    async def __aenter__(self) -> Self:
        await self._publisher.__aenter__()
        self._task = BackgroundTask(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        failure: BaseException | None = error
        try:
            if error is None:
                self._is_over = True
                self._changed.notify()
                await self._task.over()
                failure = self._error
        except BaseException as cancelled:
            failure = cancelled
            raise
        finally:
            if error is not None and self._feed is not None:
                self._feed.cut_off()
            with anyio.CancelScope(shield=True):
                await self._task.stop()
            await self._publisher.__aexit__(type(failure) if failure else None, failure, trace)
        if failure is not None and error is None:
            raise failure

    async def write(
        self,
        frame: Picture | AudioFrame,
        *,
        pts: int | None = None,
        time_base: Fraction | None = None,
        captured_at: float | None = None,
    ) -> None:
        """Publish a picture or a piece of sound. It must not be changed afterwards.

        A frame that turns out in the encoder to be one that cannot be encoded is left out and told
        (:class:`FramesDropped`); several in a row are the error of the next call.

        Args:
            frame: a numpy array (HxWx3, uint8, RGB), an ``av.VideoFrame`` or an ``av.AudioFrame``.
            pts: its time, in ticks of ``time_base``, instead of its own.
            time_base: seconds per tick.
            captured_at: when it was captured, in seconds of Unix time, between 1968 and 2104; ``None``: now.

        Raises:
            InvalidInput: it is no frame that can be encoded, or an argument is wrong: the next frame may be written.
                No frame can be encoded, as this build of PyAV has no encoder for them.
            LocalProtocolError: the publisher is not open yet. ClosedHere: it was closed.
            TrickleError: the publisher cannot go on, as in :meth:`tricklecast.publisher.SegmentWriter.write`.
        """
        if (pts is None) != (time_base is None):
            raise InvalidInput("pts and time_base belong together")
        kind = "audio" if hasattr(frame, "samples") else "video"
        if kind == "video":
            _check_picture(frame)
        else:
            _check_sound(frame)
        own = getattr(frame, "pts", None)
        if pts is not None:
            pts = _checked_time(pts, time_base)
        elif own is not None:
            _checked_time(own, getattr(frame, "time_base", None) or Fraction(1, CLOCK_HZ))
        else:
            now = time.monotonic_ns()
            self._begun_ns = self._begun_ns or now
            pts, time_base = (now - self._begun_ns) // 1000, Fraction(1, 1_000_000)
        await self._add(_Item(kind, frame, _unix_us(captured_at), pts, time_base, is_told=captured_at is not None))

    async def write_packet(self, packet: Packet[Stream], *, captured_at: float | None = None) -> None:
        """Publish a packet that is encoded already. It belongs to the publisher then, and is never dropped alone.

        Args:
            packet: of ``packet.stream``, in decoding order. One stream of each kind is published. Another picture
                stream should begin with a keyframe: packets before its first one, for up to 10 s, cannot be decoded,
                and are left out and counted (``frames_dropped``). Another sound waits for the next keyframe, so that
                its beginning is sent up to a group of pictures late; its times stay.
            captured_at: when it was captured, in seconds of Unix time; ``None``: now.

        Raises:
            InvalidInput: the container does not carry its codec.
            TrickleError: as in :meth:`write`.
        """
        stream = cast("Stream | None", packet.stream)
        if stream is None or stream.type not in _TRACKS or not self._pipeline.segmenter.carries(stream):
            codec = "no stream" if stream is None else codec_name(stream)
            raise InvalidInput(f"{self._pipeline.segmenter.container.name} cannot carry such a packet ({codec})")
        if packet.size:  # the empty packet at the end of a file is for decoders
            kept = self._pipeline.kept(stream)
            await self._add(
                _Item(stream.type, packet, _unix_us(captured_at), stream=kept, is_told=captured_at is not None)
            )

    async def _add(self, item: _Item) -> None:
        self._check()
        if item.is_picture and self._drops:
            with anyio.move_on_after(ROOM_S):
                await self._room(item)
            while len(pictures := self._pictures()) >= PICTURES_AHEAD:
                self._waiting.remove(pictures[0])
                self._dropped += 1
                self._tell(logging.DEBUG if self._dropped > 1 else logging.WARNING)
        await self._room(item)
        self._waiting.append(item)
        self._taken += 1
        self._changed.notify()

    def _tell(self, level: int) -> None:
        pipeline = self._pipeline
        self._undecodable = pipeline.segmenter.blind
        counts = (self._dropped + pipeline.left_out, self._undecodable, pipeline.out_of_order, pipeline.refused)
        self._report.report(FramesDropped(*counts, str(pipeline.refusal or "")), level)

    async def _room(self, item: _Item) -> None:
        while len(self._waiting) >= ITEMS_AHEAD or (item.is_picture and len(self._pictures()) >= PICTURES_AHEAD):
            await self._changed.wait()
            self._check()

    def _pictures(self) -> list[_Item]:
        return [waiting for waiting in self._waiting if waiting.is_picture]

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._task is None:
            raise LocalProtocolError("the media publisher is not open: enter its block (async with)")
        if self._is_over or self._is_done:
            raise ClosedHere("the media publisher was closed")

    async def _run(self) -> None:
        send, receive = anyio.create_memory_object_stream[Step](STEPS_AHEAD)
        self._feed = Feed(self._publisher, receive, drops=self._drops)
        try:
            async with anyio.create_task_group() as tasks, receive:
                tasks.start_soon(self._encode, send)
                await self._feed.run()
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            self._error = first_error(group)
        except Exception as error:
            self._error = error
        finally:
            self._is_done = True
            self._waiting.clear()
            self._changed.notify()

    async def _encode(self, send: Any) -> None:
        async with send:
            while self._waiting or not self._is_over:
                if not self._waiting:
                    await self._changed.wait()
                    continue
                item = self._waiting.popleft()
                self._changed.notify()
                for step in await to_thread.run_sync(self._pipeline.feed, item, limiter=self._threads):
                    await send.send(step)
                if not self._pipeline.segmenter.is_blind:
                    self._tell_undecodable()
                self._tell_left_out()
            if self._pipeline.refusal is not None and not self._pipeline.has_worked:
                raise self._pipeline.refusal  # not a single frame could be encoded
            for step in await to_thread.run_sync(self._pipeline.finish, limiter=self._threads):
                await send.send(step)
            self._tell_undecodable()

    def _tell_undecodable(self) -> None:
        """Tell once for each stream, with all of its packets."""
        if self._pipeline.segmenter.blind > self._undecodable:
            self._tell(logging.WARNING)

    def _tell_left_out(self) -> None:
        """Tell of each frame that is out of order or was refused; the first one of its kind is a warning.

        Raises:
            InvalidInput: too many were refused in a row: another one would be, too.
        """
        left_out, before = (self._pipeline.out_of_order, self._pipeline.refused), self._left_out
        if left_out == before:
            return
        self._left_out = left_out
        is_first = any(now and not then for now, then in zip(left_out, before, strict=True))
        self._tell(logging.WARNING if is_first else logging.DEBUG)
        if self._pipeline.refused_in_a_row >= MAX_REFUSED and self._pipeline.refusal is not None:
            raise self._pipeline.refusal


class _Joints:
    """Finds the places in a stream where its times of capture do not go on as its media does."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None  # media and capture times, in seconds

    def is_one(self, frame: Any, captured_us: object) -> bool:
        """Whether one is in front of this frame or packet."""
        if frame.pts is None or not frame.time_base or not isinstance(captured_us, int):
            return False
        time_s, captured_s = float(frame.pts * frame.time_base), captured_us / 1e6
        before, self._before = self._before, (time_s, captured_s)
        if before is None:
            return False
        passed_s = time_s - before[0]
        # The time line goes on behind the last frame where the media's times go back, or jump too far.
        goes_on = -MAX_BACK <= passed_s * CLOCK_HZ <= MAX_JUMP
        return not goes_on or abs(captured_s - before[1] - passed_s) > APART_S


class _Pipeline:
    """Encodes frames and divides the packets into segments; blocks.

    Attributes:
        refused: frames and packets so far that could not be encoded, or do not fit.
        refused_in_a_row: those of them that came last.
        refusal: why the newest of them could not.
        has_worked: another frame could.
    """

    def __init__(self, segmenter: Segmenter, kinds: set[str], encoding: Encoding, rate: Fraction) -> None:
        self.segmenter = segmenter
        self._kinds = kinds
        self._encoding = encoding
        self._rate = rate
        self._encoders: dict[str, Encoder] = {}
        self._out_of_order = 0  # of encoders that are closed
        self.refused = self.refused_in_a_row = 0
        self.refusal: InvalidInput | None = None
        self.has_worked = False
        self._announced: dict[str, tuple[Stream, Stream]] = {}
        self._streams: dict[str, Stream] = {}
        self._held: list[tuple[str, Packet[Stream]]] = []
        self._pictures, self._leading = _Joints(), _Joints()  # of those to encode, and of the leading stream's packets
        self._joints: set[Packet[Stream]] = set()  # those of the held ones that stand behind one
        self._first_us: int | None = None
        self._is_started = False
        self._goes_on = False  # the pictures of the next start are those of the segment under way
        self._waits = False  # another sound waits for the next keyframe of the pictures that go on
        self._size: str | None = None  # of encoded pictures
        self._said_even = False

    @property
    def out_of_order(self) -> int:
        """Frames so far that were not later than those before."""
        return self._out_of_order + sum(encoder.out_of_order for encoder in list(self._encoders.values()))

    @property
    def left_out(self) -> int:
        """All frames and packets so far that are in no segment."""
        return self.segmenter.blind + self.out_of_order + self.refused

    def kept(self, stream: Stream) -> Stream:
        """A copy of a stream whose packets follow, since its container may be closed soon.

        Sound that is described as the one before goes on as it: a reader of frames has other streams behind each loss.
        """
        known = self._announced.get(stream.type)
        if known is None or known[0] is not stream:
            goes_on = known is not None and stream.type == "audio" and _described(stream) == _described(known[1])
            known = self._announced[stream.type] = stream, known[1] if known and goes_on else copied(stream)
        return known[1]

    def feed(self, item: _Item) -> list[Step]:
        """Take a frame or a packet. One that cannot be encoded, or does not fit, is left out and counted."""
        from av.error import FFmpegError

        if self._first_us is None:
            self._first_us = item.captured_us
        steps: list[Step] = []
        try:
            self._take_in(item, steps)
            self.refused_in_a_row, self.has_worked = 0, True
        except (FFmpegError, ValueError, ArithmeticError, InvalidInput) as error:
            self.refused += 1
            self.refused_in_a_row += 1
            problem = f"cannot encode this {item.kind}" if item.stream is None else f"this {item.kind} does not fit"
            self.refusal = InvalidInput(f"{problem}: {error}")
        return steps

    def _take_in(self, item: _Item, steps: list[Step]) -> None:
        if item.is_picture:
            self._resize(item, steps)
        for packet in self._packets(item):
            self._find_joint(item, packet)
            if self._waits and item.kind == "video" and not packet.is_keyframe:
                steps += self._added(item.kind, packet)
            elif self._waits and item.kind == "video":
                self._held.insert(0, (item.kind, packet))  # the segment begins with it
                self._waits = False
            else:
                self._held.append((item.kind, packet))
        if self._waits and len(self._held) < ITEMS_AHEAD:
            return
        assert self._first_us is not None
        is_late = item.captured_us - self._first_us >= START_S * 1_000_000 or len(self._held) >= ITEMS_AHEAD
        if self._is_started or is_late or self._streams.keys() >= self._kinds:
            self._release(steps)

    def finish(self) -> list[Step]:
        """The rest."""
        for kind, encoder in self._encoders.items():
            self._held += [(kind, packet) for packet in encoder.restart()]
        steps: list[Step] = []
        if self._streams:
            self._release(steps)
        steps += self.segmenter.finish()
        for encoder in self._encoders.values():
            encoder.close()
        return steps

    def _resize(self, item: _Item, steps: list[Step]) -> None:
        """Where pictures have another size from now on, end the segment: the next one has an encoder of its own."""
        from av.video.frame import VideoFrame

        if not hasattr(item.data, "planes"):
            item.data = VideoFrame.from_ndarray(item.data, format="rgb24")
        shape = VideoShape.of(item.data, self._rate, None)
        size, own = f"{shape.width}x{shape.height}", f"{item.data.width}x{item.data.height}"
        if size != own and not self._said_even:
            self._said_even = True
            logger.warning("pictures of %s are encoded as %s: H.264 has even sides only", own, size)
        encoder = None if self._size == size else self._encoders.pop(item.kind, None)
        self._size = size
        if encoder is None:
            return
        self._held += [(item.kind, packet) for packet in encoder.restart()]
        self._release(steps)
        steps += self.segmenter.finish()
        self._out_of_order += encoder.out_of_order
        encoder.close()

    def _packets(self, item: _Item) -> list[Packet[Stream]]:
        data = item.data
        if item.stream is not None:
            self._take(item.kind, item.stream)
            data.opaque = item.captured_us
            return [data]
        if item.pts is not None:
            data.pts, data.time_base = item.pts, item.time_base
        encoder = self._encoders.get(item.kind)
        if item.is_told and isinstance(encoder, VideoEncoder) and self._pictures.is_one(data, item.captured_us):
            encoder.begin_group()
        if encoder is None:
            encoder = self._encoders[item.kind] = encoder_for(data, self._encoding, self._rate)
        self._take(item.kind, encoder.stream)
        return list(encoder.encode(data, item.captured_us))

    def _find_joint(self, item: _Item, packet: Packet[Stream]) -> None:
        is_lead = item.kind == ("video" if "video" in self._streams else "audio")
        if is_lead and item.is_told and self._leading.is_one(packet, packet.opaque):
            self._joints.add(packet)

    def _added(self, kind: str, packet: Packet[Stream]) -> Iterator[Step]:
        if packet in self._joints:
            self._joints.remove(packet)
            self.segmenter.cut()
        return self.segmenter.add(_TRACKS[kind], packet)

    def _take(self, kind: str, stream: Stream) -> None:
        """Let the next segment have this stream.

        Pictures that go on begin it with a keyframe: their encoder makes one, and where others have encoded them, the
        sound waits for one. Without it, all up to the next keyframe would be left out.
        """
        if self._streams.get(kind) is stream:
            return
        self._streams[kind] = stream
        if kind == "video":
            self._waits = self._goes_on = False
        elif self._is_started and "video" in self._streams:
            encoder = self._encoders.get("video")
            if isinstance(encoder, VideoEncoder) and encoder.stream is self._streams["video"]:
                encoder.begin_group()
            else:
                self._waits = self._goes_on = True
        self._is_started = False

    def _release(self, steps: list[Step]) -> None:
        if not self._is_started:
            steps += [*self.segmenter.finish(), SegmentEnd()]
            streams = {_TRACKS[kind]: stream for kind, stream in self._streams.items()}
            self.segmenter.start(streams, goes_on=self._goes_on)
            self._is_started, self._waits, self._goes_on = True, False, False
        held, self._held = deque(self._held), []
        try:
            while held:
                steps += self._added(*held.popleft())
        finally:
            self._held[:0] = held  # behind one that does not fit


def _described(sound: Stream) -> tuple[object, ...]:
    context: Any = sound.codec_context
    return codec_name(sound), context.sample_rate, context.layout.name, context.extradata


def _check_picture(picture: Any) -> None:
    if hasattr(picture, "planes"):
        is_good, found = picture.width > 0 < picture.height, f"a frame of {picture.width}x{picture.height}"
    else:
        shape, dtype = getattr(picture, "shape", None), str(getattr(picture, "dtype", ""))
        found = type(picture).__name__ if shape is None else f"{'x'.join(map(str, shape))} {dtype}"
        is_good = shape is not None and len(shape) == 3 and shape[2] == 3 and min(shape) > 0 and dtype == "uint8"
    if not is_good:
        raise InvalidInput(f"a picture is an array of HxWx3 in uint8 (RGB) or a frame of PyAV, not {found}")
    height, width = (picture.height, picture.width) if hasattr(picture, "planes") else picture.shape[:2]
    if max(height, width) > MAX_SIDE or 8 * (width + 128) * (height + 128) > (1 << 31) - 1:
        raise InvalidInput(f"a picture of {width}x{height} is too large: no encoder of H.264 takes it")


def _check_sound(sound: Any) -> None:
    if sound.sample_rate <= 0 or not sound.samples:
        raise InvalidInput(f"not a piece of sound: {sound.samples} samples at {sound.sample_rate} Hz")


def _checked_time(pts: int, time_base: Any) -> int:
    ticks = (getattr(time_base, "numerator", None), getattr(time_base, "denominator", None))
    if not all(isinstance(number, int) and 0 < number < 1 << 31 for number in ticks):
        raise InvalidInput(f"time_base is a fraction of a second, as in Fraction(1, 25), not {time_base!r}")
    with suppress(TypeError):
        if abs(index(pts) * fraction(time_base)) <= MAX_TIME_S:
            return index(pts)
    raise InvalidInput(f"pts is a whole number of ticks, up to {MAX_TIME_S:,} s, not {pts!r}")


def _unix_us(captured_at: float | None) -> int:
    if captured_at is None:
        return time.time_ns() // 1000
    with suppress(TypeError):
        if UNIX_S.start <= captured_at < UNIX_S.stop:
            return round(float(captured_at) * 1e6)
    raise InvalidInput(f"captured_at is in seconds of Unix time, between 1968 and 2104, not {captured_at!r}")
