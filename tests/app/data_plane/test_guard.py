"""The data plane and the storm guard: the answers that the guard is told of, and how an answer is delayed.

The guard's own rule is tested in tests/app/core/test_storm_guard.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.compiled import needs_interpreter
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.core.storm_guard import FORGOTTEN_S, FREE, FREE_FOR_MANY, ReplyKind, StormGuard
from tricklecast.app.data_plane import exchange as exchange_module
from tricklecast.app.data_plane import stages
from tricklecast.app.data_plane.context import ParkedFor
from tricklecast.app.data_plane.exchange import Parked
from tricklecast.app.data_plane.scheduling import PARKED
from tricklecast.app.http1 import connection as connection_module
from tricklecast.app.tools.conformance.connection import RawConnection
from tricklecast.app.tools.conformance.target import RemoteChannel, Target
from tricklecast.trickle.records import AccessRecord
from tricklecast.trickle.wire import CLIENT, IDEMPOTENCY_KEY, RESET

FOR_EVER_S = 3600.0
NAMED = {CLIENT: "naive"}


class Unforgiving(StormGuard):
    """A guard for which no time passes: it would forgive one reply a second, and a machine may be slow."""

    def hold(self, client: int, channel: str, answer: ReplyKind, seq: int, now: float, *, many: bool) -> float:
        return super().hold(client, channel, answer, seq, 0.0, many=many)

    def expire(self, now: float) -> None:
        """Forget nothing: to the sweeper, which comes four times a second, the bucket of a loop would be an old one."""


class Script(StormGuard):
    """A guard that writes down what it is told, and holds for as long as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.hold_s = 0.0
        self.told: list[tuple[int, ReplyKind]] = []
        self.many: list[bool] = []
        self.about: list[str] = []
        self.progressed = 0

    def hold(self, client: int, channel: str, answer: ReplyKind, seq: int, now: float, *, many: bool) -> float:
        self.told.append((seq, answer))
        self.many.append(many)
        self.about.append(channel)
        return self.hold_s

    def progress(self, client: int, channel: str) -> None:
        self.progressed += 1


@contextmanager
def scripted(**settings: object) -> Iterator[tuple[LocalServer, Target, Script]]:
    """A server whose guard does what the test says."""
    needs_interpreter()
    with local_server(**settings) as server, server.client() as target:
        script = Script()
        server.plane.guard = script
        try:
            yield server, target, script
        finally:
            script.hold_s = 0.0


def held(server: LocalServer, count: int = 1) -> list[Parked]:
    """Wait until so many exchanges are held."""
    parked = server.plane.parked[ParkedFor.GUARD]
    eventually(lambda: len(parked) == count, what=f"{count} are held")
    return [exchange for exchange in list(parked) if isinstance(exchange, Parked)]


def reads(server: LocalServer, channel: RemoteChannel, count: int) -> list[AccessRecord]:
    """Wait until so many reads of a channel have ended."""

    def found() -> list[AccessRecord]:
        return [record for record in list(server.records) if (record.channel, record.op) == (channel.name, "read")]

    eventually(lambda: len(found()) == count, what=f"{count} reads have ended")
    return found()


def release(server: LocalServer, exchange: Parked) -> None:
    """End a hold now, whatever its time."""
    server.inside(exchange.go_on)


def none_left(server: LocalServer) -> None:
    """Nothing of a hold is left over."""
    eventually(lambda: not server.plane.parked[ParkedFor.GUARD], what="nothing is held any more")


# The real rule, over the wire.


@pytest.mark.interpreted
def test_a_loop_is_answered_later_and_later_and_never_refused(
    channel: RemoteChannel, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answers come at once, the others with holds; status and body stay what they are."""
    monkeypatch.setattr(server.plane, "guard", Unforgiving())
    # That of uvloop's timers, which stands still during a turn: by another one a hold may be too short.
    monkeypatch.setattr(server.plane, "clock", server.loop.time)
    connection = channel.target.open()
    for _ in range(FREE + 4):
        connection.request("GET", channel.at(0), NAMED)
        response = connection.response()
        assert (response.status, response.body) == (404, b"Stream not found")
        server.inside(lambda: server.plane.tick(server.plane.clock()))  # the sweeper may come at any time
    records = reads(server, channel, FREE + 4)
    assert {(record.status, record.reason) for record in records} == {(404, "not_found")}
    assert [record.guard_ms for record in records[:FREE]] == [None] * FREE
    times = [record.guard_ms or 0 for record in records[FREE:]]
    assert all(time >= 19 for time in times)  # how they grow is the guard's rule; a slow machine stretches each of them
    assert server.plane.holds >= 4
    assert server.plane.held_us >= sum(times) * 1000
    none_left(server)


@pytest.mark.parametrize(
    ("headers", "other", "free"),
    [(NAMED, {CLIENT: "another"}, FREE), ({"User-Agent": "naive/1"}, {"User-Agent": "another/1"}, FREE_FOR_MANY)],
    ids=["named", "unnamed"],
)
def test_a_client_is_known_by_its_name_and_not_by_its_connection(
    headers: dict[str, str],
    other: dict[str, str],
    free: int,
    channel: RemoteChannel,
    target: Target,
    server: LocalServer,
) -> None:
    """A client with a name has few free answers; address and user agent alone may be many readers, and have more."""
    clock = server.plane.clock
    stopped = clock()
    server.plane.clock = lambda: stopped
    try:
        for _ in range(free + 1):
            assert target.ask("GET", channel.at(0), headers).status == 404
        assert target.ask("GET", channel.at(0), other).status == 404
    finally:
        server.plane.clock = clock
    records = reads(server, channel, free + 2)
    assert [record.guard_ms is not None for record in records] == [False] * free + [True, False]


def test_off_means_off() -> None:
    """Without a guard nothing is counted, and nothing is held."""
    with local_server(storm_guard="off") as server, server.client() as target:
        channel = target.channel()
        connection = target.open()
        for _ in range(5 * FREE):
            connection.request("GET", channel.at(0), NAMED)
            assert connection.response().status == 404
        assert server.plane.guard is None
        assert all(record.guard_ms is None for record in server.records)


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
            assert told(method, missing.at(3)) == (404, (3, ReplyKind.MISSING))
            assert told(method, live.at(9)) == (470, (9, ReplyKind.AHEAD))
            assert told(method, live.at(0)) == (470, (0, ReplyKind.GONE))
            assert told(method, over.at(-1)) == (200, (1, ReplyKind.ENDED))
            assert told(method, live.at(4)) == (200, (4, ReplyKind.EMPTY))
            assert told(method, live.at(3)) == (200, (3, ReplyKind.SAME))
            assert told(method, live.at(-2)) == (200, (4, ReplyKind.EMPTY))
        assert told("HEAD", live.at(5)) == (200, (5, ReplyKind.KNOWN))
        assert told("GET", missing.at("next")) == (404, (0, ReplyKind.MISSING))
        assert told("GET", live.at("next")) == (200, (5, ReplyKind.KNOWN))
        assert told("POST", live.path) == (200, (epoch, ReplyKind.KNOWN))
        assert told("POST", live.at(3), b"again") == (409, (3, ReplyKind.CLOSED))
        assert told("POST", live.at(900), b"ahead") == (470, (900, ReplyKind.AHEAD))
        assert told("POST", over.at(5), b"late") == (404, (5, ReplyKind.MISSING))
        assert told("DELETE", missing.path) == (400, (0, ReplyKind.MISSING))
        assert told("GET", live.at("x")) == (400, (0, ReplyKind.REFUSED))
        assert told("POST", live.at(5), b"new", {IDEMPOTENCY_KEY: "k"}) == (200,)
        assert told("POST", live.at(5), b"new", {IDEMPOTENCY_KEY: "k"}) == (200, (5, ReplyKind.CLOSED))


def test_a_connection_that_steps_over_empty_segments_gets_on() -> None:
    """The guard hears of the first empty segment, and of one that is read again."""
    with scripted() as (_, target, script):
        channel = target.channel()
        for seq in range(3):
            assert channel.post(seq, b"").status == 200
        connection = target.open()
        for seq in (0, 1, 1, 2):
            connection.request("GET", channel.at(seq))
            assert connection.response().body == b""
        assert script.told == [(0, ReplyKind.EMPTY), (1, ReplyKind.EMPTY)]


def test_readers_that_get_on_cost_the_guard_nothing() -> None:
    """The guard hears of a connection's first request and of its first step, and of no other, live or behind."""
    with scripted() as (server, target, script):
        channel = target.channel()
        channel.publish(0, *[b"%d" % seq for seq in range(50)])
        before = script.progressed
        behind = target.open()
        for seq in range(50):
            behind.request("GET", channel.at(seq))
            assert behind.response().body == b"%d" % seq
        assert (script.told, script.progressed - before) == ([(0, ReplyKind.SAME)], 1)
        waiting = channel.waiting(50)
        assert script.progressed - before == 2
        channel.publish(50, b"live")
        assert waiting.response().body == b"live"
        before = script.progressed
        waiting.request("GET", channel.at(51))
        eventually(lambda: server.plane.registry.readers == 1)
        assert script.progressed == before
        assert [answer for _, answer in script.told].count(ReplyKind.SAME) == 1


def test_a_client_that_is_served_is_reported_once() -> None:
    """After a fruitless answer the guard hears once that the client gets on; as a publisher, too."""
    with scripted() as (_, target, script):
        channel = target.channel()
        channel.publish(0, b"x")
        connection = target.open()
        before = script.progressed
        for seq in (9, 1, 9, 9):
            if seq == 1:
                connection.request("POST", channel.at(1), body=b"y")
            else:
                connection.request("GET", channel.at(seq))
            connection.response()
        assert script.progressed - before == 1
        assert script.told == [(9, ReplyKind.AHEAD)] * 3


@pytest.mark.parametrize(
    ("method", "path", "headers", "many"),
    [
        ("GET", "0", {}, True),
        ("GET", "next", {}, True),
        ("GET", "0", NAMED, False),
        ("POST", "0", {}, False),
        ("DELETE", "", {}, False),
        ("GET", "", {}, True),
        ("POST", "one/two", {}, True),
    ],
)
def test_which_clients_may_be_many(method: str, path: str, headers: dict[str, str], many: bool) -> None:
    """Readers without a name may be many behind one address; a channel has one publisher and one owner."""
    with scripted(autocreate=False) as (_, target, script):
        channel = target.channel()
        target.ask(method, channel.at(path) if path else channel.path, headers, b"x" if method == "POST" else None)
        assert script.many == [many]


def test_wrong_paths_are_told_apart() -> None:
    """By their first segment, that below the base path if they begin with it; a long one is cut; a HEAD is not told."""
    with scripted() as (_, target, script):
        paths = ("/live/0", "/live/1", "/other", "/trickle/a%01/0", "/trickle/b%01", "/" + "x" * 500)
        for path in paths:
            assert target.ask("GET", path).status in (400, 404)
        assert script.about == ["/live", "/live", "/other", "/a%01", "/b%01", "/" + "x" * 64]
        for path in paths:
            assert target.ask("HEAD", path).status in (400, 404)
        assert len(script.about) == len(paths)


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
        release(server, exchange)
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
        release(server, exchange)
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
        reader: RawConnection = connections[0]  # type: ignore[assignment]
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
        release(server, exchange)
        assert connection.response().status == 404
        assert connection.response().body == b"1"


def test_a_held_head_has_no_body() -> None:
    """HEAD stays HEAD."""
    with scripted() as (server, target, script):
        script.hold_s = FOR_EVER_S
        connection = target.send("HEAD", target.channel().at(0))
        (exchange,) = held(server)
        release(server, exchange)
        response = connection.response()
        assert (response.status, response.body) == (404, b"")


def test_a_long_head_is_not_kept_while_it_is_held() -> None:
    """The server keeps what it asks for again, and still refuses a value that is too long."""
    with scripted() as (server, target, script):
        channel = target.channel()
        script.hold_s = FOR_EVER_S
        long = {"X-Long": "x" * 40_000, "User-Agent": "u" * 10_000, "Content-Type": "t" * 5000}
        publisher = target.send("POST", channel.at(0), long, b"x")
        (exchange,) = held(server)
        assert sum(map(len, exchange.request.headers.values())) < 1000
        release(server, exchange)
        assert publisher.response().body == b"Invalid Content-Type"


BODY = b"".join(b"%08d" % number for number in range(1 << 17))


def _is_paused(parked: Parked) -> bool:
    """Whether the server does not read from its connection."""
    assert isinstance(parked.connection, connection_module.Connection)
    return bool(parked.connection.pauses & PARKED)


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
        assert _is_paused(exchange)
        if begun:
            assert (
                target.ask("POST", "/api/v1/channels", {"Content-Type": "application/json"}, _named(channel)).status
                < 300
            )
        release(server, exchange)
        eventually(lambda: not _is_paused(exchange))
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


def _named(channel: RemoteChannel) -> bytes:
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
        release(server, exchange)
        assert connection.response().status == 409


def test_a_publisher_that_overtakes_is_held_when_its_grace_is_over() -> None:
    """First it waits for those before it, as any other; a loop of that is held, too."""
    with scripted(overtaking_grace_s=0.01) as (server, target, script):
        channel = target.channel()
        channel.publish(0, b"x")
        script.hold_s = FOR_EVER_S
        connection = target.send("POST", channel.at(5), body=b"early")
        (exchange,) = held(server)
        assert script.told == [(5, ReplyKind.AHEAD)]
        release(server, exchange)
        assert connection.response().status == 470
        again = target.send("POST", channel.at(3), body=b"early, and then right")
        (exchange,) = held(server)
        script.hold_s = 0.0
        channel.publish(1, b"y", b"z")
        release(server, exchange)
        assert again.response().status == 200
        assert channel.get(3).body == b"early, and then right"


@pytest.mark.parametrize(("limit", "count"), [(2, 1), (2, 2), (2, 3)])
def test_only_so_many_are_held(limit: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One below and at the limit all are; one above is answered at once, and counted."""
    monkeypatch.setattr(stages, "MAX_GUARDED", limit)
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


def test_the_bodies_of_held_posts_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to it they are held; the POST that exceeds it is answered at once, and counted."""
    monkeypatch.setattr(exchange_module, "PARKED_BYTES", 1000)
    with scripted() as (server, target, script):
        channel = target.channel()
        channel.publish(0)
        script.hold_s = FOR_EVER_S
        fits = target.send("POST", channel.at(0), body=bytes(600))
        (exchange,) = held(server)
        assert server.plane.parked_bytes == 600
        assert target.send("POST", channel.at(0), body=bytes(401)).response().status == 409
        assert (server.plane.unheld, server.plane.parked_bytes) == (1, 600)
        release(server, exchange)
        assert fits.response().status == 409
        assert server.plane.parked_bytes == 0


def test_metrics_show_holds() -> None:
    """The metrics say how many requests are held, how many were, and how many could not be."""
    with scripted() as (server, target, script):
        script.hold_s = FOR_EVER_S
        target.channel().read(0)
        (exchange,) = held(server)
        text = target.ask("GET", "/metrics").body.decode()
        assert "tricklecast_guarded 1.0" in text
        assert "tricklecast_guard_holds_total 1.0" in text
        assert "tricklecast_guard_unheld_total 0.0" in text
        release(server, exchange)
        none_left(server)
        assert server.plane.held_us > 0


def test_the_sweeper_empties_the_table() -> None:
    """A client without debt is forgotten, without a request."""
    with local_server() as server, server.client() as target:
        assert target.channel().get(0).status == 404
        guard = server.plane.guard
        assert guard is not None
        assert len(guard) == 1
        clock: Callable[[], float] = lambda: time.monotonic() + FORGOTTEN_S  # noqa: E731
        server.plane.clock = clock
        eventually(lambda: len(guard) == 0)
