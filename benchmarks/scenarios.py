"""What is run: numbers, and what is expected of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One channel, one publisher, many readers.

    Attributes:
        chunk_bytes: of one published chunk. chunks_per_segment: after so many a new segment begins.
        rate: chunks per second; 0 for as fast as the server takes them.
        lead: chunks that an unpaced publisher may be ahead of the slowest reader, so that what is under way is bounded.
        warm_up_s, measure_s: seconds of publishing before and during the measurement.
    """

    readers: int
    chunk_bytes: int
    chunks_per_segment: int
    rate: float = 0.0
    lead: int = 0
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


Scenario = Stream | Exchanges | Idle

SCENARIOS: dict[str, Scenario] = {
    # A film of 2 Mbit/s in segments of a second, at the frame rate of a camera.
    "fan-out": Stream(readers=500, chunk_bytes=8 << 10, chunks_per_segment=30, rate=30),
    "small": Exchanges(channels=100, chunk_bytes=200),
    # The lead of 8 MiB stays below every limit on how far a reader may be behind.
    "bulk": Stream(readers=20, chunk_bytes=64 << 10, chunks_per_segment=64, lead=128, warm_up_s=0.5, measure_s=3.0),
    "idle": Idle(readers=2000),
}


def quick(scenario: Scenario) -> Scenario:
    """The same numbers of readers and bytes in less time."""
    match scenario:
        case Idle():
            return scenario
        case Stream() | Exchanges():
            return replace(scenario, warm_up_s=scenario.warm_up_s / 2, measure_s=scenario.measure_s / 2)


def to_json(scenario: Scenario) -> dict[str, Any]:
    """A scenario for another process."""
    return {"kind": type(scenario).__name__, **asdict(scenario)}


def from_json(fields: dict[str, Any]) -> Scenario:
    """A scenario from another process."""
    kinds = {kind.__name__: kind for kind in (Stream, Exchanges, Idle)}
    return kinds[fields["kind"]](**{name: value for name, value in fields.items() if name != "kind"})


@dataclass(frozen=True, slots=True)
class Expectation:
    """What this design promises.

    Attributes:
        scenario: in which. beside: the server that the ratio is to; ``None`` for a limit on the value itself.
        at_most: the ratio, or the value.
    """

    scenario: str
    beside: str | None
    at_most: float


EXPECTATIONS = (
    Expectation("fan-out", "floor", 1.7),
    Expectation("fan-out", "fastapi", 0.5),
    Expectation("small", "fastapi", 0.1),
    Expectation("idle", None, 4.0),
)
