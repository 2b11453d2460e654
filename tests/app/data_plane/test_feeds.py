"""The feed of a channel, for every client that may subscribe to it."""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.app.access.service import service
from tests.app.access.signing import SECRET, bearer, token
from tests.app.cluster.table import Table, members
from tests.app.core.support import content
from tests.support.certificates import make_certificate
from tests.support.feeds import UPGRADE, Follower
from tests.support.local import LocalServer, local_server
from tests.support.server import serve
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.data_plane.authorization import Granted, Pending
from tricklecast.app.data_plane.request import Request
from tricklecast.app.http1.switched import Switched
from tricklecast.app.replication.records import FeedEnd, Hello, record
from tricklecast.app.tools.conformance.target import RemoteChannel


def follow(server: LocalServer, name: str, headers: dict[str, str] | None = None, **more: Any) -> Follower:
    """A client that asks for a feed."""
    return Follower(server.port, f"/trickle/{name}", headers, **more)


def status(server: LocalServer, name: str, headers: dict[str, str] | None = None) -> int:
    """The answer to a client that leaves then."""
    with follow(server, name, headers) as follower:
        return follower.answered()


def quiet(server: LocalServer) -> None:
    """Nobody follows any more, and all places are free."""
    eventually(lambda: not server.plane.feeds.tasks, what="the feed is over")
    eventually(lambda: not server.plane.registry.readers, what="nobody reads")
    assert server.plane.faults == 0


def test_a_client_follows_a_channel(channel: RemoteChannel, server: LocalServer) -> None:
    """It gets all that is there, then all that happens; it counts as a reader, and has one line in the log."""
    channel.create("video/mp2t").publish(0, b"zero")
    with follow(server, channel.name, {"Trickle-Client": "mirror"}).follow() as follower:
        held = follower.until_live()
        assert (held.content_type, content(held.segments[0])) == ("video/mp2t", b"zero")
        assert server.plane.registry.readers == 1
        upload = channel.upload(1, b"one")
        follower.until(lambda: 1 in held.segments and held.segments[1].size == 3)
        upload.chunk(b", and more").stored()
        follower.until(lambda: held.segments[1].closed)
        channel.end()
        follower.until(lambda: False)
        assert follower.over is FeedEnd.ENDED
        assert follower.told == [(0, 4, crc32(b"zero")), (1, 13, crc32(b"one, and more"))]
    record = server.record(channel=channel.name, op="feed")
    assert (record.status, record.reason, record.epoch, record.client) == (101, "terminated", 1, "mirror")
    assert record.bytes_out is not None
    assert record.bytes_out > 17
    quiet(server)


def test_a_client_that_leaves(channel: RemoteChannel, server: LocalServer) -> None:
    """Its place is free, and the log says who has left."""
    channel.publish(0, b"zero")
    with follow(server, channel.name).follow() as follower:
        follower.until_live()
    assert server.record(channel=channel.name, op="feed").reason == "client_gone"
    quiet(server)


def test_what_is_refused(channel: RemoteChannel, server: LocalServer) -> None:
    """No such channel, one that has ended, a name that is none, a body, and a request behind another one."""
    channel.publish(0, b"zero").end()
    for name, answer, ended in (("missing", 404, False), (channel.name, 404, True), ("..", 400, False)):
        with follow(server, name) as follower:
            assert follower.answered() == answer
            assert ("lp-trickle-closed" in follower.headers) is ended
    assert status(server, "film", {"Content-Length": "3"}) == 400
    waiting = channel.target.channel("live").create().waiting(0)
    waiting.request("GET", "/trickle/live", UPGRADE)
    channel.target.channel("live").publish(0, b"x")
    assert [waiting.response().status, waiting.response().status] == [200, 400]
    quiet(server)


def test_the_offer_is_ignored_where_there_is_no_feed(channel: RemoteChannel) -> None:
    """Other methods and paths, and the control plane, are served as they are without it."""
    channel.publish(0, b"zero")
    ask = channel.target.ask
    assert ask("GET", channel.at(0), UPGRADE).body == b"zero"
    assert ask("HEAD", channel.path, UPGRADE).status == 405
    assert ask("GET", channel.path).status == 405
    assert ask("GET", "/healthz", UPGRADE).status == 200


def test_bytes_before_the_answer_are_no_feed(channel: RemoteChannel, server: LocalServer) -> None:
    """A client waits until its connection is switched; then it says HELLO, and nothing else."""
    channel.create()
    hello = record(Hello(channel.name, "", 0, ()))
    head = channel.target.open()
    head.try_send(head.render("GET", channel.path, UPGRADE) + hello)
    with follow(server, channel.name) as follower:
        assert follower.answered() == 101
        follower.send(b"GET / HTTP/1.1\r\n\r\n")
        assert follower.gone()
    reasons = eventually(
        lambda: len(found := [one.reason for one in server.records if one.op == "feed"]) >= 2 and found[-2:]
    )
    assert reasons == ["bad_request", "bad_request"]
    quiet(server)


def _reads(server: LocalServer, readers: int) -> bool:
    return server.plane.registry.readers == readers


def test_limits_hold_for_feeds() -> None:
    """Of readers of the server and of a channel: each client that follows is one."""
    with local_server(max_readers=3, max_readers_per_channel=2) as server, server.client() as target:
        for name in ("a", "b"):
            target.channel(name).create()
        with ExitStack() as stack:
            for readers, name in enumerate(("a", "a", "b"), 1):
                stack.enter_context(follow(server, name).follow())
                eventually(partial(_reads, server, readers), what="it is counted")
                if readers == 2:
                    assert status(server, "a") == 429
            assert status(server, "b") == 503
        quiet(server)


def has(server: LocalServer, attribute: str) -> bool:
    """Whether a connection has something."""
    return server.inside(lambda: any(getattr(one, attribute) for one in server.plane.connections))


class Slow:
    """An authorizer that is asked by its test."""

    generation = 0

    def __init__(self) -> None:
        self.asked: list[Pending] = []

    def holds(self, _: Granted) -> bool:
        return True

    def authorize(self, _: Request) -> Pending:
        self.asked.append(Pending())
        return self.asked[-1]


def test_a_decision_may_come_late() -> None:
    """The request waits; who sends more meanwhile, or leaves, gets no feed."""
    with local_server() as server, server.client() as target:
        target.channel("film").publish(0, b"zero")
        slow = server.plane.authorizer = Slow()

        def waits(number: int) -> Follower:
            follower = follow(server, "film")
            eventually(lambda: len(slow.asked) == number, what="it is asked")
            return follower

        def decide(number: int) -> None:
            server.inside(lambda: slow.asked[number - 1].decide(Granted(None, math.inf)))

        with waits(1) as good:
            decide(1)
            held = good.follow().until(lambda: good.replica.live)
            assert content(held.segments[0]) == b"zero"
        with waits(2) as hasty:
            hasty.send(b"GET /trickle/film/0 HTTP/1.1\r\nHost: x\r\n\r\n")
            eventually(lambda: has(server, "_queue"), what="it has come")
            decide(2)
            assert hasty.answered() == 400
        with waits(3) as half:
            half.send(b"GET /tri")
            eventually(lambda: has(server, "mid_message"), what="it has come")
            decide(3)
            assert half.answered() == 400
        waits(4).abort()
        eventually(lambda: slow.asked[3].cancelled, what="the server notices")
        server.plane.authorizer = None
        quiet(server)


def test_the_last_place_is_taken_once() -> None:
    """Of two clients that are found to be allowed in one turn, one follows, and one is refused as any other."""
    with local_server(max_readers=1) as server, server.client() as target:
        target.channel("film").publish(0, b"zero")
        slow = server.plane.authorizer = Slow()
        with follow(server, "film") as first:
            eventually(lambda: len(slow.asked) == 1, what="the first one is asked")
            with follow(server, "film") as second:
                eventually(lambda: len(slow.asked) == 2, what="the second one is asked")

                def decide() -> None:
                    for one in slow.asked:
                        one.decide(Granted(None, math.inf))

                server.inside(decide)
                assert (first.answered(), second.answered()) == (101, 503)
                assert server.plane.registry.readers == 1
        server.plane.authorizer = None
        quiet(server)


def test_a_feed_that_ends_before_it_begins() -> None:
    """Its place is free again, also if its connection breaks in the turn in which it is switched."""
    with local_server(max_readers=1) as server, server.client() as target:
        target.channel("film").publish(0, b"zero")
        slow = server.plane.authorizer = Slow()
        with follow(server, "film") as follower:
            eventually(lambda: slow.asked, what="it is asked")

            def decide_and_break() -> int:
                slow.asked[0].decide(Granted(None, math.inf))
                readers = server.plane.registry.readers
                for one in server.plane.connections:
                    if isinstance(one.exchange, Switched):
                        one.exchange.withdraw()
                return readers

            assert server.inside(decide_and_break) == 1
            assert follower.gone()
        server.plane.authorizer = None
        quiet(server)


def test_tokens(tmp_path: Path) -> None:
    """Who may subscribe may follow, until the token ends."""
    (tmp_path / "secret").write_bytes(SECRET)
    with local_server(jwt_secret_file=tmp_path / "secret", jwt_leeway_s=0, token_in_query=True) as server:

        def rights(name: str, **more: Any) -> dict[str, str]:
            return bearer(token(trickle={name: ["cam-*"]}, **more))

        with server.client() as target:
            target.ask("POST", "/trickle/cam-1", rights("publish")).expect(200)
        assert status(server, "cam-1") == 401
        assert status(server, "cam-1", rights("publish")) == 403
        assert status(server, "other", rights("subscribe")) == 403
        text = rights("subscribe")["Authorization"].removeprefix("Bearer ")
        assert status(server, f"cam-1?token={text}") == 101
        soon = server.inside(lambda: server.plane.wall_us()) // 10**6 + 2
        with follow(server, "cam-1", rights("subscribe", exp=soon, sub="me")).follow() as follower:
            assert follower.gone()
        ended = server.record(op="feed", client="me")
        assert (ended.status, ended.reason) == (101, "expired")
        quiet(server)


def test_the_webhook_is_asked_whether_it_may_subscribe(tmp_path: Path) -> None:
    """In the same words as for a read."""
    (tmp_path / "control").write_bytes(b"x" * 16)
    with (
        service() as hook,
        local_server(webhook_url=hook.url, control_token_file=tmp_path / "control") as server,
        server.client() as target,
    ):
        target.channel("film").create()
        assert status(server, "film") == 101
        (asked,) = [body for body, _ in hook.asked if b'"subscribe"' in body]
        assert b'"film"' in asked
        quiet(server)


def test_a_feed_ends_with_the_publishers_when_its_server_stops() -> None:
    """It lasts as long as somebody publishes; then nothing more will come, and new ones are refused meanwhile."""
    with local_server(shutdown_deadline_s=WITHIN_S) as server, server.client() as target:
        upload = target.channel("film").upload(0, b"one")
        target.channel("idle").create()
        with follow(server, "film").follow() as follower, follow(server, "idle").follow() as idle:
            follower.until_live()
            idle.until_live()
            server.stop()
            idle.until(lambda: False)
            assert idle.over is FeedEnd.SHUTDOWN
            with follow(server, "film") as refused:
                assert (refused.answered(), "retry-after" in refused.headers) == (503, True)
            upload.chunk(b", two").stored()
            held = follower.until(lambda: follower.told)
            assert content(held.segments[0]) == b"one, two"
            assert follower.gone()
        assert {one.reason for one in server.records if one.op == "feed"} >= {"shutdown"}


@pytest.mark.parametrize("tls", [False, True])
def test_a_feed_over_tls(tls: bool, tmp_path: Path) -> None:
    """As without."""
    made: dict[str, Any] = {}
    if tls:
        made = dict(zip(("tls_cert", "tls_key"), make_certificate(tmp_path), strict=True))
    with local_server(**made) as server, server.client() as target:
        target.channel("film").publish(0, bytes(200_000))
        with follow(server, "film", tls=server.tls).follow() as follower:
            held = follower.until_live()
            assert len(content(held.segments[0])) == 200_000


def test_the_owner_is_named_by_other_nodes() -> None:
    """A node of a cluster sends the feeds of its own channels only."""
    table = Table()
    with members("a", "b", table=table) as (a, b), a.server.client() as target:
        target.channel("film").publish(0, b"zero")
        with follow(b.server, "film") as follower:
            assert follower.answered() == 421
            assert follower.headers["lp-trickle-node"] == f"http://127.0.0.1:{a.server.port}/trickle"
        with follow(a.server, "film").follow() as follower:
            follower.until_live()
            owned = a.server.plane.registry.live("film")
            assert owned is not None
            a.server.inside(lambda: a.server.plane.feeds.stop(owned))
            assert follower.gone()
        assert a.server.record(op="feed").reason == "replica"
        assert status(b.server, "missing") == 404


def test_a_feed_is_sent_by_the_worker_of_the_channel() -> None:
    """The connection moves to it, as any other."""
    with serve("--workers", "2") as server, server.client() as target:
        for name in ("a", "b", "c", "d", "e"):
            target.channel(name).publish(0, name.encode())
            with Follower(server.port, f"/trickle/{name}").follow() as follower:
                held = follower.until_live()
                assert content(held.segments[0]) == name.encode()
