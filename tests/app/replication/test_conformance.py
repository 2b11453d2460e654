"""A replica serves its readers as the owner does: the protocol's rules about reading, at another server."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from tests.app.replication.bridge import Bridge, one_address
from tests.support.local import local_server
from tricklecast.app.tools.conformance.cases import CASES
from tricklecast.app.tools.conformance.response import Response
from tricklecast.app.tools.conformance.runner import CaseOutcome, Runner
from tricklecast.app.tools.conformance.target import Address, RemoteChannel, Target

DRAWN = frozenset({"date", "retry-after"})
"""Header fields that differ between two responses of one server, too."""


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


def test_a_replica_answers_with_the_owners_headers() -> None:
    """A GET or HEAD of any kind: the same status, headers, body and trailers, so that a tag of one holds at the other.

    The requests are for segments in each state, for ranges, with conditions that have the owner's tag, and for seqs
    that are not there.
    """
    settings: dict[str, Any] = {"storm_guard": "off", "window_segments": 6}
    with local_server(**settings) as owner, local_server(**settings) as holder:
        bridge = Bridge(owner, holder)
        with closing(owner.target()) as at_owner, closing(holder.target()) as at_replica:
            for name, ends in (("live", False), ("over", True)):
                channel = _published(at_owner.channel(name))
                if ends:
                    channel.end()
                bridge.hold(name)
                tag = channel.get(2).get("ETag")
                assert tag is not None
                for seq, method, headers in _requests(tag):
                    answers = [_answer(target, method, channel.at(seq), headers) for target in (at_owner, at_replica)]
                    assert answers[0] == answers[1], (name, seq, method, headers)
        bridge.close()


def _published(channel: RemoteChannel) -> RemoteChannel:
    """A channel with a segment in each closed state, an old one that is evicted, and a head of 9."""
    channel.create("video/mp2t")
    for seq in range(3):
        channel.publish(seq, b"0123456789" * (seq + 1))
    channel.started(3, b"cut short")
    channel.close(3, {"Lp-Trickle-Truncated": "1"}).expect(200)
    channel.post(4, b"")
    channel.publish(6, b"5 is skipped").publish(7, b"7").publish(8, b"8")
    return channel


def _requests(tag: str) -> list[tuple[int | str, str, dict[str, str]]]:
    seqs = [-1000, -3, -2, *range(9), 9999, "next"]
    plain: list[tuple[int | str, str, dict[str, str]]] = [
        (seq, method, {}) for seq in seqs for method in ("GET", "HEAD") if seq != 5
    ]
    conditions = [
        {"If-None-Match": tag},
        {"Range": "bytes=2-5"},
        {"Range": "bytes=2-5", "If-Range": tag},
        {"Range": "bytes=99-"},
    ]
    return plain + [(2, "GET", headers) for headers in conditions] + [(2, "HEAD", {"If-None-Match": tag})]


def _answer(target: Target, method: str, path: str, headers: dict[str, str]) -> tuple[object, ...]:
    response: Response = target.ask(method, path, headers)
    fields = sorted(pair for pair in response.head.headers if pair[0].decode() not in DRAWN)
    return response.status, fields, response.body, response.trailers
