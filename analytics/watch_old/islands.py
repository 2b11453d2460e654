"""Stretches of time in which one client kept getting one family of answers, while they grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tricklecast.analytics.durations import SECOND_US, micros
from tricklecast.analytics.watch_old.figures import Figures
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.signals import Cell, IslandKey, Signal

KEPT: Final = 8
"""Rows that an island keeps even if they cannot change any more: for the seqs and kinds of the next."""

NEIGHBOURS: Final = 4
"""One kind of answer follows another, rather than taking turns with it, if so many buckets before had none of it."""


@dataclass(slots=True)
class Island:
    """One stretch.

    Attributes:
        key: whose it is; number: tells it from earlier ones of the same key.
        settled: what does not change any more, added up; last_settled: the newest row of that.
        rows: what may still change, by cell; touched_s: when that last did, by our own clock.
        written: what :meth:`as_json` gave, until something is added. Few of many stretches change with a batch.
    """

    key: IslandKey
    number: int
    settled: Figures = field(default_factory=Figures)
    last_settled: Signal | None = None
    rows: dict[Cell, Signal] = field(default_factory=dict)
    touched_s: float = 0.0
    written: orjson.Fragment | None = None

    def figures(self) -> Figures:
        """What it adds up to."""
        total, before = self.settled.copy(), self.last_settled
        for row in self._in_order():
            total.add(row, before)
            before = row
        return total

    @property
    def first_us(self) -> int:
        """Its first arrival."""
        return min(row.first_us for row in self.rows.values()) if not self.settled.n else self.settled.first_us

    @property
    def last_us(self) -> int:
        """Its last arrival."""
        return max((row.last_us for row in self.rows.values()), default=self.settled.last_us)

    def goes_on_with(self, row: Signal, gap_us: int, turn_us: int) -> bool:
        """Whether a row belongs to it: one that it has, as it has grown; or no longer pause, no other kind of answer.

        Args:
            gap_us, turn_us: the longest pause; and that before a kind of answer that it has not had, microseconds.
        """
        if row.cell in self.rows:
            return True
        pause = max(row.first_us - self.last_us, self.first_us - row.last_us)
        if pause > gap_us:
            return False
        # In buckets: each may have a row per kind of answer, node and release.
        newest = sorted({each.bucket_us for each in self.rows.values()})[-NEIGHBOURS:]
        known = {each.answer for each in self.rows.values() if each.bucket_us >= newest[0]}
        return row.answer in known or (len(newest) < NEIGHBOURS and pause <= turn_us)

    def put(self, row: Signal, limits: WatchLimits) -> None:
        """Adds a row, or replaces it by what it has grown to."""
        self.rows[row.cell] = row
        self.written = None
        if len(self.rows) <= 2 * KEPT:
            return
        changing = row.window_us - limits.window_s * SECOND_US
        for old in self._in_order()[:-KEPT]:
            if old.window_us >= changing:
                break
            self.settled.add(old, self.last_settled)
            self.last_settled = old
            del self.rows[old.cell]

    def _in_order(self) -> list[Signal]:
        return sorted(self.rows.values(), key=lambda row: (row.first_us, row.last_us, row.cell))

    def as_json(self) -> orjson.Fragment:
        """For the ledger."""
        if self.written is None:
            last = None if self.last_settled is None else self.last_settled.as_list()
            rows = [row.as_list() for row in self.rows.values()]
            self.written = orjson.Fragment(orjson.dumps([self.key, self.number, self.settled, last, rows]))
        return self.written

    @classmethod
    def from_json(cls, values: Sequence[Any], now_s: float) -> Island:
        """What :meth:`as_json` gave."""
        key, number, settled, last, rows = values
        signals = [Signal.from_row(row) for row in rows]
        last_settled = None if last is None else Signal.from_row(last)
        rows_by_cell = {row.cell: row for row in signals}
        return cls(tuple(key), number, Figures.from_json(settled), last_settled, rows_by_cell, now_s)


class Islands:
    """All stretches that may still grow, at most so many, those that were added to last.

    Attributes:
        forgotten: stretches given up because there were too many.
    """

    def __init__(self, gap_s: float, turn_s: float, limits: WatchLimits) -> None:
        """
        Args:
            gap_s: a longer pause ends a stretch, seconds. turn_s: and after a pause longer than this, another kind of
                answer does: only the report sees whether the two take turns. limits: how many are kept.
        """
        self._gap_us = micros(gap_s)
        self._turn_us = micros(turn_s)
        self._limits = limits
        self._open: dict[IslandKey, Island] = {}
        self._count = 0
        self.forgotten = 0

    def __iter__(self) -> Iterator[Island]:
        return iter(self._open.values())

    def get(self, key: IslandKey) -> Island | None:
        """The stretch of that key that may still grow."""
        return self._open.get(key)

    def put(self, row: Signal, now_s: float) -> tuple[Island, Island | None]:
        """Adds a row to its stretch, or begins one.

        Args:
            now_s: our own clock.

        Returns:
            the stretch, and the one before it if that has ended by this.
        """
        ended = None
        island = self._open.pop(row.key, None)
        if island is not None and not island.goes_on_with(row, self._gap_us, self._turn_us):
            if row.last_us < island.first_us:
                # A latecomer, from before a stretch that has begun since: its own is over and has been told.
                self._open[row.key] = island
                return island, None
            island, ended = None, island
        if island is None:
            self._count += 1
            island = Island(row.key, self._count)
        island.put(row, self._limits)
        island.touched_s = now_s
        self._open[row.key] = island  # at the end of the order, as the one that was added to last
        return island, ended

    def drop(self, key: IslandKey) -> None:
        """Ends the stretch of that key, if there is one."""
        self._open.pop(key, None)

    def forget(self, *, before_s: float) -> None:
        """Gives up those that nothing was added to for so long, and the oldest if there are too many.

        Args:
            before_s: by our own clock. That of one server may be wrong by years.
        """
        while self._open:
            key, island = next(iter(self._open.items()))
            if island.touched_s >= before_s and len(self._open) <= self._limits.islands:
                break
            self.forgotten += island.touched_s >= before_s
            del self._open[key]

    def as_json(self) -> dict[str, Any]:
        """For the ledger."""
        return {"count": self._count, "open": [island.as_json() for island in self._open.values()]}

    def load(self, values: dict[str, Any], now_s: float) -> None:
        """What :meth:`as_json` gave."""
        self._count = values["count"]
        islands = [Island.from_json(each, now_s) for each in values["open"]]
        self._open = {island.key: island for island in islands}
