"""Counts what was planted, line by line, so that the truth about a log is that of its lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from tricklecast.analytics.simulate.truth import Storm, Trap
from tricklecast.trickle.records import AccessRecord


@dataclass(slots=True)
class Tally:
    """What a storm's, or a trap's, lines add up to.

    Attributes:
        name: the script. storm: the class; ``""`` for a trap.
        trigger, backoff, also: as of :class:`~analytics.simulate.truth.Storm`.
    """

    name: str
    storm: str = ""
    trigger: str | None = None
    backoff: str | None = None
    also: tuple[str, ...] = ()
    n: int = 0
    start_us: int = 0
    end_us: int = 0
    node: str = "0"
    seq_lo: int | None = None
    seq_hi: int | None = None
    _clients: dict[str, None] = field(default_factory=dict)
    _channels: dict[str, None] = field(default_factory=dict)
    _releases: set[str | None] = field(default_factory=set)

    def take(self, record: AccessRecord) -> AccessRecord:
        """Count a line in, and hand it on."""
        at = record.ts_us
        self.start_us = min(self.start_us, at) if self.n else at
        self.end_us = max(self.end_us, at) if self.n else at
        self.n += 1
        self.node = record.node or "0"
        if record.client is not None:
            self._clients[record.client] = None
        if record.channel is not None:
            self._channels[record.channel] = None
        self._releases.add(record.release)
        seq = record.rseq if record.rseq is not None else record.seq
        if seq is not None and seq >= 0:
            self.seq_lo = seq if self.seq_lo is None else min(self.seq_lo, seq)
            self.seq_hi = seq if self.seq_hi is None else max(self.seq_hi, seq)
        return record

    def as_storm(self) -> Storm:
        """The storm, with times from its scene's beginning."""
        return Storm(
            name=self.name,
            storm=self.storm,
            start_us=self.start_us,
            end_us=self.end_us,
            n=self.n,
            clients=tuple(self._clients),
            channels=tuple(self._channels),
            node=self.node,
            release=next(iter(self._releases)) if len(self._releases) == 1 else None,
            seq_lo=self.seq_lo,
            seq_hi=self.seq_hi,
            trigger=self.trigger,
            backoff=self.backoff,
            also=self.also,
        )

    def as_trap(self) -> Trap:
        """The trap, with times from its scene's beginning."""
        return Trap(self.name, self.start_us, self.end_us, tuple(self._clients), tuple(self._channels), self.node)
