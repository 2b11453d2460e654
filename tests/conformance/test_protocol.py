"""The protocol on the wire: every case of the suite, each against a server of the configuration that suits it."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import RunnerFor
from tricklecast.app.tools.conformance.cases import CASES
from tricklecast.app.tools.conformance.runner import Case, CaseOutcome


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule(case: Case, runner_for: RunnerFor) -> None:
    """The server keeps the rule that the case is about."""
    result = runner_for(case.profiles[0]).run_case(case)
    if result.outcome is CaseOutcome.SKIP:
        pytest.skip(result.reason)
    report = "\n".join([case.rule, f"expected: {result.expected}", f"got:      {result.got}", *result.transcript])
    assert result.outcome is CaseOutcome.PASS, report


def test_all_rules_at_once_below_the_root(runner_for: RunnerFor) -> None:
    """The same rules hold with base path `/`, and with sixteen cases at a time."""
    if (runner := runner_for("root")).profile != "root":
        pytest.skip("the server is not ours to configure")
    cases = [case for case in CASES if case.profiles[0] in ("default", "root") and "root" in case.profiles]
    wrong = [result for result in runner.run(cases) if result.outcome is not CaseOutcome.PASS]
    assert [(result.case.name, result.expected, result.got) for result in wrong] == []
