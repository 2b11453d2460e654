"""The limits of a server of two processes, as its clients meet them."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from tests.support.metrics import samples
from tests.support.server import RunningServer, serve
from tests.support.waiting import eventually
from tricklecast.app.tools.conformance.connection import RawConnection
from tricklecast.app.tools.conformance.target import RemoteChannel, Target
from tricklecast.app.workers.placement import owner_of

WORKERS = ("--workers", "2")


def names(worker: int) -> list[str]:
    """Names of ten channels that this worker owns."""
    found = (name for name in map("channel{}".format, count()) if owner_of(name, 2) == worker)
    return [next(found) for _ in range(10)]


def used(client: Target, limit: str, connection: RawConnection | None = None) -> float:
    """How much of a limit both workers use, as a scrape says: on this connection, or on a new one."""
    if connection is None:
        text = client.ask("GET", "/metrics").body
    else:
        connection.request("GET", "/metrics")
        text = connection.response().body
    found = samples(text.decode()).items()
    return sum(n for (name, labels), n in found if name == "tricklecast_limit_used" and ("limit", limit) in labels)


def processes(server: RunningServer) -> list[int]:
    """Those of the workers, in the order in which they were started."""
    return [int(one) for one in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]


@contextmanager
def standing_still(server: RunningServer, worker: int) -> Iterator[int]:
    """Stop a worker for the block; gives its process. The supervisor stands still as well: it would kill the worker."""
    stopped = processes(server)[worker]
    for pid in (server.pid, stopped):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield stopped
    finally:
        for pid in (stopped, server.pid):
            os.kill(pid, signal.SIGCONT)


def spoken(readers: Iterable[RawConnection]) -> list[RawConnection]:
    """Those that have something to read, or whose connection is closed."""
    by_socket = {reader._sock: reader for reader in readers}
    return [by_socket[one] for one in select.select(list(by_socket), [], [], 0)[0]]


def waits(channel: RemoteChannel, seq: int, others: int) -> list[RawConnection]:
    """A reader that waits for a segment, beside this number of other readers; none if it is refused."""
    reader = channel.read(seq)
    eventually(lambda: spoken([reader]) or used(channel.target, "readers") == others + 1)
    if not spoken([reader]):
        return [reader]
    reader.close()
    return []


def wait_in(client: Target, worker: int, readers: int, others: int = 0) -> list[RawConnection]:
    """Readers that wait in channels of this worker, beside others that wait already.

    A request counts until its worker has ended it: a moment longer than its client waits, which another worker may see.
    """
    found: list[RawConnection] = []
    for channel in map(client.channel, names(worker)[:readers]):
        eventually(partial(lambda channel: channel.ask("POST", body=b"").status == 200, channel))
        found += eventually(partial(waits, channel, 0, others + len(found)))
    return found


def test_a_client_has_its_limits_once() -> None:
    """Its requests in both workers count together; when a worker is killed, what it had there is free again."""
    with serve(*WORKERS, "--storm-guard", "off", "--per-ip-limit", "4") as server, server.client() as client:
        waiting = wait_in(client, 0, 2) + wait_in(client, 1, 2, others=2)
        for worker in (0, 1):
            refused = client.channel(names(worker)[0]).get(0)
            assert (refused.status, refused.body) == (429, b"Limit reached: per_ip_limit"), refused
        waiting.pop().close()
        eventually(lambda: client.channel(names(1)[0]).post(0).status == 200)
        victim = processes(server)[1]
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: victim not in processes(server) and len(processes(server)) == 2)
        eventually(lambda: client.channel(names(1)[5]).post(0).status == 200)
        assert len(wait_in(client, 1, 2, others=2)) == 2
        assert client.channel(names(0)[5]).get(0).status == 429


def test_readers_of_the_server_are_counted_in_all_workers() -> None:
    """New ones are refused above 80 %, those that go on at the limit, at either worker."""
    with serve(*WORKERS, "--max-readers", "5") as server, server.client() as client:
        first, second = names(0)[9], names(1)[9]
        for name in (first, second):
            client.channel(name).create().publish(0, b"x")
        wait_in(client, 0, 2)
        wait_in(client, 1, 2, others=2)
        for name in (first, second):
            assert client.channel(name).get(-2).status == 503
            eventually(partial(lambda name: client.channel(name).get(0).status == 200, name))
        eventually(lambda: used(client, "readers") == 4)
        assert waits(client.channel(first), 1, others=4)
        for name in (first, second):
            assert client.channel(name).get(0).status == 503
        eventually(lambda: used(client, "readers") == 5)


def test_memory_is_that_of_the_server() -> None:
    """However much is published in both workers, all segments together stay within it."""
    total = 4 << 20
    options = "--max-total-bytes", str(total), "--max-segment-bytes", "1MiB"
    with serve(*WORKERS, *options) as server, server.client() as client:
        channels = [client.channel(name) for worker in (0, 1) for name in names(worker)[:2]]
        for seq in range(40):
            for channel in channels:
                assert channel.post(seq, bytes(128 << 10)).status == 200
            if seq % 8 == 7:
                assert used(client, "total_bytes") <= total
        eventually(lambda: used(client, "total_bytes") > total // 2)


def test_a_connection_that_moves_has_one_place() -> None:
    """All that fit go from worker to worker with each request, and none is refused; one more is, by either."""
    with serve(*WORKERS, "--max-connections", "5", "--per-ip-connections", "5") as server, server.client() as client:
        channels = [client.channel(names(worker)[0]).create().publish(0, b"x") for worker in (0, 1)]
        connections = [client.open()]
        eventually(lambda: used(client, "connections", connections[0]) == 1)
        connections += [client.open() for _ in range(4)]
        for _ in range(10):
            for channel in channels:
                for connection in connections:
                    connection.request("GET", channel.at(0))
                    connection.segment(0, b"x")
        for channel in channels:
            refused = channel.get(0)
            assert (refused.status, refused.body) == (503, b"Limit reached: connections")
