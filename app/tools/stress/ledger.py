"""The comparison of what publishers sent with what subscribers received. It has no clock and does no I/O.

A :class:`SubscriberCheck` follows one subscriber in a worker process. The :class:`Ledger` of the command adds up the
reports of all workers. Some faults of subscribers count only if the server has stored the segment; the ledger decides
that at the end, since the reports of different processes come in any order. So memory grows with the number of faults,
not with the length of the run.

A segment is known by its ordinal, which is written into it, and not by its seq. So the same bytes under two seqs are a
doubled segment, and two swapped segments are reordered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Final, NamedTuple

from tricklecast.app.tools.stress.load import Comparison, PlannedSegment, Role, StressPlan

LATENCIES: Final = {
    "first_byte": "from when a segment's first chunk was due to its arrival",
    "whole": "from when its last chunk was due to the arrival of its end",
    "behind": "delay of writing behind the schedule",
}

EXAMPLES: Final = 5
"""Limit of examples for each kind of fault. All others are only counted."""

_BITS: Final = 11
"""Significant bits of a duration that are counted: an error below 0.1 %, and at most 1024 counters per doubling."""


class Durations:
    """A histogram of durations. Its quantiles are exact to 0.1 %, its maximum to 1 µs."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()  # by the duration in microseconds, cut to its first _BITS bits
        self._largest = 0

    def add(self, us: int) -> None:
        """Count a duration in microseconds. One below 0 counts as 0, since clocks of two processors may differ."""
        us = max(0, us)
        shift = max(0, us.bit_length() - _BITS)
        self._counts[us >> shift << shift] += 1
        self._largest = max(self._largest, us)

    def quantiles(self) -> dict[str, float]:
        """The number of durations so far, and their quantiles in milliseconds: all 0 without durations."""
        durations = sorted(self._counts)
        sums = list(accumulate(self._counts[us] for us in durations))
        total = sums[-1] if sums else 0
        places = {f"p{percent}": bisect_left(sums, total * percent / 100) for percent in (50, 95, 99)}
        quantiles = {name: durations[place] / 1000 if total else 0.0 for name, place in places.items()}
        return {"samples": total, **quantiles, "max": self._largest / 1000}


class FaultKind(StrEnum):
    """A kind of fault. The value is its name in reports."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> FaultKind:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    SILENT = "missing without a word", "the server stored it and never delivered it, and the subscriber reported no gap"
    MISSING = "missing", "the server stored it and did not deliver it; the subscriber reported a gap"
    DOUBLED = "doubled", "delivered a second time"
    REORDERED = "reordered", "delivered after a later one"
    DIFFERING = "differing", "delivered as whole, with other bytes than were published"
    TRUNCATED = "truncated", "stored whole, delivered in part, marked as such by the server"
    BROKEN = "broken", "delivered in part: the connection was cut"
    FALSE_GAP = "gap reported for what came", "the subscriber reported it missing although it came"
    UNPUBLISHED = "not stored", "the publisher was told, or found, that the server does not have it whole"
    PUBLISHER_FAILED = "publisher failed", "it gave up before the end of the run"
    SUBSCRIBER_FAILED = "subscriber failed", "it gave up before the end of its channel, or did not reach it in time"


EXCUSED: Final = (FaultKind.SILENT, FaultKind.MISSING, FaultKind.TRUNCATED, FaultKind.BROKEN)
"""These do not count if the server does not have the segment whole: that is a fault by itself."""


class FoundFault(NamedTuple):
    """A fault, its segment, and its place for people."""

    fault: str
    channel: int
    ordinal: int
    where: str


@dataclass
class Traffic:
    """The sums of one side.

    Attributes:
        segments, bytes: number of stored, or of wholly delivered, segments and bytes.
        wanted: number of segments that should have been stored or delivered.
        counts: the sums of the libraries' own statistics.
    """

    segments: int = 0
    bytes: int = 0
    wanted: int = 0
    counts: Counter[str] = field(default_factory=Counter)


@dataclass
class WorkerReport(Traffic):
    """All that has happened in a worker process since its last report. It travels as JSON.

    Attributes:
        samples: of the ledger's latencies, in microseconds.
        published: channels whose publisher is done, and the number of segments that it published, stored or not.
        waiting: number of segments that the subscribers of this process still wait for.
    """

    samples: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in LATENCIES})
    published: list[tuple[int, int]] = field(default_factory=list)
    waiting: int = 0
    faults: list[FoundFault] = field(default_factory=list)


class SubscriberCheck:
    """The place of one subscriber in its channel, and the faults that show there: it calls ``found`` with each.

    Attributes:
        expected: the ordinal after the newest received one.
    """

    def __init__(self, plan: StressPlan, channel: int, number: int, found: Callable[[FoundFault], None]) -> None:
        self.name = f"subscriber {number} of {plan.channel(channel)}"
        self.expected = 0
        self._plan = plan
        self._channel = channel
        self._found = found
        self._newest_seq = -1  # of all received segments
        self._shift = 0  # seq - ordinal of the newest segment: it changes when a publisher loses its position
        self._holes: dict[int, FaultKind] = {}  # ordinals that have not come, with the fault if they never do

    def received(self, seq: int, gap: int, compared: Comparison, flaw: FaultKind | None = None) -> bool:
        """Note a segment; returns whether it came as it was published, and for the first time.

        Args:
            seq: the seq under which the server delivered it.
            gap: number of segments before it that the library reported as missed.
            compared: its bytes.
            flaw: the library's judgement of it: truncated or broken.
        """
        for came in range(max(0, seq - gap), min(seq, self._newest_seq + 1)):
            self._add(FaultKind.FALSE_GAP, came - self._shift, came)
        self._newest_seq = seq
        if not compared.size and flaw is None:
            return False  # an empty segment; if it was published with bytes, it counts as missing in the end
        # A segment without a marker is in the place of its seq.
        ordinal = seq - self._shift if compared.segment is None else compared.segment.ordinal
        if not 0 <= ordinal < self._plan.load.segments:
            self._add(FaultKind.DIFFERING, ordinal, seq, ": no such segment is published")
            return False
        if not self._place(ordinal, seq, gap):
            return False
        if compared.same and flaw is None:
            return True
        size, wanted = compared.size, PlannedSegment(self._plan.load, self._channel, ordinal).size
        if flaw is not None:
            self._add(flaw, ordinal, seq, f": {size} of {wanted} bytes")
        else:
            detail = f"{size} bytes for {wanted}" if size != wanted else f"{wanted} bytes"
            self._add(FaultKind.DIFFERING, ordinal, seq, f": {detail}")
        return False

    def _place(self, ordinal: int, seq: int, gap: int) -> bool:
        """Compare a segment's place with those before it; returns whether it came for the first time."""
        if ordinal >= self.expected:
            self._shift = seq - ordinal
            for missing in range(self.expected, ordinal):
                self._holes[missing] = FaultKind.MISSING if ordinal - missing <= gap else FaultKind.SILENT
            self.expected = ordinal + 1
            return True
        hole = self._holes.pop(ordinal, None)
        self._add(FaultKind.DOUBLED if hole is None else FaultKind.REORDERED, ordinal, seq)
        if hole is FaultKind.MISSING:
            self._add(FaultKind.FALSE_GAP, ordinal, ordinal + self._shift)
        return hole is not None

    def leave(self, missed: int, ns: int, *, failed: bool) -> None:
        """The run has ended: report all segments that have not come.

        Args:
            missed: number of segments after the newest received one that the library reported as missed.
            ns: the time, in nanoseconds after the start. Segments that begin later have not been published.
            failed: an error ended the subscriber earlier, which reports all that is missing after it.
        """
        for ordinal in range(self.expected, self._plan.load.segments):
            if self._plan.load.begins_ns(self._channel, ordinal) > ns:
                break
            known = failed or ordinal < self.expected + missed
            self._holes[ordinal] = FaultKind.MISSING if known else FaultKind.SILENT
        for ordinal, fault in self._holes.items():
            self._add(fault, ordinal, ordinal + self._shift)

    def _add(self, fault: FaultKind, ordinal: int, seq: int, detail: str = "") -> None:
        self._found(FoundFault(fault, self._channel, ordinal, f"segment {seq}, {self.name}{detail}"))


class Ledger:
    """The comparison of one run.

    Attributes:
        faults: number of each kind. The excused ones are added at the end.
        examples: the first places of each kind.
        published, received: the sums of both sides.
        latencies: by their names in :data:`LATENCIES`.
    """

    def __init__(self, plan: StressPlan) -> None:
        self.faults: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.published, self.received = Traffic(), Traffic()
        self.latencies = {name: Durations() for name in LATENCIES}
        self._plan = plan
        self._published: dict[int, int] = {}  # segments of each channel whose publisher is done
        self._unstored: set[tuple[int, int]] = set()  # channel and ordinal of segments that the server does not have
        self._waiting: dict[str, int] = {}  # segments that subscribers wait for, by worker
        self._doubtful: list[FoundFault] = []  # faults that are excused if the server does not have the segment

    def add(self, worker: str, role: Role, report: WorkerReport) -> None:
        side = self.published if role == "publish" else self.received
        side.wanted += report.wanted
        side.segments += report.segments
        side.bytes += report.bytes
        side.counts.update(report.counts)
        for name, samples in report.samples.items():
            for us in samples:
                self.latencies[name].add(us)
        self._published.update(report.published)
        self._waiting[worker] = report.waiting
        for finding in map(FoundFault._make, report.faults):
            if finding.fault == FaultKind.UNPUBLISHED:
                self._unstored.add((finding.channel, finding.ordinal))
            if finding.fault in EXCUSED:
                self._doubtful.append(finding)
            else:
                self._count(finding)

    @property
    def caught_up(self) -> bool:
        """Whether no subscriber waits for a segment."""
        return not any(self._waiting.values())

    def close(self) -> None:
        """Count the missing and partial segments that the server has stored. No report may follow."""
        for finding in self._doubtful:
            place = (finding.channel, finding.ordinal)
            if finding.ordinal < self._published.get(finding.channel, 0) and place not in self._unstored:
                self._count(finding)
        self.received.wanted = self._plan.subscribers * (sum(self._published.values()) - len(self._unstored))

    def _count(self, finding: FoundFault) -> None:
        self.faults[finding.fault] += 1
        examples = self.examples.setdefault(finding.fault, [])
        if len(examples) < EXAMPLES:
            examples.append(finding.where)
