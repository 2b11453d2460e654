"""What a check has seen: plain data, for the rules to judge. Times are seconds on one monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tricklecast.subscriber.check.media import Container, Media


@dataclass(frozen=True, slots=True)
class Picture:
    """What a decoder made of a segment's first picture, from this segment alone.

    Attributes:
        decoded: there is one, without errors.
        error: why not.
        late_s: by how many seconds of media it comes after the segment's first packet: what was before it was lost.
        key: the decoder calls it a keyframe.
        width, height: of it, in pixels.
        clock_ms: the time that the test source's clock in it shows, in milliseconds since 1970.
        refreshes: there is none yet, and nothing is wrong with that: pictures are refreshed bit by bit, over more
            than this segment.
    """

    decoded: bool
    error: str = ""
    late_s: float = 0.0
    key: bool = False
    width: int = 0
    height: int = 0
    clock_ms: int | None = None
    refreshes: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One segment.

    Attributes:
        number: its place in the check, from 0 on.
        seq, epoch, gap, restarted, content_type, size_at_start: as ``subscriber.Segment`` has them.
        skipped: nobody wrote it, says the server: it has no byte.
        truncated, broken: why it is not whole; ``None`` if it is.
        left: the check ended before the segment did: nothing is known of its end.
        size: bytes that were read.
        requested_s: when it was asked for.
        answered_s: when its first byte was there.
        taken_s: when reading it began, which is later if the segment before was still being read.
        first_s, last_s: when its first and its last bytes were read.
        wall_us: the wall clock here at ``answered_s``, in microseconds since 1970.
        media: what it holds.
        producer_us: when its first frame was captured, according to its publisher, in microseconds since 1970.
        picture: what a decoder made of it; ``None`` if none was asked.
    """

    number: int
    seq: int
    epoch: int | None = None
    gap: int = 0
    restarted: bool = False
    content_type: str = ""
    size_at_start: int | None = None
    skipped: bool = False
    truncated: str | None = None
    broken: str | None = None
    left: bool = False
    size: int = 0
    requested_s: float = 0.0
    answered_s: float = 0.0
    taken_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    wall_us: int = 0
    media: Media = field(default_factory=lambda: Media(Container.OTHER))
    producer_us: int | None = None
    picture: Picture | None = None

    @property
    def whole(self) -> bool:
        """All of it was read, and it was not cut short by anyone."""
        return self.truncated is None and self.broken is None and not self.left


@dataclass(frozen=True, slots=True)
class Head:
    """The server's head at some time.

    Attributes:
        at_s: when the answer came.
        took_s: how long it took.
        head: one past the newest started segment.
        reading: the seq that was being read or waited for.
    """

    at_s: float
    took_s: float
    head: int
    reading: int


class Ended(StrEnum):
    """Why a check stopped looking."""

    TIME = "time"
    CHANNEL = "channel ended"
    INTERRUPTED = "interrupted"
    FULL = "enough segments"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Run:
    """All that a check has seen.

    Attributes:
        seen: the segments, in order.
        heads: what the server said of its head.
        seconds: how long it took.
        ended: why it stopped.
        error: what went wrong, if that is why.
        missed_at_end: segments that were missed between the last one and the channel's end.
        resumed: how often a segment was gone on with after its connection was cut.
        has_decoder: PyAV is installed.
    """

    seen: tuple[Seen, ...]
    heads: tuple[Head, ...] = ()
    seconds: float = 0.0
    ended: Ended = Ended.TIME
    error: str = ""
    missed_at_end: int = 0
    resumed: int = 0
    has_decoder: bool = True

    @property
    def round_trip_s(self) -> float:
        """The quickest answer of the server."""
        return min((head.took_s for head in self.heads), default=0.0)
