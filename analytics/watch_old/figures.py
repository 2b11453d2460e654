"""Sums over the rows of one stretch that still grows: what :mod:`analytics.islands` computes with Spark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from tricklecast.analytics.answers import GRAINS, ONCE_PER_SEQ, REPEATABLE, Answer
from tricklecast.analytics.own_time import own_us
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.repeats import BITS, FEW, FULL, MANY, SHARED, SLACK, is_own_name
from tricklecast.analytics.rollup import SLOTS
from tricklecast.analytics.watch_old.signals import Signal

STEADIER: Final = 2.0
"""How many times more of the time has to be busy than for the report. It sees stretches as a whole: of readers behind
one key it has seen more than three segments. After ten seconds of a stretch, that many may be all there was."""


@dataclass(slots=True)
class Figures:
    """What a stretch of one family of answers adds up to.

    Attributes:
        kinds: lines per answer; nodes, releases: those that occurred, at most 64 of each.
        own_name: the client's key is what it calls itself (:mod:`analytics.repeats`).
        n, closed, waited, seqs, busy_s, bytes_out, dur_us, guard_ms: sums; seqs are distinct ones as far as
            neighbouring rows can tell.
        first_us, last_us, seq_lo, seq_hi, head_lo, head_hi, retry_after_ms, peak_rps: ranges and maxima.
        conn_bits: which of 64 parts the connections fell into; ``None`` if the log does not say.
    """

    kinds: dict[str, int] = field(default_factory=dict)
    nodes: list[str | None] = field(default_factory=list)
    releases: list[str | None] = field(default_factory=list)
    own_name: bool = False
    n: int = 0
    closed: int = 0
    waited: int = 0
    seqs: int = 0
    busy_s: float = 0.0
    bytes_out: int = 0
    dur_us: int = 0
    guard_ms: int = 0
    first_us: int = 0
    last_us: int = 0
    seq_lo: int | None = None
    seq_hi: int | None = None
    head_lo: int | None = None
    head_hi: int | None = None
    retry_after_ms: int | None = None
    peak_rps: float = 0.0
    conn_bits: int | None = None

    @property
    def answer(self) -> Answer:
        """The commonest."""
        return Answer(max(self.kinds, key=lambda kind: (self.kinds[kind], kind)))

    @property
    def node(self) -> str | None:
        """The node; ``None`` if there were several."""
        return self.nodes[0] if len(self.nodes) == 1 else None

    @property
    def release(self) -> str | None:
        """The release; ``None`` if there were several."""
        return self.releases[0] if len(self.releases) == 1 else None

    @property
    def duration_s(self) -> float:
        """From the first to the last arrival, seconds."""
        return (self.last_us - self.first_us) / 1e6

    @property
    def own_s(self) -> float:
        """That without the time in which the storm guard held it back (:mod:`analytics.own_time`)."""
        return own_us(self.last_us - self.first_us, self.guard_ms, self.n) / 1e6

    @property
    def gap_ms(self) -> float | None:
        """The mean pause of its own, milliseconds; ``None`` for one request."""
        return self.own_s * 1000 / (self.n - 1) if self.n > 1 else None

    def hits(self, params: StormParams) -> int:
        """Lines that count towards a storm: all, or the repeats and the request that they repeat."""
        if self.answer not in ONCE_PER_SEQ:
            return self.n
        readers = self.readers(params)
        right = max(self.seqs * readers, min(self.waited, self.seqs * (readers + SHARED)))
        return max(0, self.n - right + 1)

    def mean_rps(self, params: StormParams) -> float:
        """Hits per second of its own time."""
        return self.hits(params) / max(1.0, self.own_s)

    def connections(self) -> int:
        """About how many connections the lines came over."""
        if self.conn_bits is None:
            return 1
        estimate = distinct(self.conn_bits)
        return max(1, min(self.n, round(estimate))) if estimate is not None else self.n

    def readers(self, params: StormParams) -> int:
        """How many readers share the client key, see :func:`analytics.repeats.stretch_readers_sql`."""
        if self.own_name and (self._outlasts(params) or self._is_alone()):
            return 1
        steady = self.busy_s >= STEADIER * params.same_seq_share * self.duration_s
        lasting = self.seqs <= params.same_seq_few and self.duration_s >= params.same_seq_s and steady
        if lasting or self.answer is Answer.POST:
            return 1
        conns = self.connections()
        return min(self.n, math.ceil(conns * SLACK) if conns > FEW else conns)

    def _outlasts(self, params: StormParams) -> bool:
        """Whether it goes on, steadily, for longer than the rush of a crowd for so many segments does."""
        steady = 2 * self.n >= self.peak_rps * self.own_s and 2 * self.busy_s >= self.duration_s
        return self.seqs <= params.same_seq_few and self.duration_s > params.crowd_s * self.seqs and steady

    def _is_alone(self) -> bool:
        """Whether just one waited for each segment, over more connections than it can have of its own."""
        return self.connections() > MANY and self.seqs <= 2 * self.waited <= 3 * self.seqs

    def add(self, row: Signal, before: Signal | None) -> None:
        """Adds a row; rows come in the order of time.

        Args:
            before: the row before it, of the same island.
        """
        repeats = row.n - max(0, row.seqs - 1)
        held_ms = row.guard_ms or 0
        alone = repeats / max(1.0, own_us(row.last_us - row.first_us, held_ms, row.n) / 1e6)
        pair = 0.0
        if before is not None and row.answer not in REPEATABLE:
            both = repeats + before.n - max(0, before.seqs - 1)
            held_ms += before.guard_ms or 0
            pair = both / max(1.0, own_us(row.last_us - before.first_us, held_ms, row.n + before.n) / 1e6)
        self.peak_rps = max(self.peak_rps, alone, pair)
        kind = row.answer.value
        self.kinds[kind] = self.kinds.get(kind, 0) + row.n
        for names, name in ((self.nodes, row.node), (self.releases, row.release)):
            if name not in names and len(names) < BITS:
                names.append(name)
        self.first_us = min(self.first_us, row.first_us) if self.n else row.first_us
        self.last_us = max(self.last_us, row.last_us)
        self.own_name = row.client is not None and is_own_name(row.client)
        self.n += row.n
        self.closed += row.closed
        self.waited += row.waited
        self.seqs += max(0, row.seqs - _shared(row, before)) if row.answer in ONCE_PER_SEQ else 0
        self.busy_s += _busy_s(row)
        self.bytes_out += row.bytes_out or 0
        self.dur_us += row.dur_us or 0
        self.guard_ms += row.guard_ms or 0
        self.seq_lo, self.seq_hi = _low(self.seq_lo, row.seq_lo), _high(self.seq_hi, row.seq_hi)
        self.head_lo, self.head_hi = _low(self.head_lo, row.head_lo), _high(self.head_hi, row.head_hi)
        self.retry_after_ms = _high(self.retry_after_ms, row.retry_after_ms)
        if row.conn_bits is not None:
            self.conn_bits = (self.conn_bits or 0) | row.conn_bits

    def copy(self) -> Self:
        """The same figures, to be added to."""
        return replace(self, kinds=dict(self.kinds), nodes=list(self.nodes), releases=list(self.releases))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What the ledger has of them."""
        return cls(**values)


def distinct(bits: int) -> float | None:
    """About how many distinct values a set of 64 bits stands for, see :func:`analytics.repeats.counted`."""
    used = (bits & (1 << BITS) - 1).bit_count()
    return -BITS * math.log(1.0 - used / BITS) if used < FULL else None


def _shared(row: Signal, before: Signal | None) -> int:
    """Seqs of a row that the row before had as well, at most; as in
    :func:`analytics.repeats.n_shared_sql`."""
    if before is None or row.seq_bits is None or before.seq_bits is None:
        return 0
    between = min(row.seq_hi or 0, before.seq_hi or 0) - max(row.seq_lo or 0, before.seq_lo or 0) + 1
    return max(0, min(between, (row.seq_bits & before.seq_bits & (1 << BITS) - 1).bit_count()))


def _busy_s(row: Signal) -> float:
    """Seconds of a row in which something arrived, about."""
    if row.answer is not Answer.SERVED:
        return 1.0
    return ((row.slots or 0) & (1 << SLOTS) - 1).bit_count() * GRAINS[Answer.SERVED].bucket_s / SLOTS


def _low(known: int | None, new: int | None) -> int | None:
    return new if known is None else known if new is None else min(known, new)


def _high(known: int | None, new: int | None) -> int | None:
    return new if known is None else known if new is None else max(known, new)
