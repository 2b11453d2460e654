"""Decoded frames of a channel: ``async for frame in frames(url)``.

A background task reads segments, and a worker thread demuxes and decodes each of them while its bytes arrive: a picture
that is one packet, as live encoders make it, is decoded when its last byte is there. Decoders go on from segment to
segment, and begin anew behind a gap. Only :data:`FRAMES_AHEAD` decoded frames wait for the program. If it is slower,
the connection waits, and the subscriber goes on at the live edge when its segment has left the server's window; or,
with ``when_full="drop"``, the oldest picture is dropped.

libavformat pulls its bytes: it blocks until they come. So each reader may have one thread, from the first bytes of a
segment until its end; it is none of those that the program's own ``anyio.to_thread`` calls share. Between segments
there is no thread.

What the program does not get is counted: pictures that were dropped, packets that could not be decoded, segments that
were missed, cut short or unreadable. Bytes from the channel raise nothing but :exc:`NotMedia`: PyAV and its decoders
raise errors of many kinds for damaged media, and each of them means that the segment cannot be read.
"""

from __future__ import annotations

import io
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import islice, pairwise
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeAlias, Unpack, cast, overload

import anyio
from anyio import from_thread, to_thread

from tricklecast.subscriber.client import ReaderOptions, Subscriber
from tricklecast.subscriber.core import AnyStart, OnLag, Start
from tricklecast.subscriber.events import SubscriberEvent
from tricklecast.subscriber.media.frame import Arrays, Clock, Frame, FrameBatch, joined, stacked
from tricklecast.subscriber.media.joiner import NotMedia
from tricklecast.subscriber.segment import Segment
from tricklecast.trickle.backoff import Backoff
from tricklecast.trickle.client.arguments import URLs, check_number
from tricklecast.trickle.client.reports import Reporter
from tricklecast.trickle.client.tasks import BackgroundTask
from tricklecast.trickle.errors import InvalidInput, NoHardware, Position, TrickleError
from tricklecast.trickle.media.clock import read_prft, read_temi
from tricklecast.trickle.media.containers import PACKET_BYTES, SNIFF_BYTES, Container, sniff
from tricklecast.trickle.media.demux import FORMATS, SampleGuard, UnsafeMedia, demuxed
from tricklecast.trickle.pyav import check_hwaccel, copied, need_pyav, new_decoder

if TYPE_CHECKING:
    from av import CodecContext, Packet
    from av.stream import Stream
    from typing_extensions import TypeVar

    Item = TypeVar("Item", default=Frame)
else:
    from typing import TypeVar

    Item = TypeVar("Item")

logger = logging.getLogger("tricklecast.subscriber")

FRAMES_AHEAD: Final = 4
"""Decoded frames that may wait for the program."""

PICTURES_AHEAD: Final = 2
SOUNDS_AHEAD: Final = 256
"""The same with ``when_full="drop"``: few pictures, for a short delay, and much sound, which is not dropped."""

BATCH: Final = 1024
"""The largest batch."""

BATCH_S: Final = 1.0
"""Default for the longest time that a picture waits for the rest of its batch, in seconds."""

THREADS: Final = 64
"""The most threads of a decoder."""

MAX_SIDE: Final = 16_384
"""The largest width and height of arrays, in pixels."""

HEAD_BYTES: Final = 256 * 1024
"""First bytes of a segment that are kept: they hold the producer's time, and the parameters of sound."""

# Packets come as they are, without waiting for the next one. Each PES packet of live encoders is one frame.
_OPTIONS: Final = {
    Container.MPEGTS: {"fflags": "+noparse+nofillin", "probesize": "32", "analyzeduration": "1"},
    Container.FMP4: {"probesize": "32", "analyzeduration": "1"},
}
# libavformat finds out the length of packets by 2 kB of them, which a small first picture does not have.
_NULL_PACKETS: Final = (b"\x47\x1f\xff\x10" + bytes(PACKET_BYTES - 4)) * 16


@dataclass(frozen=True, slots=True)
class SoftwareDecoding:
    """Event: ``hwaccel="auto"`` found no device, so that pictures are decoded by the processor.

    Attributes:
        error: what was found.
    """

    error: NoHardware

    def __str__(self) -> str:
        return f"pictures are decoded without a device: {self.error.why}"


FrameEvent: TypeAlias = SubscriberEvent | SoftwareDecoding


@dataclass(slots=True)
class FrameStatistics:
    """Counters of a :class:`FrameReader`.

    Attributes:
        frames: frames that were decoded.
        dropped: pictures of them that the program was too slow for.
        segments: segments that were read.
        resets: how often decoders began anew, because something was lost or the channel restarted.
        damaged: packets that could not be decoded.
        unreadable: segments that could not be read, or not to their end.
        incomplete: segments of which a part came, because their publisher or the connection broke off.
        missed: segments that did not come: skipped by their publisher, or gone from the server's window before they
            were read, those before the channel's end included.
    """

    frames: int = 0
    dropped: int = 0
    segments: int = 0
    resets: int = 0
    damaged: int = 0
    unreadable: int = 0
    incomplete: int = 0
    missed: int = 0


class FrameOptions(ReaderOptions, total=False):
    """The arguments of :func:`frames` but ``batch``."""

    video: bool
    audio: bool | Literal["packets"]
    format: str | None
    size: tuple[int, int] | None
    batch_s: float | None
    hwaccel: str | None
    threads: int | None
    when_full: Literal["wait", "drop"]
    start: AnyStart
    reconnect: bool
    on_event: Callable[[FrameEvent], None] | None


@overload
def frames(url: URLs, *, batch: None = None, **options: Unpack[FrameOptions]) -> FrameReader[Frame]: ...


@overload
def frames(url: URLs, *, batch: int, **options: Unpack[FrameOptions]) -> FrameReader[FrameBatch]: ...


def frames(
    url: URLs,
    *,
    video: bool = True,
    audio: bool | Literal["packets"] = False,
    format: str | None = None,
    size: tuple[int, int] | None = None,
    batch: int | None = None,
    batch_s: float | None = BATCH_S,
    hwaccel: str | None = None,
    threads: int | None = None,
    when_full: Literal["wait", "drop"] = "wait",
    start: AnyStart = "current",
    reconnect: bool = False,
    on_event: Callable[[FrameEvent], None] | None = None,
    **subscriber: Unpack[ReaderOptions],
) -> FrameReader[Any]:
    """Decode a channel::

        async for frame in frames("http://127.0.0.1:2939/trickle/cam", format="rgb24"):
            print(frame.time, frame.array.shape)

        async for batch in frames("http://127.0.0.1:2939/trickle/cam", size=(224, 224), batch=8):
            print(batch.times, batch.array.shape)  # (8, 224, 224, 3)

    Args:
        url: the channel, or its URLs at the nodes of a cluster, as for :class:`~tricklecast.subscriber.Subscriber`.
        video: whether pictures are decoded.
        audio: whether sound is decoded; ``"packets"``: sound comes as it is, without decoding.
        format: the pixel format of :attr:`Frame.array` (needs numpy), as in ``"rgb24"`` or ``"gray"``; ``None``: there
            are no arrays, only PyAV's own frames; or, with ``size`` or ``batch``, ``"rgb24"``.
        size: width and height of the arrays, in pixels, whatever the picture's shape is; ``None``: the picture's own.
            Format and size change in one pass.
        batch: pictures come as :class:`FrameBatch`, each with that many of them, at most 1,024. A batch is shorter
            before a gap, a restart, a picture of another size and the end, and by ``batch_s``. Not together with sound.
        batch_s: the longest time that a picture waits for the rest of its batch, in seconds; ``None``: for ever.
        hwaccel: the device that decodes pictures, if this build of PyAV has it: ``"cuda"``, ``"vaapi"``, ``"qsv"``,
            ``"videotoolbox"`` and others; ``"cuda:1"`` and ``"vaapi:/dev/dri/renderD129"`` name one of several.
            ``"auto"``: the first one that can be opened; if there is none, the processor decodes, which is logged, and
            told by a :class:`SoftwareDecoding`. Frames are in the computer's memory in any case.
        threads: how many pictures libavcodec decodes at once; each one comes ``threads - 1`` pictures later. ``None``:
            no picture waits; only parts of one are decoded at once, where its encoder made such parts.
        when_full: what happens when the program is too slow: ``"wait"``: the reader waits for it; ``"drop"``: the
            oldest picture is dropped, so that the program gets the newest ones.
        start: the first segment, as for :class:`~tricklecast.subscriber.Subscriber`, where the default is ``"next"``: a
            program that waits for news wants nothing old, but a viewer wants a picture at once.
        reconnect: whether reading goes on for ever: the reader waits for a channel that is not there, for the next
            life of one that has ended, and for a server that is away. The first frame of a later life is
            ``restarted``. With ``on_lag="earliest"``, and without ``on_lag`` if ``start`` is ``"earliest"`` or N, a
            life is read from its beginning instead of its newest segment.
        on_event: called with the events of the subscriber and :class:`SoftwareDecoding`, in the event loop: it must not
            block. An exception that it raises is logged, and reading goes on.
        subscriber: further arguments of :class:`~tricklecast.subscriber.Subscriber`.

    Raises:
        InvalidInput: an argument is wrong, or PyAV is not installed.
        NoHardware: PyAV was built without ``hwaccel``. Whether the machine has it is seen at the first picture.
    """
    need_pyav()
    kinds = {kind for kind, wanted in (("video", video), ("audio", audio)) if wanted}
    if not kinds:
        raise InvalidInput("frames() needs video, audio or both")
    if when_full not in ("wait", "drop"):
        raise InvalidInput(f"when_full is 'wait' or 'drop', not {when_full!r}")
    if batch is not None:
        check_number("batch", batch, at_least=1, at_most=BATCH, whole=True)
        if kinds != {"video"}:
            raise InvalidInput("a batch has pictures alone: read sound with another reader")
    if batch_s is not None:
        check_number("batch_s", batch_s, at_least=0)
    if threads is not None:
        check_number("threads", threads, at_least=1, at_most=THREADS, whole=True)
    if size is not None:
        _check_size(size)
    if hwaccel is not None:
        check_hwaccel(hwaccel)
    if format is None and (size is not None or batch is not None):
        format = "rgb24"
    if format is not None:
        _check_format(format)
    if reconnect:
        if subscriber.keys() & {"wait_for_channel_s", "reconnect_s", "transport"}:
            raise InvalidInput("reconnect=True waits without a limit; it takes client=, not transport=")
        subscriber |= {"wait_for_channel_s": None, "reconnect_s": None}
        if Start.parse(start).reads_all:  # later subscribers begin at positions
            subscriber.setdefault("on_lag", OnLag.EARLIEST)
    subscribe = partial(Subscriber, url, on_event=on_event, **subscriber)
    channel = subscribe(start=start).url.channel  # raises what is wrong with the arguments
    reporter = Reporter[SoftwareDecoding](logger, channel, on_event)
    decoding = _Decoding(
        kinds,
        {"audio"} if audio == "packets" else set(),
        None if format is None else Arrays(format, size, batch),
        threads=threads,
        hwaccel=hwaccel,
        report=lambda event: from_thread.run_sync(reporter.report, event, logging.WARNING),
    )
    return FrameReader(
        subscribe, start, decoding, batch=batch, batch_s=batch_s, drops=when_full == "drop", reconnects=reconnect
    )


def _check_size(size: tuple[int, int]) -> None:
    try:
        width, height = size
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"size is width and height, as in (640, 360), not {size!r}") from error
    for name, value in (("width", width), ("height", height)):
        check_number(f"the {name} in size", value, at_least=1, at_most=MAX_SIDE, whole=True)


def _check_format(name: str) -> None:
    from av.error import FFmpegError
    from av.video.frame import VideoFrame

    try:
        VideoFrame(16, 16, "yuv420p").to_ndarray(format=name)
    except (ValueError, FFmpegError) as error:
        usual = "rgb24, bgr24, rgba, gray, yuv420p"
        raise InvalidInput(f"no arrays of the pixel format {name!r} (usual ones: {usual})") from error


class FrameReader(Generic[Item]):
    """The frames of a channel, or batches of them; made by :func:`frames`. An async iterator and context manager.

    A loop that is left early stops the reader a moment later; ``async with frames(url) as reader:`` stops it where the
    block ends. A cancelled wait loses no frame. One task reads at a time: a second one gets
    ``anyio.BusyResourceError``.
    """

    def __init__(
        self,
        subscribe: Callable[..., Subscriber],
        start: AnyStart,
        decoding: _Decoding,
        *,
        batch: int | None,
        batch_s: float | None,
        drops: bool,
        reconnects: bool,
    ) -> None:
        self._subscribe = subscribe
        self._start = start
        self._batch = batch
        self._batch_s = math.inf if batch_s is None else batch_s
        self._drops = drops
        self._limit = max(batch or 1, SOUNDS_AHEAD if drops else FRAMES_AHEAD)
        self._reconnects = reconnects
        self._failures = 0
        self._is_in_life = self._is_between_lives = False
        self._decoding = decoding
        self._counts = decoding.counts
        self._ready: deque[Frame] = deque()
        self._changed = anyio.Event()
        self._task: BackgroundTask | None = None
        self._over = False
        self._error: Exception | None = None
        self._reading: _ChunkReader | None = None
        self._missed_at_end = 0
        self._guard = anyio.ResourceGuard("reading frames from")
        # Not anyio's own limiter: a segment may be open for hours, and 40 of them would leave the program no thread.
        self._threads = anyio.CapacityLimiter(1)
        self._joining = anyio.CapacityLimiter(1)

    @property
    def kinds(self) -> frozenset[str]:
        """Which of ``"video"`` and ``"audio"`` the newest segment has; empty before the first frame."""
        return frozenset(self._decoding.found)

    @property
    def missed_at_end(self) -> int:
        """Segments that were missed between the last one read and the end of the channel; with ``reconnect=True``, of
        its newest life that has ended. What was missed before a frame is that frame's ``gap``."""
        return self._missed_at_end

    def statistics(self) -> FrameStatistics:
        """The counters at this moment."""
        return replace(self._counts)

    async def __aenter__(self) -> Self:
        self._task = BackgroundTask(self._run)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop reading."""
        self._over = True
        if self._reading is not None:  # a worker thread cannot be cancelled
            self._reading.stop()
        self._notify()
        if self._task is not None:
            with anyio.CancelScope(shield=True):
                await self._task.stop()

    async def __aiter__(self) -> AsyncIterator[Item]:
        async with self if self._task is None else nullcontext():
            while (item := await self.next()) is not None or not self._over:
                if item is not None:
                    yield item

    async def next(self) -> Item | None:
        """The next frame or batch; ``None`` at the end of the channel. With ``reconnect=True``, further calls wait for
        its next life.

        Raises:
            TrickleError: as :class:`~tricklecast.subscriber.Subscriber` does.
            NotMedia: the channel's first segment is neither MPEG-TS nor MP4, or cannot be decoded.
            NoHardware: ``hwaccel`` does not decode this video here; the message names the devices that do.
        """
        with self._guard:
            while not (count := self._count()):
                if self._error is not None:
                    raise self._error
                if self._over:
                    return None
                if self._is_between_lives:
                    self._is_between_lives = False
                    self._notify()
                    return None
                with anyio.CancelScope(deadline=self._due()):
                    await self._changed.wait()
            frames = [self._ready.popleft() for _ in range(count)]
            self._notify()
            return cast(Item, frames[0] if self._batch is None else await self._joined(frames))

    def _count(self) -> int:
        """How many frames are ready to be the next item."""
        if self._batch is None or not self._ready:
            return min(1, len(self._ready))
        alike = 1
        for here, there in pairwise(islice(self._ready, self._batch)):
            if not here.goes_on_with(there):
                return alike
            alike += 1
        is_last = self._error is not None or self._over or self._is_between_lives
        return alike if alike == self._batch or is_last or anyio.current_time() >= self._due() else 0

    def _due(self) -> float:
        """When the first picture has waited long enough for the others of its batch."""
        return self._ready[0].came_at + self._batch_s if self._ready else math.inf

    async def _joined(self, frames: list[Frame]) -> FrameBatch:
        if len(frames) != self._batch:
            self._decoding.begin_block()
        array = joined(frames)
        if array is None:
            try:
                array = await to_thread.run_sync(stacked, frames, limiter=self._joining)
            except BaseException:  # a cancellation: the next call has them
                self._ready.extendleft(reversed(frames))
                raise
        return FrameBatch(array, frames)

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _run(self) -> None:
        try:
            await self._read_life()
            while self._reconnects:
                await self._read_life()
        except Exception as error:
            self._error = error
        finally:
            self._over = True
            self._notify()

    async def _read_life(self) -> None:
        """Read until the channel ends."""
        before = self._counts.segments
        subscriber = self._subscribe(start=self._start)
        try:
            async with subscriber:
                async for segment in subscriber:
                    if segment.restarted and self._reconnects and self._is_in_life:
                        await self._flush()
                        await self._finish_life()
                    await self._read(segment)
        finally:
            await self._flush()
        self._missed_at_end = subscriber.missed_at_end
        self._counts.missed += subscriber.missed_at_end
        if self._reconnects:
            self._failures = 0 if self._counts.segments > before else self._failures + 1
            # A subscriber waits at the end of the life that it knows. If it ended without a segment, another life
            # has begun and ended meanwhile: all of that one is new.
            is_other = self._failures and isinstance(self._start, Position)
            self._start = "current" if is_other else subscriber.position or self._start
            if self._is_in_life:
                await self._finish_life()
            if self._failures:
                await anyio.sleep(Backoff().delay(self._failures, Random()))

    async def _finish_life(self) -> None:
        """Wait until the program knows that the life has ended."""
        self._decoding.lost(restarted=True)
        self._is_in_life, self._is_between_lives = False, True
        self._notify()
        while self._is_between_lives and not self._over:
            await self._changed.wait()

    async def _read(self, segment: Segment) -> None:
        self._counts.segments += 1
        self._counts.missed += segment.gap
        self._is_in_life = True
        reader = self._reading = _ChunkReader(segment)

        def decode() -> None:
            for frame in self._decoding.frames(segment, reader):
                from_thread.run(self._put, frame)
            if reader.failure is not None:
                raise reader.failure

        is_lost, damaged = False, self._counts.damaged
        try:
            await reader.begin()
            await to_thread.run_sync(decode, limiter=self._threads)
        except NotMedia as error:
            if self._counts.segments == self._counts.unreadable + 1:
                raise
            logger.warning("%s; going on with the next one", error)
            self._counts.unreadable += 1
            is_lost = True
        if count := self._counts.damaged - damaged:
            logger.warning("segment %d: %d packets could not be decoded", segment.seq, count)
        if segment.truncated is not None or segment.broken is not None:
            is_skipped = segment.truncated == "skipped"
            self._counts.missed += is_skipped
            self._counts.incomplete += not is_skipped
            self._decoding.missed(int(is_skipped))
            is_lost = True
        if is_lost:
            await self._flush()
            self._decoding.lost()

    async def _flush(self) -> None:
        """Hand on the frames that the decoders hold back."""
        for frame in await to_thread.run_sync(lambda: list(self._decoding.flush()), limiter=self._threads):
            await self._put(frame)

    async def _put(self, frame: Frame) -> None:
        if self._drops and frame.kind == "video":
            pictures = [waiting for waiting in self._ready if waiting.kind == "video"]
            if len(pictures) >= max(PICTURES_AHEAD, self._batch or 1):
                self._drop(pictures[0])
        while len(self._ready) >= self._limit and not self._over:
            await self._changed.wait()
        frame.came_at = anyio.current_time()
        self._ready.append(frame)
        self._notify()

    def _drop(self, frame: Frame) -> None:
        """Leave a frame out; the next one says what was missed before it."""
        at = self._ready.index(frame)
        del self._ready[at]
        self._counts.dropped += 1
        self._ready[at].gap += frame.gap
        self._ready[at].restarted |= frame.restarted


class _ChunkReader:
    """A segment as a file that blocks, for libavformat in a worker thread.

    Attributes:
        head: its first bytes, at most :data:`HEAD_BYTES` and one chunk.
        failure: why it ended early.
    """

    def __init__(self, segment: Segment) -> None:
        self.head = bytearray()
        self.failure: BaseException | None = None
        self._is_stopped = False
        self._scope: anyio.CancelScope | None = None
        self._segment = segment
        self._guard: SampleGuard | None = None
        self._rest = b""
        self._at = 0  # number of bytes of the rest that were read

    async def begin(self) -> None:
        """Wait for the first bytes, by which a container is known, or the end; no thread waits with it."""
        while len(self.head) < SNIFF_BYTES and (data := await self._chunk()):
            self.head += data
        self._rest = bytes(self.head)

    def prepend(self, data: bytes) -> None:
        """Put bytes in front."""
        self._rest = data + self._rest

    def guard(self) -> None:
        """The segment is MP4: libavformat gets only what it can read without harm."""
        self._guard = SampleGuard()
        self._rest = self._guarded(self._rest)

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; none at the end."""
        if self._at == len(self._rest):
            self._rest, self._at = self._receive(), 0
        data = self._rest[self._at : self._at + size]
        self._at += len(data)
        return data

    def stop(self) -> None:
        """End the file here, also while the worker thread waits for bytes; called in the event loop."""
        self._is_stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def _chunk(self) -> bytes:
        with anyio.CancelScope() as self._scope:
            return b"" if self._is_stopped else await self._segment.read_some()
        return b""

    def _receive(self) -> bytes:
        """The next bytes that libavformat may have; the guard may keep any number of chunks back."""
        while self.failure is None:
            try:
                data = from_thread.run(self._chunk)
            except BaseException as error:  # also a cancellation: libavformat would print it and go on
                self.failure = error
                break
            if not data:
                break
            if len(self.head) < HEAD_BYTES:
                self.head += data
            if passed := self._guarded(data):
                return passed
        return b""

    def _guarded(self, data: bytes) -> bytes:
        try:
            return data if self._guard is None else self._guard.feed(data)
        except UnsafeMedia as error:
            self.failure = NotMedia(f"segment {self._segment.seq} cannot be read: {error}")
            return b""


class _Decoding:
    """Decodes segment after segment; blocks."""

    def __init__(
        self,
        kinds: set[str],
        passes: set[str],
        arrays: Arrays | None = None,
        *,
        threads: int | None = None,
        hwaccel: str | None = None,
        report: Callable[[SoftwareDecoding], None] | None = None,
    ) -> None:
        self._kinds = kinds
        self._passes = passes
        self.found: set[str] = set()
        self._arrays = arrays
        self._clock = Clock()
        self._threads = threads
        self._hwaccel = hwaccel
        self._report = report
        self.counts = FrameStatistics()
        self._decoders: dict[str, CodecContext] = {}
        self._templates: dict[str, Stream] = {}
        self._set_up: dict[str, tuple[object, ...]] = {}
        self._ends: dict[str, Fraction] = {}
        self._bases: dict[str, Fraction] = {}
        self._anchor: tuple[Fraction, int] | None = None
        self._seq = self._gap = 0
        self._restarted = False

    def missed(self, segments: int) -> None:
        """Whole segments are missing here."""
        self._gap += segments

    def begin_block(self) -> None:
        """Let the next picture begin the memory of a batch. Called in the event loop."""
        if self._arrays is not None:
            self._arrays.begin_block()

    def lost(self, *, restarted: bool = False) -> None:
        """Something is missing here, or the channel restarted: decoders begin anew. :meth:`flush` them before."""
        self._restarted |= restarted
        if self._decoders:
            self.counts.resets += 1
        self._decoders, self._set_up, self._ends, self._anchor = {}, {}, {}, None
        self._clock.begin_anew()

    def flush(self) -> Iterator[Frame]:
        """The frames that the decoders hold back.

        Raises:
            NotMedia: they cannot be had.
        """
        yield from _checked(self._seq, self._flushed())

    def frames(self, segment: Segment, reader: _ChunkReader) -> Iterator[Frame]:
        """The frames of a segment, as its bytes come.

        Raises:
            NotMedia: it is neither MPEG-TS nor MP4, or cannot be decoded.
        """
        yield from _checked(segment.seq, self._frames(segment, reader))

    def _flushed(self) -> Iterator[Frame]:
        for kind, decoder in self._decoders.items():
            yield from self._decoded(kind, decoder, None)

    def _frames(self, segment: Segment, reader: _ChunkReader) -> Iterator[Frame]:
        import av

        if segment.gap or segment.restarted:
            yield from self._flushed()
            self.lost()
        self._gap, self._restarted = self._gap + segment.gap, self._restarted or segment.restarted
        head = bytes(reader.head)
        if not head:
            return
        kind = sniff(head)
        if kind not in FORMATS:
            raise NotMedia(f"segment {segment.seq} is neither MPEG-TS nor MP4")
        if kind is Container.MPEGTS:
            reader.prepend(_NULL_PACKETS)
        else:
            reader.guard()
        try:
            # libavformat asks for types only; the reader is all that it needs of a file.
            container = av.open(cast(Any, reader), "r", format=FORMATS[kind], options=_options(kind, head))
        except (av.error.FFmpegError, ValueError) as error:
            if reader.failure is not None:
                return  # the caller raises that
            raise NotMedia(f"segment {segment.seq} cannot be read: {error}") from error
        self._seq = segment.seq
        with container:
            yield from self._demuxed(container, reader)

    def _demuxed(self, container: Any, reader: _ChunkReader) -> Iterator[Frame]:
        from av.error import FFmpegError

        streams = {}
        for stream in container.streams:
            is_known = stream.codec_context is not None
            if is_known and stream.type in self._kinds and stream.type not in streams:
                streams[stream.type] = stream
        self.found = set(streams)
        lead = streams.get("video", streams.get("audio"))
        is_anchored = False
        packets = demuxed(container, list(streams.values()))
        while True:
            try:
                packet = next(packets, None)
            except FFmpegError:  # the segment was cut off in the middle, or is damaged there
                self.counts.damaged += 1
                return
            if packet is None:
                return
            if not packet.size:
                continue
            if packet.is_corrupt:
                self.counts.damaged += 1
                continue
            if packet.stream is lead and not is_anchored and packet.pts is not None:
                head = bytes(reader.head)
                is_anchored, captured_us = True, read_temi(head) or read_prft(head)
                self._anchor = None if captured_us is None else (packet.pts * packet.time_base, captured_us)
            yield from self._packet(packet, packet.stream, reader)

    def _packet(self, packet: Packet[Stream], stream: Stream, reader: _ChunkReader) -> Iterator[Frame]:
        kind, context = stream.type, stream.codec_context
        # In MPEG-TS, parameters come within the stream, and decoders expect them to change there.
        is_in_band = stream.container.format.name == "mpegts"
        set_up = (context.codec.canonical_name, None if is_in_band else context.extradata)
        if self._set_up.get(kind) != set_up:
            if kind in self._decoders:
                yield from self._decoded(kind, self._decoders[kind], None)
            self._set_up[kind] = set_up
            if kind in self._passes:
                self._templates[kind] = _template(stream, bytes(reader.head) if is_in_band else b"")
            else:
                self._decoders[kind] = self._decoder(kind, stream)
        if kind in self._passes:
            if packet.pts is None:
                self.counts.damaged += 1
                return
            packet.stream = self._templates[kind]
            yield self._made(kind, packet, packet.pts * packet.time_base)
        else:
            yield from self._decoded(kind, self._decoders[kind], packet)

    def _decoder(self, kind: str, stream: Stream) -> CodecContext:
        if kind == "audio":
            return new_decoder(stream)
        try:
            return new_decoder(stream, hwaccel=self._hwaccel, threads=self._threads)
        except NoHardware as error:
            if self._hwaccel != "auto":
                raise
            if self._report is not None:
                self._report(SoftwareDecoding(error))
            self._hwaccel = None
            return self._decoder(kind, stream)

    def _decoded(self, kind: str, decoder: CodecContext, packet: Packet[Stream] | None) -> Iterator[Frame]:
        from av.error import FFmpegError

        if packet is not None:
            self._bases[kind] = packet.time_base
        try:
            decoded: list[Any] = cast(Any, decoder).decode(packet)
        except FFmpegError:
            self.counts.damaged += 1
            return
        for frame in decoded:
            frame.time_base = frame.time_base or self._bases[kind]  # frames that were held back have none
            if frame.pts is None and kind not in self._ends:
                self.counts.damaged += 1
                continue
            if frame.pts is None:  # the second frame of a packet
                frame.pts = round(self._ends[kind] / frame.time_base)
            begin = frame.pts * frame.time_base
            self._ends[kind] = begin + (Fraction(frame.samples, frame.sample_rate) if kind == "audio" else 0)
            self.counts.frames += 1
            yield self._made(kind, frame, begin)

    def _made(self, kind: str, data: Any, begin: Fraction) -> Frame:
        captured_at = None
        if self._anchor is not None:
            captured_at = self._anchor[1] / 1e6 + float(begin - self._anchor[0])
        array = self._arrays.of(data) if self._arrays is not None and kind == "video" else None
        time_s = self._clock.time_s(kind, data, begin)
        gap, self._gap = self._gap, 0
        restarted, self._restarted = self._restarted, False
        return Frame(cast(Any, kind), data, array, captured_at, self._seq, time_s, gap, restarted)


def _checked(seq: int, frames: Iterator[Frame]) -> Iterator[Frame]:
    """Frames, with one error for all that PyAV and numpy raise for damaged media."""
    try:
        yield from frames
    except TrickleError:
        raise
    except Exception as error:
        raise NotMedia(f"segment {seq} cannot be decoded: {str(error) or type(error).__name__}") from error


def _options(kind: Container, head: bytes) -> dict[str, str]:
    options = dict(_OPTIONS[kind])
    if b"Opus" in head and kind is Container.MPEGTS:  # only libavformat's parser finds the packets in its framing
        options["fflags"] = "+nofillin"
    return options


def _template(stream: Stream, head: bytes) -> Stream:
    """A copy of a stream that outlives its container.

    Args:
        stream: an audio stream.
        head: of a segment in MPEG-TS, whose sound is probed: only its packets hold its parameters.
    """
    import av

    if not head:
        return copied(stream)
    with av.open(io.BytesIO(head), "r", format="mpegts") as probed:
        return copied(probed.streams.audio[0])
