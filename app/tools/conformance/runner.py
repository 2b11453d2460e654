"""Cases, the runner that runs them side by side, and the report of their results."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from tricklecast.app.tools.conformance.profiles import ANY, PROFILES, ServerSettings
from tricklecast.app.tools.conformance.response import Failure, Skip
from tricklecast.app.tools.conformance.target import CLEANUP_S, Address, RemoteChannel, Target
from tricklecast.trickle.wire import redacted

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., None])

_INTERRUPT_S: Final = CLEANUP_S + 0.5
"""An interrupted run waits this long for its cases to end their channels."""


@dataclass(frozen=True, slots=True)
class Case:
    """One rule of the protocol, and a function that checks whether a server keeps the rule.

    Attributes:
        name: ``group/rule-in-short``.
        section: the rule's place in docs/reference/protocol.md.
        rule: one line.
        check: takes a fresh channel, and raises :class:`Failure` if the server breaks the rule.
        profiles: the configurations that show the rule; the first one suits best.
        alone: no other case may run at the same time, because this one fills a limit of the server.
        within: the setting that limits the duration of the case (``channel_drain_s``); empty: no limit.
    """

    name: str
    section: str
    rule: str
    check: Callable[[RemoteChannel], object]
    profiles: tuple[str, ...] = ANY
    alone: bool = False
    within: str = ""

    def unfit(self, profile: str) -> str | None:
        """The reason for which the case cannot run against a server of this profile; ``None`` if it can."""
        if profile in self.profiles:
            return None
        best = PROFILES[self.profiles[0]]
        return f"needs a server started with {' '.join(best.flags)} (--profile {best.name})"


class Group:
    """Cases about one subject. Each public method is a case: its docstring is the rule, its name the case's name.

    A subclass names its section of the protocol: ``class Takeover(Group, section="3. Publish")``.
    """

    section: ClassVar[str]

    def __init_subclass__(cls, *, section: str) -> None:
        cls.section = section

    @classmethod
    def cases(cls) -> Iterator[Case]:
        """The cases, in the order of their definition."""
        group = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()
        for name, method in vars(cls).items():
            if name.startswith("_") or not callable(method):
                continue
            rule, marks = (method.__doc__ or "").strip(), dict(vars(method))
            if not rule or "\n" in rule:
                raise ValueError(f"{name} needs its rule as a docstring of one line")
            name = f"{group}/{name.replace('_', '-')}"
            for key, words, *values in marks.pop("rows", [("", "")]):
                check = partial(_check, method, cls(), values)
                yield Case(name.replace("X", key), cls.section, rule.replace("{}", words), check, **marks)


def _check(method: Callable[..., None], group: Group, values: Sequence[Any], channel: RemoteChannel) -> None:
    method(group, channel, *values)


def needs(*profiles: str, alone: bool = False, within: str = "") -> Callable[[F], F]:
    """Mark a case that needs one of these profiles; see :class:`Case`."""

    def mark(method: F) -> F:
        vars(method).update(profiles=profiles or ANY, alone=alone, within=within)
        return method

    return mark


def each(*rows: tuple[Any, ...]) -> Callable[[F], F]:
    """Make one case of each row: ``(key, words, argument, …)``.

    The key stands for ``X`` in the method's name, the words for ``{}`` in its docstring. The method gets the arguments.
    """

    def mark(method: F) -> F:
        vars(method).update(rows=rows)
        return method

    return mark


class CaseOutcome(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case.

    Attributes:
        reason: why it was skipped.
        expected, got, transcript: of a failure: the behaviour that the rule demands, the server's behaviour, and the
            bytes on the case's connections, shortened.
    """

    case: Case
    outcome: CaseOutcome
    duration_s: float = 0.0
    reason: str = ""
    expected: str = ""
    got: str = ""
    transcript: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        del values["case"]
        return {"name": self.case.name, "section": self.case.section, "rule": self.case.rule, **values}


class Runner:
    """Runs cases against one server, which was started with the configuration of this profile.

    The settings, on which deadlines depend, are by default those of the profile.
    """

    def __init__(self, address: Address, profile: str = "default", settings: ServerSettings | None = None) -> None:
        self.address = address
        self.profile = profile
        self._settings = settings or PROFILES[profile].settings
        self._waiting: deque[tuple[Case, Future[CaseResult]]] = deque()  # cases that no thread has taken
        self._running: set[Target] = set()  # of the cases in progress
        self._interrupted = False  # running cases end soon, and no other begins

    def run(self, cases: Sequence[Case], jobs: int = 16) -> Generator[CaseResult, None, None]:
        """Run cases, and yield their results in the order of the cases, each as soon as possible.

        Up to ``jobs`` cases run at the same time; those that must run alone do so at the end. A caller that stops
        early, for example because of Ctrl-C, closes the iterator. The running cases are then interrupted, and end their
        channels within :data:`CLEANUP_S` seconds.
        """
        yield from self._run([case for case in cases if not case.alone], jobs)
        yield from self._run([case for case in cases if case.alone], 1)

    def _run(self, cases: Sequence[Case], jobs: int) -> Generator[CaseResult, None, None]:
        results: list[Future[CaseResult]] = [Future() for _ in cases]
        self._waiting.extend(zip(cases, results, strict=True))
        # The threads are daemons, so that a connection attempt that hangs cannot keep an interrupted run alive.
        threads = [threading.Thread(target=self._work, name="conformance", daemon=True) for _ in range(jobs)]
        try:
            # A lock of `threading` may be in no order when a signal's exception comes while it is waited for:
            # for the start of a thread, or for a result.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
            try:
                for thread in threads:
                    thread.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for result in results:
                ended: SimpleQueue[object] = SimpleQueue()
                result.add_done_callback(ended.put)
                ended.get()
                yield result.result()
        except BaseException:  # Ctrl-C here, or the caller closed the iterator
            self._interrupted = True
            self._waiting.clear()
            for target in list(self._running):
                target.interrupt()
            deadline = time.monotonic() + _INTERRUPT_S
            for thread in filter(threading.Thread.is_alive, threads):
                thread.join(max(0.0, deadline - time.monotonic()))
            raise

    def _work(self) -> None:
        while True:
            try:
                case, result = self._waiting.popleft()
            except IndexError:
                return
            try:
                result.set_result(self.run_case(case))
            except BaseException as error:
                result.set_exception(error)

    def run_case(self, case: Case) -> CaseResult:
        if reason := case.unfit(self.profile):
            return CaseResult(case, CaseOutcome.SKIP, reason=reason)
        target = Target(self.address, self._settings)
        self._running.add(target)
        if self._interrupted:
            target.interrupt()
        start = time.monotonic()
        outcome, words = CaseOutcome.PASS, {}
        try:
            case.check(target.channel())
        except Skip as skip:
            outcome, words = CaseOutcome.SKIP, {"reason": str(skip)}
        except Failure as failure:
            outcome, words = CaseOutcome.FAIL, {"expected": failure.expected, "got": failure.got}
        except (OSError, ValueError) as error:
            got = f"{type(error).__name__}: {error}"
            outcome, words = CaseOutcome.FAIL, {"expected": "an answer that the case can read", "got": got}
        finally:
            duration_s = time.monotonic() - start
            target.cleanup()
            self._running.discard(target)
        if case.within and duration_s > 0.75 * (limit_s := getattr(self._settings, case.within)):
            # The grace may have ended meanwhile, so that neither success nor failure proves anything.
            reason = f"this machine is too slow to judge within {limit_s:g} s; start the server with longer graces"
            outcome, words = CaseOutcome.SKIP, {"reason": reason}
        transcript = target.transcript.lines if outcome is CaseOutcome.FAIL else ()
        return CaseResult(case, outcome, duration_s, transcript=transcript, **words)


_STYLES = {CaseOutcome.PASS: "green", CaseOutcome.FAIL: "bold red", CaseOutcome.SKIP: "yellow"}


class ConformanceReport:
    """Prints results as they come, with colours on a terminal; if verbose, also the reason of each skipped case."""

    def __init__(self, out: Console, *, verbose: bool = False) -> None:
        self.out = out
        self._verbose = verbose
        self.results: list[CaseResult] = []

    def add(self, result: CaseResult) -> None:
        """Print one result; of a failure also the expected and the received value, and the transcript."""
        self.results.append(result)
        self.out.print(f"{result.outcome}", style=_STYLES[result.outcome], end=" ")
        self.out.print(f"{result.case.name} — {result.case.rule}")
        if result.outcome is CaseOutcome.SKIP and self._verbose:
            self.out.print(f"       {result.reason}", style="dim")
        if result.outcome is CaseOutcome.FAIL:
            self.out.print(f"       expected: {result.expected}")
            self.out.print(f"       got:      {result.got}")
            self.out.print(f"       rule of:  {result.case.section}")
            for line in result.transcript:
                self.out.print(f"       {line}", style="dim")

    def close(self) -> bool:
        """Print the sums and the reasons of skipped cases; returns whether no case failed."""
        counts = Counter(result.outcome for result in self.results)
        reasons = Counter(result.reason for result in self.results if result.outcome is CaseOutcome.SKIP)
        for reason, count in reasons.items():
            self.out.print(f"{count} skipped: {reason}", style="dim")
        self.out.print(
            f"{counts[CaseOutcome.PASS]} passed, {counts[CaseOutcome.FAIL]} failed, {counts[CaseOutcome.SKIP]} skipped",
            style=_STYLES[CaseOutcome.FAIL if counts[CaseOutcome.FAIL] else CaseOutcome.PASS],
        )
        return not counts[CaseOutcome.FAIL]

    def write_json(self, path: Path, url: str, profile: str) -> None:
        counts = Counter(result.outcome for result in self.results)
        document = {
            "version": 1,
            "url": redacted(url),
            "profile": profile,
            "passed": counts[CaseOutcome.PASS],
            "failed": counts[CaseOutcome.FAIL],
            "skipped": counts[CaseOutcome.SKIP],
            "cases": [result.as_dict() for result in self.results],
        }
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def print_rules(out: Console, cases: Iterable[Case]) -> None:
    """Print every rule below its section, and the configurations that some of them need."""
    section = ""
    for case in cases:
        if case.section != section:
            section = case.section
            out.print(f"\n{section}", style="bold")
        needed = "" if "default" in case.profiles else f"  [--profile {case.profiles[0]}]"
        out.print(f"  {case.name}", style="cyan", end="")
        out.print(f" — {case.rule}{needed}")
    out.print("\nProfiles", style="bold")
    for profile in PROFILES.values():
        flags = " ".join(profile.flags)
        out.print(f"  {profile.name}", style="cyan", end="")
        out.print(f" — {profile.summary}{f': tricklecast serve {flags}' if flags else ''}")
