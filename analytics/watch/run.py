"""One run of the watch: read, judge, write down, tell; and the command's options checked."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from threading import Event, current_thread, main_thread
from types import FrameType
from typing import IO, Final, Protocol

import stamina

from tricklecast.analytics.cli.maintenance import Maintenance
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines import Reading
from tricklecast.analytics.lines.files import node_of
from tricklecast.analytics.lines.recognise import NothingUnderstood
from tricklecast.analytics.report.formats import counted
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.store.store import Store
from tricklecast.analytics.watch.alerts import AlertBody
from tricklecast.analytics.watch.deliver import Alertmanager, Lines, Receiver, Webhook, for_people, for_programs
from tricklecast.analytics.watch.judge import Judge
from tricklecast.analytics.watch.outbox import Sender, tell_waiting
from tricklecast.analytics.watch.source import Source

LOOK_S: Final = 0.05
"""How often it is looked whether a log has grown. Seconds."""

TICK_S: Final = 0.5
"""How often lines are read while they keep coming: the fixed cost of a few lines is that of a hundred. Seconds."""

WARM_S: Final = 0.1
"""The same while something is about to be a storm. Seconds."""

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
        receivers: others, as ``--alert`` names them. maintenance: when alerts are held back.
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
    receivers: tuple[Receiver, ...] = ()
    maintenance: Maintenance = field(default_factory=Maintenance)
    quiet: bool = False


class Watch:
    """Reads logs and has their lines judged; knows nothing of threads, signals and terminals.

    Attributes:
        lines, bad: how many were read, and could not be understood. source, judge: see there.
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
        self._store, self._wall_us = store, wall_us
        self.source = Source(
            request.logs, request.reading, store.positions(), earliest=request.earliest, clock=clock, wall_us=wall_us
        )
        logs = sorted(str(Path(log).absolute()) for log in request.logs)
        if store.fact("logs") not in (None, logs):
            raise BadInput(f"{str(request.state)!r} is the state of another watch: use another --state, or remove it")
        names = [receiver.name for receiver in receivers]
        kept = request.state is not None
        self.judge = Judge(
            store,
            names,
            request.params,
            request.reading,
            kept=kept,
            maintenance=request.maintenance,
            clock=clock,
            wall_us=wall_us,
        )
        self._understood: dict[str, list[int]] = {}
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
        now_us, rows = self._wall_us(), []
        for piece in self.source.read():
            added = self.judge.window.add(piece.form, piece.lines, now_us, node_of(piece.path))
            self.lines += added.lines + piece.too_long
            self.bad += added.bad + piece.too_long
            rows.append(added.columns)
            self._check(piece.path, piece.named, piece.form.name, added.lines, added.bad)
        return bool(rows), self.judge.step(rows, now_us, self._put_positions, last=last)

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

    @property
    def problems(self) -> Mapping[str, str]:
        """What cannot be read, by path."""
        return self.source.problems

    @property
    def lost(self) -> int:
        """Bytes that were gone before they could be read."""
        return self.source.lost

    def end(self) -> None:
        """Frees the memory.

        Raises:
            NothingUnderstood: there were lines, and not one of them could be read.
        """
        self.judge.window.close()
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
    local, remote = receivers(request, out or sys.stdout)
    with ExitStack() as held:
        folder = request.state
        if folder is None:
            folder = Path(mkdtemp(prefix="tricklecast-watch-"))
            held.callback(shutil.rmtree, folder, ignore_errors=True)
        store = held.enter_context(Store(folder))
        stop = held.enter_context(interruptible())
        watch = Watch(request, store, [local, *remote])
        status = Status(err or sys.stderr, watch, quiet=request.quiet)
        suspects = watch.judge.window.suspects
        senders = [Sender(receiver, store) for receiver in remote]
        for sender in senders:
            sender.start()
        status.say("watching; Ctrl-C ends it")
        watch.judge.window.warm_up()
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


def receivers(request: WatchRequest, out: IO[str]) -> tuple[Lines, list[Receiver]]:
    """Who is told: whoever reads the output, and others elsewhere."""
    local = Lines(out, for_programs if request.json else for_people)
    return local, [*map(Webhook, request.webhooks), *map(Alertmanager, request.alertmanagers), *request.receivers]


class Watching(Protocol):
    """What can say how it goes.

    Attributes:
        lines, bad: how many were read, and could not be understood. judge: see there.
        problems: what cannot be read, by path. lost: bytes that were gone before they could be read.
    """

    lines: int
    bad: int
    judge: Judge

    @property
    def problems(self) -> Mapping[str, str]: ...

    @property
    def lost(self) -> int: ...


class Status:
    """What the watch says about itself, on stderr: what is wrong with the logs, and what it came to."""

    name = "storms watch"

    def __init__(self, err: IO[str], watch: Watching, *, quiet: bool) -> None:
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
        now = {f"cannot read {plain(path, 200)}: {plain(why, 200)}" for path, why in watch.problems.items()}
        now |= {f"{one.label} does not accept alerts: {plain(one.failing, 200)}" for one in senders if one.failing}
        # What is behind may be an old log that is being read.
        ahead = {node for node, off_s in watch.judge.window.skew_s.items() if off_s > 0}
        self._ahead |= {f"the clock of {plain(node)} is ahead by ten minutes or more" for node in ahead}
        for words in sorted((now | self._ahead) - self._told)[:20]:
            self._line(words)
        self._told = now | self._ahead
        self._count(watch.lost, "bytes of the logs were deleted before they were read")
        self._count(
            watch.judge.window.dropped,
            "lines were left out, because there were too many rows; those of the fewest lines went first",
        )
        self._count(watch.bad, "lines could not be read")
        if not self._quiet:
            self._count(watch.judge.held.count, "alerts were held back, because of maintenance")

    def _count(self, number: int, what: str) -> None:
        """How many so far; again when it has doubled, since this may go on."""
        if number > 2 * self._counted.get(what, 0):
            self._counted[what] = number
            self._line(f"{number:,} {what}")

    def end(self, store: Store, senders: Sequence[Sender]) -> None:
        """What it came to."""
        left, refused = store.undelivered(), sum(sender.refused for sender in senders)
        words = [f"{counted(self._watch.lines, 'line')} read", counted(len(self._watch.judge.began), "incident")]
        words += [f"{counted(left, 'alert')} not delivered"] if left else []
        words += [f"{counted(refused, 'alert')} refused"] if refused else []
        self.say(", ".join(words))

    def _line(self, text: str) -> None:
        self._err.write(f"{self.name}: {text}\n")
        self._err.flush()


@contextmanager
def interruptible() -> Iterator[Event]:
    """An event that is set by Ctrl-C and SIGTERM, if signals are for this thread."""
    stop = Event()
    if current_thread() is not main_thread():
        yield stop
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
