"""What tests of the control plane of a cluster share: questions to it, and a node that does not answer."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson

from tests.app.cluster.test_nodes_on_nats import LEASE_S, NatsNode
from tests.support.nats import NatsServer
from tests.support.waiting import WITHIN_S, until
from tricklecast.app.cluster.bucket import Bucket
from tricklecast.app.cluster.directory import Claimed, Directory, NodeFacts
from tricklecast.app.cluster.jetstream import NatsOptions
from tricklecast.app.cluster.view import Place
from tricklecast.app.tools.conformance.response import Response


def ask(one: NatsNode, method: str, path: str, body: Any = None) -> tuple[Response, Any]:
    """Ask its control plane."""
    sent = None if body is None else orjson.dumps(body)
    response = one.target.ask(method, path, {"Content-Type": "application/json"}, sent)
    return response, orjson.loads(response.body)


class Deaf:
    """The listeners of a node that has nothing but its lease."""

    def moved(self, channel: str, place: Place | None) -> None:
        """It is not told."""

    def lost(self, channel: str, epoch: int) -> None:
        """It has nothing to lose."""

    def given(self, channel: str, epoch: int) -> bool:
        """It takes nothing."""
        return False


async def join_deaf(nats: NatsServer) -> Directory:
    """A node ``c`` that owns a channel ``lost`` and renews its lease, and that nobody can reach."""
    connect = partial(Bucket.open, NatsOptions((nats.url,)), "c")
    facts = NodeFacts("c", "http://127.0.0.1:1/trickle")
    directory = Directory(connect, facts, Deaf(), lease_s=LEASE_S)
    assert await directory.start({}, WITHIN_S)
    await until(lambda: not directory.degraded)
    assert isinstance(await directory.claim("lost"), Claimed)
    return directory
