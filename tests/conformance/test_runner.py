"""The runner: outcomes, order, isolation of cases, interruption, and the report."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.conformance.fakes import scripted, unused_address
from tests.support.waiting import WITHIN_S
from tricklecast.app.tools.conformance.profiles import ServerSettings
from tricklecast.app.tools.conformance.response import Failure, Skip, check, equal
from tricklecast.app.tools.conformance.runner import (
    Case,
    CaseOutcome,
    CaseResult,
    ConformanceReport,
    Runner,
    print_rules,
)
from tricklecast.app.tools.conformance.target import RemoteChannel

Check = Callable[[RemoteChannel], object]

_ANSWER = b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n"


def _case(check: Check, name: str = "g/n", *, profiles: tuple[str, ...] = ("default",), alone: bool = False) -> Case:
    return Case(name, "9. Nothing", "Something holds.", check, profiles, alone)


def _run(check: Check) -> CaseResult:
    return Runner(unused_address()).run_case(_case(check))


def _holds(c: RemoteChannel) -> None:
    del c


def _fails(c: RemoteChannel) -> None:
    raise Failure("one", "two")


def _skips(c: RemoteChannel) -> None:
    raise Skip("too slow")


def test_a_case_passes_fails_or_is_skipped() -> None:
    """A case that returns has passed; failures and skips carry their words."""
    assert _run(_holds).outcome is CaseOutcome.PASS
    failed = _run(_fails)
    assert (failed.outcome, failed.expected, failed.got) == (CaseOutcome.FAIL, "one", "two")
    skipped = _run(_skips)
    assert (skipped.outcome, skipped.reason) == (CaseOutcome.SKIP, "too slow")


def test_an_answer_that_breaks_the_case_is_a_failure() -> None:
    """A number that is none, or a socket that breaks, fails the case and not the run."""

    def reads_a_number(c: RemoteChannel) -> None:
        int("x")

    result = _run(reads_a_number)
    assert result.outcome is CaseOutcome.FAIL
    assert result.got.startswith("ValueError")


def test_a_server_that_is_gone_fails_the_case() -> None:
    """A connection that is refused in the middle of a run is a failure that says so."""
    result = _run(lambda c: c.target.settle())
    assert (result.outcome, result.expected) == (CaseOutcome.FAIL, "a connection")


def test_a_case_that_does_not_fit_is_not_run() -> None:
    """A case for another configuration is skipped without a connection, with the flags that it needs."""
    result = Runner(unused_address()).run_case(_case(_fails, profiles=("no-drain",)))
    assert result.outcome is CaseOutcome.SKIP
    assert "--channel-drain-s 0" in result.reason


def test_results_come_in_order() -> None:
    """Results have the order of the cases, whichever ends first."""
    later = threading.Event()

    def first(c: RemoteChannel) -> None:
        check(later.wait(WITHIN_S), "the second case to run beside the first", "nothing")

    cases = [_case(first, "g/first"), _case(lambda c: later.set(), "g/second")]
    results = list(Runner(unused_address()).run(cases, jobs=2))
    assert [(result.case.name, result.outcome) for result in results] == [
        ("g/first", CaseOutcome.PASS),
        ("g/second", CaseOutcome.PASS),
    ]


def test_cases_that_must_be_alone_come_last() -> None:
    """A case that fills a limit runs when no other does."""
    running: set[str] = set()

    def beside(c: RemoteChannel) -> None:
        running.add("beside")
        running.discard("beside")

    def alone(c: RemoteChannel) -> None:
        equal("what runs beside it", running, set())

    cases = [_case(alone, "g/alone", alone=True), *(_case(beside, f"g/{number}") for number in range(20))]
    results = list(Runner(unused_address()).run(cases, jobs=8))
    assert [result.outcome for result in results] == [CaseOutcome.PASS] * 21
    assert results[-1].case.name == "g/alone"


def test_a_failure_shows_the_way_there() -> None:
    """The transcript of a failure has what was sent and what came."""
    with scripted(_ANSWER) as address:
        result = Runner(address).run_case(_case(lambda c: c.target.channel("c").publish(0, b"data")))
    assert result.outcome is CaseOutcome.FAIL
    assert result.expected == "status 200"
    text = "\n".join(result.transcript)
    assert "POST /trickle/c/0 HTTP/1.1" in text
    assert "404 Not Found" in text


@pytest.mark.parametrize(("grace_s", "outcome"), [(0.0, CaseOutcome.SKIP), (3600.0, CaseOutcome.FAIL)])
def test_a_slow_machine_is_no_fault_of_the_server(grace_s: float, outcome: CaseOutcome) -> None:
    """A case that has to end within a grace is skipped if it took too long, even if it failed."""
    case = Case("g/n", "9. Nothing", "Something holds.", _fails, ("default",), within="skip_grace_s")
    runner = Runner(unused_address(), settings=ServerSettings(skip_grace_s=grace_s))
    assert runner.run_case(case).outcome is outcome


def test_a_run_that_is_closed_interrupts_its_cases() -> None:
    """A case that waits for the server ends at once, no further case begins, and no connection is opened."""
    waits, ended, refused = threading.Event(), threading.Event(), threading.Event()

    def endless(c: RemoteChannel) -> None:
        reader = c.read(0)
        waits.set()
        try:
            reader.response(within_s=WITHIN_S * 10)
        finally:
            ended.set()
            try:
                c.read(0)
            except Failure as failure:
                refused.set()
                raise failure from None

    begun: list[str] = []
    cases = [_case(_holds), _case(endless), *(_case(lambda c: begun.append(c.name)) for _ in range(3))]
    with scripted(b"") as address:
        with closing(Runner(address).run(cases, jobs=1)) as results:
            next(results)
            assert waits.wait(WITHIN_S)
        assert ended.is_set()
        assert refused.is_set()
    assert begun == []


def _console() -> tuple[Console, StringIO]:
    out = StringIO()
    return Console(file=out, soft_wrap=True, highlight=False, markup=False), out


def test_the_report_has_a_line_for_each_rule() -> None:
    """Each result is one line with verdict, name and rule; a failure is explained; the sums come last."""
    console, out = _console()
    report = ConformanceReport(console, verbose=True)
    report.add(CaseResult(_case(_holds), CaseOutcome.PASS))
    report.add(CaseResult(_case(_holds), CaseOutcome.SKIP, reason="not here"))
    assert report.close()
    report.add(CaseResult(_case(_holds), CaseOutcome.FAIL, expected="one", got="two [red]", transcript=("> sent",)))
    assert not report.close()
    text = out.getvalue()
    assert "PASS g/n — Something holds.\n" in text
    assert "SKIP g/n — Something holds.\n       not here\n" in text
    assert "expected: one\n       got:      two [red]\n" in text
    assert "> sent\n" in text
    assert text.endswith("1 skipped: not here\n1 passed, 1 failed, 1 skipped\n")


def test_the_report_as_json(tmp_path: Path) -> None:
    """The file has the sums, and everything about each case."""
    path = tmp_path / "results.json"
    report = ConformanceReport(_console()[0])
    report.add(CaseResult(_case(_holds), CaseOutcome.PASS, 0.5))
    report.add(CaseResult(_case(_fails), CaseOutcome.FAIL, expected="e", got="g"))
    report.write_json(path, "http://h/trickle", "default")
    document = json.loads(path.read_text())
    assert (document["passed"], document["failed"], document["skipped"]) == (1, 1, 0)
    assert document["cases"][0]["name"] == "g/n"
    assert document["cases"][1]["expected"] == "e"
    assert document["cases"][0]["rule"] == "Something holds."


def test_the_rules_are_listed_by_section() -> None:
    """The list names each section once, each rule below it, what it needs, and how to start such a server."""
    console, out = _console()
    print_rules(console, [_case(_holds), _case(_holds, "g/m", profiles=("no-drain",))])
    text = out.getvalue()
    assert text.count("9. Nothing") == 1
    assert "  g/n — Something holds.\n" in text
    assert "  g/m — Something holds.  [--profile no-drain]\n" in text
    assert "tricklecast serve --channel-drain-s 0" in text
