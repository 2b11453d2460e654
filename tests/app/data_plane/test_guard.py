"""Answers that the storm guard holds back are given later, and are ordinary answers in every other respect."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.core.crowd import FREE_FOR_MANY
from tricklecast.app.core.storm_guard import FORGOTTEN_S, FREE, Answer, Guard
from tricklecast.app.data_plane import guarded
from tricklecast.app.data_plane.context import ParkedFor
from tricklecast.app.data_plane.handler import Guarded
from tricklecast.app.tools.conformance.connection import Connection
from tricklecast.app.tools.conformance.target import Channel, Target
from tricklecast.trickle.records import AccessRecord
from tricklecast.trickle.wire import CLIENT, IDEMPOTENCY_KEY, RESET

FOR_EVER_S = 3600.0
NAMED = {CLIENT: "naive"}


class Script(Guard):
    """A guard that writes down what it is told, and holds for as long as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.hold_s = 0.0
        self.told: list[tuple[int, Answer]] = []
        self.got_on: list[bool] = []

    def hold(
        self, client: int, channel: str, seq: int, answer: Answer, now: float, *, connection: int | None = None
    ) -> float:
        self.told.append((seq, answer))
        return self.hold_s

    def served(self, client: int, channel: str, *, fewer: bool = False) -> None:
        self.got_on.append(fewer)


@contextmanager
def scripted(**settings: object) -> Iterator[tuple[LocalServer, Target, Script]]:
    """A server whose guard does what the test says."""
    with local_server(**settings) as server, server.client() as target:
        script = Script()
        server.plane.guard = script
        try:
            yield server, target, script
        finally:
            script.hold_s = 0.0


def held(server: LocalServer, count: int = 1) -> list[Guarded]:
    """Wait until so many exchanges are held."""
    eventually(lambda: len(server.plane.parked[ParkedFor.GUARD]) == count, what=f"{count} are held")
    return list(server.plane.parked[ParkedFor.GUARD])


@contextmanager
def stopped_clock(server: LocalServer) -> Iterator[Callable[[float], None]]:
    """Time passes for the server only when it is told so: nothing is paid back on a machine that is slow."""
    clock = server.plane.clock
    now = clock()

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    server.plane.clock = lambda: now
    try:
        yield pass_time
    finally:
        server.plane.clock = clock


def reads(server: LocalServer, channel: Channel, count: int) -> list[AccessRecord]:
    """Wait until so many reads of a channel have ended."""

    def found() -> list[AccessRecord]:
        return [record for record in list(server.records) if (record.channel, record.op) == (channel.name, "read")]

    eventually(lambda: len(found()) == count, what=f"{count} reads have ended")
    return found()


def release(exchange: Guarded) -> None:
    """End a hold now, whatever its time."""
    exchange.connection.loop.call_soon_threadsafe(exchange.release)


def none_left(server: LocalServer) -> None:
    """Nothing of a hold is left over."""
    eventually(lambda: not server.plane.parked[ParkedFor.GUARD], what="nothing is held any more")


# The real rule, over the wire.


def test_a_loop_is_answered_later_and_later_and_never_refused(channel: Channel, server: LocalServer) -> None:
    """The first few at once, then with holds that grow; status and body stay what they are."""
    connection = channel.target.open()
    begun = time.monotonic()
    for _ in range(FREE + 4):
        connection.request("GET", channel.at(0), NAMED)
        response = connection.response()
        assert (response.status, response.body) == (404, b"Stream not found")
    assert time.monotonic() - begun >= 0.02 + 0.04 + 0.08
    records = reads(server, channel, FREE + 4)
    assert {(record.status, record.reason) for record in records} == {(404, "not_found")}
    assert [record.guard_ms for record in records[:FREE]] == [None] * FREE
    holds = [record.guard_ms or 0 for record in records[FREE:]]
    assert holds[0] >= 20
    assert holds == sorted(holds)
    assert server.plane.holds >= 4
    assert server.plane.held_us >= sum(holds) * 1000
    none_left(server)


def test_a_new_connection_is_no_new_client(channel: Channel, target: Target, server: LocalServer) -> None:
    """One connection per request: its name tells that it is the same; another name is another."""
    for _ in range(FREE + 1):
        assert target.ask("GET", channel.at(0), NAMED).status == 404
    assert target.ask("GET", channel.at(0), {CLIENT: "somebody else"}).status == 404
    records = reads(server, channel, FREE + 2)
    assert [record.guard_ms is not None for record in records] == [False] * FREE + [True, False]


def test_without_a_name_a_new_connection_may_be_a_new_client(
    channel: Channel, target: Target, server: LocalServer
) -> None:
    """As many as a crowd has members; by address and user agent, since more cannot be told."""
    with stopped_clock(server):
        for _ in range(FREE_FOR_MANY + 1):
            assert target.ask("GET", channel.at(0), {"User-Agent": "naive/1"}).status == 404
        assert target.ask("GET", channel.at(0), {"User-Agent": "another/1"}).status == 404
    records = reads(server, channel, FREE_FOR_MANY + 2)
    assert [record.guard_ms is not None for record in records] == [False] * FREE_FOR_MANY + [True, False]


def test_a_crowd_looks_for_a_channel_and_one_of_it_loops(channel: Channel, server: LocalServer) -> None:
    """Twenty without names ask, and ask again as they are told: none is held. The one that does not wait is."""
    connections = [channel.target.open() for _ in range(20)]
    with stopped_clock(server) as pass_time:
        for _ in range(3):
            for connection in connections:
                connection.request("GET", channel.at(0))
                assert connection.response().status == 404
            pass_time(1.5)
        assert not any(record.guard_ms is not None for record in reads(server, channel, 60))
        asked, holds = 0, server.plane.holds
        while server.plane.holds == holds:
            connections[0].request("GET", channel.at(0))
            assert connections[0].response().status == 404
            asked += 1
            assert asked <= 20 * FREE + 1, "each of twenty is free to owe as much as one alone"


def test_the_guard_forgets_connections_that_close(channel: Channel, server: LocalServer) -> None:
    """Only those that are there are as many clients."""
    guard = server.plane.guard
    assert guard is not None
    before = guard.connections
    asking = channel.target.open()
    asking.request("GET", channel.at(0))
    asking.response()
    assert guard.connections == before + 1
    asking.close()
    eventually(lambda: guard.connections == before)


@pytest.mark.parametrize(("headers", "free"), [({}, FREE_FOR_MANY), (NAMED, FREE)], ids=["unnamed", "named"])
def test_the_same_segment_with_its_bytes_again_and_again(
    headers: dict[str, str], free: int, channel: Channel, server: LocalServer
) -> None:
    """It is served each time, whole, and later each time."""
    channel.publish(0, b"the same", b"another")
    connection = channel.target.open()
    with stopped_clock(server):
        for _ in range(free + 1):
            connection.request("GET", channel.at(0), headers)
            assert connection.response().body == b"the same"
    records = reads(server, channel, free + 1)
    assert [record.guard_ms is not None for record in records] == [False] * free + [True]
    connection.request("GET", channel.at(1), headers)
    assert connection.response().body == b"another"
    assert server.record(channel=channel.name, op="read", seq=1).guard_ms is None


def test_off_means_off() -> None:
    """Nothing is counted, nothing is held."""
    with local_server(storm_guard="off") as server, server.client() as target:
        channel = target.channel()
        connection = target.open()
        for _ in range(5 * FREE):
            connection.request("GET", channel.at(0))
            assert connection.response().status == 404
        assert server.plane.guard is None
        assert all(record.guard_ms is None for record in server.records)
        assert server.plane.holds == 0


# What the guard is told.


def test_what_a_client_is_told_in_vain_is_counted() -> None:
    """Every answer that brings nothing new, with the seq that it is about; a HEAD as a GET."""
    with scripted(channel_drain_s=60, window_segments=2) as (_, target, script):
        live, over = target.channel(), target.channel()
        live.publish(0, b"a", b"b", b"c", b"d")
        assert live.post(4, b"").status == 200
        over.publish(0, b"x")
        over.end()

        def told(method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> object:
            script.told.clear()
            status = target.ask(method, path, headers or {}, body).status
            return status, *script.told

        missing, epoch = target.channel(), int(live.get("next").get("Lp-Trickle-Epoch") or 0)
        for method in ("GET", "HEAD"):
            assert told(method, missing.at(3)) == (404, (3, Answer.MISSING))
            assert told(method, live.at(9)) == (470, (9, Answer.AHEAD))
            assert told(method, live.at(0)) == (470, (0, Answer.GONE))
            assert told(method, over.at(-1)) == (200, (1, Answer.ENDED))
            assert told(method, live.at(4)) == (200, (4, Answer.EMPTY))
            assert told(method, live.at(3)) == (200, (3, Answer.SAME))
            assert told(method, live.at(-2)) == (200, (4, Answer.EMPTY))
        assert told("HEAD", live.at(5)) == (200, (5, Answer.KNOWN))
        assert told("GET", missing.at("next")) == (404, (0, Answer.MISSING))
        assert told("GET", live.at("next")) == (200, (5, Answer.KNOWN))
        assert told("POST", live.path) == (200, (epoch, Answer.KNOWN))
        assert told("POST", live.at(3), b"again") == (409, (3, Answer.CLOSED))
        assert told("POST", live.at(900), b"ahead") == (470, (900, Answer.AHEAD))
        assert told("POST", over.at(5), b"late") == (404, (5, Answer.MISSING))
        assert told("DELETE", missing.path) == (400, (0, Answer.REFUSED))
        assert told("GET", live.at("x")) == (400, (0, Answer.REFUSED))
        assert told("POST", live.at(5), b"new", {IDEMPOTENCY_KEY: "k"}) == (200,)
        assert told("POST", live.at(5), b"new", {IDEMPOTENCY_KEY: "k"}) == (200, (5, Answer.CLOSED))


def test_empty_segments_are_counted_once_they_are_read_again() -> None:
    """On one connection the first empty one is a step like any other segment, and so is each other one."""
    with scripted() as (_, target, script):
        channel = target.channel()
        for seq in range(3):
            assert channel.post(seq, b"").status == 200
        connection = target.open()
        for seq in (0, 1, 1, 2):
            connection.request("GET", channel.at(seq))
            assert connection.response().body == b""
        assert script.told == [(0, Answer.EMPTY), (1, Answer.EMPTY), (1, Answer.EMPTY), (2, Answer.EMPTY)]


def test_readers_that_get_on_cost_the_guard_nothing() -> None:
    """It hears of a connection's first request and of its first step: of no other, live or behind."""
    with scripted() as (_, target, script):
        channel = target.channel()
        channel.publish(0, *[b"%d" % seq for seq in range(50)])
        before = len(script.got_on)
        behind = target.open()
        for seq in range(50):
            behind.request("GET", channel.at(seq))
            assert behind.response().body == b"%d" % seq
        assert (script.told, script.got_on[before:]) == ([(0, Answer.SAME)], [True])
        waiting = channel.read(50)
        eventually(lambda: script.got_on[before:] == [True, False])
        channel.publish(50, b"live")
        assert waiting.response().body == b"live"
        waiting.request("GET", channel.at(51))
        channel.publish(51, b"live")
        assert waiting.response().body == b"live"
        assert len(script.told) == 1


def test_a_client_that_is_served_is_reported_once() -> None:
    """After a fruitless answer the guard hears that the client gets on, once; as a publisher, too."""
    with scripted() as (_, target, script):
        channel = target.channel()
        channel.publish(0, b"x")
        connection = target.open()
        before = len(script.got_on)
        for seq in (9, 1, 9, 9):
            if seq == 1:
                connection.request("POST", channel.at(1), body=b"y")
            else:
                connection.request("GET", channel.at(seq))
            connection.response()
        assert script.got_on[before:] == [False]
        assert script.told == [(9, Answer.AHEAD)] * 3


def test_where_a_connection_goes_back_or_elsewhere_is_told() -> None:
    """The same segment again, one before it, and one of another channel; not the ones that follow."""
    with scripted() as (_, target, script):
        one, other = target.channel(), target.channel()
        for channel in (one, other):
            channel.publish(0, *[b"%d" % seq for seq in range(9)])
        connection = target.open()
        for channel, seq in ((one, 3), (one, 3), (one, 5), (one, 2), (one, 3), (other, 4), (other, 5)):
            connection.request("GET", channel.at(seq))
            assert connection.response().body == b"%d" % seq
        assert [seq for seq, _ in script.told] == [3, 3, 2, 4]


# Healthy clients are not held.


@pytest.mark.parametrize("keep_alive", [True, False])
def test_readers_without_names_behind_one_address_are_not_held(
    keep_alive: bool, channel: Channel, server: LocalServer
) -> None:
    """As many as fit, all of them at the same segment before one goes on, and with a new connection for each or not."""
    channel.publish(0, b"0", b"1", b"2")
    holds = server.plane.holds
    connections = [channel.target.open() for _ in range(FREE_FOR_MANY if keep_alive else 1)]
    for seq in range(3):
        for reader in range(FREE_FOR_MANY):
            connection = connections[reader] if keep_alive else channel.target.open()
            connection.request("GET", channel.at(seq))
            assert connection.response().body == b"%d" % seq
            if not keep_alive:
                connection.close()
    records = reads(server, channel, 3 * FREE_FOR_MANY)
    assert not any(record.guard_ms for record in records)
    assert server.plane.holds == holds


def test_any_number_of_readers_that_are_seen_to_go_on(channel: Channel, server: LocalServer) -> None:
    """Each on its connection: whoever goes on makes room for others."""
    channel.publish(0, b"0", b"1")
    for _ in range(2 * FREE_FOR_MANY):
        connection = channel.target.open()
        for seq in range(2):
            connection.request("GET", channel.at(seq))
            assert connection.response().body == b"%d" % seq
    assert not any(record.guard_ms for record in reads(server, channel, 4 * FREE_FOR_MANY))


# Loops of every kind are held.


@pytest.mark.parametrize(
    ("method", "at", "body", "status", "free"),
    [
        ("GET", "next", None, 200, FREE_FOR_MANY),
        ("HEAD", "1", None, 200, FREE_FOR_MANY),
        ("POST", "", None, 200, FREE),
        ("POST", "0", b"again", 409, FREE),
        ("POST", "900", b"far ahead", 470, FREE),
        ("DELETE", "missing", None, 400, FREE),
    ],
)
def test_loops_of_every_kind_are_held(
    method: str, at: str, body: bytes | None, status: int, free: int, channel: Channel, server: LocalServer
) -> None:
    """Asking for the head, creating what is there, publishing what is rejected, ending what is not there."""
    channel.publish(0, b"x")
    path = f"{channel.path}-missing" if at == "missing" else channel.at(at) if at else channel.path
    holds = []
    with stopped_clock(server):
        for _ in range(free + 1):
            before = server.plane.holds
            assert channel.target.ask(method, path, {"User-Agent": "naive/1"}, body).status == status
            holds.append(server.plane.holds - before)
    assert holds == [0] * free + [1]


# A hold is an exchange.


def test_what_has_changed_meanwhile_counts() -> None:
    """The core is asked again when the hold is over: a channel that has begun is served."""
    with scripted() as (server, target, script):
        channel = target.channel()
        script.hold_s = FOR_EVER_S
        reader = channel.read(0)
        (exchange,) = held(server)
        script.hold_s = 0.0
        channel.publish(0, b"begun after all")
        release(exchange)
        assert reader.response().body == b"begun after all"
        record = server.record(channel=channel.name, op="read")
        assert (record.status, record.reason) == (200, "complete")
        assert record.guard_ms is not None
        assert (record.wait_us or 0) <= (record.dur_us or 0)


def test_a_hold_can_become_a_wait() -> None:
    """If the seq is the next one by then, the reader waits for it like any other."""
    with scripted() as (server, target, script):
        channel = target.channel()
        channel.publish(0, b"x")
        script.hold_s = FOR_EVER_S
        reader = channel.read(2)
        (exchange,) = held(server)
        channel.publish(1, b"y")
        release(exchange)
        eventually(lambda: server.plane.registry.readers == 1)
        channel.publish(2, b"z")
        assert reader.response().body == b"z"


def test_a_client_that_leaves_while_it_is_held() -> None:
    """It is forgotten at once, and its record says how long it was held."""
    with scripted() as (server, target, script):
        channel = target.channel()
        script.hold_s = FOR_EVER_S
        reader = channel.read(0)
        held(server)
        reader.abort()
        none_left(server)
        record = server.record(channel=channel.name)
        assert (record.reason, record.status) == ("client_gone", None)
        assert record.guard_ms is not None


def test_a_shutdown_sends_the_held_away() -> None:
    """They are idle: 503 within the drain; and from then on nobody is held."""
    with scripted(shutdown_drain_s=0.05, shutdown_deadline_s=5) as (server, target, script):
        channel = target.channel()
        script.hold_s = FOR_EVER_S
        connections = [channel.read(0), channel.upload(5, headers={RESET: ""})]
        held(server)
        reader: Connection = connections[0]  # type: ignore[assignment]
        server.stop()
        response = reader.response()
        assert response.status == 503
        assert response.get("Retry-After")
        record = server.record(channel=channel.name, op="read")
        assert (record.reason, record.guard_ms is not None) == ("shutdown", True)


def test_what_is_pipelined_behind_a_hold_waits_for_it() -> None:
    """Answers keep their order."""
    with scripted() as (server, target, script):
        channel, missing = target.channel(), target.channel()
        channel.publish(0, b"x")
        script.hold_s = FOR_EVER_S
        connection = target.open()
        connection.send(connection.render("GET", missing.at(0)) + connection.render("GET", channel.at("next")))
        for _ in range(2):
            connection.expects("GET")
        (exchange,) = held(server)
        connection.silent()
        script.hold_s = 0.0
        release(exchange)
        assert connection.response().status == 404
        assert connection.response().body == b"1"


def test_a_held_head_has_no_body() -> None:
    """HEAD stays HEAD."""
    with scripted() as (server, target, script):
        script.hold_s = FOR_EVER_S
        connection = target.send("HEAD", target.channel().at(0))
        (exchange,) = held(server)
        release(exchange)
        response = connection.response()
        assert (response.status, response.body) == (404, b"")


def test_a_long_head_is_not_kept_while_it_is_held() -> None:
    """Of a reader's request nothing is kept but who may read the answer; of a publisher's, what is asked for again."""
    with scripted() as (server, target, script):
        channel = target.channel()
        script.hold_s = FOR_EVER_S
        long = {"X-Long": "x" * 40_000, "User-Agent": "u" * 10_000, "Origin": "https://page.example"}
        reader = target.send("GET", f"{channel.at(0)}?{'q' * 7000}", long)
        (exchange,) = held(server)
        assert (exchange.request.target, exchange.request.headers) == (b"", {b"origin": b"https://page.example"})
        release(exchange)
        assert reader.response().get("Access-Control-Allow-Origin") == "*"
        publisher = target.send("POST", channel.at(0), {**long, "Content-Type": "t" * 5000}, b"x")
        (exchange,) = held(server)
        assert sum(map(len, exchange.request.headers.values())) < 1000
        release(exchange)
        assert publisher.response().body == b"Invalid Content-Type"


BODY = b"".join(b"%08d" % number for number in range(1 << 17))


@pytest.mark.parametrize("begun", [False, True])
def test_a_held_publisher_is_not_read_from(begun: bool) -> None:
    """Its body waits in the network; when the hold is over it is refused, or taken whole if it may be by then."""
    with scripted(autocreate=False) as (server, target, script):
        channel = target.channel()
        script.hold_s = FOR_EVER_S
        connection = target.open()
        connection.expects("POST")
        connection.send(connection.render("POST", channel.at(0), {"Content-Length": str(len(BODY))}) + BODY[:5000])
        (exchange,) = held(server)
        assert exchange.connection.flow.read_paused
        if begun:
            assert (
                target.ask("POST", "/api/v1/channels", {"Content-Type": "application/json"}, _named(channel)).status
                < 300
            )
        release(exchange)
        eventually(lambda: not exchange.connection.flow.read_paused)
        if begun:
            connection.send(BODY[5000:])
            assert connection.response().get("Lp-Trickle-Size") == str(len(BODY))
            script.hold_s = 0.0
            assert channel.get(0).body == BODY
        else:
            assert connection.response().status == 404
        record = server.record(channel=channel.name, op="publish")
        assert record.guard_ms is not None
        none_left(server)


def _named(channel: Channel) -> bytes:
    return b'{"name": "%b"}' % channel.name.encode()


def test_a_publisher_whose_whole_body_came_with_its_head() -> None:
    """It is stored when the hold is over, if it may be by then."""
    with scripted() as (server, target, script):
        channel = target.channel()
        channel.publish(0, b"x")
        script.hold_s = FOR_EVER_S
        connection = target.send("POST", channel.at(500), body=b"whole")
        (exchange,) = held(server)
        assert channel.post(500, b"", {RESET: "1"}).status == 200
        release(exchange)
        assert connection.response().status == 409


def test_a_publisher_that_overtakes_is_held_when_its_grace_is_over() -> None:
    """First it waits for those before it, as any other; a loop of that is held, too."""
    with scripted(overtaking_grace_s=0.01) as (server, target, script):
        channel = target.channel()
        channel.publish(0, b"x")
        script.hold_s = FOR_EVER_S
        connection = target.send("POST", channel.at(5), body=b"early")
        (exchange,) = held(server)
        assert script.told == [(5, Answer.AHEAD)]
        release(exchange)
        assert connection.response().status == 470
        again = target.send("POST", channel.at(3), body=b"early, and then right")
        (exchange,) = held(server)
        script.hold_s = 0.0
        channel.publish(1, b"y", b"z")
        release(exchange)
        assert again.response().status == 200
        assert channel.get(3).body == b"early, and then right"


@pytest.mark.parametrize(("limit", "count"), [(2, 1), (2, 2), (2, 3)])
def test_only_so_many_are_held(limit: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One below and at the limit all are; one above is answered at once, and counted."""
    monkeypatch.setattr(guarded, "MAX_GUARDED", limit)
    with scripted() as (server, target, script):
        channel = target.channel()
        script.hold_s = FOR_EVER_S
        for _ in range(min(limit, count)):
            channel.read(0)
        held(server, min(limit, count))
        if count > limit:
            assert channel.get(0).status == 404
        assert server.plane.unheld == max(0, count - limit)
        assert server.plane.holds == min(limit, count)


def test_metrics_show_holds(channel: Channel, target: Target) -> None:
    """How many are held, how many were, for how long, and how many could not be."""
    with scripted() as (server, local, script):
        script.hold_s = FOR_EVER_S
        local.channel().read(0)
        (exchange,) = held(server)
        text = local.ask("GET", "/metrics").body.decode()
        assert "tricklecast_guarded 1.0" in text
        assert "tricklecast_guard_holds_total 1.0" in text
        assert "tricklecast_guard_unheld_total 0.0" in text
        release(exchange)
        none_left(server)
        assert "tricklecast_guarded 0.0" in local.ask("GET", "/metrics").body.decode()
        assert server.plane.held_us > 0


def test_the_sweeper_empties_the_table() -> None:
    """What has been paid back is forgotten, without anybody asking."""
    with local_server() as server, server.client() as target:
        assert target.channel().get(0).status == 404
        guard = server.plane.guard
        assert guard is not None
        assert len(guard) == 1
        clock: Callable[[], float] = lambda: time.monotonic() + FORGOTTEN_S  # noqa: E731
        server.plane.clock = clock
        eventually(lambda: len(guard) == 0)
