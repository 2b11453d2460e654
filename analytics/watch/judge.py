"""Judges the rows of the last minutes, and writes down in one transaction what follows from a batch of them.

:class:`Judge` knows nothing of where rows come from: ``storms watch`` adds lines of logs that grow, ``storms stream``
the roll-up of a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from math import exp
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

from tricklecast.analytics.maintenance import Maintenance
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan.rollup import VERSION
from tricklecast.analytics.store.store import Store
from tricklecast.analytics.watch.alerts import AlertBody, Known, Tracker, is_first
from tricklecast.analytics.watch.outbox import Held
from tricklecast.analytics.watch.window import WINDOW_S, Window

LATE_US: Final = 30_000_000
"""Lines that waited for longer count as read when they arrived; what begins in them is told when it is clear whether it
is over. Microseconds."""

PATIENCE_S: Final = 60.0
"""Not for longer than this if reading does not catch up. Seconds."""

SHARE: Final = 25
"""The rules run for one part in this many of the time, except for a possible new storm."""

BUSY: Final = 0.4
BUSY_S: Final = 0.8
"""If the rules run for such a share of the time, what may be a new storm waits so long since they last did. Seconds."""

LOAD_S: Final = 5.0
"""The time constant of that share. Seconds."""

GOING_ON_S: Final = 2.0
"""Known incidents wait at least this long for the next look. Seconds."""

LATER: Final = 3
"""Where lines are read late, the end of an incident is told later, so that the rules run for one part in this many."""

SLOW_S: Final = 10.0
"""Clients that have enough lines, but were no storm so far, wait this long for the next look. Seconds."""

_VERSION: Final = f"{VERSION}-arrow"


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
        *,
        kept: bool = True,
        maintenance: Maintenance | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        told_us: Callable[[], int] | None = None,
    ) -> None:
        """
        Args:
            store: the state of earlier runs. receivers: their names in the outbox.
            params: thresholds.
            kept: rows are written down as well, for the next run. maintenance: when alerts are held back.
            clock: seconds; wall_us: microseconds since the epoch.
            told_us: when alerts say that they were made, if that is another clock.
        """
        params = params or Params()
        self.began: set[str] = set()
        self._store, self._clock, self._wall_us, self._kept = store, clock, wall_us, kept
        self._receivers, self._told_us = list(receivers), told_us
        self.window = Window(params, clock, store.folder)
        self.tracker = Tracker(params, store.incidents())
        self.held = Held(store, maintenance)
        for body in store.rows(_VERSION):
            self.window.restore(pa.ipc.open_stream(body).read_all())
        # Up to when lines were read: of those that waited in a log, when they arrived.
        self._now_us = int(store.fact("read_us") or 0)
        # The least time by which lines were late, and when that was.
        self._least: tuple[int, float] | None = None
        self._looked_at = clock() - SLOW_S
        self._looking_s, self._load, self._looked_us = 0.1, 0.0, self._now_us
        self._fresh = bool(self.tracker.open())

    def step(
        self,
        rows: Sequence[pa.Table],
        written: Callable[[], None],
        *,
        past_us: int | None = None,
        last: bool = False,
        late_us: Callable[[Known], int] = lambda known: 0,
    ) -> list[AlertBody]:
        """Adds rows of a roll-up and judges them, if need be; returns the alerts, which are in the outbox.

        Args:
            rows: what was read just now.
            past_us: since when their lines had waited for that (:attr:`~analytics.watch.followed.Followed.past_us`).
            written: writes down in the same transaction where they came from. last: judge whatever was added.
            late_us: how much later lines of an incident may be read than those that were read last.
        """
        told_us = self._wall_us()
        since_us = told_us if past_us is None else max(past_us, self._now_us)
        past = told_us - since_us > LATE_US
        self._now_us = now_us = since_us if past else told_us
        late = past and self._late(told_us - now_us)
        self._least = self._least if past else None
        kept = [self.window.add(some, told_us, now_us if past else None) for some in rows if some.num_rows]
        # A batch may have storms that are over for long: its rows go when they were judged.
        # Nor do rows of the past that wait for a look on a busy machine.
        oldest_us = min(now_us, self._looked_us) if past and self.window.due else now_us
        tidied = bool(kept) and not last and self.window.tidy(self.tracker.open_clients(), oldest_us)
        if kept:
            self._fresh = True
            self.window.look(self.tracker.told, now_us)
        alerts = self._look(told_us, late) if self._fresh and (last or self._is_time()) else []
        over = partial(self.tracker.over, now_us, told_us, self.window.asked, late=late, late_us=late_us)
        ended, look = over(all_read=not self._fresh)
        if look and not (late and self._clock() - self._looked_at < LATER * self._looking_s):
            alerts += self._look(told_us, late)
            ended, _ = over(all_read=True)
        alerts = self.held.sift(alerts + ended, told_us, self.tracker)
        if self._told_us is not None:
            alerts = [{**each, "told_us": self._told_us()} for each in alerts]
        self.began |= {each["incident"]["id"] for each in alerts if is_first(each)}
        if kept and last:
            tidied = self.window.tidy(self.tracker.open_clients(), now_us)
        if not (kept or alerts or self.tracker.changed or self.tracker.gone):
            return alerts
        with self._store.transaction():
            written()
            self._store.set_fact("read_us", now_us)
            if self._kept:
                if tidied:
                    self._store.clear_rows()
                for some in [self.window.rows()] if tidied else kept:
                    self._store.add_rows(_VERSION, _packed(some))
            self._store.put_incidents(self.tracker.stored())
            self._store.forget_incidents(self.tracker.gone)
            self.held.write(self._store)
            self._store.post(self._receivers, [(each["key"], each) for each in alerts])
        self.tracker.written()
        return alerts

    def close(self) -> None:
        """Frees the memory."""
        self.window.close()

    def _late(self, lag_us: int) -> bool:
        """Whether lines are so old that what begins in them is held; not if reading does not catch up with them."""
        if self._least is None or lag_us < self._least[0]:
            self._least = (lag_us, self._clock())
        return self._clock() - self._least[1] < PATIENCE_S

    def _is_time(self) -> bool:
        """Whether it is time to run the rules."""
        passed, pauses = self._clock() - self._looked_at, []
        if self.window.due:
            # Before the rows of what is past go.
            now = self._load < BUSY or self._now_us - self._looked_us > WINDOW_S * 0.3e6
            pauses.append(0.0 if now else BUSY_S)
        if self.tracker.open():
            pauses.append(max(GOING_ON_S, SHARE * self._looking_s))
        if self.window.many:
            pauses.append(SLOW_S)
        return passed >= min(pauses, default=float("inf"))

    def _look(self, told_us: int, late: bool) -> list[AlertBody]:
        began = self._clock()
        found = self.window.judge()
        self._load *= exp(-min(1e3, began - self._looked_at) / LOAD_S)
        self._looked_at = self._clock()
        self._looking_s = (self._looking_s + self._looked_at - began) / 2
        self._load += (self._looked_at - began) / LOAD_S
        self._fresh, self._looked_us = False, self._now_us
        self.window.looked(self._now_us)
        return self.tracker.compare(found, self._now_us, self._wall_us() if not late else told_us, late=late)


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
