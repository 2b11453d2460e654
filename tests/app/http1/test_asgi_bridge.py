"""Control-plane requests: what the bridge relies on in uvicorn, and what clients get through it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tests.app.data_plane.support import LAG_S, PATIENT, later, slow_peer
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.core.slow_readers import Cut
from tricklecast.app.http1 import asgi_bridge
from tricklecast.app.tools.conformance.target import RemoteChannel, Target
from tricklecast.trickle.records import AccessRecord

# uvicorn's own protocol, as the bridge uses it.


class Transport(asyncio.Transport):
    """A transport that only remembers what was written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 4711), "sockname": ("192.0.2.2", 80)})
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Application:
    """An ASGI application that answers when it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.sent = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"hi", "more_body": True})
        self.sent += 1
        await send({"type": "http.response.body", "body": b"ho"})
        self.sent += 1


class Replayed:
    """A request that is replayed into uvicorn's protocol, as the bridge does it."""

    def __init__(self) -> None:
        self.application = Application()
        config = uvicorn.Config(
            self.application, loop="none", ws="none", lifespan="off", interface="asgi3", log_config=None
        )
        self.transport = Transport()
        self.state = ServerState()
        self.protocol = HttpToolsProtocol(config, self.state, {})
        self.completed = 0
        self.protocol.on_response_complete = self._complete  # type: ignore[method-assign]
        self.protocol.connection_made(self.transport)
        self.protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")

    def _complete(self) -> None:
        self.completed += 1

    async def answer(self) -> None:
        """Let the application answer, as far as it gets."""
        self.application.go_on.set()
        await asyncio.wait(self.state.tasks, timeout=0.05 if self.protocol.flow.write_paused else None)


def test_the_version_is_in_the_tested_range() -> None:
    """The range in pyproject.toml is the one that this file has passed against."""
    major, minor = (int(part) for part in uvicorn.__version__.split(".")[:2])
    assert (0, 34) <= (major, minor) < (0, 55), "widen the range in pyproject.toml only with this file passing"


def test_a_protocol_is_made_from_three_arguments() -> None:
    """The bridge passes config, server state and app state by position."""
    parameters = list(inspect.signature(HttpToolsProtocol.__init__).parameters)
    assert parameters[:4] == ["self", "config", "server_state", "app_state"]


@pytest.mark.parametrize(("keep_alive", "told"), [(True, False), (False, True)])
def test_a_replayed_request_is_answered_once(keep_alive: bool, told: bool) -> None:
    """`on_response_complete` is called when all is written; `cycle.keep_alive` decides about `connection: close`."""

    async def main() -> None:
        replayed = Replayed()
        assert replayed.protocol.cycle.keep_alive is True
        replayed.protocol.cycle.keep_alive = keep_alive
        await replayed.answer()
        assert replayed.completed == 1
        assert replayed.transport.written.endswith(b"\r\n\r\nhiho")
        assert (b"connection: close" in replayed.transport.written) is told
        assert replayed.transport.closed is told
        replayed.protocol.connection_lost(None)

    asyncio.run(main())


def test_a_paused_protocol_waits_with_its_response() -> None:
    """Between `pause_writing` and `resume_writing` the application does not get on."""

    async def main() -> None:
        replayed = Replayed()
        replayed.protocol.pause_writing()
        replayed.application.go_on.set()
        for _ in range(9):
            await asyncio.sleep(0)
        assert (replayed.application.sent, replayed.completed) == (0, 0)
        replayed.protocol.resume_writing()
        await asyncio.wait(replayed.state.tasks)
        assert (replayed.application.sent, replayed.completed) == (2, 1)

    asyncio.run(main())


def test_a_lost_protocol_writes_nothing_more() -> None:
    """After `connection_lost` the application ends as usual, and its response is thrown away."""

    async def main() -> None:
        replayed = Replayed()
        replayed.protocol.connection_lost(None)
        await replayed.answer()
        assert (replayed.application.sent, replayed.completed, replayed.transport.written) == (2, 0, b"")

    asyncio.run(main())


# Requests through the bridge.


@pytest.mark.parametrize(("target", "found"), [(b"/healthz?x", True), (b"http://h/x", True), (b"http://h", False)])
def test_a_target_without_a_path_is_not_replayed(target: bytes, found: bool) -> None:
    """uvicorn fails on a request target in which it finds no path."""
    assert asgi_bridge.has_path(target) is found


def test_a_body_is_replayed_whole(target: Target) -> None:
    """A chunked body in many packets reaches FastAPI as one with a length."""
    connection = target.open()
    headers = {"Transfer-Encoding": "chunked", "Content-Type": "application/json"}
    connection.send(connection.render("POST", "/api/v1/channels", headers))
    connection.expects("POST")
    for piece in (b'{"name"', b': "in', b'-parts"}'):
        connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        target.settle()
    connection.send(b"0\r\n\r\n")
    assert connection.response().status == 201
    assert target.ask("DELETE", "/api/v1/channels/in-parts").status == 200


def test_pipelined_requests_are_answered_in_order(target: Target) -> None:
    """Several requests of the control plane in one packet are answered one after the other."""
    connection = target.open()
    paths = ["/healthz", "/readyz", "/healthz", "/readyz", "/healthz"]
    connection.send(b"".join(connection.render("GET", path) for path in paths))
    bodies = [connection.response().body for _ in paths]
    assert bodies == [b'{"status":"ok"}' if path == "/healthz" else b'{"status":"ready"}' for path in paths]


def test_requests_behind_an_unfinished_segment_are_answered_in_order(channel: RemoteChannel, target: Target) -> None:
    """The control plane's requests, one with a body, wait for a reader that waits, and the connection goes on."""
    channel.create()
    connection = channel.waiting(0)
    body = b'{"name": "behind"}'
    headers = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
    connection.send(
        connection.render("GET", "/healthz")
        + connection.render("POST", "/api/v1/channels", headers)
        + body
        + connection.render("GET", channel.at("next"))
        + connection.render("DELETE", "/api/v1/channels/behind")
    )
    for method in ("GET", "POST", "GET", "DELETE"):
        connection.expects(method)
    target.settle()
    connection.silent()
    channel.publish(0, b"now")
    answers = [connection.response() for _ in range(5)]
    assert [answer.status for answer in answers] == [200, 200, 201, 200, 200]
    assert [answer.body for answer in answers[:2]] == [b"now", b'{"status":"ok"}']
    assert answers[3].body == b"1"
    connection.request("GET", "/readyz")
    assert connection.response().body == b'{"status":"ready"}'


# Responses that the client takes late, or never.

LIST = b"GET /api/v1/channels HTTP/1.1\r\nHost: h\r\nConnection: %b\r\n\r\n"


def listed(server: LocalServer) -> int:
    """Make a response of the control plane so long that no network takes it at once; its size in bytes."""
    for number in range(2000):
        server.plane.registry.create(f"_many-{number}", "", 0.0, force=True)
    with server.client() as target:
        body = target.ask("GET", "/api/v1/channels").body
    eventually(lambda: len(lists(server)) == 1)
    return len(body)


def lists(server: LocalServer) -> list[AccessRecord]:
    """The access records of those responses."""
    return [record for record in list(server.records) if record.op == "api"]


@pytest.fixture
def patient() -> Iterator[LocalServer]:
    """A server whose records are only those of one test."""
    with local_server(**PATIENT) as server:
        yield server


def test_an_answer_of_the_control_plane_that_is_not_read_is_cut_off(patient: LocalServer) -> None:
    """It is recorded once, as evicted, with as many bytes as the peer took."""
    size = listed(patient)
    with slow_peer(patient, LIST % b"keep-alive"):
        assert len(lists(patient)) == 1
        later(patient, 0)
        later(patient, LAG_S)
        record = patient.record(op="api", reason="evicted")
        assert (record.status, record.detail) == (200, Cut.STILL)
        assert 0 < (record.bytes_out or 0) < size
        assert len(patient.records) == 2


@pytest.mark.parametrize("connection", [b"keep-alive", b"close"])
def test_an_answer_of_the_control_plane_that_is_left_in_the_middle(patient: LocalServer, connection: bytes) -> None:
    """It is recorded when its client has gone: as that, and not as complete."""
    listed(patient)
    with slow_peer(patient, LIST % connection) as peer:
        peer.take(1000)
        assert len(lists(patient)) == 1
    assert patient.record(op="api", reason="client_gone").status == 200
    assert len(patient.records) == 2


@pytest.mark.parametrize("connection", [b"keep-alive", b"close"])
def test_an_answer_of_the_control_plane_that_is_taken_late(patient: LocalServer, connection: bytes) -> None:
    """It is recorded as complete when the client has taken all, and not before."""
    listed(patient)
    with slow_peer(patient, LIST % connection) as peer:
        assert len(lists(patient)) == 1
        head, _, body = peer.take(1000).partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split()[0])
        peer.take(size - len(body))
        eventually(lambda: len(lists(patient)) == 2)
        record = lists(patient)[-1]
        assert (record.status, record.reason, record.bytes_out) == (200, "complete", size)


def test_an_answer_of_the_control_plane_that_a_server_does_not_wait_for() -> None:
    """A client that has not taken it when the server's deadline is over is recorded as sent away."""
    with local_server(**PATIENT, shutdown_drain_s=0.05, shutdown_deadline_s=0.1) as server:
        listed(server)
        with slow_peer(server, LIST % b"keep-alive"):
            server.stop()
            eventually(server.over)
        assert server.record(op="api", reason="shutdown").status == 200


@pytest.mark.parametrize("by_client", [True, False])
def test_a_client_that_is_cut_off_while_it_pipelines(by_client: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The response under way ends with its connection, the requests behind it are not begun, and nothing fails."""
    with local_server(**PATIENT) as server, caplog.at_level(logging.DEBUG):
        listed(server)
        with slow_peer(server, LIST % b"keep-alive" * 8):
            if not by_client:
                later(server, 0)
                later(server, LAG_S)
                eventually(lambda: not server.plane.connections)
        eventually(lambda: not server.plane.connections)
        eventually(lambda: len(lists(server)) == 2)
        assert server.plane.faults == 0
    assert len(server.records) == 2
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
