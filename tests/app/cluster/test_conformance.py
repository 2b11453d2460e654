"""A replica serves its readers as the owner does: the protocol's rules about reading, at another server."""

from __future__ import annotations

from tests.app.cluster.bridge import Bridge, one_address
from tests.support.local import local_server
from tricklecast.app.tools.conformance.cases import CASES
from tricklecast.app.tools.conformance.runner import CaseOutcome, Runner
from tricklecast.app.tools.conformance.target import Address


def test_a_replica_keeps_the_rules_of_reading() -> None:
    """All of section 4, with publishers at the owner and readers at a server that holds its channels."""
    with local_server() as owner, local_server() as holder:
        bridge = Bridge(owner, holder)
        with one_address(bridge, owner, holder) as port:
            runner = Runner(Address("127.0.0.1", port, owner.settings.base_path))
            cases = [case for case in CASES if case.section.startswith("4.") and "default" in case.profiles]
            results = list(runner.run(cases, jobs=4))
        bridge.close()
    wrong = [result for result in results if result.outcome is CaseOutcome.FAIL]
    assert [(result.case.name, result.expected, result.got, *result.transcript) for result in wrong] == []
    assert min(len(bridge.replicas), sum(result.outcome is CaseOutcome.PASS for result in results)) > 30
