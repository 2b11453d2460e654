"""The shared state: faults are contained, time passes for every part, exchanges are counted."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.storm_guard import ReplyKind
from tricklecast.app.data_plane.authorization import Authorizer, Granted
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.app.data_plane.responses import Reply
from tricklecast.app.data_plane.scheduling import Peer
from tricklecast.app.tools.conformance.target import Target


def make(**options: Any) -> DataPlane:
    """A plane without connections."""
    return DataPlane(Registry(Limits(), autocreate=True), Options(**options))


class Connection:
    """A connection that notes what is done to it."""

    def __init__(self, *, unfinished: bool = False) -> None:
        self.unfinished = unfinished
        self.log: list[str] = []

    def end_permission(self, reply: Reply) -> None:
        self.log.append(reply.reason)

    def abort(self) -> None:
        self.log.append("aborted")

    def close(self) -> None:
        self.log.append("closed")


def connection(*, unfinished: bool = False) -> tuple[Peer, list[str]]:
    """A connection, and what is done to it."""
    made = Connection(unfinished=unfinished)
    return cast(Peer, made), made.log


# Time.

PARTS = {
    "core": ("registry", "expire"),
    "latencies": ("latencies", "settle"),
    "timeouts": ("timeouts", "expire"),
    "slow peers": ("slow_peers", "expire"),
    "storm guard": ("guard", "expire"),
}


class Ticked:
    """A part of the plane that counts its ticks, and fails if it is told to."""

    def __init__(self, *, fails: bool) -> None:
        self.ticks = 0
        self.fails = fails

    def tick(self, *_: object) -> None:
        self.ticks += 1
        if self.fails:
            raise ZeroDivisionError


@pytest.mark.interpreted
@pytest.mark.parametrize("faulty", PARTS)
def test_a_fault_in_a_part_of_the_tick_keeps_no_other_part(
    faulty: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each part does what is due; the fault is logged with its stack trace and the part's name, and counted."""
    plane = make()
    parts = {name: Ticked(fails=name == faulty) for name in PARTS}
    for name, (attribute, method) in PARTS.items():
        owner = plane.registry if attribute == "registry" else getattr(plane, attribute)
        monkeypatch.setattr(type(owner), method, parts[name].tick)
    plane.wall_us = lambda: 0
    plane.tick(1.0)
    assert [part.ticks for part in parts.values()] == [1] * len(PARTS)
    assert plane.date == "Thu, 01 Jan 1970 00:00:00 GMT"
    assert plane.faults == 1
    (logged,) = caplog.records
    assert (logged.levelno, logged.exc_info and logged.exc_info[0]) == (logging.ERROR, ZeroDivisionError)
    assert faulty in logged.getMessage()


def test_a_token_that_expires_ends_its_exchange() -> None:
    """The connection is told once, when the wall clock reaches that time, and another one is not."""
    plane = make()
    now_s = 100
    plane.wall_us = lambda: now_s * 1_000_000
    (first, first_log), (second, second_log), (third, _) = (connection() for _ in range(3))
    for expiring, at in ((second, 120), (first, 110), (third, 110)):
        plane.permit(expiring, Granted(None, at))
    del plane.expiring[third]
    for at, logs in ((109, ([], [])), (110, (["expired"], [])), (121, (["expired"], ["expired"]))):
        now_s = at
        plane.tick(0.0)
        assert (first_log, second_log) == logs


class Withdrawing:
    """An authorizer that has withdrawn the permissions of some clients."""

    def __init__(self) -> None:
        self.generation = 7
        self.withdrawn: set[str | None] = set()

    def holds(self, granted: Granted) -> bool:
        return granted.subject not in self.withdrawn


def test_a_permission_that_is_withdrawn_ends_its_exchange() -> None:
    """The plane looks again as soon as the authorizer says that something has changed, and tells each once."""
    authorizer = Withdrawing()
    plane = DataPlane(Registry(Limits(), autocreate=True), Options(), authorizer=cast(Authorizer, authorizer))
    (first, first_log), (second, second_log) = connection(), connection()
    plane.permit(first, Granted("first", math.inf))
    plane.permit(second, Granted("second", math.inf))
    authorizer.withdrawn = {"first"}
    plane.tick(0.0)
    assert (first_log, second_log) == ([], [])
    authorizer.generation = 8
    plane.tick(0.0)
    plane.tick(0.0)
    assert (first_log, second_log) == (["token:revoked"], [])
    assert list(plane.expiring) == [second]


def test_the_storm_guard_forgets_by_the_tick() -> None:
    """A client that does not ask again leaves nothing behind."""
    plane = make()
    assert plane.guard is not None
    plane.guard.hold(1, "c", ReplyKind.MISSING, 0, 0.0, many=False)
    plane.tick(1e6)
    assert len(plane.guard) == 0
    make(storm_guard=False).tick(1e6)


def test_at_the_end_connections_that_serve_are_broken() -> None:
    """The others are closed, and TLS handshakes are cancelled."""
    plane = make()
    (busy, busy_log), (idle, idle_log) = connection(unfinished=True), connection()
    plane.connections |= {busy, idle}
    handshake = Ticked(fails=False)
    handshake.cancel = handshake.tick  # type: ignore[attr-defined]
    plane.handshakes.add(cast(Any, handshake))
    plane.end_all()
    assert (busy_log, idle_log, handshake.ticks) == (["aborted"], ["closed"], 1)


def test_jitter_reaches_both_bounds() -> None:
    """Each whole number between the bounds is drawn."""
    plane = make()
    assert {plane.jitter(1, 3) for _ in range(999)} == {1, 2, 3}


# Faults.


def spoil(server: LocalServer, name: str) -> None:
    """Make a channel's state unsound, and have a fault met by an exchange that uses it."""

    def fault() -> None:
        server.plane.registry.channels[name].window.bytes += 1
        server.plane.fault("in a test", ZeroDivisionError(), name)

    server.inside(fault)


def test_a_fault_leaves_a_sound_channel_alone() -> None:
    """Its clients go on; a channel that is not there is no matter."""
    with local_server() as server, server.client() as target:
        channel = target.channel()
        upload, reader = channel.started(0, b"one")
        for name in (channel.name, "missing"):
            server.inside(lambda name=name: server.plane.fault("in a test", ZeroDivisionError(), name))  # type: ignore[misc]
        upload.chunk(b"two").end()
        assert reader.rest() == b"two"
        assert server.plane.faults == 2


def test_an_unsound_channel_is_ended_for_all_to_see(caplog: pytest.LogCaptureFixture) -> None:
    """Its publisher and its readers are told that it has ended; a new life of its name is sound."""
    with local_server() as server, server.client() as target:
        channel, other = target.channel(), target.channel()
        other.create()
        other_reader = other.waiting(0)
        upload, reader = channel.started(0, b"one")
        waiting = channel.waiting(1)
        spoil(server, channel.name)
        assert upload.answer().get("Lp-Trickle-Closed") == "terminated"
        assert waiting.response().get("Lp-Trickle-Closed") == "terminated"
        assert reader.rest() == b""
        assert "was ended, because its state is not valid" in caplog.text
        assert channel.post(0, b"anew").status == 200
        assert channel.get(0).body == b"anew"
        other.publish(0, b"x")
        assert other_reader.response().body == b"x"


@pytest.mark.interpreted
def test_an_unsound_channel_that_cannot_be_ended_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody finds it any more."""
    with local_server() as server, server.client() as target:
        channel = target.channel()
        channel.publish(0, b"x")
        with monkeypatch.context() as patched:
            patched.setattr(Registry, "end", lambda *_, **__: 1 // 0)
            spoil(server, channel.name)
        assert channel.get(0).status == 404
        assert "was dropped, because it could not be ended" in caplog.text


def test_a_fault_of_a_listener_costs_no_exchange(caplog: pytest.LogCaptureFixture) -> None:
    """The core tells of changes; a listener that raises is logged, and the change stands."""

    async def main() -> DataPlane:
        plane = make()
        plane.core_fault(object(), ZeroDivisionError())
        assert plane.faults == 0, "the change may still be going on"
        await asyncio.sleep(0)
        return plane

    plane = asyncio.run(main())
    assert (plane.faults, [record.exc_info is not None for record in caplog.records]) == (1, [True])


# Counting, where no access log is written.


@contextmanager
def unlogged(**settings: Any) -> Iterator[tuple[LocalServer, Target]]:
    """A server without an access log, and a client."""
    with local_server(**settings) as server, server.client() as target:
        server.plane.sink = None
        yield server, target


def counted(server: LocalServer, **expected: int) -> None:
    """Wait until so many exchanges are counted, by operation, status and reason."""

    def found() -> dict[str, int]:
        counts = {f"{op}_{status}_{reason}": n for (op, status, reason), n in list(server.plane.exchanges.items())}
        return {name: counts.get(name, 0) for name in expected}

    eventually(lambda: found() == expected, what=f"{expected} are counted")


def test_a_segment_is_counted() -> None:
    """Published and read segments are counted with their bytes and waiting times."""
    with unlogged() as (server, target):
        channel = target.channel()
        channel.create()
        waiting = channel.waiting(0)
        before = server.inside(lambda: (server.plane.bytes_in, server.plane.bytes_out))
        channel.publish(0, b"first")
        assert waiting.response().body == b"first"
        assert channel.get(0).body == b"first"
        counted(server, create_200_complete=1, publish_200_complete=1, read_200_complete=2)
        after = server.inside(lambda: (server.plane.bytes_in, server.plane.bytes_out))
        assert (after[0] - before[0], after[1] - before[1]) == (5, 10)
        assert sum(server.plane.latencies.waits["read"].counts) == 2


def test_other_answers_are_counted() -> None:
    """So are refusals, ends and what is no request."""
    with unlogged() as (server, target):
        channel = target.channel()
        assert channel.get(0).status == 404
        channel.publish(0, b"x")
        assert channel.get(99).status == 470
        assert channel.post(99).status == 470
        assert target.ask("GET", f"{target.base}/a/b/c").status == 404
        channel.waiting(1).abort()
        counted(
            server,
            read_404_not_found=1, publish_200_complete=1, read_470_ahead=1, publish_470_ahead=1, none_404_not_found=1,
            read_0_client_gone=1,
        )  # fmt: skip


def test_an_answer_that_was_delayed_is_counted_once() -> None:
    """A client in a loop is answered later, and each answer counts."""
    with unlogged() as (server, target):
        path, connection = target.channel().at(0), target.open()
        for _ in range(12):
            connection.request("GET", path, {"Trickle-Client": "one"})
            assert connection.response().status == 404
        counted(server, read_404_not_found=12)
        assert server.plane.holds
