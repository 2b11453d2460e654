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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from anyio import to_thread

from tricklecast.publisher.media.publisher import FramesDropped, MediaPublisher, MediaStatistics
from tricklecast.subscriber.media.frames import Frame, FrameReader, FrameStatistics, frames

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


@dataclass(slots=True)
class RelayStatistics:
    """Counters of a relay.

    Attributes:
        frames: pictures that the function got.
        reader: counters of the source.
        publisher: counters of the target.
    """

    frames: int = 0
    reader: FrameStatistics = field(default_factory=FrameStatistics)
    publisher: MediaStatistics | None = None

    @property
    def dropped(self) -> int:
        """Pictures that were dropped, because the function was too slow."""
        return self.reader.dropped


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
    statistics: RelayStatistics | None = None,
    subscriber: Mapping[str, Any] | None = None,
    **publisher: Any,
) -> RelayStatistics:
    """Pass each picture of a channel through a function, and publish the result, until the source ends.

    Pictures keep their times, and the producer's wall-clock time. Sound is passed on as it is. Pictures that come while
    the function is busy wait; if there are more than two, the oldest is dropped. The target's channel begins when the
    first frame of the source is there.

    Args:
        source: the channel that is read.
        target: the channel that is published.
        function: gets a numpy array (HxWx3, uint8) and returns one; ``None`` drops the picture. It runs in a worker
            thread, or, if it is a coroutine function, in the event loop.
        audio: whether the source may have sound.
        format: the pixel format of the arrays, ``"rgb24"``; ``None``: the function gets and returns ``av.VideoFrame``.
        start: the first segment of the source, as for :class:`~tricklecast.subscriber.Subscriber`.
        statistics: is filled while the relay runs; a new one by default.
        subscriber: further arguments of :class:`~tricklecast.subscriber.Subscriber`.
        publisher: further arguments of :class:`MediaPublisher`, as in ``fps=`` or ``bitrate=``.

    Returns:
        The counters.

    Raises:
        InvalidInput: an argument is wrong, or PyAV is not installed.
        TrickleError: the source or the target failed.
        Exception: the function raised it; the target's channel stays open for a successor.
    """
    counts = RelayStatistics() if statistics is None else statistics
    sound: Any = "packets" if audio else False
    options = dict(subscriber or {}, format=format, start=start, when_full="drop")
    async with frames(source, audio=sound, **options) as reader:
        frame = await reader.next()  # only then it is known what there is to be published
        if frame is None:
            return counts
        async with MediaPublisher(
            target, video="video" in reader.kinds, audio="audio" in reader.kinds, **publisher
        ) as sink:
            while frame is not None:
                if frame.kind == "audio":
                    await sink.write_packet(cast(Any, frame.data), captured_at=frame.captured_at)
                else:
                    counts.frames += 1
                    result = await _called(function, frame.data if format is None else frame.array)
                    if result is not None:
                        at = frame.captured_at
                        await sink.write(result, pts=frame.pts, time_base=frame.time_base, captured_at=at)
                counts.reader, counts.publisher = reader.statistics(), sink.statistics()
                frame = await reader.next()
    counts.reader, counts.publisher = reader.statistics(), sink.statistics()
    return counts


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
    if inspect.iscoroutinefunction(function):
        return await function(picture)
    return await to_thread.run_sync(function, picture)
