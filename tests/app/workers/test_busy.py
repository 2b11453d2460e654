"""Busy channels: readers at all workers are served as at the owner, whatever ends, dies or begins meanwhile."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.forked import command_of, forked
from tests.support.metrics import samples
from tests.support.resets import reset_when_closed
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.workers.placement import owner_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the workers by /proc")

FEW_READERS = "tests.app.workers.few_readers"

DRAWN = frozenset({"date", "retry-after"})
"""Header fields that differ between two responses of one worker, too."""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """A client on one connection, which asks and reads when it is told to."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Client:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            fields["Content-Length"] = str(len(body))
        lines = [f"{method} /trickle/{path} HTTP/1.1", "Host: 127.0.0.1", *(f"{n}: {v}" for n, v in fields.items())]
        self.method = method
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        return self

    def answer(self) -> Answer:
        response = HTTPResponse(self.socket, method=self.method)
        response.begin()
        headers = {name: value for name, value in response.getheaders() if name.lower() not in DRAWN}
        return Answer(response.status, headers, response.read())

    def close(self) -> None:
        """Reset the connection: a client that closes it in order may still wait for its answer."""
        if self.socket.fileno() >= 0:
            reset_when_closed(self.socket)
        self.socket.close()


@dataclass
class Server:
    pid: int
    port: int
    log: Path
    clients: list[Client]

    def client(self) -> Client:
        """A new connection, which is closed at the end at the latest."""
        self.clients.append(client := Client(self.port))
        return client

    def once(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """Ask on a connection of its own."""
        client = Client(self.port)
        try:
            return client.ask(path, method, body, **headers).answer()
        finally:
            client.close()

    def publish(self, channel: str, seq: int, body: bytes) -> None:
        assert self.once(f"{channel}/{seq}", "POST", body, Content_Type="video/mp2t").status == 200

    def readers(self) -> list[int]:
        """Of each worker."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics") as page:
            found = samples(page.read().decode())
        return [int(found.get(("tricklecast_readers", (("worker", str(worker)),)), 0)) for worker in range(2)]

    def answered(self, channel: str) -> Counter[int]:
        """How many reads of a channel each worker has answered."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return Counter(one["worker"] for one in lines if one.get("channel") == channel and one.get("op") == "read")

    def workers(self) -> list[int]:
        """Their processes, by number."""
        return [int(one) for one in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def kill(self, worker: int) -> None:
        """End a worker, and wait for its successor."""
        before = self.workers()
        os.kill(before[worker], signal.SIGKILL)
        eventually(lambda: len(now := self.workers()) == 2 and before[worker] not in now)


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    log = folder / "access.jsonl"
    quick = ("--shutdown-drain-s", "0.1", "--access-log", str(log), "--storm-guard", "off")
    command = forked("serve", "--workers", "2", "--port", "0", *quick, *options, module=FEW_READERS)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    clients: list[Client] = []
    try:
        line = process.stdout.readline()
        assert "listening on" in line, line
        pid = command_of(process.pid, FEW_READERS)
        yield Server(pid, int(line.partition("127.0.0.1:")[2].partition("/")[0]), log, clients)
    finally:
        closed(clients)
        process.terminate()
        process.wait(WITHIN_S)
        process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two workers."""
    with serving(tmp_path_factory.mktemp("busy")) as found:
        yield found


def named(owner: int, what: str) -> str:
    """A channel that this worker owns."""
    return next(name for name in (f"{what}{number}" for number in range(100)) if owner_of(name, 2) == owner)


def spread(server: Server, channel: str, count: int = 8) -> tuple[list[Client], int]:
    """Readers of a channel that wait for its next segment, at both workers; and the seq of that."""
    assert server.once(channel, "POST").status == 200
    clients = [server.client().ask(f"{channel}/0") for _ in range(count)]
    seq = 0
    while min(server.readers()) < 2:
        seq = next_segment(server, channel, clients, seq)
        assert seq < 500, server.readers()
    return clients, seq


def next_segment(server: Server, channel: str, clients: list[Client], seq: int) -> int:
    """Publish the segment that all wait for, read it, and wait for the one after it."""
    body = b"%d " % seq * 1000
    eventually(lambda: sum(server.readers()) >= len(clients), what="all wait")
    server.publish(channel, seq, body)
    for client in clients:
        answer = client.answer()
        assert (answer.status, answer.headers["Lp-Trickle-Seq"], answer.body) == (200, str(seq), body)
        client.ask(f"{channel}/{seq + 1}")
    return seq + 1


def answered(sockets: Iterable[socket.socket]) -> list[socket.socket]:
    """Those that have something to read, or whose connection is closed."""
    return select.select(list(sockets), [], [], 0)[0]


def closed(clients: list[Client]) -> None:
    for client in clients:
        client.close()


@pytest.mark.parametrize("owner", [0, 1])
def test_both_workers_serve_the_readers_of_a_busy_channel_until_it_ends(server: Server, owner: int) -> None:
    """Readers that wait when it becomes busy miss nothing; at the end all are told; the name begins again."""
    channel = named(owner, "live")
    clients, seq = spread(server, channel)
    for _ in range(3):
        seq = next_segment(server, channel, clients, seq)
    eventually(lambda: sum(server.readers()) == len(clients), what="all wait")
    assert server.once(channel, "DELETE").status == 200
    ends = [client.answer() for client in clients]
    assert [end.status for end in ends] == [200] * len(clients)
    assert all(end == ends[0] for end in ends), ends
    assert ends[0].headers["Lp-Trickle-Closed"] == "terminated"
    server.publish(channel, 0, b"again")
    for client in clients:
        again = client.ask(f"{channel}/0").answer()
        assert (again.body, again.headers["Lp-Trickle-Epoch"]) == (b"again", "2")
    closed(clients)


def test_a_channel_is_shown_once_with_the_readers_of_all_workers(server: Server) -> None:
    """In the list, in its description, and on the dashboard, with what all of them have got; the metrics add it up."""
    channel, url = named(1, "shown"), f"http://127.0.0.1:{server.port}"
    clients, seq = spread(server, channel)

    def shown() -> dict[str, Any]:
        with urlopen(f"{url}/api/v1/channels/{channel}") as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    size = sum(len(b"%d " % at * 1000) for at in range(seq))
    eventually(lambda: (shown()["readers"], shown()["bytes_out"]) == (len(clients), size * len(clients)))
    with urlopen(f"{url}/api/v1/channels") as answer:
        [one] = [one for one in json.load(answer)["channels"] if one["name"] == channel]
    assert (one["readers"], one["bytes_out"]) == (len(clients), size * len(clients))
    with urlopen(f"{url}/api/v1/dashboard") as stream:
        frame = json.loads(next(line for line in stream if line.startswith(b"data: "))[6:])
    [number] = [about[0] for about in frame["about"] if about[1] == channel]
    assert [row[3] for row in frame["rows"] if row[0] == number] == [len(clients)]
    with urlopen(f"{url}/metrics") as page:
        found = samples(page.read().decode())
    audience = [value for (name, _), value in found.items() if name == "tricklecast_audience"]
    assert sum(audience) == len(clients)
    closed(clients)
    eventually(lambda: shown()["readers"] == 0)


def test_a_channel_that_is_no_longer_busy_is_its_owners_alone(server: Server) -> None:
    """A reader that stays is served on, and is at the owner in the end."""
    channel = named(1, "calm")
    clients, seq = spread(server, channel)
    closed(clients[1:])
    last = clients[:1]

    def at_the_owner() -> bool:
        nonlocal seq
        seq = next_segment(server, channel, last, seq)
        return server.readers() == [0, 1]

    eventually(at_the_owner)
    closed(last)


def test_no_more_readers_than_the_limit_of_a_channel(tmp_path: Path) -> None:
    """``readers_per_channel`` holds over all workers, and a place that becomes free at one is free at any."""
    with serving(tmp_path, "--max-readers-per-channel", "10") as server:
        channel = named(0, "full")
        clients, seq = spread(server, channel)

        def fill() -> bool:
            """Ask for more places than there are; whether all are taken, and never more."""
            asking = {client.socket: client for client in (server.client() for _ in range(12 - len(clients)))}
            for client in asking.values():
                client.ask(f"{channel}/{seq}")
            eventually(lambda: len(answered(asking)) + sum(server.readers()) >= len(asking) + len(clients))
            for one in answered(asking):
                assert asking[one].answer().status == 429
                asking.pop(one).close()
            clients.extend(asking.values())
            assert sum(server.readers()) <= 10
            return len(clients) == 10

        eventually(fill, what="all places are taken")
        closed(clients[2:5])
        del clients[2:5]
        eventually(fill, what="the free places are taken")
        next_segment(server, channel, clients, seq)


def test_every_worker_answers_alike_with_a_data_directory(tmp_path: Path) -> None:
    """Segments that only storage has, large ones, tags, ranges, the head, seqs that are not there, wrong paths."""
    options = ("--data-dir", str(tmp_path / "data"), "--window-segments", "4")
    with serving(tmp_path, *options) as server:
        channel = named(0, "kept")
        clients, seq = spread(server, channel)
        server.publish(channel, seq, b"large" * 20_000)
        for client in clients:
            client.answer()
            client.ask(f"{channel}/{seq + 1}")
        while seq < 8:
            seq = next_segment(server, channel, clients, seq + 1) - 1
        tag = server.once(f"{channel}/{seq}").headers["ETag"]
        asked: list[tuple[str, dict[str, str]]] = [
            (str(at), {}) for at in (*range(seq + 1), seq + 9, -2, -4, -9, "next")
        ]
        asked += [("x", {}), ("stream?start=soon", {}), (str(seq), {"If_None_Match": tag})]
        asked += [(str(seq), {"Range": "bytes=2-5"}), ("0", {"Range": "bytes=-3", "If_Range": tag})]
        for path, headers in asked:
            for method in ("GET", "HEAD"):
                answers = [server.once(f"{channel}/{path}", method, None, **headers) for _ in range(6)]
                assert all(answer == answers[0] for answer in answers), (path, method, answers)
        eventually(lambda: min(server.answered(channel)[worker] for worker in range(2)) > 10)
        closed(clients)


@pytest.mark.parametrize("victim", ["owner", "holder"])
def test_a_worker_that_dies_ends_no_channel_for_the_readers_of_another(tmp_path: Path, victim: str) -> None:
    """Readers at the other worker are served on; those of a dead owner's channel are told to ask again, not the end."""
    with serving(tmp_path, "--data-dir", str(tmp_path / "data")) as server:
        channel = named(1, "lives")
        clients, seq = spread(server, channel)
        eventually(lambda: sum(server.readers()) == len(clients), what="all wait")
        before = server.readers()
        server.kill(1 if victim == "owner" else 0)
        kept = before[0 if victim == "owner" else 1]
        gone = len(clients) - (0 if victim == "owner" else kept)
        eventually(lambda: len(answered(client.socket for client in clients)) == gone)
        asked_again = 0
        for one in answered(client.socket for client in clients):
            client = next(client for client in clients if client.socket is one)
            clients.remove(client)
            with suppress(OSError, HTTPException):
                answer = client.answer()
                assert (victim, answer.status, answer.headers.get("Lp-Trickle-Closed")) == ("owner", 503, None)
                asked_again += 1
        assert asked_again == (kept if victim == "owner" else 0)
        alive = [*clients, *(server.client().ask(f"{channel}/{seq}") for _ in range(8))]
        while min(server.readers()) < 2:
            seq = next_segment(server, channel, alive, seq)
        closed(alive)
