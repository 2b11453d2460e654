"""Decoded frames of a channel: ``async for frame in frames(url)``.

A background task reads segments, and a worker thread demuxes and decodes each of them while its bytes arrive: a picture
that is one packet, as live encoders make it, is decoded when its last byte is there. Decoders go on from segment to
segment, and begin anew behind a gap. Only :data:`FRAMES_AHEAD` decoded frames wait for the program. If it is slower,
the connection waits, and the subscriber goes on at the live edge when its segment has left the server's window; or,
with ``when_full="drop"``, the oldest picture is dropped.

Each reader may have one thread, from the first bytes of a segment until its end; it is none of those that the
program's own ``anyio.to_thread`` calls share. Between segments there is no thread. Its code is in
:mod:`tricklecast.subscriber.media.decoding`; frames are in :mod:`tricklecast.subscriber.media.frame`.

The reader counts all media that the program does not get: pictures that were dropped, packets that could not be
decoded, segments that were missed, cut short or unreadable.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeAlias, Unpack, cast, overload

import anyio
from anyio import from_thread, to_thread

from tricklecast.subscriber.client import ReaderOptions, Subscriber
from tricklecast.subscriber.core import AnyStart, OnLag, Start, check_whole
from tricklecast.subscriber.events import LOGGER, SubscriberEvent
from tricklecast.subscriber.media.decoding import (
    ChunkReader,
    Decoding,
    FrameStatistics,
    PicturesDropped,
    SoftwareDecoding,
)
from tricklecast.subscriber.media.frame import Arrays, Frame, FrameBatch, joined, stacked
from tricklecast.subscriber.media.opening import NotMedia
from tricklecast.subscriber.segment import Segment
from tricklecast.trickle.amounts import count
from tricklecast.trickle.client.arguments import URLs, check_number, check_options
from tricklecast.trickle.client.reports import Reporter
from tricklecast.trickle.client.tasks import BackgroundTask, HomeLoop, Notifier
from tricklecast.trickle.errors import ClosedHere, InvalidInput, LocalProtocolError, Position
from tricklecast.trickle.pyav import check_hwaccel, need_pyav

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Item = TypeVar("Item", default=Frame)
else:
    from typing import TypeVar

    Item = TypeVar("Item")

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

BLOCKED_S: Final = 0.1
"""The reader warns a program that keeps the event loop for longer than this, in seconds."""

MAX_SIDE: Final = 16_000
"""The largest width and height of arrays, in pixels: libavutil makes no picture with two sides of 16,384."""

FrameEvent: TypeAlias = SubscriberEvent | SoftwareDecoding | PicturesDropped


class SourceOptions(ReaderOptions, total=False):
    """The arguments of :func:`frames` that a relay passes on to it."""

    size: tuple[int, int] | None
    hwaccel: str | None
    threads: int | None
    on_event: Callable[[FrameEvent], None] | None


class FrameOptions(SourceOptions, total=False):
    """The arguments of :func:`frames` but ``batch``."""

    video: bool | Literal["packets"]
    audio: bool | Literal["packets"]
    format: str | None
    batch_s: float | None
    when_full: Literal["wait", "drop"]
    start: AnyStart
    reconnect: bool


@overload
def frames(url: URLs, *, batch: None = None, **options: Unpack[FrameOptions]) -> FrameReader[Frame]: ...


@overload
def frames(url: URLs, *, batch: int, **options: Unpack[FrameOptions]) -> FrameReader[FrameBatch]: ...


def frames(
    url: URLs,
    *,
    video: bool | Literal["packets"] = True,
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
        video: whether pictures are decoded; ``"packets"``: pictures come as they are, without decoding, in the order in
            which they are decoded. Not with ``format``, ``size``, ``batch`` or ``when_full="drop"``.
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
            ``"auto"``: the first one that can be opened; if there is none, the processor decodes, which the log and
            a :class:`SoftwareDecoding` tell. Frames are in the computer's memory in any case.
        threads: how many pictures libavcodec decodes at once; each one comes ``threads - 1`` pictures later. ``None``:
            no picture waits; only parts of one are decoded at once, where its encoder made such parts.
        when_full: the remedy when the program is too slow: ``"wait"``: the reader waits for it; ``"drop"``: the
            oldest picture is dropped, so that the program gets the newest ones.
        start: the first segment, as for :class:`~tricklecast.subscriber.Subscriber`, where the default is ``"next"``: a
            program that waits for news wants nothing old, but a viewer wants a picture at once.
        reconnect: whether reading goes on for ever: the reader waits for a channel that is not there, for the next
            life of one that has ended, and for a server that is away. The first frame of a later life is
            ``restarted``. With ``on_lag="earliest"``, and without ``on_lag`` if ``start`` is ``"earliest"`` or N, a
            life is read from its beginning instead of its newest segment.
        on_event: called with the events of the subscriber, :class:`SoftwareDecoding`, and :class:`PicturesDropped` for
            each dropped picture, in the event loop: it must not block. An exception that it raises is logged, and
            reading goes on.
        subscriber: further arguments of :class:`~tricklecast.subscriber.Subscriber`.

    Raises:
        InvalidInput: an argument is wrong, or PyAV is not installed.
        NoHardware: PyAV was built without ``hwaccel``. Whether the machine has it is seen at the first picture.
    """
    need_pyav()
    check_options("frames()", subscriber, ReaderOptions.__optional_keys__)
    modes = {"video": video, "audio": audio}
    for kind, mode in modes.items():
        if mode not in (True, False, "packets"):
            raise InvalidInput(f"{kind} is True, False or 'packets', not {mode!r}")
    kinds = {kind for kind, mode in modes.items() if mode}
    if not kinds:
        raise InvalidInput("frames() needs video, audio or both")
    if when_full not in ("wait", "drop"):
        raise InvalidInput(f"when_full is 'wait' or 'drop', not {when_full!r}")
    if video == "packets" and (when_full == "drop" or any(one is not None for one in (format, size, batch))):
        raise InvalidInput("packets of pictures have no arrays, and none can be dropped: others refer to it")
    if not video and (format is not None or size is not None):
        raise InvalidInput("format and size are those of pictures, and video is False")
    check_number("batch", batch, at_least=1, at_most=BATCH, whole=True, or_none=True)
    if batch is not None and kinds != {"video"}:
        raise InvalidInput("a batch has pictures alone: read sound with another reader")
    check_number("batch_s", batch_s, at_least=0, or_none=True)
    if batch is None and batch_s != BATCH_S:
        raise InvalidInput("batch_s is how long a picture waits for its batch: pass batch, too")
    check_number("threads", threads, at_least=1, at_most=THREADS, whole=True, or_none=True)
    if size is not None:
        _check_size(size)
    if hwaccel is not None:
        check_hwaccel(hwaccel)
    if format is None and (size is not None or batch is not None):
        format = "rgb24"
    if format is not None:
        _check_format(format)
    begin = Start.parse(start)
    check_whole(begin.position)
    if reconnect:
        if limits := sorted(subscriber.keys() & {"wait_for_channel_s", "reconnect_s"}):
            raise InvalidInput(f"reconnect=True waits without a limit: leave {' and '.join(limits)} out")
        if "transport" in subscriber:
            raise InvalidInput("reconnect=True makes a subscriber for each life: pass client= instead of transport=")
        subscriber |= {"wait_for_channel_s": None, "reconnect_s": None}
        if begin.reads_all:  # later subscribers begin at positions
            subscriber.setdefault("on_lag", OnLag.EARLIEST)
    subscribe = partial(Subscriber, url, on_event=on_event, **subscriber)
    channel = subscribe(start=start).url.channel  # raises the faults of the arguments
    reporter = Reporter[SoftwareDecoding | PicturesDropped](LOGGER, channel, on_event)
    decoding = Decoding(
        kinds,
        {kind for kind, mode in modes.items() if mode == "packets"},
        None if format is None else Arrays(format, size, batch),
        threads=threads,
        hwaccel=hwaccel,
        report=lambda event: from_thread.run_sync(reporter.report, event, logging.WARNING),
    )
    return FrameReader(
        *(subscribe, start, decoding, reporter.report),
        batch=batch,
        batch_s=batch_s,
        drops=when_full == "drop",
        reconnects=reconnect,
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
    except (TypeError, ValueError, FFmpegError) as error:
        usual = "rgb24, bgr24, rgba, gray, yuv420p"
        raise InvalidInput(f"no arrays of the pixel format {name!r} (usual ones: {usual})") from error


class FrameReader(Generic[Item]):
    """The frames of a channel, or batches of them; made by :func:`frames`. An async context manager, for ``async for``;
    :meth:`next` gives one at a time.

    It is used once. A loop that is left early stops the reader a moment later; ``async with frames(url) as reader:``
    stops it where the block ends, and inside the block a loop can be left and taken up again. A cancelled wait loses no
    frame. One task reads at a time: a second one gets ``anyio.BusyResourceError``.
    """

    def __init__(
        self,
        subscribe: Callable[..., Subscriber],
        start: AnyStart,
        decoding: Decoding,
        report: Callable[[PicturesDropped, int], None],
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
        self._is_in_life = self._is_between_lives = False
        self._decoding = decoding
        self._report = report
        self._counts = decoding.counts
        self._ready: deque[Frame] = deque()
        self._changed = Notifier()
        self._task: BackgroundTask | None = None
        self._home: HomeLoop | None = None  # the event loop in which it was opened
        self._given = Notifier()
        self._given_at = 0.0
        self._has_turned = True
        self.has_warned = False  # of the program that keeps the event loop; a relay does that itself
        self._turning: BackgroundTask | None = None
        self._over = False
        self._is_closed = False
        self._error: Exception | None = None
        self._reading: ChunkReader | None = None
        self._missed_at_end = 0
        self._guard = anyio.ResourceGuard("reading frames from")
        # Not anyio's own limiter: a segment may be open for hours, and 40 of them would leave the program no thread.
        self._threads = anyio.CapacityLimiter(1)
        self._joining = anyio.CapacityLimiter(1)

    @property
    def kinds(self) -> frozenset[str]:
        """Which of ``"video"`` and ``"audio"``, if they were asked for, the newest segment with any of them has; empty
        before the first frame."""
        return frozenset(self._decoding.found)

    @property
    def missed_at_end(self) -> int:
        """Segments that were missed between the last one read and the end of the channel; with ``reconnect=True``, of
        its newest life that has ended. A frame's ``gap`` counts those missed before it."""
        return self._missed_at_end

    def statistics(self) -> FrameStatistics:
        """The counters at this moment."""
        return replace(self._counts)

    async def __aenter__(self) -> Self:
        """Begin to read.

        Raises:
            LocalProtocolError: it was used before.
        """
        if self._task is not None or self._is_closed:
            raise LocalProtocolError("a reader of frames is used once: make another one to begin again")
        self._home = HomeLoop("reader of frames")
        self._task = BackgroundTask(self._run)
        self._turning = BackgroundTask(self._turn)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop reading. A task that waits for a frame gets ``ClosedHere``."""
        self._over = self._is_closed = True
        if self._reading is not None:  # a worker thread cannot be cancelled
            self._reading.stop()
        self._changed.notify()
        with anyio.CancelScope(shield=True):
            for task in (self._task, self._turning):
                if task is not None:
                    await task.stop()

    async def __aiter__(self) -> AsyncIterator[Item]:
        async with self if self._task is None or self._is_closed else nullcontext():
            while (item := await self.next()) is not None or not self._over:
                if item is not None:
                    yield item

    def _check_open(self) -> None:
        if self._is_closed:  # frames it still has are not handed out: the end would look like the channel's
            raise ClosedHere("the reader of frames was closed")
        if self._home is None:  # nothing is being read, so that no frame would ever come
            raise LocalProtocolError("the reader of frames is not open: enter its block")
        self._home.check()

    async def next(self) -> Item | None:
        """The next frame or batch; ``None`` at the end of the channel. With ``reconnect=True``, further calls wait for
        its next life.

        Raises:
            TrickleError: as :class:`~tricklecast.subscriber.Subscriber` does.
            LocalProtocolError: this is not in its block, or not in the event loop in which that was entered.
            ClosedHere: the reader was closed.
            NotMedia: the channel's first segment is neither MPEG-TS nor MP4, or cannot be decoded.
            NoHardware: ``hwaccel`` does not decode this video here; the message names the devices that do.
        """
        with self._guard:
            self._watch_program()
            self._check_open()
            while not (ready := self._count()):
                if self._error is not None:
                    raise self._error
                if self._over:
                    return None
                if self._is_between_lives:
                    self._is_between_lives = False
                    self._changed.notify()
                    return None
                with anyio.CancelScope(deadline=self._due()):
                    await self._changed.wait()
                self._check_open()
            frames = [self._ready.popleft() for _ in range(ready)]
            self._changed.notify()
            self._given_at, self._has_turned = perf_counter(), False
            self._given.notify()
            return cast(Item, frames[0] if self._batch is None else await self._joined(frames))

    async def _turn(self) -> None:
        """See that the event loop has had a turn since the program got its newest item."""
        while True:
            await self._given.wait()
            self._has_turned = True

    def _watch_program(self) -> None:
        """Warn once of a program that has kept the event loop since it got its newest item.

        Nothing is received, and so nothing newer can take the place of an old picture, while the loop stands still.
        """
        took_s = perf_counter() - self._given_at
        if not self._has_turned and took_s > BLOCKED_S and not self.has_warned:
            self.has_warned = True
            LOGGER.warning(
                "the program kept the event loop for %.2f s between two frames, and held up all else that runs there, "
                "the reader too; run the model in a thread: await anyio.to_thread.run_sync(model, frame.array)",
                took_s,
            )

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

    async def _run(self) -> None:
        try:
            await self._read_life()
            while self._reconnects:
                await self._read_life()
        except Exception as error:
            self._error = error
        finally:
            self._over = True
            self._changed.notify()

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
            # A subscriber waits at the end of the life that it knows. If it ended without a segment, another life
            # has begun and ended meanwhile: all of that one is new. At "current" it waits for the next one.
            is_other = self._counts.segments == before and isinstance(self._start, Position)
            self._start = "current" if is_other else subscriber.position or self._start
            if self._is_in_life:
                await self._finish_life()

    async def _finish_life(self) -> None:
        """Wait until the program knows that the life has ended."""
        self._decoding.lost(restarted=True)
        self._is_in_life, self._is_between_lives = False, True
        self._changed.notify()
        while self._is_between_lives and not self._over:
            await self._changed.wait()

    async def _read(self, segment: Segment) -> None:
        self._counts.segments += 1
        self._counts.missed += segment.gap
        self._is_in_life = True
        reader = self._reading = ChunkReader(segment)

        def decode() -> None:
            for frame in self._decoding.frames(segment, reader):
                from_thread.run(self._put, frame)
            if reader.failure is not None:
                raise reader.failure

        is_lost, before = False, self._counts.damaged
        try:
            await reader.begin()
            await to_thread.run_sync(decode, limiter=self._threads)
        except NotMedia as error:
            if self._counts.segments == self._counts.unreadable + 1:
                raise
            LOGGER.warning("%s; going on with the next one", error)
            self._counts.unreadable += 1
            is_lost = True
        if damaged := self._counts.damaged - before:
            LOGGER.warning("segment %d: %s could not be decoded", segment.seq, count(damaged, "packet"))
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
        self._changed.notify()

    def _drop(self, frame: Frame) -> None:
        """Leave a frame out; the next one takes over its ``gap`` and ``restarted``."""
        at = self._ready.index(frame)
        del self._ready[at]
        self._counts.dropped += 1
        warns = self._counts.dropped == 1 and not self.has_warned
        self._report(PicturesDropped(self._counts.dropped), logging.WARNING if warns else logging.DEBUG)
        self._ready[at].gap += frame.gap
        self._ready[at].restarted |= frame.restarted
