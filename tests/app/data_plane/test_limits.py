"""Limits over sockets: who is refused, what they are told, and that nothing is left behind."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.limits import check_refused, limited
from tests.support.local import local_server
from tests.support.waiting import eventually
from tricklecast.app.core.storm_guard import DOUBLED, FREE
from tricklecast.app.data_plane.context import ParkedFor
from tricklecast.app.http1.connection import MAX_SURPLUS
from tricklecast.app.tools.conformance.connection import RawConnection
from tricklecast.trickle.wire import CLIENT

FORWARDED = "X-Forwarded-For"


def test_joins_leave_the_reserve_to_those_who_resume() -> None:
    """At 80 % of the readers a GET of -1 and of -2 is refused, one of a seq is served; at 100 % neither is."""
    with limited(max_readers=5) as (server, target):
        channel = target.channel()
        channel.create()
        for _ in range(4):
            channel.read(0)
        eventually(lambda: server.plane.registry.readers == 4)
        for seq in (-1, -2):
            check_refused(server, channel.get(seq), 503, "readers")
        resumed = channel.read(0)
        eventually(lambda: server.plane.registry.readers == 5)
        check_refused(server, channel.get(0), 503, "readers")
        channel.publish(0, b"now")
        assert resumed.response().body == b"now"


def test_a_full_channel_is_the_clients_own_business() -> None:
    """429: another channel has room."""
    with limited(max_readers_per_channel=1) as (server, target):
        full, other = target.channel(), target.channel()
        full.create()
        full.read(0)
        eventually(lambda: server.plane.registry.readers == 1)
        check_refused(server, full.get(0), 429, "readers_per_channel")
        other.publish(0, b"x")
        assert other.get(0).body == b"x"


def test_publishers_are_limited() -> None:
    """503, the body unread, nothing created; when one has ended, the next may come."""
    with limited(max_publishers=1) as (server, target):
        first, second = target.channel(), target.channel()
        upload = first.preconnect(0)
        check_refused(server, second.post(0), 503, "publishers")
        assert second.name not in server.plane.registry.channels
        upload.chunk(b"x").end()
        assert upload.answer().status == 200
        assert second.post(0).status == 200


def test_who_takes_its_segment_over_is_not_one_more() -> None:
    """A publisher whose connection hangs comes back to a full server."""
    with limited(max_publishers=1) as (_, target):
        channel = target.channel()
        first = channel.preconnect(0)
        assert channel.post(0, b"again").status == 200
        assert first.answer().status == 409


def test_connections_are_limited() -> None:
    """One beyond is told so by its first answer, which closes it; the others go on, and one that goes makes room."""
    with limited(max_connections=2) as (server, target):
        first = target.open()
        first.request("POST", f"{target.base}/c", {})
        assert first.response().status == 200
        second = target.open()
        eventually(lambda: server.plane.registry.capacities.connections.used == 2)
        for _ in range(2):
            surplus = target.send("GET", f"{target.base}/c/next")
            refused = surplus.response()
            check_refused(server, refused, 503, "connections")
            assert refused.closes
            surplus.closed()
        first.request("GET", f"{target.base}/c/next")
        assert first.response().status == 200
        second.close()
        eventually(lambda: server.plane.registry.capacities.connections.used == 1)
        assert target.ask("GET", f"{target.base}/c/next").status == 200
        first.close()
        eventually(lambda: server.plane.registry.capacities.connections.used == 0)


def test_the_control_plane_answers_when_all_connections_are_taken() -> None:
    """Health, metrics and the API are there for those who come to look; each such connection closes with its answer."""
    with limited(max_connections=1) as (server, target):
        target.open()
        eventually(lambda: server.plane.registry.capacities.connections.used == 1)
        for path in ("/healthz", "/readyz", "/metrics", "/api/v1/channels"):
            surplus = target.send("GET", path)
            answer = surplus.response()
            assert answer.status == 200
            surplus.closed()
        metrics = target.ask("GET", "/metrics").body.decode()
        assert 'tricklecast_limit_used{limit="connections"} 1.0' in metrics
        assert 'tricklecast_limit_joins_refused{limit="connections"} 1.0' in metrics


def test_silent_connections_do_not_keep_an_operator_out() -> None:
    """Beyond the limit only so many are kept that have not asked: the oldest are answered unasked, and closed."""
    with limited(max_connections=1) as (server, target):
        taken = target.open()
        eventually(lambda: server.plane.registry.capacities.connections.used == 1)
        silent: list[RawConnection] = []
        for number in range(MAX_SURPLUS + 3):
            silent.append(target.open())
            expected = min(number + 1, MAX_SURPLUS)
            eventually(partial(lambda wanted: len(server.plane.surplus) == wanted, expected))
        for connection in silent[:3]:
            connection.expects("GET")
            check_refused(server, connection.response(), 503, "connections")
            connection.closed()
        assert target.ask("GET", "/healthz").status == 200
        assert len(server.plane.connections) <= 1 + MAX_SURPLUS
        for connection in [*silent, taken]:
            connection.close()
        eventually(lambda: not server.plane.surplus and not server.plane.connections)
        assert server.plane.exchanges["none", 503, "limit:connections"] >= 3


def test_joins_wait_while_connections_are_short() -> None:
    """From 80 % on a channel cannot be begun, nor a reader join; who reads on, reads on."""
    with limited(max_connections=5) as (server, target):
        channel = target.channel()
        channel.publish(0, b"x")
        eventually(lambda: not server.plane.connections)
        opened = [target.open() for _ in range(3)]
        eventually(lambda: server.plane.registry.capacities.connections.used == 3)
        check_refused(server, channel.get(-1), 503, "connections")
        check_refused(server, target.channel().post(0), 503, "connections")
        assert channel.get(0).body == b"x"
        for connection in opened:
            connection.close()
        eventually(lambda: not server.plane.connections)
        assert channel.get(-2).body == b"x"


def test_connections_of_a_client_are_limited() -> None:
    """429; the control plane answers all the same."""
    with limited(per_ip_connections=2) as (server, target):
        target.open(), target.open()
        eventually(lambda: server.plane.registry.capacities.connections.used == 2)
        check_refused(server, target.ask("GET", f"{target.base}/c/next"), 429, "per_ip_connections")
        assert target.ask("GET", "/healthz").status == 200


def test_exchanges_of_a_client_are_limited() -> None:
    """429 for one more at a time, whatever it asks; when one has ended, however that was, the next may come."""
    with limited(per_ip_limit=2) as (server, target):
        channel = target.channel()
        channel.create()
        waiting = [channel.read(0) for _ in range(2)]
        eventually(lambda: server.plane.registry.readers == 2)
        for refused in (channel.get(0), channel.post(0), target.ask("GET", channel.at("next"))):
            check_refused(server, refused, 429, "per_ip_limit")
        waiting[0].abort()
        eventually(lambda: server.plane.registry.readers == 1)
        assert channel.post(0, b"x").status == 200
        assert waiting[1].response().body == b"x"
        clients = server.plane.admission.clients
        assert clients is not None
        eventually(lambda: clients.hold("127.0.0.1").exchanges == 0)


def test_a_client_may_not_ask_too_often() -> None:
    """A burst is let in; who comes before the next token is there is told when it will be."""
    with limited(per_ip_requests_per_s=0.01, per_ip_burst=3) as (server, target):
        path = f"{target.base}/c/next"
        assert [target.ask("GET", path).status for _ in range(3)] == [404] * 3
        refused = target.ask("GET", path)
        check_refused(server, refused, 429, "per_ip_requests_per_s")
        assert int(refused.get("Retry-After") or 0) >= 100
        assert target.ask("GET", "/healthz").status == 200


def test_a_refused_publisher_is_heard_when_there_is_room() -> None:
    """A refusal changes nothing: the same request succeeds a moment later, with its body."""
    with limited(per_ip_limit=1) as (server, target):
        channel = target.channel()
        channel.create()
        reader = channel.read(0)
        eventually(lambda: server.plane.registry.readers == 1)
        refused = channel.post(0, b"x" * 100_000)
        assert (refused.status, refused.closes) == (429, True)
        reader.abort()
        eventually(lambda: server.plane.registry.readers == 0)
        assert channel.post(0, b"x" * 100_000).status == 200


def test_a_refused_client_that_does_not_wait_is_delayed_and_then_let_in() -> None:
    """The storm guard delays the request, not the refusal: the request goes on if there is room by then."""
    with local_server(per_ip_limit=1) as server, server.client() as target:
        channel = target.channel()
        channel.create()
        reader = channel.waiting(0)
        connection = target.open()
        parked = server.plane.parked[ParkedFor.GUARD]
        for _ in range(FREE + DOUBLED):
            connection.request("GET", channel.at("next"), {CLIENT: "naive"})
            assert connection.response().status == 429
        connection.request("GET", channel.at("next"), {CLIENT: "naive"})
        eventually(lambda: parked, what="the request is held")
        reader.abort()
        assert connection.response().body == b"0"


@pytest.mark.parametrize(("peer", "client"), [("127.0.0.1", "192.0.2.7"), ("192.0.2.1", "127.0.0.1")])
def test_only_a_trusted_proxy_is_believed(peer: str, client: str) -> None:
    """The address in the log, and the client's key, are what a trusted proxy says; else the peer's own."""
    with limited(trusted_proxies=f"{peer}, 10.0.0.0/8") as (server, target):
        headers = [(FORWARDED, "203.0.113.9"), (FORWARDED, "192.0.2.7, 10.0.0.9")]
        target.ask("GET", f"{target.base}/c/next", headers)
        target.ask("GET", "/healthz", headers)
        data, api = server.record(op="next"), server.record(op="api")
        assert (data.ip, api.ip) == (client, client)
        assert data.client == api.client


def test_clients_behind_a_proxy_have_limits_of_their_own() -> None:
    """The proxy's connections are not limited; each of its clients is, by its /64 where it has one."""
    with limited(trusted_proxies="127.0.0.1", per_ip_limit=1, per_ip_connections=1) as (server, target):
        channel = target.channel()
        channel.create()

        def read(address: str) -> RawConnection:
            return channel.read(0, {FORWARDED: address})

        for readers, address in enumerate(("192.0.2.7", "192.0.2.8", "2001:db8::1"), 1):
            read(address)
            eventually(partial(lambda wanted: server.plane.registry.readers == wanted, readers))
        for address in ("192.0.2.7", "203.0.113.9, 192.0.2.8", "2001:db8::2"):
            check_refused(server, read(address).response(), 429, "per_ip_limit")
        fourth = read("2001:db8:0:1::1")
        eventually(lambda: server.plane.registry.readers == 4)
        assert channel.post(0, b"x", {FORWARDED: "198.51.100.1"}).status == 200
        assert fourth.response().body == b"x"
        clients = server.plane.admission.clients
        assert clients is not None
        eventually(lambda: clients.others.holders == 0 and not clients._here)
