"""One run of the watch: read, judge, write down, tell; and the command's options checked."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from tempfile import mkdtemp
from threading import Event
from types import FrameType
from typing import IO, Final

import stamina

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines import Reading
from tricklecast.analytics.lines.files import node_of
from tricklecast.analytics.lines.recognise import NothingUnderstood
from tricklecast.analytics.report.formats import counted
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan.rollup import VERSION
from tricklecast.analytics.store.store import Store
from tricklecast.analytics.watch.alerts import AlertBody, Tracker
from tricklecast.analytics.watch.deliver import Alertmanager, Lines, Receiver, Webhook, for_people, for_programs
from tricklecast.analytics.watch.outbox import Sender, tell_waiting
from tricklecast.analytics.watch.source import Source
from tricklecast.analytics.watch.window import Columns, Window

LOOK_S: Final = 0.05
"""How often it is looked whether a log has grown. Seconds."""

TICK_S: Final = 0.5
"""How often lines are read while they keep coming: the fixed cost of a few lines is that of a hundred. Seconds."""

WARM_S: Final = 0.1
"""The same while something is about to be a storm. Seconds."""

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

ENOUGH_LINES: Final = 20
"""A log of which none of so many lines is understood is not what it was taken for."""

FAREWELL_S: Final = 3.0
"""How long receivers are waited for at the end. Seconds."""


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What is to be watched, and who is to be told.

    Attributes:
        logs: files, folders, patterns, or ``-``. reading: how lines are read. params: what a storm is.
        earliest: begin with what is there already, if the state knows no better.
        state: folder of what must survive a restart; ``None`` for nothing.
        json: JSON lines on standard output, instead of words. webhooks, alertmanagers: URLs.
        quiet: nothing but alerts and errors.
    """

    logs: tuple[str, ...]
    reading: Reading = field(default_factory=Reading)
    params: Params = field(default_factory=Params)
    earliest: bool = False
    state: Path | None = None
    json: bool = False
    webhooks: tuple[str, ...] = ()
    alertmanagers: tuple[str, ...] = ()
    quiet: bool = False


class Watch:
    """Reads, judges and writes down; knows nothing of threads, signals and terminals.

    Attributes:
        lines, bad: how many were read, and could not be understood. began: ids of the incidents that were told.
        source, window, tracker: see there.
    """

    def __init__(
        self,
        request: WatchRequest,
        store: Store,
        receivers: Sequence[Receiver],
        clock: Callable[[], float] = time.monotonic,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """
        Args:
            request: what is to be watched; store: what is known of earlier runs; receivers: who is to be told.
            clock: seconds; wall_us: microseconds since the epoch.

        Raises:
            BadInput: a log is not there, or the store is of other logs.
        """
        self.lines = self.bad = 0
        self.began: set[str] = set()
        self._store, self._clock, self._wall_us = store, clock, wall_us
        self._receivers = [receiver.name for receiver in receivers]
        self._kept = request.state is not None
        self.source = Source(
            request.logs, request.reading, store.positions(), earliest=request.earliest, clock=clock, wall_us=wall_us
        )
        logs = sorted(str(Path(log).absolute()) for log in request.logs)
        if store.fact("logs") not in (None, logs):
            raise BadInput(f"{str(request.state)!r} is the state of another watch: use another --state, or remove it")
        self.window = Window(request.params, request.reading, clock)
        self.tracker = Tracker(request.params, store.incidents())
        self.window.restore(store.rows(VERSION), wall_us())
        self._understood: dict[str, list[int]] = {}
        self._looked_at = clock() - SLOW_S
        self._looking_s, self._load = 0.1, 0.0
        self._fresh = bool(self.tracker.open())
        with store.transaction():
            store.set_fact("logs", logs)
            self._put_positions()

    def step(self, *, last: bool = False) -> tuple[bool, list[AlertBody]]:
        """Reads what was added, and judges it if need be; everything that follows is in the store when this returns.

        Args:
            last: judge whatever was read.

        Returns:
            whether there were lines, and the alerts.

        Raises:
            BadInput: of a log that somebody gave by name nothing is understood.
        """
        now_us, rows, read = self._wall_us(), [], False
        for piece in self.source.read():
            added = self.window.add(piece.form, piece.lines, now_us, node_of(piece.path))
            self.lines += added.lines + piece.too_long
            self.bad += added.bad + piece.too_long
            rows.append(added.columns)
            self._check(piece.path, piece.named, piece.form.name, added.lines, added.bad)
            read = True
        self._fresh = self._fresh or read
        alerts = self._judged(now_us, last)
        over, look = self.tracker.over(now_us, self.window.asked, all_read=not self._fresh)
        if look:
            alerts += self._look(now_us)
            over, _ = self.tracker.over(now_us, self.window.asked, all_read=True)
        alerts += over
        self.began |= {each["incident"]["id"] for each in alerts if each["status"] == "firing"}
        open_clients = {client for known in self.tracker.open() for client in known.clients}
        tidied = read and self.window.tidy(list(open_clients), now_us)
        self._write([self.window.rows()] if tidied and self._kept else rows, alerts, anew=tidied)
        return read, alerts

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
        return self.tracker.compare(found, now_us, self._wall_us())

    def _write(self, rows: Sequence[Columns], alerts: Sequence[AlertBody], *, anew: bool) -> None:
        if not (rows or alerts or self.tracker.changed or self.tracker.gone):
            return
        with self._store.transaction():
            self._put_positions()
            if self._kept:
                if anew:
                    self._store.clear_rows()
                for columns in rows:
                    self._store.add_rows(VERSION, columns)
            self._store.put_incidents(self.tracker.stored())
            self._store.forget_incidents(self.tracker.gone)
            self._store.post(self._receivers, [(each["key"], each) for each in alerts])
        self.tracker.written()

    def _put_positions(self) -> None:
        changed, gone = self.source.positions()
        self._store.put_positions(changed)
        self._store.forget_positions(gone)

    def _check(self, path: str, named: bool, form: str, lines: int, bad: int) -> None:
        """A log of which nothing is understood is an error, or a problem if nobody gave it by name."""
        seen = self._understood.setdefault(path, [0, 0])
        seen[0] += lines
        seen[1] += bad
        if seen[0] == seen[1] >= ENOUGH_LINES:
            words = f"none of {seen[0]:,} lines of {path!r} could be read as {form}"
            if named:
                raise NothingUnderstood(words)
            self.source.problems[path] = words
        if seen[1] < seen[0]:
            seen[:] = [-1 << 40, 0]  # never again

    def end(self) -> None:
        """Frees the memory.

        Raises:
            NothingUnderstood: there were lines, and not one of them could be read.
        """
        self.window.close()
        if 0 < self.lines == self.bad:
            raise NothingUnderstood(f"none of {self.lines:,} lines could be read")


def run(request: WatchRequest, out: IO[str] | None = None, err: IO[str] | None = None) -> None:
    """Watches until it is interrupted, or standard input is over.

    Args:
        out: where alerts go; err: where it is told how it goes; the process's own by default.

    Raises:
        BadInput: a log or the state is not to be used. Busy: another watch uses the state.
    """
    stamina.instrumentation.set_on_retry_hooks([])  # the status says it
    local = Lines(out or sys.stdout, for_programs if request.json else for_people)
    remote: list[Receiver] = [*map(Webhook, request.webhooks), *map(Alertmanager, request.alertmanagers)]
    with ExitStack() as held:
        folder = request.state
        if folder is None:
            folder = Path(mkdtemp(prefix="tricklecast-watch-"))
            held.callback(shutil.rmtree, folder, ignore_errors=True)
        store = held.enter_context(Store(folder))
        stop = held.enter_context(_interruptible())
        watch = Watch(request, store, [local, *remote])
        status = Status(err or sys.stderr, watch, quiet=request.quiet)
        suspects = watch.window.suspects
        senders = [Sender(receiver, store) for receiver in remote]
        for sender in senders:
            sender.start()
        status.say("watching; Ctrl-C ends it")
        watch.window.warm_up()
        try:
            while True:
                began = time.monotonic()
                last = stop.is_set() or watch.source.ended
                read, _ = watch.step(last=last)
                while tell_waiting(store, local):
                    pass
                for sender in senders:
                    sender.wake()
                status.show(senders)
                if last:
                    break
                pause = (WARM_S if suspects.warm or suspects.due else TICK_S) if read else LOOK_S
                if not watch.source.behind:
                    stop.wait(max(0.0, began + pause - time.monotonic()))
        finally:
            for sender in senders:
                sender.close(FAREWELL_S)
        watch.end()
        status.end(store, senders)


class Status:
    """What the watch says about itself, on stderr: what is wrong with the logs, and what it came to."""

    def __init__(self, err: IO[str], watch: Watch, *, quiet: bool) -> None:
        """
        Args:
            err: where to; watch: about what; quiet: nothing but what is wrong.
        """
        self._err = err
        self._watch = watch
        self._quiet = quiet
        self._told: set[str] = set()
        self._ahead: set[str] = set()
        self._counted: dict[str, int] = {}

    def say(self, text: str) -> None:
        """A line about what is being done."""
        if not self._quiet:
            self._line(text)

    def show(self, senders: Sequence[Sender]) -> None:
        """What is wrong at this moment; each thing once."""
        watch = self._watch
        now = {f"cannot read {plain(path, 200)}: {plain(why, 200)}" for path, why in watch.source.problems.items()}
        now |= {f"{one.label} does not accept alerts: {plain(one.failing, 200)}" for one in senders if one.failing}
        # What is behind may be an old log that is being read.
        ahead = {node for node, off_s in watch.window.skew_s.items() if off_s > 0}
        self._ahead |= {f"the clock of {plain(node)} is ahead by ten minutes or more" for node in ahead}
        for words in sorted((now | self._ahead) - self._told)[:20]:
            self._line(words)
        self._told = now | self._ahead
        self._count(watch.source.lost, "bytes of the logs were deleted before they were read")
        self._count(
            watch.window.dropped,
            "lines were left out, because there were too many rows; those of the fewest lines went first",
        )
        self._count(watch.bad, "lines could not be read")

    def _count(self, number: int, what: str) -> None:
        """How many so far; again when it has doubled, since this may go on."""
        if number > 2 * self._counted.get(what, 0):
            self._counted[what] = number
            self._line(f"{number:,} {what}")

    def end(self, store: Store, senders: Sequence[Sender]) -> None:
        """What it came to."""
        left, refused = store.undelivered(), sum(sender.refused for sender in senders)
        words = [f"{counted(self._watch.lines, 'line')} read", counted(len(self._watch.began), "incident")]
        words += [f"{counted(left, 'alert')} not delivered"] if left else []
        words += [f"{counted(refused, 'alert')} refused"] if refused else []
        self.say(", ".join(words))

    def _line(self, text: str) -> None:
        self._err.write(f"storms watch: {text}\n")
        self._err.flush()


@contextmanager
def _interruptible() -> Iterator[Event]:
    """An event that is set by Ctrl-C and SIGTERM."""
    stop = Event()

    def interrupted(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
