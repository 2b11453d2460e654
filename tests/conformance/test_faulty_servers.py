"""The suite finds fault: servers that answer without thinking keep almost no rule."""

from __future__ import annotations

import pytest

from tests.conformance.fakes import scripted
from tricklecast.app.tools.conformance import target
from tricklecast.app.tools.conformance.cases import CASES
from tricklecast.app.tools.conformance.runner import CaseOutcome, CaseResult, Runner

# Cases that wait for a grace to end would only make this slow.
_ORDINARY = [case for case in CASES if case.profiles[0] == "default"]


def _judge(answer: bytes, *, close: bool = False) -> list[CaseResult]:
    with scripted(answer, close=close) as address:
        return list(Runner(address).run(_ORDINARY))


def _answer(status: bytes, body: bytes = b"", *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status, *headers, b"Content-Length: %d" % len(body), b"", body]
    return b"\r\n".join(lines)


# Groups with rules that a server keeps by always saying the same; it is right about these, and about nothing else.
_RIGHT_ABOUT = {
    "200 OK": {"browsers", "end", "keep-alive"},
    "400 Bad Request": {"names"},
    "404 Not Found": {"browsers", "routes", "names", "methods", "http"},
    "503 Service Unavailable": set(),
}


@pytest.fixture(autouse=True)
def _poll_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a faulty server does not have is asked for until the time is up: not twenty times a second."""
    monkeypatch.setattr(target, "POLL_S", 1.0)


@pytest.mark.parametrize("status", list(_RIGHT_ABOUT))
def test_one_answer_for_everything_keeps_few_rules(status: str) -> None:
    """A server that always says the same passes fewer than one case in twenty, and none about segments."""
    results = _judge(_answer(status.encode(), b"no\n"), close=True)
    passed = {result.case.name for result in results if result.outcome is CaseOutcome.PASS}
    assert len(passed) < len(_ORDINARY) / 20
    assert {name.partition("/")[0] for name in passed} <= _RIGHT_ABOUT[status]


def test_a_server_that_hangs_up_keeps_no_rule() -> None:
    """A server that closes each connection unanswered passes nothing."""
    results = _judge(b"", close=True)
    assert [result.case.name for result in results if result.outcome is CaseOutcome.PASS] == []


def test_a_server_that_speaks_another_protocol_is_told_so() -> None:
    """Bytes that are no HTTP are called that, in each failure."""
    results = _judge(b"220 mail.example ESMTP\r\n", close=True)
    failed = [result for result in results if result.outcome is CaseOutcome.FAIL]
    assert len(failed) == len(_ORDINARY)
    assert sum("well-formed HTTP/1.1" in result.expected for result in failed) > len(failed) / 2
