"""Between Spark and everybody else: takes each batch's rows, has them judged, writes that down, and tells."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from threading import Event, RLock
from typing import TYPE_CHECKING

from tricklecast.analytics.params import StormParams
from tricklecast.analytics.watch_old.courier import Courier
from tricklecast.analytics.watch_old.detector import Detector
from tricklecast.analytics.watch_old.ledger import Ledger
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.news import news_of
from tricklecast.analytics.watch_old.open_storms import Change, Kind
from tricklecast.analytics.watch_old.receivers import Receiver
from tricklecast.analytics.watch_old.signals import Signal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True)
class Found:
    """What one run found.

    Attributes:
        began: storms, by severity as it was known last, by id.
    """

    began: dict[str, str] = field(default_factory=dict)

    def note(self, change: Change) -> None:
        """Takes a change in."""
        if change.kind is not Kind.OVER or change.episode.id in self.began:
            self.began[change.episode.id] = change.episode.severity.value

    def has(self, severity: str) -> bool:
        """Whether there was a storm at least so bad."""
        return any(found == "critical" or severity == "warn" for found in self.began.values())


class Judge:
    """Judges batches, one after the other, and what happens when none comes.

    Attributes:
        detector: what it knows; found: what it found.
        ready: set when the first batch has been judged: from then on, Spark is fast.
    """

    def __init__(
        self,
        ledger: Ledger,
        params: StormParams,
        limits: WatchLimits,
        local: Receiver,
        couriers: Sequence[Courier] = (),
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            ledger: where it goes on from; params: what a storm is.
            local: who is told at once; couriers: who tell the others.
            clock, wall: the time, seconds: one that only goes on, and that of the calendar.
        """
        self._ledger = ledger
        self._limits = limits
        self._local = local
        self._couriers = list(couriers)
        self._receivers = [local.name, *(courier.name for courier in self._couriers)]
        self._clock = clock
        self._wall = wall
        self._lock = RLock()
        self._followed = Event()
        self._broken: BaseException | None = None
        self.couriers = tuple(self._couriers)
        self.detector = Detector(params, limits)
        self.found = Found()
        self.ready = Event()
        if ledger.detector is not None:
            self.detector.load(ledger.detector, clock())

    def follow(self, checkpoint: str) -> None:
        """Says whose batches it is going to judge; and tells what could not be told before."""
        self._ledger.follow(checkpoint)
        self._tell_local()
        self._followed.set()

    def batch(self, rows: DataFrame, number: int) -> None:
        """Judges what a batch changed; a batch that has been judged before is left alone."""
        found = [Signal.from_row(row) for row in rows.collect()]
        if len(found) > self._limits.rows:
            found = nlargest(self._limits.rows, found, key=lambda row: row.n)
        self._followed.wait()
        with self._lock:
            if number > self._ledger.batch:
                changes = self.detector.fold(found, self._clock())
                if found or changes:
                    self._commit(number, changes)
        self.ready.set()

    def idle(self) -> None:
        """To be called while there is nothing to read: what nothing is added to is over at some time."""
        if not self.ready.is_set():
            return
        with self._lock:
            changes = self.detector.tick(self._clock())
            if changes:
                self._commit(None, changes)

    def check(self) -> None:
        """Raises what went wrong while telling."""
        if self._broken is not None:
            raise self._broken

    def _commit(self, number: int | None, changes: Sequence[Change]) -> None:
        for change in changes:
            self.found.note(change)
        told_us = round(self._wall() * 1e6)
        news = [news_of(change, told_us) for change in changes]
        self._ledger.commit(number, self.detector.as_json(), news, self._receivers)
        if news:
            self._tell_local()
            for courier in self._couriers:
                courier.wake()

    def _tell_local(self) -> None:
        waiting = self._ledger.waiting(self._local.name)
        if not waiting or self._broken is not None:
            return
        try:
            self._local.tell(waiting)
        except OSError as error:
            # Whoever read our output has gone. The batch is judged all the same; the command ends.
            self._broken = error
            return
        self._ledger.delivered(self._local.name, [str(each["key"]) for each in waiting])
