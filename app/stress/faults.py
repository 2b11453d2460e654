"""What can go wrong in a stress run, counted, with examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

EXAMPLES: Final = 5
"""How many places are named per kind of fault; the rest is counted."""


class Fault(StrEnum):
    """One kind; the value is its name in reports."""

    SILENT = "missing without a word"
    MISSING = "missing"
    DOUBLED = "doubled"
    REORDERED = "reordered"
    DIFFERING = "differing"
    TRUNCATED = "truncated"
    BROKEN = "broken"
    FALSE_GAP = "gap reported for what came"
    UNPUBLISHED = "not stored"
    PUBLISHER_FAILED = "publisher failed"
    SUBSCRIBER_FAILED = "subscriber failed"


MEANING: Final[Mapping[Fault, str]] = {
    Fault.SILENT: "stored by the server, never delivered, and the subscriber was not told: the worst there is",
    Fault.MISSING: "stored by the server and not delivered; the subscriber reported a gap",
    Fault.DOUBLED: "delivered a second time",
    Fault.REORDERED: "delivered after a later one",
    Fault.DIFFERING: "delivered as whole, with other bytes than were published",
    Fault.TRUNCATED: "stored whole, delivered in part, marked as such by the server",
    Fault.BROKEN: "delivered in part: the connection was cut",
    Fault.FALSE_GAP: "the subscriber reported it missing although it came",
    Fault.UNPUBLISHED: "the publisher was told, or found, that the server does not have it whole",
    Fault.PUBLISHER_FAILED: "gave up before the end of the run",
    Fault.SUBSCRIBER_FAILED: "gave up before the end of its channel, or did not reach it in time",
}


class Faults:
    """Counts faults, and remembers where the first of each kind were."""

    def __init__(self) -> None:
        self.counts: Counter[Fault] = Counter()
        self.examples: dict[Fault, list[str]] = {}

    def add(self, fault: Fault, where: str, number: int = 1) -> None:
        """Count a fault.

        Args:
            fault: its kind.
            where: for people: which segment of which channel, seen by whom.
            number: how often it happened there.
        """
        self.counts[fault] += number
        known = self.examples.setdefault(fault, [])
        if len(known) < EXAMPLES:
            known.append(where)

    def __bool__(self) -> bool:
        return bool(self.counts)
