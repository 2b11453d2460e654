"""The protocol through a node that owns nothing: it answers reads from replicas, and forwards the rest."""

from __future__ import annotations

from typing import Any, Final

from tests.app.cluster.table import Table, members
from tricklecast.app.tools.conformance.cases import CASES
from tricklecast.app.tools.conformance.profiles import PROFILES
from tricklecast.app.tools.conformance.runner import CaseOutcome, Runner
from tricklecast.app.tools.conformance.target import Address

ABOUT_READERS: Final = frozenset(
    (
        *(
            "ahead",
            "drain",
            "empty",
            "end",
            "finished",
            "head",
            "lost-publisher",
            "missing",
            "order",
            "read",
            "readers",
        ),
        *("rebirth", "repeated", "reset", "resolve", "seqs", "takeover"),
    )
)
"""Groups of cases. The others are passed on: see test_forward_conformance.py."""

TIMED: Final = "read/has-the-head-as-it-was-when-asked"
"""A read that waits for its replica sees the channel as it is when that is there."""


def test_all_rules_hold_for_readers_of_replicas() -> None:
    """As at one server, sixteen cases at a time."""
    settings: dict[str, Any] = dict(PROFILES["default"].options)
    with members("owner", "edge", table=Table(rest="owner"), **settings) as (owner, edge):
        runner = Runner(Address("127.0.0.1", edge.server.port, edge.server.settings.base_path))
        known = [c for c in CASES if "default" in c.profiles and c.name != TIMED]
        cases = [c for c in known if c.name.partition("/")[0] in ABOUT_READERS]
        wrong = [result for result in runner.run(cases) if result.outcome is CaseOutcome.FAIL]
        assert [(result.case.name, result.expected, result.got) for result in wrong] == []
        assert owner.cluster.feeds.sending.sent > len(cases) // 4
