"""Media from Python: publish frames, read frames, and relay them through a function (needs ``tricklecast[media]``).

::

    from tricklecast.media import MediaPublisher, frames, relay

    async with MediaPublisher("http://127.0.0.1:2939/trickle/cam") as publisher:
        await publisher.write(picture)

    async for frame in frames("http://127.0.0.1:2939/trickle/cam", format="rgb24"):
        print(frame.pts, frame.array.shape)

    await relay("http://127.0.0.1:2939/trickle/cam", "http://127.0.0.1:2939/trickle/dark", lambda picture: picture // 2)
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack, cast

import anyio
from anyio import to_thread

from tricklecast.publisher.media.publisher import FramesDropped, MediaPublisher, MediaStatistics, TargetOptions
from tricklecast.subscriber.core import AnyStart
from tricklecast.subscriber.media.decoding import FrameStatistics, PicturesDropped, SoftwareDecoding
from tricklecast.subscriber.media.frame import Frame, FrameBatch
from tricklecast.subscriber.media.frames import BLOCKED_S, FrameEvent, FrameOptions, FrameReader, SourceOptions, frames
from tricklecast.trickle.client.arguments import URLs, check_options
from tricklecast.trickle.errors import ConnectionLost, InvalidInput, SegmentsUnconfirmed, TrickleError

if TYPE_CHECKING:
    from av import VideoFrame

__all__ = [
    "Frame",
    "FrameBatch",
    "FrameEvent",
    "FrameOptions",
    "FrameReader",
    "FrameStatistics",
    "FramesDropped",
    "MediaPublisher",
    "MediaStatistics",
    "PicturesDropped",
    "RelayStatistics",
    "SoftwareDecoding",
    "SourceOptions",
    "TargetOptions",
    "frames",
    "relay",
]

logger = logging.getLogger("tricklecast.media")

STOP_S: Final = 5.0
"""A cancelled relay may take this long to end its target, in seconds."""


@dataclass(slots=True)
class RelayStatistics:
    """Counters of a relay.

    Attributes:
        frames: pictures that were passed to the function.
        reader: counters of the source.
        publisher: counters of the target, summed over its epochs; ``None`` before the first one.
    """

    frames: int = 0
    reader: FrameStatistics = field(default_factory=FrameStatistics)
    publisher: MediaStatistics | None = None

    @property
    def dropped(self) -> int:
        """Pictures that were dropped because the function or the encoder was too slow. The first segment of a live
        source comes as a burst, so some of its pictures are dropped. With ``when_full="wait"`` none is, but for those
        that :class:`MediaPublisher` leaves out, as one that is not later than the one before it.
        """
        return self.reader.dropped + (self.publisher.frames_dropped if self.publisher else 0)


Function = Callable[[Any], Any | Awaitable[Any]]
"""Takes a picture and returns one, or returns ``None`` to drop it."""


async def relay(
    source: URLs,
    target: URLs,
    function: Function,
    *,
    audio: bool = True,
    format: str | None = "rgb24",
    start: AnyStart = "current",
    reconnect: bool = False,
    statistics: RelayStatistics | None = None,
    subscriber: SourceOptions | None = None,
    **publisher: Unpack[TargetOptions],
) -> RelayStatistics:
    """Pass each picture of a channel through a function, and publish the result, until the source ends.

    Pictures keep their timestamps and the producer's wall-clock time. Sound is passed on unchanged. Two pictures may
    wait while the function is busy; when a third one comes, the oldest is dropped. With ``when_full="wait"``, for
    recordings, the source waits for the function, the encoder and the network, and no picture is dropped: only segments
    that leave the server's window meanwhile are missed. The target's channel begins with the first frame of the source,
    and ends with the source.

    A cancelled relay ends its target: it publishes the pictures that wait, the last segment is complete, and viewers
    see a normal end. Ctrl-C cancels the relay, and ``asyncio.run`` raises ``KeyboardInterrupt`` afterwards; not so a
    relay in a bare task or in ``asyncio.gather``, which asyncio cancels together with its publisher's own task. After
    an exception, the last segment is truncated, and the target's channel stays open for a successor.

    Args:
        source: the channel to read, or its URLs at the nodes of a cluster.
        target: the channel to publish, likewise.
        function: any callable that takes a numpy array (HxWx3, uint8, with the default format) and returns one of the
            same format, an ``av.VideoFrame``, or ``None`` to drop the picture. An ``async def``, a ``partial`` of one,
            or an object whose ``__call__`` is one runs in the event loop. Any other callable runs in a worker thread,
            where no event loop runs (``asyncio.create_task`` fails there), also a lambda; if it returns something that
            can be awaited, as ``lambda picture: f(picture)`` does for an ``async def f``, that is awaited in the event
            loop. A function that computes is best a plain one: an ``async`` one that keeps the event loop for more than
            100 ms between two awaits holds up all else, and the relay warns of it once.
        audio: whether the source may have sound.
        format: the pixel format of the arrays that the function takes and returns, as in ``"bgr24"`` (OpenCV's) or
            ``"gray"``. ``None``: it takes ``av.VideoFrame``, and returns such, or arrays in ``"rgb24"``.
        start: the first segment of the source, as for :func:`frames`.
        reconnect: run until cancelled: wait for a source that does not exist yet, for the next epoch of a source that
            has ended, and for a server that is away. Each epoch of the source becomes one of the target.
        statistics: filled while the relay runs; a new one by default.
        subscriber: further arguments of :func:`frames` for the source, as in ``{"hwaccel": "cuda", "auth": "…"}``.
        publisher: further arguments of :class:`MediaPublisher` for the target, for example ``fps=`` or ``bitrate=``.

    Returns:
        The counters.

    Raises:
        InvalidInput: an argument is wrong, PyAV is not installed, or the function returned no picture.
        TrickleError: the source or the target failed; with ``reconnect``, only if waiting does not help.
        Exception: the function raised it; the target's channel stays open for a successor.
    """
    if not callable(function):
        raise InvalidInput(f"function takes a picture and returns one, and {function!r} cannot be called")
    if not isinstance(statistics, RelayStatistics | None):
        raise InvalidInput(f"statistics is a RelayStatistics, not {type(statistics).__name__}")
    counts = RelayStatistics() if statistics is None else statistics
    sound: Literal["packets", False] = "packets" if audio else False
    options: SourceOptions = subscriber or {}
    check_options("the subscriber= of relay()", options, SourceOptions.__optional_keys__)
    check_options("relay()", publisher, TargetOptions.__optional_keys__)
    if format is None and options.get("size") is not None:
        format = "rgb24"
    if reconnect:
        publisher.setdefault("outage_s", None)
        publisher.setdefault("wait_for_server_s", None)
    called = _Called(function)
    when_full = publisher.get("when_full", "drop")
    async with frames(
        source, audio=sound, format=format, start=start, when_full=when_full, reconnect=reconnect, **options
    ) as reader:
        arrays = None if format is None else _Arrays(format)
        reader.has_warned = True
        while True:
            frame = await reader.next()  # from then on reader.kinds tells whether there are pictures, sound, or both
            if frame is not None:
                sink = MediaPublisher(target, video="video" in reader.kinds, audio="audio" in reader.kinds, **publisher)
                before = counts.publisher
                try:
                    async with _ended_when_stopped(sink):
                        while frame is not None:
                            counts.frames += frame.kind == "video"
                            await _pass_on(frame, called, sink, arrays)
                            counts.reader, counts.publisher = reader.statistics(), _sum(before, sink.statistics())
                            frame = await reader.next()
                except (ConnectionLost, SegmentsUnconfirmed) as error:  # the target's end: other failures wait
                    if not reconnect:
                        raise
                    logger.warning("%s; the relay's target begins anew", error)
                finally:
                    counts.reader, counts.publisher = reader.statistics(), _sum(before, sink.statistics())
            if not reconnect:
                return counts


@asynccontextmanager
async def _ended_when_stopped(sink: MediaPublisher) -> AsyncIterator[None]:
    """Enter a publisher. A cancellation ends its channel; an exception leaves it open."""
    await sink.__aenter__()
    try:
        yield
    except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):  # trio raises the latter where asyncio cancels
        with anyio.move_on_after(STOP_S, shield=True):
            try:
                await sink.__aexit__(None, None, None)
            except TrickleError as error:
                logger.warning("the relay's target could not be ended: %s", error)
        raise
    except BaseException as error:
        await sink.__aexit__(type(error), error, error.__traceback__)
        raise
    await sink.__aexit__(None, None, None)


async def _pass_on(frame: Frame, function: _Called, sink: MediaPublisher, arrays: _Arrays | None) -> None:
    if frame.kind == "audio":
        await sink.write_packet(cast(Any, frame.data), captured_at=frame.captured_at)
        return
    result = await function(frame.data if arrays is None else frame.array)
    if result is not None:
        if arrays is not None and hasattr(result, "dtype"):
            result = await to_thread.run_sync(arrays.picture, result, frame.data, limiter=function.threads)
        await sink.write(result, pts=frame.pts, time_base=frame.time_base, captured_at=frame.captured_at)


class _Arrays:
    """Makes pictures of the arrays that a function returns, in the pixel format in which it got its own; blocks."""

    def __init__(self, format: str) -> None:
        from av import VideoFormat

        self._format = VideoFormat(format).name  # "gray16" is another name of "gray16le"

    def picture(self, array: Any, source: Any) -> VideoFrame:
        """Make a picture.

        Args:
            source: the one of which the function's own array was made.

        Raises:
            InvalidInput: the array has another format.
        """
        from av import VideoFrame

        try:
            picture = VideoFrame.from_ndarray(array, format=self._format)
        except ValueError as error:
            found = f"{'x'.join(map(str, array.shape))} {array.dtype}"
            raise InvalidInput(
                f"the function of a relay returns arrays like those it gets ({self._format}) or frames of PyAV, not "
                f"{found}: {error}"
            ) from error
        if not picture.format.is_rgb and not source.format.is_rgb:  # the array does not say what its numbers mean
            picture.colorspace, picture.color_range = source.colorspace, source.color_range
            picture.color_primaries, picture.color_trc = source.color_primaries, source.color_trc
        return picture


def _sum(before: MediaStatistics | None, now: MediaStatistics) -> MediaStatistics:
    """Add the counters of an epoch to those of the epochs before. ``seq`` is the newest one's."""
    if before is None:
        return now
    names = [field.name for field in fields(now) if field.name != "seq"]
    return replace(now, **{name: getattr(before, name) + getattr(now, name) for name in names})


_IN_A_THREAD: Final = "relay() calls it in a worker thread, which has no event loop; an async def runs in the loop"


class _Called:
    """Calls the function of a relay: an ``async`` one in the event loop, any other one in a worker thread.

    It warns once of a coroutine that keeps the event loop for long.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        called = function.func if isinstance(function, partial) else function
        self._is_async = inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(
            getattr(called, "__call__", None)  # noqa: B004
        )
        self._has_warned = False
        self.threads: Final = anyio.CapacityLimiter(1)  # the program may keep anyio's own ones busy

    async def __call__(self, picture: Any) -> Any:
        function = self._function
        if self._is_async:
            result = function(picture)
        else:
            try:
                result = await to_thread.run_sync(function, picture, limiter=self.threads)
            except RuntimeError as error:
                if "no running event loop" in str(error):
                    error.add_note(_IN_A_THREAD)
                raise
        if inspect.iscoroutine(result):
            return await _Timed(result, self._took)
        return await result if inspect.isawaitable(result) else result

    def _took(self, seconds: float) -> None:
        if seconds > BLOCKED_S and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the relay's function kept the event loop for %.2f s, and held up all else that runs there; pass a "
                "plain function (def, not async def): it runs in a thread",
                seconds,
            )


class _Timed:
    """Awaits a coroutine, and tells how long each of its steps took, in seconds."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], took: Callable[[float], None]) -> None:
        self._coroutine = coroutine
        self._took = took

    def __await__(self) -> Generator[Any, Any, Any]:
        step = partial(self._coroutine.send, None)
        while True:
            begun_at = perf_counter()
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            finally:
                self._took(perf_counter() - begun_at)
            try:
                step = partial(self._coroutine.send, (yield waits_for))
            except BaseException as error:  # a cancellation, or the end of this generator
                step = partial(self._coroutine.throw, error)
