"""The protocol through a node that owns nothing: every request is passed on, and every answer comes back."""

from __future__ import annotations

import pytest

from tests.app.cluster.nodes import two_nodes
from tricklecast.app.tools.conformance.cases import CASES
from tricklecast.app.tools.conformance.runner import CaseOutcome, Runner
from tricklecast.app.tools.conformance.target import Address


@pytest.mark.long  # test_replicas_conformance forwards all but reads
def test_all_rules_hold_through_a_node_that_owns_nothing() -> None:
    """As at one server, sixteen cases at a time. The owner has another base path than the node that clients come to."""
    with two_nodes(at_edge={"base_path": "/"}) as nodes:
        runner = Runner(Address("127.0.0.1", nodes.edge.port, ""), "root")
        cases = [case for case in CASES if "root" in case.profiles]
        wrong = [result for result in runner.run(cases) if result.outcome is not CaseOutcome.PASS]
        assert [(result.case.name, result.expected, result.got) for result in wrong] == []
        assert nodes.at_edge.forwarding.forwarded > len(cases)
