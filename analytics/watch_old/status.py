"""What the watch says about itself, on stderr: how it goes, renewed on a terminal, and what is wrong with the logs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO, Final

from tricklecast.analytics.report.formats import counted, size
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.watch_old.judge import Found, Judge
from tricklecast.analytics.watch_old.ledger import Ledger
from tricklecast.analytics.watch_old.reading import Health

MAX_PROBLEMS: Final = 20
"""Problems told one by one; a folder may have thousands of unreadable files."""

MAX_PATH: Final = 200
_CLEAR: Final = "\r\x1b[2K"


class Status:
    """Tells people how it goes."""

    def __init__(self, err: IO[str], *, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            err: where to; quiet: say nothing but what is wrong; clock: the time, seconds.
        """
        self._err = err
        self._live = err.isatty() and not quiet
        self._quiet = quiet
        self._clock = clock
        self._shown = False
        self._ready = False
        self._problems: dict[str, str] = {}
        self._failing: dict[str, str] = {}
        self._lost = 0
        self._beyond: dict[str, int] = {}
        self._before = (clock(), 0)
        self._lines = 0

    def say(self, text: str) -> None:
        """A line about what is being done."""
        if not self._quiet:
            self._line(f"storms watch: {text} …")

    def show(self, health: Health | None, judge: Judge) -> None:
        """How it goes at this moment."""
        for courier in judge.couriers:
            self._tell_failing(courier.name, courier.label, courier.failing)
        if health is None:
            return
        self._tell_problems(health)
        self._tell_beyond("storms are not told: too many are open", judge.detector.storms.untold)
        self._tell_beyond("stretches of failures were forgotten: too many at once", judge.detector.forgotten)
        if judge.ready.is_set() and not self._ready:
            self._ready = True
            if not self._quiet:
                self._line("storms watch: watching; Ctrl-C ends it")
        now, (then, lines) = self._clock(), self._before
        self._lines = health.lines
        if not self._live or now - then < 1.0:
            return
        self._before = (now, health.lines)
        speed = (health.lines - lines) / (now - then)
        storms = counted(len(judge.detector.storms), "open storm")
        behind = f", {size(health.lag_bytes)} behind" if health.lag_bytes else ""
        bad = f", {judge.detector.unparsable:,} unparsable" if judge.detector.unparsable else ""
        self._err.write(f"{_CLEAR}{speed:,.0f} lines/s{behind}{bad}, {storms}")
        self._err.flush()
        self._shown = True

    def end(self, found: Found, ledger: Ledger) -> None:
        """What it came to."""
        if self._quiet:
            self._clear()
            return
        undelivered = ledger.undelivered()
        left = f", {counted(undelivered, 'alert')} not delivered" if undelivered else ""
        dropped = sum(ledger.dropped.values())
        left += f", {counted(dropped, 'alert')} given up" if dropped else ""
        self._line(f"storms watch: {counted(self._lines, 'line')} read, {counted(len(found.began), 'storm')}{left}")

    def _tell_problems(self, health: Health) -> None:
        for name, problem in health.problems.items():
            if self._problems.get(name) != problem and len(self._problems) < MAX_PROBLEMS:
                self._line(f"storms watch: cannot read {plain(name, MAX_PATH)}: {plain(problem, MAX_PATH)}")
        self._problems = dict(health.problems)
        if health.lost_bytes > self._lost:
            self._line(f"storms watch: {size(health.lost_bytes)} of the logs were gone before they could be read")
            self._lost = health.lost_bytes

    def _tell_beyond(self, what: str, number: int) -> None:
        """What a limit has left out so far; again when it has doubled, since this may go on."""
        if number > 2 * self._beyond.get(what, 0):
            self._beyond[what] = number
            self._line(f"storms watch: {number:,} {what}")

    def _tell_failing(self, name: str, label: str, failing: str | None) -> None:
        # By name: of several paths on one host, which have one label, some may take alerts and others not.
        if failing is not None and name not in self._failing:
            self._line(f"storms watch: {plain(label)} does not take alerts: {plain(failing, MAX_PATH)}; still trying")
        elif failing is None and name in self._failing:
            self._line(f"storms watch: {plain(label)} takes alerts again")
        if failing is None:
            self._failing.pop(name, None)
        else:
            self._failing[name] = failing

    def _line(self, text: str) -> None:
        self._clear()
        self._err.write(text + "\n")
        self._err.flush()

    def _clear(self) -> None:
        if self._shown:
            self._err.write(_CLEAR)
            self._shown = False
