"""What the rules say, and what they are measured against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from tricklecast.subscriber.check.study import Study

Value: TypeAlias = float | int | str | None

MAX_NAMED: Final = 20
"""How many segments a finding names."""


class Verdict(StrEnum):
    """How it is; the worst one comes last."""

    SKIP = "skip"
    """Could not be judged."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


ORDER: Final = tuple(Verdict)


@dataclass(frozen=True, slots=True)
class Limits:
    """What is too much, in seconds. What the user asked for fails when it is exceeded; a default only warns.

    Attributes:
        latency_s: end-to-end latency, of 95 % of the segments. 5 s is a tenth of what plain HLS has, and still far
            more than a trickled segment needs.
        segment_s: length of a segment. Apple's HLS authoring specification (7.5) recommends 6 s, and x264 makes a
            keyframe every 10 s at 25 fps by default.
        jitter_s: by how much a segment may come later than its time line says: what a player has to buffer.
        skew_s: distance between sound and picture at a segment's start. Broadcast multiplexes have up to 1.5 s.
        given: which of them the user asked for.
    """

    latency_s: float = 5.0
    segment_s: float = 10.0
    jitter_s: float = 1.0
    skew_s: float = 2.0
    given: frozenset[str] = frozenset()

    def exceeded(self, name: str) -> Verdict:
        """The verdict on what is beyond that limit."""
        return Verdict.FAIL if name in self.given else Verdict.WARN


@dataclass(frozen=True, slots=True)
class Result:
    """What one rule found.

    Attributes:
        verdict: how it is.
        figure: in a few words, for people.
        note: what this means, instead of the rule's own words.
        cure: what to do about it, likewise.
        values: for programs.
        segments: where, the first :data:`MAX_NAMED`.
    """

    verdict: Verdict
    figure: str
    note: str = ""
    cure: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    segments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the report.

    Attributes:
        name: for programs; never changes its meaning.
        title: for people.
        find: the rule itself.
        means: what it means if it is broken.
        cure: what to do then.
    """

    name: str
    title: str
    find: Callable[[Study, Limits], Result]
    means: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's result, with all that is to be said of it."""

    name: str
    title: str
    verdict: Verdict
    figure: str
    means: str = ""
    cure: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    segments: tuple[int, ...] = ()


def skip(why: str) -> Result:
    """It could not be judged."""
    return Result(Verdict.SKIP, why)


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The one that counts; OK if there is none."""
    return max([Verdict.OK, *verdicts], key=ORDER.index)


def named(seqs: Sequence[int]) -> tuple[int, ...]:
    """The segments that a finding names."""
    return tuple(seqs[:MAX_NAMED])


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed (nearest rank).

    Args:
        values: at least one, in any order.
        share: 0.5 for the median.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float], name: str = "") -> dict[str, Value]:
    """Quantiles, for programs."""
    prefix = f"{name}_" if name else ""
    known = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
    found: dict[str, Value] = {f"{prefix}{key}": round(quantile(values, share), 6) for key, share in known.items()}
    return found | {f"{prefix}min_s": round(min(values), 6), f"{prefix}max_s": round(max(values), 6)}


def seconds(value: float) -> str:
    """A time for people."""
    if abs(value) < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if abs(value) < 99.995 else f"{value:.0f} s"
