"""What is run: numbers, and what is expected of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any


class Dialect(StrEnum):
    """What a server understands: segments of a channel, one stream that never ends, or one request per chunk.

    ``ONE_RESPONSE``: segments are published, and read as one stream.
    """

    TRICKLE = "trickle"
    ONE_RESPONSE = "one response"
    BARE = "bare"
    NCHAN = "nchan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One channel, one publisher, many readers.

    Attributes:
        chunk_bytes: of one published chunk. chunks_per_segment: after so many a new segment begins.
        rate: chunks per second; 0 for as fast as the server takes them.
        lead: chunks that an unpaced publisher may be ahead of the slowest reader, so that what is under way is bounded.
        stalled: further readers that ask for the first segment and never read.
        one_address: all readers have the same address instead of one each.
        by_worker: measure the readers of the channel's owner apart from those of other workers.
        warm_up_s, measure_s: seconds of publishing before and during the measurement.
    """

    readers: int
    chunk_bytes: int
    chunks_per_segment: int
    rate: float = 0.0
    lead: int = 0
    stalled: int = 0
    one_address: bool = False
    by_worker: bool = False
    warm_up_s: float = 1.0
    measure_s: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """Many channels with one publisher and one reader each; a segment is one chunk of ``chunk_bytes``."""

    channels: int
    chunk_bytes: int
    warm_up_s: float = 1.0
    measure_s: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Readers that wait for a segment that nobody publishes yet; in the end it comes, to see that they did wait."""

    readers: int
    warm_up: int = 50


class Ask(StrEnum):
    """What clients ask for again and again."""

    KEPT = "kept"
    MISSING = "missing"
    AHEAD = "ahead"
    EMPTY = "empty"
    ENDED = "ended"
    FULL = "full"
    CHANNEL_FULL = "channel full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Clients that send the same GET again as soon as it is answered, each from an address of its own.

    Attributes:
        ask: what they are answered: a kept segment of ``body_bytes``, 404, 470, a segment without a byte, the end of
            the channel, or the refusal by a limit on readers (of the server, of the channel) that others have reached.
        keep_alive: each stays on its connection; else each request has a new one.
        channels: that clients ask for what is kept in, one after the other.
    """

    ask: Ask
    clients: int
    keep_alive: bool = True
    channels: int = 1
    body_bytes: int = 200
    warm_up_s: float = 2.0
    measure_s: float = 2.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "ask", Ask(self.ask))  # JSON has no enumerations


class Way(StrEnum):
    """How an audience follows a channel: not at all, segment by segment, as players of HLS do, or later, from segment 0
    on; or it follows the whole server on dashboards.
    """

    NOT = "not"
    SEGMENTS = "segments"
    HLS = "hls"
    REPLAY = "replay"
    DASHBOARD = "dashboard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """Clients that all read in the same way, each from an address of its own.

    Attributes:
        way: of reading. ``not``, ``segments`` and ``hls`` have a film published meanwhile.
        channel: the name of a new one for the film, or of the one that is read again.
        segments, rate: of a replay: closed segments that the channel has, and how many per second are read in all.
    """

    way: Way
    readers: int
    channel: str = "film"
    segments: int = 0
    rate: float = 0.0
    warm_up_s: float = 2.0
    measure_s: float = 4.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "way", Way(self.way))  # JSON has no enumerations


Scenario = Stream | Exchanges | Idle | Repeat | Audience

SCENARIOS: dict[str, Scenario] = {
    # A film of 2 Mbit/s in segments of a second, at the frame rate of a camera.
    "fan-out": Stream(readers=500, chunk_bytes=8 << 10, chunks_per_segment=30, rate=30),
    # The same without an end: the one thing that servers without segments do, too.
    "stream": Stream(readers=500, chunk_bytes=8 << 10, chunks_per_segment=1 << 30, rate=30),
    "small": Exchanges(channels=100, chunk_bytes=200),
    # 21 Gbit/s. On loopback, whoever is the bottleneck does more of the kernel's work for both: so nobody must be.
    "bulk": Stream(readers=20, chunk_bytes=64 << 10, chunks_per_segment=64, rate=2000, warm_up_s=0.5, measure_s=3.0),
    # The lead of 8 MiB stays below every limit on how far a reader may be behind.
    "flood": Stream(readers=20, chunk_bytes=64 << 10, chunks_per_segment=64, lead=128, warm_up_s=0.5, measure_s=3.0),
    "idle": Idle(readers=2000),
}


def quick(scenario: Scenario) -> Scenario:
    """The same numbers of readers and bytes in less time."""
    match scenario:
        case Idle():
            return scenario
        case Stream() | Exchanges() | Repeat() | Audience():
            return replace(scenario, warm_up_s=scenario.warm_up_s / 2, measure_s=scenario.measure_s / 2)


def to_json(scenario: Scenario) -> dict[str, Any]:
    """A scenario for another process."""
    return {"kind": type(scenario).__name__, **asdict(scenario)}


def from_json(fields: dict[str, Any]) -> Scenario:
    """A scenario from another process."""
    kinds = {kind.__name__: kind for kind in (Stream, Exchanges, Idle, Repeat, Audience)}
    return kinds[fields["kind"]](**{name: value for name, value in fields.items() if name != "kind"})


@dataclass(frozen=True, slots=True)
class Expectation:
    """What this design promises.

    Attributes:
        scenario: in which. beside: the server that the ratio is to; ``None`` for a limit on the value itself.
        at_most: the ratio, or the value.
        figure: which one; ``None`` for the cost.
    """

    scenario: str
    beside: str | None
    at_most: float
    figure: str | None = None


EXPECTATIONS = (
    Expectation("fan-out", "floor", 1.3),
    Expectation("fan-out", "fastapi", 0.5),
    Expectation("fan-out", "nchan", 1.3),
    Expectation("fan-out", "nchan", 1.0, "p99_ms"),
    Expectation("fan-out", "go", 1.0, "p99_ms"),
    Expectation("stream", "nchan", 1.3),
    Expectation("stream", "nchan", 1.0, "p99_ms"),
    Expectation("stream", "go", 1.0, "p99_ms"),
    Expectation("bulk", "floor", 1.3),
    Expectation("bulk", "go", 1.0),
    Expectation("bulk", "go", 1.0, "p99_ms"),
    Expectation("small", "go", 0.7),
    Expectation("small", "go", 1.0, "p99_ms"),
    Expectation("small", "fastapi", 0.1),
    Expectation("idle", None, 2.5),
)
