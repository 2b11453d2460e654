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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import Any, Final, cast

import anyio
from anyio import to_thread

from tricklecast.publisher.media.publisher import FramesDropped, MediaPublisher, MediaStatistics
from tricklecast.subscriber.media.frames import Frame, FrameReader, FrameStatistics, frames
from tricklecast.trickle.backoff import Backoff
from tricklecast.trickle.errors import ConnectionLost, Refused, SegmentsUnconfirmed, TrickleError

__all__ = [
    "Frame",
    "FrameReader",
    "FrameStatistics",
    "FramesDropped",
    "MediaPublisher",
    "MediaStatistics",
    "RelayStatistics",
    "frames",
    "process_frames",
    "relay",
]

logger = logging.getLogger("tricklecast.media")

STOP_S: Final = 5.0
"""How long a relay that is cancelled may take to end its target, in seconds."""


@dataclass(slots=True)
class RelayStatistics:
    """Counters of a relay.

    Attributes:
        frames: pictures that the function got.
        reader: counters of the source.
        publisher: counters of the target, over all its lives; ``None`` before the first one.
    """

    frames: int = 0
    reader: FrameStatistics = field(default_factory=FrameStatistics)
    publisher: MediaStatistics | None = None

    @property
    def dropped(self) -> int:
        """Pictures that were dropped because this machine was too slow for them: before the function, or after it,
        before the encoder. The first segment of a live source comes as a burst, and some of its pictures are dropped.
        """
        return self.reader.dropped + (self.publisher.frames_dropped if self.publisher else 0)


Function = Callable[[Any], Any | Awaitable[Any]]
"""Takes a picture and returns one, or ``None`` to drop it."""


async def relay(
    source: str,
    target: str,
    function: Function,
    *,
    audio: bool = True,
    format: str | None = "rgb24",
    start: Any = "current",
    reconnect: bool = False,
    statistics: RelayStatistics | None = None,
    subscriber: Mapping[str, Any] | None = None,
    **publisher: Any,
) -> RelayStatistics:
    """Pass each picture of a channel through a function, and publish the result, until the source ends.

    Pictures keep their times, and the producer's wall-clock time. Sound is passed on as it is. Pictures that come while
    the function is busy wait; if there are more than two, the oldest is dropped. The target's channel begins when the
    first frame of the source is there, and ends with the source.

    A relay that is cancelled ends its target, too: pictures that wait are published, the last segment is whole, and
    viewers see a normal end. Ctrl-C cancels it: ``asyncio.run`` raises ``KeyboardInterrupt`` afterwards. After an
    exception, the last segment is truncated, and the target's channel stays open for a successor.

    Args:
        source: the channel that is read.
        target: the channel that is published.
        function: gets a numpy array (HxWx3, uint8) and returns one; ``None`` drops the picture. It is anything that can
            be called. It runs in a worker thread, or, if it or its ``__call__`` is ``async``, in the event loop; what
            can be awaited of its result is awaited there.
        audio: whether the source may have sound.
        format: the pixel format of the arrays, ``"rgb24"``; ``None``: the function gets and returns ``av.VideoFrame``.
        start: the first segment of the source, as for :class:`~tricklecast.subscriber.Subscriber`.
        reconnect: whether the relay runs until it is cancelled. It waits for a source that is not there, for the next
            life of one that has ended, and for a server that is away. Each life of the source is one of the target.
        statistics: is filled while the relay runs; a new one by default.
        subscriber: further arguments of :class:`~tricklecast.subscriber.Subscriber`.
        publisher: further arguments of :class:`MediaPublisher`, as in ``fps=`` or ``bitrate=``.

    Returns:
        The counters.

    Raises:
        InvalidInput: an argument is wrong, or PyAV is not installed.
        TrickleError: the source or the target failed; with ``reconnect``, only where waiting does not help.
        Exception: the function raised it; the target's channel stays open for a successor.
    """
    counts = RelayStatistics() if statistics is None else statistics
    sound: Any = "packets" if audio else False
    options = dict(subscriber or {}, format=format, start=start, when_full="drop", reconnect=reconnect)
    failures = 0
    async with frames(source, audio=sound, **options) as reader:
        while True:
            frame = await reader.next()  # only then it is known what there is to be published
            if frame is not None:
                sink = MediaPublisher(target, video="video" in reader.kinds, audio="audio" in reader.kinds, **publisher)
                before = counts.publisher
                try:
                    async with _ended_when_stopped(sink):
                        while frame is not None:
                            counts.frames += frame.kind == "video"
                            await _pass_on(frame, function, sink, is_array=format is not None)
                            counts.reader, counts.publisher = reader.statistics(), _sum(before, sink.statistics())
                            frame = await reader.next()
                    failures = 0
                except (ConnectionLost, SegmentsUnconfirmed, Refused) as error:
                    if not reconnect or (isinstance(error, Refused) and not error.temporary):
                        raise
                    failures += 1
                    logger.warning("%s; the relay's target begins anew", error)
                finally:
                    counts.reader, counts.publisher = reader.statistics(), _sum(before, sink.statistics())
            if not reconnect:
                return counts
            if failures:
                await anyio.sleep(Backoff().delay(failures, Random()))


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


async def _pass_on(frame: Frame, function: Function, sink: MediaPublisher, *, is_array: bool) -> None:
    if frame.kind == "audio":
        await sink.write_packet(cast(Any, frame.data), captured_at=frame.captured_at)
        return
    result = await _called(function, frame.array if is_array else frame.data)
    if result is not None:
        await sink.write(result, pts=frame.pts, time_base=frame.time_base, captured_at=frame.captured_at)


def _sum(before: MediaStatistics | None, now: MediaStatistics) -> MediaStatistics:
    """The counters of all lives; the newest segment is the newest one's."""
    if before is None:
        return now
    names = [field.name for field in fields(now) if field.name != "seq"]
    return replace(now, **{name: getattr(before, name) + getattr(now, name) for name in names})


def process_frames(source: str, target: str, **options: Any) -> Callable[[Function], Callable[[], Awaitable[Any]]]:
    """Turn a function of pictures into a relay::

        @process_frames("http://127.0.0.1:2939/trickle/cam", "http://127.0.0.1:2939/trickle/dark")
        def darker(picture):
            return picture // 2

        anyio.run(darker)

    Args:
        source: the channel that is read.
        target: the channel that is published.
        options: as for :func:`relay`.

    Returns:
        A decorator; the decorated function takes no argument, and runs the relay.
    """

    def decorate(function: Function) -> Callable[[], Awaitable[Any]]:
        async def run() -> RelayStatistics:
            return await relay(source, target, function, **options)

        run.__name__, run.__doc__ = getattr(function, "__name__", "relay"), function.__doc__
        return run

    return decorate


async def _called(function: Function, picture: Any) -> Any:
    """Call the function in the event loop if calling it makes a coroutine, else in a worker thread."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return await function(picture)
    result = await to_thread.run_sync(function, picture)
    return await result if inspect.isawaitable(result) else result
