"""Tells one receiver, in a thread of its own: a receiver that is slow or dead holds up nothing but itself."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from threading import Condition, Thread
from typing import Final

from tricklecast.analytics.watch_old.ledger import Ledger
from tricklecast.analytics.watch_old.receivers import NotDelivered, Receiver

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
LONGEST_WISH_S: Final = 600.0
"""A longer ``Retry-After`` is cut to this: an alert after ten minutes is late enough. Seconds."""


def pause_s(failures: int, wish_s: float | None, rng: random.Random) -> float:
    """How long to wait after so many failures in a row: exponential with full jitter, no less than was asked for."""
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16))
    return min(wish_s or 0.0, LONGEST_WISH_S) + rng.uniform(0.0, longest)


class Courier:
    """Delivers what the ledger has for one receiver, until it is closed.

    Attributes:
        name, label: the receiver's. failing: why the last attempt failed; ``None`` if it did not.
    """

    def __init__(
        self,
        receiver: Receiver,
        ledger: Ledger,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """
        Args:
            receiver: whom to tell; ledger: what.
            clock, rng: time in seconds, and chance.
        """
        self._receiver = receiver
        self._ledger = ledger
        self._clock = clock
        self._rng = rng or random.Random()
        self._changed = Condition()
        self._closing = False
        self._failures = 0
        self._not_before = float("-inf")
        self._refreshed = clock()
        self._thread = Thread(target=self._run, name=f"courier {receiver.label}", daemon=True)
        self.name, self.label = receiver.name, receiver.label
        self.failing: str | None = None

    def start(self) -> None:
        """Begins, with what is left from before."""
        self._thread.start()

    def wake(self) -> None:
        """There is something new."""
        with self._changed:
            self._changed.notify()

    def close(self, patience_s: float) -> None:
        """Ends, after one more attempt at what is left; what stays is in the ledger for the next time.

        Args:
            patience_s: how long that may take, seconds.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(patience_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._due_s() <= 0, timeout=max(0.0, self._due_s()))
                closing = self._closing
            self.deliver()
            if closing:
                return

    def _due_s(self) -> float:
        """How long there is nothing to do."""
        now, held = self._clock(), self._not_before
        if self._ledger.waiting(self._receiver.name):
            return held - now
        every = self._receiver.refresh_s
        return LONGEST_PAUSE_S if every is None else max(held, self._refreshed + every) - now

    def deliver(self) -> None:
        """One attempt at each thing that is due."""
        while self._clock() >= self._not_before:
            waiting = self._ledger.waiting(self._receiver.name)[: self._receiver.at_once]
            again = not waiting
            if again:
                every = self._receiver.refresh_s
                if every is None or self._clock() < self._refreshed + every:
                    return
                self._refreshed = self._clock()
                waiting = self._ledger.firing()
                if not waiting:
                    return
            keys = [] if again else [str(each["key"]) for each in waiting]
            try:
                for first in range(0, len(waiting), self._receiver.at_once):
                    self._receiver.tell(waiting[first : first + self._receiver.at_once])
                if keys:
                    self._ledger.delivered(self._receiver.name, keys)
            except NotDelivered as refusal:
                self._put_off(refusal, keys)
                continue
            except OSError as error:  # the ledger's disk, perhaps: the batches will say so, too
                self._put_off(NotDelivered(error.strerror or str(error)), keys)
                continue
            self.failing, self._failures = None, 0

    def _put_off(self, refusal: NotDelivered, keys: list[str]) -> None:
        self.failing = str(refusal)
        if refusal.for_good and keys:
            self._ledger.delivered(self._receiver.name, keys, refused=True)
            return
        self._failures += 1
        self._not_before = self._clock() + pause_s(self._failures, refusal.after_s, self._rng)
