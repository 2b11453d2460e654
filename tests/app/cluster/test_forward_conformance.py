"""The protocol through a node that owns nothing: every request is passed on, and every answer comes back."""

from __future__ import annotations

from tests.app.cluster.nodes import two_nodes
from tricklecast.app.tools.conformance.cases import CASES
from tricklecast.app.tools.conformance.runner import CaseOutcome, Runner
from tricklecast.app.tools.conformance.target import Address


def test_all_rules_hold_through_a_node_that_owns_nothing() -> None:
    """As at one server, sixteen cases at a time."""
    with two_nodes() as nodes:
        runner = Runner(Address("127.0.0.1", nodes.edge.port, nodes.edge.settings.base_path))
        cases = [case for case in CASES if "default" in case.profiles]
        wrong = [result for result in runner.run(cases) if result.outcome is CaseOutcome.FAIL]
        assert [(result.case.name, result.expected, result.got) for result in wrong] == []
        assert nodes.at_edge.forwarding.forwarded > len(cases)
