"""A server that goes away, seen by its clients: in the same process, without signals."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from uvicorn.server import ServerState

from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app import shutdown
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.app.tools.conformance.response import ConnectionCut, Response
from tricklecast.app.tools.conformance.target import Address, Target

Way = dict[str, Any]

LONG: Final = {"shutdown_drain_s": 30, "shutdown_deadline_s": 60}
"""So long that only what is tested ends a test."""


@pytest.fixture(params=["plain", "TLS"])
def way(request: pytest.FixtureRequest, certificate: tuple[Path, Path]) -> Way:
    """How connections are spoken on: a drain is the same on both."""
    return {} if request.param == "plain" else {"tls_cert": certificate[0], "tls_key": certificate[1]}


def told_to_leave(response: Response) -> bool:
    """Whether it is the answer of a server that goes away."""
    assert response.body == b"Server is shutting down"
    assert 1 <= int(response.get("Retry-After") or 0) <= 5
    assert "close" in response.tokens("Connection")
    return response.status == 503


def drain(server: LocalServer) -> None:
    """Begin, and wait until it has begun."""
    server.stop()
    eventually(lambda: server.plane.registry.shutting_down)


def ready(target: Target) -> bool:
    return target.ask("GET", "/readyz").status == 200


def test_who_comes_during_the_drain_is_refused_in_words(way: Way) -> None:
    """New connections are taken and answered: not ready, 503 for what would begin; what is kept is served."""
    with local_server(**way, **LONG) as server, server.client() as target:
        channel = target.channel("c")
        channel.publish(0, b"kept")
        upload, reader = channel.started(1, b"body")
        assert ready(target)
        drain(server)
        assert not ready(target)
        assert target.ask("GET", "/healthz").status == 200
        assert b"tricklecast_readers 1.0" in target.ask("GET", "/metrics").body
        assert told_to_leave(channel.get(2))
        assert told_to_leave(channel.get(-1))
        assert told_to_leave(channel.post(2))
        assert told_to_leave(target.ask("POST", "/trickle/new", body=b""))
        refused = target.ask("POST", "/api/v1/channels", {"Content-Type": "application/json"}, b'{"name": "new"}')
        assert refused.status == 503
        assert refused.get("Retry-After") in {"1", "2", "3", "4", "5"}
        kept = channel.get(0)
        assert (kept.status, kept.body) == (200, b"kept")
        assert channel.next_seq() == 2
        # The kept connections of `ready` and others are closed; the running segment is the last thing to wait for.
        upload.chunk(b", whole").end()
        assert upload.answer().get("Lp-Trickle-Size") == "11"
        assert reader.rest() == b", whole"
        eventually(server.over)
    refusals = [(record.op, record.status) for record in server.records if record.reason == "shutdown"]
    assert Counter(refusals) == {("read", 503): 2, ("publish", 503): 1, ("create", 503): 1, ("api", 503): 2}


@pytest.mark.parametrize("path", ["/trickle/c/0", "/healthz"])
def test_a_kept_connection_is_closed_at_its_next_answer(way: Way, path: str) -> None:
    """A client that sends a request at the moment of the stop is answered, and told that the connection ends."""
    with local_server(**way, **LONG) as server, server.client() as target:
        channel = target.channel("c")
        channel.publish(0)
        kept = target.open()
        kept.request("GET", path)
        assert "close" not in kept.response().tokens("Connection")
        drain(server)
        kept.request("GET", path)
        response = kept.response()
        assert response.status == 200
        assert "close" in response.tokens("Connection")
        kept.closed()
        eventually(server.over)


def test_connections_without_a_request_stay_for_the_spread_and_no_longer(way: Way) -> None:
    """Then they are closed in order, and the server ends although the deadline is far."""
    with local_server(**way, shutdown_drain_s=0.3, shutdown_deadline_s=60) as server, server.client() as target:
        target.channel("c").publish(0)
        unused, kept = target.open(), target.open()
        kept.request("GET", "/trickle/c/0")
        assert kept.response().status == 200
        drain(server)
        kept.closed()
        unused.closed()
        eventually(server.over)


def test_waiting_clients_are_sent_away_and_running_segments_finish(way: Way) -> None:
    """Waiting reads, idle preconnects and overtaken posts get 503; what has begun comes to its end."""
    settings = {"shutdown_drain_s": 0.2, "shutdown_deadline_s": 60, "overtaking_grace_s": 30}
    with local_server(**way, **settings) as server, server.client() as target:
        active, waited, idle = target.channel("active"), target.channel("waited"), target.channel("idle")
        waited.create()
        upload, reader = active.started(0, b"before,")
        early = active.upload(9, b"too early")
        waiting = [waited.waiting(0) for _ in range(3)]
        preconnect = idle.preconnect(0)
        drain(server)
        for connection in [*waiting, preconnect.connection, early.connection]:
            assert told_to_leave(connection.response())
            connection.closed()
        upload.chunk(b"after").end()
        answer = upload.answer()
        assert answer.get("Lp-Trickle-Size") == "12"
        assert "close" in answer.tokens("Connection")
        assert reader.rest() == b"after"
        eventually(server.over)


def test_what_does_not_finish_is_broken_off_at_the_deadline(way: Way) -> None:
    """An endless segment does not keep the server: it is cut, without an end that looks whole."""
    with local_server(**way, shutdown_drain_s=0.1, shutdown_deadline_s=0.5) as server, server.client() as target:
        _, reader = target.channel("c").started(0, b"body")
        drain(server)
        with pytest.raises(ConnectionCut):
            reader.rest()
        assert server.record(op="read", reason="shutdown").bytes_out == 4
        assert server.record(op="publish", reason="shutdown").bytes_in == 4
        eventually(server.over)


def test_the_control_planes_own_address_answers_to_the_end(way: Way) -> None:
    """Probes and scrapes go on there while the channels' address refuses."""
    with local_server(**way, **LONG, control_port=0) as server, server.client() as target:
        control = Target(Address("127.0.0.1", server.control_port, tls=server.tls))
        upload, _ = target.channel("c").started(0, b"body")
        drain(server)
        assert not ready(control)
        assert b"tricklecast_draining 1.0" in control.ask("GET", "/metrics").body
        assert told_to_leave(target.channel("c").get(1))
        upload.end()
        assert upload.answer().status == 200
        eventually(server.over)


def test_a_server_without_connections_ends_at_once(way: Way) -> None:
    """Nobody is there to be sent away."""
    with local_server(**way, **LONG) as server:
        drain(server)
        eventually(server.over)


def test_clients_are_told_when_the_successor_is_there(way: Way) -> None:
    """`Retry-After` spans the rest of the drain and the restart."""
    with local_server(**way, **LONG, shutdown_restart_s=10) as server, server.client() as target:
        channel = target.channel("c")
        upload, _ = channel.started(0, b"body")
        drain(server)
        assert 35 <= int(channel.get(1).get("Retry-After") or 0) <= 69
        upload.end()
        assert upload.answer().status == 200


def test_a_task_of_the_control_plane_that_does_not_end_is_cancelled_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that goes on is cancelled; if it ignores that, too, the shutdown goes on without it."""
    monkeypatch.setattr(shutdown, "CLEAN_UP_S", 0.01)
    monkeypatch.setattr(shutdown, "TICK_S", 0.001)
    cancelled = asyncio.Event()

    async def request() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.Event().wait()

    async def ended() -> None:
        state, task = ServerState(), asyncio.ensure_future(request())
        state.tasks.add(task)
        await shutdown.end(DataPlane(Registry(Limits(), autocreate=True), Options()), state)
        assert cancelled.is_set()
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(ended())
