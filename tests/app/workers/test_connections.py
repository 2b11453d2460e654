"""Connections of a server of two processes: each request is answered by the owner of its channel, however it comes."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from itertools import count, product
from operator import itemgetter
from pathlib import Path

import orjson
import pytest

from tests.app.test_sockets import start, stop
from tests.app.workers.test_limits import names, standing_still
from tests.support.logs import logged, matching, read_log
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S
from tricklecast.app.http1.connection import MOVABLE_BYTES
from tricklecast.app.tools.conformance.connection import encode_chunk
from tricklecast.app.tools.conformance.target import Address, Target
from tricklecast.app.workers.placement import owner_of

OPTIONS = ("--workers", "2", "--storm-guard", "off")
FRONT, OTHER = names(0), names(1)
FRESH = count()  # seqs that no test has used


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One for all tests that do not harm it."""
    log = tmp_path_factory.mktemp("workers") / "access.log"
    with serve(*OPTIONS, access_log=log, nursery="tests.app.workers.few_readers") as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Target]:
    with server.client() as target:
        yield target


def post(channel: str, seq: int, body: bytes) -> bytes:
    head = f"POST /trickle/{channel}/{seq} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chunked(channel: str, seq: int, *chunks: bytes, trailer: bytes = b"") -> bytes:
    head = f"POST /trickle/{channel}/{seq} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"".join(map(encode_chunk, chunks)) + b"0\r\n" + trailer + b"\r\n"


def get(channel: str, seq: int | str) -> bytes:
    return f"GET /trickle/{channel}/{seq} HTTP/1.1\r\nHost: h\r\n\r\n".encode()


def all_answers(server: RunningServer, *packets: bytes) -> bytes:
    """Send these packets, close this half, and read until the server closes the other one."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WITHIN_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for packet in packets:
            sock.sendall(packet)
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(1 << 16), b""))


def statuses(answers: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", answers)]


def of_every_kind() -> bytes:
    """A pipeline of requests for channels of both workers, with all kinds of bodies between them."""
    seq = next(FRESH)
    a, b = FRONT[0], OTHER[0]
    return b"".join(
        [
            chunked(a, seq, b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"),
            chunked(b, seq, b"two", trailer=b"Some: thing\r\n"),
            post(FRONT[1], seq, b"\r\n\r\n"),
            b"\r\n",
            post(OTHER[1], seq, b"x"),
            f"GET /trickle/{a}/{seq} HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n".encode(),
            f"HEAD http://h/trickle/{b}/{seq} HTTP/1.1\r\nHost: h\r\n\r\n".encode(),
            f"GET //trickle//%{ord(OTHER[1][0]):x}{OTHER[1][1:]}/{seq} HTTP/1.1\r\nHost: h\r\n\r\n".encode(),
            b"GET /api/v1/channels HTTP/1.1\r\nHost: h\r\n\r\n",
            get(a, "next"),
        ]
    )


def test_requests_of_every_kind_in_one_packet(server: RunningServer) -> None:
    """Each is answered by its owner, in order; the connection moves between them."""
    answers = all_answers(server, of_every_kind())
    assert statuses(answers) == [200] * 9
    assert b"\r\n\r\nGET / HTTP/1.1\r\n\r\n" in answers.replace(b"12\r\n", b"").replace(b"4\r\n", b"")


def test_requests_that_are_split_anywhere(server: RunningServer) -> None:
    """Wherever the packets end, the answers are the same."""
    at = 0
    while (at := at + 3) < len(whole := of_every_kind()):
        assert statuses(all_answers(server, whole[:at], whole[at:])) == [200] * 9, f"split at {at}"


def test_a_long_pipeline_moves_to_and_fro(server: RunningServer, client: Target) -> None:
    """More than one read, more than one slice, more than a turn's requests; none is lost, and all come in order."""
    for name in (FRONT[2], OTHER[2]):
        client.channel(name).publish(0, name.encode() * 1000)
    requests = [get((FRONT[2], OTHER[2])[number // 2 % 2], 0) for number in range(1200)]
    assert len(b"".join(requests)) > MOVABLE_BYTES
    answers = all_answers(server, b"".join(requests))
    assert statuses(answers) == [200] * 1200
    order = [name.decode() for name in re.findall(rb"\r\n(channel\d+?)channel", answers)]
    assert order == [(FRONT[2], OTHER[2])[number // 2 % 2] for number in range(1200)]


def test_a_client_that_is_done_gets_all_answers(server: RunningServer) -> None:
    """A connection that moves after its client has closed its half: the worker where it arrives may see that first."""
    for _ in range(20):
        seq = next(FRESH)
        here = post(FRONT[0], seq, b"x") + get(FRONT[0], seq) + get(FRONT[0], "next")
        there = post(OTHER[0], seq, b"x") + get("nothing", "next")
        assert statuses(all_answers(server, here + there + get(FRONT[0], seq))) == [200, 200, 200, 200, 404, 200]


def test_a_half_request_behind_one_that_waits(client: Target) -> None:
    """Its rest is read when the first one is answered, as any input behind it."""
    channel, other = client.channel(FRONT[3]).create(), client.channel(OTHER[3]).publish(0, b"there")
    reader = channel.waiting(0)
    whole = get(other.name, 0)
    reader.send(whole[:-9])
    channel.post(0, b"here").expect(200)
    reader.segment(0, b"here")
    reader.send(whole[-9:])
    reader.expects("GET")
    reader.segment(0, b"there")


def test_a_body_that_looks_like_ends_of_heads(server: RunningServer, client: Target) -> None:
    """It is parsed in small pieces, and a turn of the event loop takes few of them: it arrives whole all the same."""
    seq, body = next(FRESH), b"\r\n\r\n" * 20_000
    answers = all_answers(server, chunked(FRONT[0], seq, body) + chunked(OTHER[0], seq, body))
    assert statuses(answers) == [200, 200]
    for name in (FRONT[0], OTHER[0]):
        client.channel(name).has(seq, body)


def test_a_proxys_connection_serves_all_channels(client: Target) -> None:
    """One request after the other, each for another channel: one connection, all answers."""
    connection = client.open()
    for seq in range(2):
        for name in FRONT[7:] + OTHER[7:]:
            connection.request("POST", f"/trickle/{name}/{seq}", body=name.encode())
            connection.expect(200)
            connection.request("GET", f"/trickle/{name}/{seq}")
            connection.segment(seq, name.encode())


def test_a_segment_that_is_answered_is_in_the_next_answer_for_changes(client: Target) -> None:
    """Whichever worker has its channel: a request for changes asks all of them first."""
    now = orjson.loads(client.ask("GET", "/api/v1/changes?wait_s=0").body)
    owned = [next(name for name in map("told{}".format, count()) if owner_of(name, 2) == worker) for worker in (0, 1)]
    for seq, name in product(range(3), owned):
        client.channel(name).publish(seq, b"x")
        path = f"/api/v1/changes?wait_s=0&instance={now['instance']}&after={now['index']}"
        now = orjson.loads(client.ask("GET", path).body)
        told = [(one["channel"], one["seq"]) for one in now["changes"] if one["kind"] == "closed"]
        assert told == [(name, seq)]


def test_a_connection_that_says_little() -> None:
    """A head has its time, whichever worker it is for and however little of it has come: 408 then. As in one
    process."""
    with serve(*OPTIONS, "--head-timeout-s", "0.5") as server, server.client() as client:
        slow = []
        for name in (FRONT[4], OTHER[4]):
            for head in (b"G", get(name, 0)[:12], get(name, 0)[:-2]):
                slow.append(client.open())
                slow[-1].send(head)
        for connection in slow:
            connection.expects("GET")
            connection.expect(408)


def test_a_body_that_waits_for_leave_to_come(client: Target) -> None:
    """The owner gives it: nothing was sent before the connection moved."""
    for name in (FRONT[5], OTHER[5]):
        connection = client.open()
        connection.send(
            f"POST /trickle/{name}/0 HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        connection.interim()
        connection.send(b"body")
        connection.expects("POST")
        connection.expect(200)
        client.channel(name).has(0, b"body")


def test_one_request_is_one_line_of_the_log(server: RunningServer, client: Target) -> None:
    """With the address of its client, and the worker that answered it."""
    assert server.access_log is not None
    for worker, name in enumerate((FRONT[6], OTHER[6])):
        for seq in range(5):
            client.channel(name).post(seq, b"x").expect(200)
        records = logged(server.access_log, 5, channel=name, op="publish")
        assert [(record["ip"], record["worker"], record["seq"]) for record in records] == [
            ("127.0.0.1", worker, seq) for seq in range(5)
        ]
        assert len({record["conn"] for record in records}) == 5


def test_behind_a_proxy_on_a_unix_socket(tmp_path: Path) -> None:
    """The address is that which the proxy names, in both workers; the control plane has a port of its own."""
    path, log = tmp_path / "http.sock", tmp_path / "access.log"
    options = ("--unix-socket", str(path), "--control-port", "0", "--base-path", "/", "--access-log", str(log))
    process, _ = start(*OPTIONS, *options)
    target = Target(Address("h", 80, "", unix=str(path)), at_once_s=WITHIN_S)
    connection = target.open()
    for name in (FRONT[0], OTHER[0], FRONT[1]):
        connection.request("POST", f"/{name}/0", {"X-Forwarded-For": "198.51.100.7, 192.0.2.9"}, b"x")
        connection.expect(200)
    connection.request("GET", "/api/v1/channels")
    connection.expect(404)
    target.close()
    stop(process)
    records = matching(read_log(log), op="publish")
    assert {record["ip"] for record in records} == {"192.0.2.9"}
    records.sort(key=itemgetter("ts_us"))  # each worker writes its lines when it can
    assert [record["worker"] for record in records] == [0, 1, 0]


def test_a_worker_that_stands_still(tmp_path: Path) -> None:
    """Clients of its channels wait, and are answered when it goes on. Beyond a bound they are told to come back, after
    3 s. Clients of other channels are answered, also those that the kernel brings to the worker that stands still."""
    log, told = tmp_path / "access.log", tmp_path / "stderr"
    with (
        told.open("w") as stderr,
        serve(*OPTIONS, access_log=log, stderr=stderr) as running,
        running.client() as client,
    ):
        client.channel(OTHER[0]).publish(0, b"b")
        untouched = client.channel(FRONT[0]).create().waiting(0)
        with standing_still(running, 1):
            asking = [client.send("GET", f"/trickle/{OTHER[0]}/0") for _ in range(400)]
            others = [client.send("GET", path) for path in (f"/trickle/{FRONT[0]}/next", "/readyz") for _ in range(20)]
            assert {connection.response().status for connection in others} == {200}
            client.channel(FRONT[0]).post(0, b"a").expect(200)
            untouched.segment(0, b"a")
            logged(log, 20, status=503, reason="replica", ip="127.0.0.1", worker=0)
        answers = [connection.response() for connection in asking]
        assert {answer.status for answer in answers} == {200, 503}
        assert all(answer.get("Retry-After") for answer in answers if answer.status == 503)
    assert told.read_text().count("cannot be handed over to worker 1") == 1
