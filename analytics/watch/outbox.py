"""Tells every receiver what the store has for it: at least once, in order, whatever is killed or restarted.

Alerts are in the store before anybody is told, and leave it after the receiver took them. What a receiver had taken in
the moment before a kill comes again, with the same key.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Event, Thread
from typing import Final

import stamina

from tricklecast.analytics.maintenance import Maintenance
from tricklecast.analytics.store.memory import mutes
from tricklecast.analytics.store.place import Folder
from tricklecast.analytics.store.store import Store
from tricklecast.analytics.watch.alerts import AlertBody, Status, Tracker, is_first, known_from
from tricklecast.analytics.watch.deliver import NotDelivered, Receiver

HELD: Final = "held"
"""The fact of the store with what is held back."""

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


def tell_waiting(store: Store, receiver: Receiver) -> int:
    """Tells a receiver the oldest alerts that it has not got; returns how many.

    Raises:
        NotDelivered: it did not take them.
    """
    waiting = store.waiting(receiver.name, receiver.at_once)
    if waiting:
        receiver.tell([alert for _, _, alert in waiting])
        store.delivered(number for number, _, _ in waiting)
    return len(waiting)


class Held:
    """Alerts of maintenance, and of what is muted: held back, and told at the end of it if their incidents still go on.

    The end of one that was told before is told at once, since a page that it made ends with it.

    Attributes:
        count: how many were held back by this process.
    """

    def __init__(self, store: Store, maintenance: Maintenance | None = None) -> None:
        """
        Args:
            store: what an earlier run held back; in its folder is what is muted. maintenance: when.
        """
        self._place = Folder(str(store.folder))
        self._maintenance = maintenance or Maintenance()
        self._status: dict[str, Status] = store.fact(HELD) or {}  # by the incident's id
        self.count = 0

    def sift(self, alerts: Sequence[AlertBody], now_us: int, tracker: Tracker) -> list[AlertBody]:
        """Those that are told now; among them are those whose maintenance is over.

        Args:
            now_us: microseconds since the epoch. tracker: what is known of their incidents.
        """
        quiet = self._maintenance.covers(now_us) is not None
        muted = set(mutes(self._place, now_us))  # fingerprints; or ids, since an alert shows these first
        told: list[AlertBody] = []
        for each in alerts:
            name, status = each["incident"]["id"], each["status"]
            wait = quiet or bool(muted & {each["incident"]["fingerprint"], name})
            if status == "resolved":
                wait = self._status.pop(name, None) == "firing" or (wait and is_first(each))  # nobody has heard of it
            elif wait:
                self._status.setdefault(name, status)
            else:
                each = {**each, "status": self._status.pop(name, status)}
            if wait:
                self.count += 1
            else:
                told.append(each)
        if self._status and not quiet:
            going_on = [known for known in tracker.open() if known.incident.id in self._status]
            held = [known for known in going_on if muted & {known.incident.fingerprint, known.incident.id}]
            told += [
                replace(known, status=self._status[known.incident.id]).alert(now_us)
                for known in going_on
                if known not in held
            ]
            self._status = {known.incident.id: self._status[known.incident.id] for known in held}
        return told

    def write(self, store: Store) -> None:
        """Writes down what is held back."""
        store.set_fact(HELD, self._status)


class Sender:
    """Tells one receiver, in a thread of its own: one that is slow or dead holds up nothing but itself.

    Attributes:
        label: the receiver's. failing: why the last attempt failed; ``None`` if it did not.
        refused: alerts that the receiver has refused for good.
    """

    def __init__(self, receiver: Receiver, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            receiver: whom to tell; store: what. clock: seconds.
        """
        self._receiver = receiver
        self._store = store
        self._clock = clock
        self._woken = Event()
        self._woken.set()
        self._closing = False
        self._refreshed = clock()
        self._thread = Thread(target=self._run, name=receiver.label, daemon=True)
        self.label = receiver.label
        self.failing: str | None = None
        self.refused = 0

    def start(self) -> None:
        """Begins, with what is left from before."""
        self._thread.start()

    def wake(self) -> None:
        """There are alerts in the store."""
        self._woken.set()

    def close(self, patience_s: float) -> None:
        """Ends, after one more attempt; what is left stays in the store.

        Args:
            patience_s: how long that may take, seconds.
        """
        self._closing = True
        self._woken.set()
        self._thread.join(patience_s)

    def _run(self) -> None:
        every = self._receiver.refresh_s
        while True:
            self._woken.wait(None if every is None else max(0.0, self._refreshed + every - self._clock()))
            self._woken.clear()
            closing = self._closing
            self._deliver()
            if every is not None and self._clock() >= self._refreshed + every:
                self._refreshed = self._clock()
                self._refresh()
            if closing:
                return

    def _deliver(self) -> None:
        """Tells everything that waits; tries until it is taken, or until the sender is closed."""
        pauses = stamina.retry_context(
            on=self._again,
            attempts=None,
            timeout=None,
            wait_initial=FIRST_PAUSE_S,
            wait_max=LONGEST_PAUSE_S,
            wait_jitter=FIRST_PAUSE_S,
        )
        with suppress(NotDelivered):
            while True:
                for attempt in pauses:
                    with attempt:
                        told = self._attempt()
                if not told:
                    return

    def _attempt(self) -> int:
        """Tells, or gives up, the oldest alerts; returns how many."""
        try:
            told = tell_waiting(self._store, self._receiver)
        except NotDelivered as refusal:
            self.failing = str(refusal)
            if not refusal.for_good:
                raise
            waiting = self._store.waiting(self._receiver.name, self._receiver.at_once)
            self._store.delivered(number for number, _, _ in waiting)
            self.refused += len(waiting)
            return len(waiting)
        if told:
            self.failing = None
        return told

    def _again(self, error: Exception) -> bool | float:
        """Whether, or after how many seconds, an attempt is repeated."""
        if not isinstance(error, NotDelivered) or self._closing:
            return False
        return True if error.after_s is None else error.after_s + random.uniform(0.0, FIRST_PAUSE_S)

    def _refresh(self) -> None:
        """Tells again what goes on."""
        now_us = time.time_ns() // 1000
        known = map(known_from, self._store.incidents().values())
        held = self._store.fact(HELD) or {}
        # One that was told before maintenance goes on, though it is worse now.
        firing = [each.alert(now_us) for each in known if each.told_of and held.get(each.incident.id) != "firing"]
        try:
            for first in range(0, len(firing), self._receiver.at_once):
                self._receiver.tell(firing[first : first + self._receiver.at_once])
        except NotDelivered as refusal:
            self.failing = str(refusal)
