"""A decoded frame: its time, its array, and batches of them.

*Time.* Sound and pictures of a channel have one clock, which their publisher's encoder counts. It jumps where an
encoder begins anew, and MPEG-TS counts only 26 hours. :class:`Clock` brings it onto one line for all frames of a
reader. Between readers, the producer's wall-clock time is the line (``captured_at``).

*Arrays.* libswscale changes format and size in one pass, in the decoder's thread, and its result is the array.
:class:`Arrays` keeps one converter for all pictures: to set up another one takes as long as to scale a picture.

*Batches.* A model wants N pictures in one array. libswscale cannot be told where to write, so that each picture is
copied once, in the decoder's thread and while it is in the cache, to its place in a block of N. A batch of N
pictures that follow each other in a block is their array, without another copy. Where a batch does not begin with a
block, as behind a short one, or where pictures were dropped between, its pictures are put together by copying.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal

from tricklecast.trickle.errors import LocalProtocolError
from tricklecast.trickle.media.timeline import CLOCK_HZ, MAX_BACK, Timeline, fraction, ticks
from tricklecast.trickle.pyav import reason

if TYPE_CHECKING:
    import numpy as np
    from av import Packet
    from av.audio.frame import AudioFrame
    from av.stream import Stream
    from av.video.frame import VideoFrame

_TRACKS: Final = {"video": 0, "audio": 1}


@dataclass(slots=True)
class Frame:
    """A decoded frame.

    Attributes:
        kind: ``"video"`` or ``"audio"``.
        data: the frame as PyAV decoded it; with ``video="packets"`` or ``audio="packets"``, a packet.
        captured_at: the producer's wall-clock time of this frame, in seconds of Unix time, if the stream carries it.
        seq: the segment that it belongs to.
        time: its time in seconds, on one line for the sound and the pictures of a reader. It is that of the stream
            (``pts * time_base``), and goes on where an encoder begins anew or its counter wraps.
        gap: the number of segments that were missed immediately before this frame.
        restarted: the channel began anew before this frame.
        came_at: when the reader had it, on the event loop's clock.
    """

    kind: Literal["video", "audio"]
    data: VideoFrame | AudioFrame | Packet[Stream]
    _array: np.ndarray[Any, Any] | None = field(repr=False)
    captured_at: float | None
    seq: int
    time: float = 0.0
    gap: int = 0
    restarted: bool = False
    came_at: float = field(default=0.0, repr=False, compare=False)

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The picture in the format and size that ``frames()`` was called with, HxWx3 for ``"rgb24"``.

        Raises:
            LocalProtocolError: it was called without a format, or this frame is sound.
        """
        if self._array is None:
            is_sound = self.kind == "audio"
            hint = "sound is in frame.data" if is_sound else 'call frames(url, format="rgb24")'
            raise LocalProtocolError(f"this frame has no array: {hint}")
        return self._array

    @property
    def pts(self) -> int:
        """The presentation time of the stream, in ticks of :attr:`time_base`."""
        assert self.data.pts is not None
        return self.data.pts

    @property
    def time_base(self) -> Fraction:
        """Seconds per tick."""
        assert self.data.time_base is not None
        return fraction(self.data.time_base)

    def goes_on_with(self, following: Frame) -> bool:
        """Whether a batch may have both pictures: nothing was missed between them, and their arrays are alike."""
        here, there = self.array, following.array
        is_alike = (here.shape, here.dtype) == (there.shape, there.dtype)
        return is_alike and not following.gap and not following.restarted


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """Pictures that follow each other, in one array.

    Attributes:
        array: N pictures, NxHxWx3 for ``"rgb24"``. N is less than ``batch`` where the batch had to end early.
        frames: the pictures, in the same order.
    """

    array: np.ndarray[Any, Any]
    frames: list[Frame]

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def times(self) -> list[float]:
        """:attr:`Frame.time` of each picture, in seconds."""
        return [frame.time for frame in self.frames]

    @property
    def gap(self) -> int:
        """The number of segments that were missed immediately before this batch; within one, nothing is missing."""
        return self.frames[0].gap

    @property
    def restarted(self) -> bool:
        """The channel began anew before this batch."""
        return self.frames[0].restarted


class Arrays:
    """Makes the arrays of pictures; blocks.

    Args:
        format: the pixel format.
        size: width and height; ``None``: those of each picture.
        batch: the number of pictures in a block; ``None``: each picture has memory of its own.
    """

    def __init__(self, format: str, size: tuple[int, int] | None, batch: int | None) -> None:
        from av.video.reformatter import VideoReformatter

        self._converter = VideoReformatter()
        self._format = format
        self._size = size or (None, None)
        self._batch = batch
        self._block: np.ndarray[Any, Any] | None = None
        self._used = 0

    def of(self, picture: VideoFrame) -> np.ndarray[Any, Any]:
        """Convert a picture.

        Raises:
            ValueError: it cannot be converted to this format and size.
        """
        import numpy as np
        from av.error import FFmpegError

        width, height = self._size
        try:
            # One thread: for more of them libswscale would start threads for each decoder, and a picture takes 1 ms.
            converted = self._converter.reformat(picture, width, height, self._format, threads=1)
        except (FFmpegError, ValueError) as error:
            own, to = f"{picture.width}x{picture.height} in {picture.format.name}", f"format={self._format!r}"
            to += "" if width is None else f" and size={self._size}"
            raise ValueError(f"a picture of {own} cannot be converted to {to}: {reason(error)}") from error
        array: np.ndarray[Any, Any] = converted.to_ndarray()
        if self._batch is None:
            return array
        block = self._block  # another thread may begin a block meanwhile
        if block is None or self._used == self._batch or (block.shape[1:], block.dtype) != (array.shape, array.dtype):
            block = self._block = np.empty((self._batch, *array.shape), array.dtype)
            self._used = 0
        place: np.ndarray[Any, Any] = block[self._used]
        place[...] = array
        self._used += 1
        return place

    def begin_block(self) -> None:
        """Let the next picture be the first one of a block. Any thread may call this."""
        self._block = None


def joined(pictures: Sequence[Frame]) -> np.ndarray[Any, Any] | None:
    """Return the array of pictures that stand in one block without a hole; ``None``: they do not."""
    first, last = pictures[0].array, pictures[-1].array
    block = first.base
    if block is None or last.base is not block:
        return None
    begin, end = (round((one.ctypes.data - block.ctypes.data) / first.nbytes) for one in (first, last))
    whole: np.ndarray[Any, Any] = block[begin : end + 1]
    return whole if len(whole) == len(pictures) else None


def stacked(pictures: Sequence[Frame]) -> np.ndarray[Any, Any]:
    """Copy pictures that do not stand in one block into one array; blocks."""
    import numpy as np

    return np.stack([picture.array for picture in pictures])


class Clock:
    """Puts the times of frames on one line."""

    def __init__(self) -> None:
        self._line: Timeline | None = None
        self._shift = self._newest = 0
        self._end = 0  # of the frame that is shown last
        self._earliest = -MAX_BACK  # an own time that is believed
        self._last: dict[str, int] = {}  # when the newest of each kind is decoded, on the present line
        self._length = 1  # from one frame to the next

    def begin_anew(self, *, restarted: bool = False) -> None:
        """Something is missing here. The next frame's own time is believed, unless it is earlier than those before.

        Args:
            restarted: another publisher's frames follow, which begin behind all that was there.
        """
        self._line = None
        self._last.clear()
        self._earliest = max(self._earliest, self._end if restarted else self._newest - MAX_BACK)

    def time_s(self, kind: str, data: Any, begin: Fraction, order: Fraction | None = None) -> float:
        """Return the time of a frame, in seconds.

        Args:
            begin: its own time, in seconds.
            order: when a packet is decoded; ``None``: a frame, which comes in the order in which frames are shown.
        """
        raw = ticks(begin.numerator, Fraction(1, begin.denominator))
        decoded = raw if order is None else ticks(order.numerator, Fraction(1, order.denominator))
        if self._line is None:
            own = decoded + self._shift
            self._line = Timeline(begin=own if own >= self._earliest else self._end)
        stamped = SimpleNamespace(pts=raw, dts=decoded, duration=ticks(data.duration or 0, data.time_base))
        time, at = self._line.stamp(_TRACKS[kind], stamped, Fraction(1, CLOCK_HZ))
        self._shift, self._newest = time - raw, max(self._newest, time)
        if kind in self._last:
            self._length = min(at - self._last[kind], CLOCK_HZ)
        self._last[kind] = at
        # Pictures of MPEG-TS do not say how long they last: as long as the frame before.
        self._end = max(self._end, time + (stamped.duration or self._length))
        return time / CLOCK_HZ
