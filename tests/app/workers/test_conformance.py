"""The protocol at a server of two processes."""

from __future__ import annotations

from tests.support.server import serve
from tricklecast.app.tools.conformance.cases import CASES
from tricklecast.app.tools.conformance.profiles import PROFILES
from tricklecast.app.tools.conformance.runner import CaseOutcome, Runner


def test_all_rules_at_once() -> None:
    """They hold as in one process, with base path `/` and sixteen cases at a time, whose channels are spread."""
    with serve("--workers", "2", *PROFILES["root"].flags) as server, server.client() as client:
        cases = [case for case in CASES if case.profiles[0] in ("default", "root") and "root" in case.profiles]
        wrong = [
            result for result in Runner(client.address, "root").run(cases) if result.outcome is not CaseOutcome.PASS
        ]
        assert [(result.case.name, result.expected, result.got) for result in wrong] == []
