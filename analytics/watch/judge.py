"""Judges the rows of the last minutes, and writes down in one transaction what follows from a batch of them.

:class:`Judge` knows nothing of where rows come from: ``storms watch`` adds lines of logs that grow; whoever rolls up
elsewhere hands over rows with the number of their batch (:meth:`Judge.add_batch`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import exp
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.cli.maintenance import Maintenance
from tricklecast.analytics.lines import Reading
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan.rollup import VERSION
from tricklecast.analytics.store.store import Store
from tricklecast.analytics.watch.alerts import AlertBody, Known, Tracker
from tricklecast.analytics.watch.outbox import Held
from tricklecast.analytics.watch.window import Columns, Window

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

SHARE: Final = 25
"""The rules run for one part in so many of the time, but for what may be a new storm."""

BUSY: Final = 0.4
BUSY_S: Final = 0.8
"""If the rules run for such a share of the time, what may be a new storm waits so long since they last did. Seconds."""

LOAD_S: Final = 5.0
"""The time constant of that share. Seconds."""

GOING_ON_S: Final = 2.0
"""What is known already waits so long at least for the next look. Seconds."""

SLOW_S: Final = 10.0
"""How long what has enough lines, but was no storm so far, waits for the next look. Seconds."""


class Judge:
    """The rows of the last minutes, and the incidents that are known.

    Attributes:
        began: ids of the incidents that were told. window, tracker, held: see there.
    """

    def __init__(
        self,
        store: Store,
        receivers: Sequence[str],
        params: Params | None = None,
        reading: Reading | None = None,
        *,
        kept: bool = True,
        maintenance: Maintenance | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """
        Args:
            store: what is known of earlier runs. receivers: names of those who are told, in the outbox.
            params: thresholds. reading: how lines are read.
            kept: rows are written down as well, for the next run. maintenance: when alerts are held back.
            clock: seconds; wall_us: microseconds since the epoch.
        """
        params = params or Params()
        self.began: set[str] = set()
        self._store, self._clock, self._wall_us, self._kept = store, clock, wall_us, kept
        self._receivers = list(receivers)
        self.window = Window(params, reading, clock)
        self.tracker = Tracker(params, store.incidents())
        self.held = Held(store, maintenance)
        self.window.restore(store.rows(VERSION), wall_us())
        self._looked_at = clock() - SLOW_S
        self._looking_s, self._load = 0.1, 0.0
        self._fresh = bool(self.tracker.open())

    def add_batch(
        self,
        number: int,
        rows: pa.Table,
        now_us: int | None = None,
        late_us: Callable[[Known], int] = lambda known: 0,
    ) -> list[AlertBody]:
        """Adds rows of a roll-up, judges them and writes down what follows; returns the alerts in the outbox.

        Args:
            number: of the batch. One that is written down already is not added again: then nothing is done.
            rows: as of :meth:`analytics.watch.window.Window.add_rows`; if there are none, time passes.
            now_us: when they were read, if not now. late_us: see :meth:`step`.
        """
        stored = self._store.fact("batch")
        if stored is not None and number <= stored:
            return []
        now_us = self._wall_us() if now_us is None else now_us
        columns = [self.window.add_rows(rows, now_us)] if rows.num_rows else []
        return self.step(columns, now_us, lambda: self._store.set_fact("batch", number), last=True, late_us=late_us)

    def step(
        self,
        rows: Sequence[Columns],
        now_us: int,
        written: Callable[[], None],
        *,
        last: bool = False,
        late_us: Callable[[Known], int] = lambda known: 0,
    ) -> list[AlertBody]:
        """Judges rows that were added to the window, if need be; returns the alerts, which are in the outbox.

        Args:
            rows: what was added. now_us: when, microseconds since the epoch.
            written: writes down in the same transaction where they came from. last: judge whatever was added.
            late_us: how much later lines of an incident may be read than those that were read last.
        """
        self._fresh = self._fresh or bool(rows)
        alerts = self._judged(now_us, last)
        over, look = self.tracker.over(now_us, self.window.asked, all_read=not self._fresh, late_us=late_us)
        if look:
            alerts += self._look(now_us)
            over, _ = self.tracker.over(now_us, self.window.asked, all_read=True, late_us=late_us)
        alerts = [{**each, "told_us": self._wall_us()} for each in self.held.sift(alerts + over, now_us, self.tracker)]
        self.began |= {each["incident"]["id"] for each in alerts if each["status"] == "firing"}
        open_clients = {client for known in self.tracker.open() for client in known.clients}
        tidied = bool(rows) and self.window.tidy(list(open_clients), now_us)
        if not (rows or alerts or self.tracker.changed or self.tracker.gone):
            return alerts
        with self._store.transaction():
            written()
            if self._kept:
                if tidied:
                    self._store.clear_rows()
                for columns in [self.window.rows()] if tidied else rows:
                    self._store.add_rows(VERSION, columns)
            self._store.put_incidents(self.tracker.stored())
            self._store.forget_incidents(self.tracker.gone)
            self.held.write(self._store)
            self._store.post(self._receivers, [(each["key"], each) for each in alerts])
        self.tracker.written()
        return alerts

    def _judged(self, now_us: int, last: bool) -> list[AlertBody]:
        """The alerts, if it is time to run the rules."""
        if not self._fresh:
            return []
        suspects, passed = self.window.suspects, self._clock() - self._looked_at
        suspects.look(self.tracker.told, now_us)
        pauses = []
        if suspects.due:
            pauses.append(0.0 if self._load < BUSY else BUSY_S)
        if self.tracker.open():
            pauses.append(max(GOING_ON_S, SHARE * self._looking_s))
        if suspects.many:
            pauses.append(SLOW_S)
        return self._look(now_us) if last or passed >= min(pauses, default=float("inf")) else []

    def _look(self, now_us: int) -> list[AlertBody]:
        began = self._clock()
        found = self.window.judge()
        self._load *= exp(-min(1e3, began - self._looked_at) / LOAD_S)
        self._looked_at = self._clock()
        self._looking_s = (self._looking_s + self._looked_at - began) / 2
        self._load += (self._looked_at - began) / LOAD_S
        self._fresh = False
        self.window.suspects.looked()
        return self.tracker.compare(found, now_us)
