"""One run of the watch: read, judge, write down, tell; and the command's options checked."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from threading import Event, Thread, current_thread, main_thread
from typing import IO, Final, TypeVar

import duckdb
import stamina

from tricklecast.analytics.lines import Reading
from tricklecast.analytics.lines.recognise import NothingUnderstood
from tricklecast.analytics.maintenance import Maintenance
from tricklecast.analytics.report.formats import counted, size, span
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.store.store import Store
from tricklecast.analytics.watch.alerts import AlertBody
from tricklecast.analytics.watch.deliver import Lines, Receiver, for_people, for_programs
from tricklecast.analytics.watch.followed import Followed, Piece
from tricklecast.analytics.watch.judge import Judge
from tricklecast.analytics.watch.outbox import Sender, tell_waiting
from tricklecast.analytics.watch.rolling import Roller

LOOK_S: Final = 0.05
"""How often it is looked whether a log has grown. Seconds."""

TICK_S: Final = 0.5
"""How often lines are read while they keep coming: the fixed cost of a few lines is that of a hundred. Seconds."""

WARM_S: Final = 0.1
"""The same while something is about to be a storm. Seconds."""

ENOUGH_LINES: Final = 20
"""A log of which none of this many lines is understood has another format than its first lines told."""

FAREWELL_S: Final = 1.0
"""How long receivers are waited for at the end. Seconds."""

END_S: Final = 2.0
"""So long after a signal the process is ended. Seconds."""

INTERRUPT: Final = 0.3
"""The rules are interrupted after this part of it."""

BEHIND: Final = 32 << 20
"""If more bytes than this wait in the logs, it is told that they are read first."""


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """The logs to watch, and the receivers of alerts.

    Attributes:
        logs: files, folders, patterns, or ``-``. reading: how lines are read. params: what a storm is.
        earliest: begin with what is there already, if the state knows no better.
        state: folder of what must survive a restart; ``None`` for nothing.
        json: JSON lines on standard output, instead of words. receivers: of alerts, beside standard output.
        maintenance: when alerts are held back.
        quiet: nothing but alerts and errors.
    """

    logs: tuple[str, ...]
    reading: Reading = field(default_factory=Reading)
    params: Params = field(default_factory=Params)
    earliest: bool = False
    state: Path | None = None
    json: bool = False
    receivers: tuple[Receiver, ...] = ()
    maintenance: Maintenance = field(default_factory=Maintenance)
    quiet: bool = False


class Watching:
    """A watch, whatever brings its lines; it knows nothing of threads, signals and terminals.

    Attributes:
        lines, bad: how many were read, and could not be understood. judge: see there.
        problems: what cannot be read, by path.
    """

    problems: dict[str, str]

    def __init__(
        self,
        request: WatchRequest,
        logs: Iterable[str],
        store: Store,
        receivers: Sequence[str],
        clock: Callable[[], float],
        wall_us: Callable[[], int],
        told_us: Callable[[], int] | None = None,
    ) -> None:
        """
        Args:
            request: the options; logs: whole names of what it reads. store: the state of earlier runs.
            receivers: names of those who get alerts, in the outbox. clock, wall_us, told_us: as of :class:`Judge`.

        Raises:
            BadInput: the store is of other logs.
        """
        self.lines = self.bad = 0
        self._store = store
        store.belong(logs)
        self.judge = Judge(
            store,
            receivers,
            request.params,
            kept=request.state is not None,
            maintenance=request.maintenance,
            clock=clock,
            wall_us=wall_us,
            told_us=told_us,
        )

    @property
    def counts(self) -> dict[str, int]:
        """How much was left out, by what it is."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Ends what runs in another thread, which gets an error."""
        self.judge.window.interrupt()

    def close(self) -> None:
        """Frees the memory."""
        self.judge.close()


W = TypeVar("W", bound=Watching)


class Watch(Watching):
    """Reads logs that grow, and has their lines judged.

    Attributes:
        followed, roller: see there.
    """

    def __init__(
        self,
        request: WatchRequest,
        store: Store,
        receivers: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """
        Args:
            request, store, receivers: as of :class:`Watching`.
            clock: seconds; wall_us: microseconds since the epoch.

        Raises:
            BadInput: a log is not there, or the store is of other logs.
        """
        self.followed = Followed(
            request.logs, request.reading, store.positions(), earliest=request.earliest, clock=clock, wall_us=wall_us
        )
        self.problems = self.followed.problems
        logs = [str(Path(log).absolute()) for log in request.logs]
        super().__init__(request, logs, store, receivers, clock, wall_us)
        self.roller, self._doubled = Roller(request.reading), 0
        with store.transaction():
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
        pieces = self.followed.read(self.roller.times)
        rolled = self.roller.roll(pieces, several=self.followed.several)
        too_long = sum(piece.too_long for piece in pieces)
        self.lines += rolled.lines + too_long
        self.bad += rolled.bad + too_long
        self._doubled += rolled.doubled
        for piece, lines in rolled.strange:
            self._check(piece, lines)
        past_us = self.followed.past_us
        return bool(pieces), self.judge.step(rolled.rows, self._put_positions, past_us=past_us, last=last)

    def _put_positions(self) -> None:
        changed, gone = self.followed.positions()
        self._store.put_positions(changed)
        self._store.forget_positions(gone)

    def _check(self, piece: Piece, lines: int) -> None:
        """A log of which nothing is understood is an error, or a problem if nobody gave it by name."""
        if lines >= ENOUGH_LINES:
            words = f"none of {lines:,} lines of {piece.path!r} could be read as {piece.form.title}"
            if piece.named:
                raise NothingUnderstood(words)
            self.problems[piece.path] = words

    @property
    def counts(self) -> dict[str, int]:
        """How much was left out, by what it is."""
        return {
            "bytes of the logs were deleted before they were read": self.followed.lost,
            "lines were left out, because another log has the same requests": self._doubled,
        }

    def interrupt(self) -> None:
        """See :class:`Watching`."""
        self.roller.interrupt()
        super().interrupt()

    def close(self) -> None:
        """See :class:`Watching`."""
        self.roller.close()
        super().close()


def run(request: WatchRequest, out: IO[str] | None = None, err: IO[str] | None = None) -> None:
    """Watches until it is interrupted, or standard input is over.

    Args:
        out: where alerts go; err: where it is told how it goes; the process's own by default.

    Raises:
        BadInput: a log or the state is not to be used. Busy: another watch uses the state.
    """
    with running(request, partial(Watch, request), out, err) as (watch, now):
        window = watch.judge.window
        try:
            window.planned.plan()
            # What is left of a log is read by the next run.
            while not (now.stop.is_set() and watch.followed.behind):
                began = time.monotonic()
                last = now.stop.is_set() or watch.followed.ended
                read, _ = watch.step(last=last)
                now.tell()
                now.status.catching_up(watch.followed.behind)
                if last:
                    break
                pause = (WARM_S if window.warm or window.due else TICK_S) if read else LOOK_S
                if not watch.followed.behind:
                    now.stop.wait(max(0.0, began + pause - time.monotonic()))
        except duckdb.InterruptException:
            # Nothing is half done: it is written down at once, after it was judged.
            if not now.stop.is_set():
                raise
        if 0 < watch.lines == watch.bad:
            raise NothingUnderstood(f"none of {watch.lines:,} lines could be read")


# --- what a watch and a stream need while they run --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """A run.

    Attributes:
        store: the state. stop: set when the run is to end. status: its messages about itself.
        local: the receiver on standard output; senders: one for each other receiver.
    """

    store: Store
    stop: Event
    status: Status
    local: Receiver
    senders: Sequence[Sender]

    def tell(self) -> None:
        """Hands on what waits in the outbox, and says what is wrong."""
        while tell_waiting(self.store, self.local):
            pass
        for sender in self.senders:
            sender.wake()
        self.status.show(self.senders)


@contextmanager
def running(
    request: WatchRequest,
    made: Callable[[Store, Sequence[str]], W],
    out: IO[str] | None = None,
    err: IO[str] | None = None,
    *,
    name: str = "storms watch",
    durable: bool = False,
    end_s: float | None = END_S,
) -> Iterator[tuple[W, Running]]:
    """Runs a watch: the state is open, signals are heard, receivers are told. All ends in order, and in time.

    Args:
        made: makes the watch from a state and the names of the receivers. name: of the command.
        durable: as of :class:`Store`. end_s: so long after a signal the process is ended, if it is ours.

    Raises:
        BadInput: the state is not to be used. Busy: another process uses it.
    """
    stamina.instrumentation.set_on_retry_hooks([])  # the status says it
    local = Lines(out or sys.stdout, for_programs if request.json else for_people)
    with ExitStack() as held:
        folder = request.state
        if folder is None:
            folder = Path(mkdtemp(prefix="tricklecast-watch-"))
            held.callback(shutil.rmtree, folder, ignore_errors=True)
        store = held.enter_context(Store(folder, durable=durable))
        stop = held.enter_context(interruptible())
        watch = made(store, [each.name for each in (local, *request.receivers)])
        held.callback(watch.close)
        status = Status(err or sys.stderr, watch, quiet=request.quiet, name=name)
        senders = [Sender(receiver, store) for receiver in request.receivers]
        for sender in senders:
            sender.start()
        status.say("watching; Ctrl-C ends it")
        if end_s is not None:
            held.enter_context(_in_time(stop, watch, status, None if request.state else folder, end_s))
        try:
            yield watch, Running(store, stop, status, local, senders)
        finally:
            until = time.monotonic() + FAREWELL_S
            for sender in senders:
                sender.close(0)
            for sender in senders:
                sender.close(max(0.0, until - time.monotonic()))
        status.end(store, senders)


@contextmanager
def _in_time(stop: Event, watch: Watching, status: Status, folder: Path | None, end_s: float) -> Iterator[None]:
    """Ends the process soon after a signal, whatever it does then; what is lost by that is read again.

    Args:
        folder: is removed.
    """
    done = Event()

    def hurry() -> None:
        stop.wait()
        if not done.wait(INTERRUPT * end_s):
            watch.interrupt()
        if not done.wait((1 - INTERRUPT) * end_s):
            status.say("ended in the middle of its work; what was not read or told yet is for the next run")
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)

    Thread(target=hurry, name="end", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        stop.set()


class Status:
    """The messages of the watch about itself, on stderr: faults of the logs, and a summary at the end."""

    def __init__(self, err: IO[str], watch: Watching, *, quiet: bool, name: str) -> None:
        """
        Args:
            err: where to; watch: about what; quiet: nothing but what is wrong. name: the command.
        """
        self._err = err
        self._name = name
        self._watch = watch
        self._quiet = quiet
        self._told: set[str] = set()
        # What was said about servers' clocks, by the server and whether it is ahead.
        self._clocks: dict[tuple[str, bool], str] = {}
        self._behind = False
        self._counted: dict[str, int] = {}

    def say(self, text: str) -> None:
        """A line about what is being done."""
        if not self._quiet:
            self._line(text)

    def show(self, senders: Sequence[Sender]) -> None:
        """The faults of this moment, each once."""
        watch = self._watch
        now = {f"cannot read {plain(path, 200)}: {plain(why, 200)}" for path, why in watch.problems.items()}
        now |= {f"{one.label} does not accept alerts: {plain(one.failing, 200)}" for one in senders if one.failing}
        for node, off_s in watch.judge.window.skew_s.items():
            self._clocks.setdefault((node, off_s > 0), _about_clock(plain(node), off_s))
        now |= set(self._clocks.values())
        for words in sorted(now - self._told)[:20]:
            self._line(words)
        self._told = now
        self._count(
            watch.judge.window.dropped,
            "lines were left out, because there were too many rows; those of the fewest lines went first",
        )
        self._count(watch.bad, "lines could not be read")
        for what, number in watch.counts.items():
            self._count(number, what)
        if not self._quiet:
            self._count(watch.judge.held.count, "alerts were held back: muted, or in maintenance")

    def catching_up(self, behind: int) -> None:
        """Whether at least this many bytes wait in the logs."""
        if behind > BEHIND and not self._behind:
            self.say(f"catching up with {size(behind)}; what was over before it was read is told as over")
        elif self._behind and not behind:
            self.say("caught up")
        self._behind = behind > BEHIND or (self._behind and behind > 0)

    def _count(self, number: int, what: str) -> None:
        """Says the number so far, and again when it has doubled, since this may go on."""
        if number > 2 * self._counted.get(what, 0):
            self._counted[what] = number
            self._line(f"{number:,} {what}")

    def end(self, store: Store, senders: Sequence[Sender]) -> None:
        """The summary at the end."""
        left, refused = store.undelivered(), sum(sender.refused for sender in senders)
        words = [f"{counted(self._watch.lines, 'line')} read", counted(len(self._watch.judge.began), "incident")]
        words += [f"{counted(left, 'alert')} not delivered"] if left else []
        words += [f"{counted(refused, 'alert')} refused"] if refused else []
        self.say(", ".join(words))

    def _line(self, text: str) -> None:
        self._err.write(f"{self._name}: {text}\n")
        self._err.flush()


def _about_clock(node: str, off_s: float) -> str:
    about = span(abs(off_s))
    why = f"the clock of {node} is ahead by {about}"
    if off_s < 0:
        why = f"lines of {node} are {about} old when they are read: its clock is behind, or its log is written late"
    return f"{why}; a storm on it and on other servers may be told as two"


@contextmanager
def interruptible() -> Iterator[Event]:
    """An event that is set by Ctrl-C and SIGTERM, if signals are for this thread."""
    stop = Event()
    if current_thread() is not main_thread():
        yield stop
        return

    # A thread hears of a signal also while this one is in C, where Python's handlers wait.
    heard, tells = os.pipe()
    os.set_blocking(tells, False)
    wakeup = signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}

    def wait() -> None:
        if os.read(heard, 1):
            stop.set()

    waiting = Thread(target=wait, name="signals", daemon=True)
    waiting.start()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(tells)
        waiting.join()
        os.close(heard)
