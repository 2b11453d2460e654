"""The route of changes: long-poll and Server-Sent Events, what they refuse, and when they end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.app.core.support import created
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.changes import Changes
from tricklecast.app.control_plane import changes as route
from tricklecast.app.core.limits import Capacity
from tricklecast.app.tools.conformance.connection import RawConnection
from tricklecast.app.tools.conformance.response import Response
from tricklecast.app.tools.conformance.target import Target

PATH = "/api/v1/changes"


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """A server with a journal of its own."""
    with local_server(channel_drain_s=0) as running:
        yield running


def feed(server: LocalServer) -> Changes:
    assert server.bus is not None
    return server.bus.changes


def url(**options: object) -> str:
    return f"{PATH}?{'&'.join(f'{name}={quote(str(value))}' for name, value in options.items())}"


def content(response: Response, status: int = 200) -> Any:
    assert (response.status, response.get("Content-Type")) == (status, "application/json")
    return json.loads(response.body)


def ask(target: Target, **options: object) -> Any:
    return content(target.ask("GET", url(**options)))


def waiting(server: LocalServer, count: int = 1) -> None:
    """Wait until this number of requests follow."""
    eventually(lambda: feed(server).followers.used == count, what=f"{count} followers")


class Events:
    """A stream of Server-Sent Events, read strictly."""

    def __init__(self, target: Target, *, last: str = "", **options: object) -> None:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        self.connection: RawConnection = target.send("GET", url(**options), headers)
        self._text = ""

    def begin(self) -> list[str]:
        """The head of the response, and its first block."""
        head = self.connection.head()
        assert (head.status, head.get("Content-Type")) == (200, "text/event-stream; charset=utf-8")
        assert (head.get("Cache-Control"), head.get("X-Accel-Buffering")) == ("no-store", "no")
        return self.block()

    def block(self) -> list[str]:
        """The lines up to the next empty one."""
        while "\n\n" not in self._text:
            piece = self.connection.chunk()
            assert piece is not None, "the stream has ended"
            self._text += piece.decode()
        block, _, self._text = self._text.partition("\n\n")
        return block.split("\n")

    def event(self) -> tuple[str, str, Any]:
        """Name, id and data of the next event; blocks without data are none."""
        while True:
            fields = dict(line.split(": ", 1) for line in self.block() if not line.startswith(":"))
            if "data" in fields:
                return fields.get("event", "message"), fields["id"], json.loads(fields["data"])


def test_facts_in_order(server: LocalServer, target: Target) -> None:
    """The facts of a channel and its segments, in parts of any size; then there are no more."""
    channel = target.channel("a")
    channel.publish(0, b"four")
    target.ask("DELETE", "/trickle/a")
    whole = ask(target, after=0)
    kinds = [(change["kind"], change.get("seq"), change.get("bytes")) for change in whole["changes"]]
    assert kinds == [("added", None, None), ("closed", 0, 4), ("removed", 1, None)]
    assert {change["channel"] for change in whole["changes"]} == {"a"}
    instance = server.plane.registry.instance
    assert (whole["instance"], whole["floor"], "channels" in whole) == (instance, 0, False)
    first = ask(target, after=0, limit=3, instance=instance)
    assert (first["changes"], first["index"]) == (whole["changes"][:3], whole["changes"][2]["index"])
    rest = ask(target, after=first["index"], wait_s=0)
    assert rest["changes"] == whole["changes"][3:]
    end = server.plane.registry.journal.index
    assert ask(target, after=end, wait_s=0) == {**whole, "index": end, "changes": []}


def test_a_fact_among_thousands(server: LocalServer, target: Target) -> None:
    """More facts than are judged at a time lie before it; those that an answer leaves out are in the next one."""

    def publish() -> None:
        for number in range(5 * route.LIMIT // 2):
            name = "needle" if number % 1500 == 1499 else "hay"
            created(server.plane.registry.journal, name)

    server.inside(publish)
    assert len(ask(target, after=0, q="channel = 'needle'")["changes"]) == 1
    after, found = 0, 0
    while changes := (answer := ask(target, after=after, wait_s=0, q="channel = 'hay'", limit=700))["changes"]:
        found += len(changes)
        after = answer["index"]
    assert found == 5 * route.LIMIT // 2 - 1


def test_a_long_poll_waits_for_a_fact_that_it_asks_for(server: LocalServer, target: Target) -> None:
    """A fact that the query excludes does not answer a long-poll; without ``after`` it begins now."""
    target.channel("before").create()
    poll = target.send("GET", url(q="channel = 'b*' AND kind = 'added'"))
    waiting(server)
    target.channel("a").create()
    target.channel("bee").create()
    answer = content(poll.response())
    assert [change["channel"] for change in answer["changes"]] == ["bee"]
    waiting(server, 0)


def test_a_long_poll_ends_with_its_time(server: LocalServer, target: Target) -> None:
    """A long-poll without facts ends with an index behind all that it has judged."""
    target.channel("a").create()
    answer = ask(target, q="channel = 'none'", after=0, wait_s=0.01)
    assert (answer["changes"], answer["index"]) == ([], feed(server).index)


def test_a_snapshot_first(server: LocalServer, target: Target) -> None:
    """The live channels, those that the query's terms about names match; its index leads on without a gap."""
    for name in ("a", "ab", "b"):
        target.ask("POST", f"/trickle/{name}", {"Expect-Content": "x/y"})
    target.ask("DELETE", "/trickle/ab")
    snapshot = ask(target, snapshot=1, q="channel = 'a*' AND kind = 'closed'")
    assert snapshot["changes"] == []
    (channel,) = snapshot["channels"]
    assert channel == {"channel": "a", "epoch": 1, "time": channel["time"], "content_type": "x/y"}
    assert [one["channel"] for one in ask(target, snapshot=1)["channels"]] == ["a", "b"]
    target.channel("c").create()
    assert [change["channel"] for change in ask(target, after=snapshot["index"])["changes"]] == ["c"]
    assert server.plane.registry.live("a") is not None


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        ({"q": "channel = a"}, "expected a number, or a text in single quotes, at character 11 of the query"),
        ({"q": "size > 1"}, "unknown field 'size'"),
        ({"snapshot": 1, "after": 0}, "exclude each other"),
    ],
)
def test_what_makes_no_sense_is_400(target: Target, options: dict[str, object], detail: str) -> None:
    """The answer says what is wrong, and where."""
    problem = content(target.ask("GET", url(**options)), 400)
    assert detail in problem["detail"]
    assert ("position" in problem) is ("q" in options)


def test_numbers_have_bounds(target: Target) -> None:
    """A number out of bounds gets 422, as on every route."""
    for options in ({"after": -1}, {"after": "x"}, {"wait_s": 61}, {"limit": 0}, {"limit": 1001}):
        assert target.ask("GET", url(**options)).status == 422


def test_an_index_from_which_nobody_can_go_on_is_410(server: LocalServer, target: Target) -> None:
    """An index that is too old, in the future, or of an earlier start gets 410 with the floor and what to do."""
    server.inside(lambda: setattr(feed(server), "keep", 8))
    for number in range(20):
        target.channel(f"c{number}").create()
    floor, instance = feed(server).floor, server.plane.registry.instance
    assert floor > 0
    cases: list[dict[str, object]] = [
        {"after": floor - 1},
        {"after": 10**6},
        {"after": floor, "instance": "another"},
    ]
    for options in cases:
        answer = target.ask("GET", url(**options))
        problem = content(answer, 410)
        assert problem["detail"].endswith("start with a snapshot")
        assert (problem["floor"], problem["instance"]) == (floor, instance)
        assert answer.get("Lp-Trickle-Earliest") == str(floor)
    assert len(ask(target, after=floor)["changes"]) > 0
    eventually(lambda: sum(record.reason == "gone" for record in list(server.records)) == 3)


def test_a_follower_that_waits_is_told_when_the_facts_are_not_kept(server: LocalServer, target: Target) -> None:
    """A follower gets 410 when facts after its index are gone; the server never skips them silently."""
    poll = target.send("GET", url(after=0, q="channel = 'none'"))
    waiting(server)

    def overrun() -> None:
        feed(server).keep = 8
        for number in range(100):
            created(server.plane.registry.journal, f"c{number}")

    server.inside(overrun)
    assert content(poll.response(), 410)["floor"] == feed(server).floor


def test_events(server: LocalServer, target: Target) -> None:
    """The id of an event is its index, and a client with that Last-Event-ID gets the next one."""
    target.channel("a").create()
    events = Events(target, after=0)
    instance = server.plane.registry.instance
    assert events.begin() == ["retry: 2000", f"id: 0@{instance}"]
    name, at, data = events.event()
    assert (name, at, data["kind"], data["channel"]) == ("message", f"{data['index']}@{instance}", "added", "a")
    waiting(server)
    target.channel("b").create()
    assert events.event()[2]["channel"] == "b"
    again = Events(target, last=at)
    again.begin()
    assert again.event()[2]["channel"] == "b"
    without = Events(target, last=at.partition("@")[0], after=10**9, q="kind = 'added'")
    without.begin()
    assert without.event()[2]["channel"] == "b"


def test_a_stream_begins_with_a_snapshot(server: LocalServer, target: Target) -> None:
    """It does so, too, for an id that leads nowhere, since a browser asks again with the same URL."""
    target.channel("a").create()
    instance = server.plane.registry.instance
    for last in ("", "1@another", "99999"):
        events = Events(target, snapshot=1, last=last)
        events.begin()
        name, at, data = events.event()
        assert (name, at) == ("snapshot", f"{data['index']}@{instance}")
        assert [channel["channel"] for channel in data["channels"]] == ["a"]
    events = Events(target, snapshot=1, last=f"0@{instance}")
    events.begin()
    assert events.event()[0] == "message"


def test_a_stream_that_cannot_go_on_is_refused_before_it_begins(target: Target) -> None:
    """The server answers 410, or 400 for an id that it cannot have told."""
    headers = {"Accept": "text/event-stream"}
    assert target.ask("GET", PATH, {**headers, "Last-Event-ID": "1@another"}).status == 410
    for last in ("x", "-1", "1" * 19, "@"):
        assert target.ask("GET", PATH, {**headers, "Last-Event-ID": last}).status == 400


def test_a_silent_stream_says_that_it_is_alive(
    server: LocalServer, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream without facts sends a comment, and the index up to which there was none."""
    monkeypatch.setattr(route, "KEEP_ALIVE_S", 0.05)
    target.channel("a").create()
    events = Events(target, after=0, q="channel = 'none'")
    events.begin()
    assert events.block() == [":", f"id: {feed(server).index}@{server.plane.registry.instance}"]


def test_who_leaves_is_not_counted(server: LocalServer, target: Target) -> None:
    """A stream and a long-poll whose client has gone end, and the access log says why."""
    events = Events(target, after=0)
    events.begin()
    poll = target.send("GET", url(q="channel = 'none'"))
    waiting(server, 2)
    poll.abort()
    waiting(server, 1)
    events.connection.abort()
    waiting(server, 0)
    eventually(lambda: [r.reason for r in list(server.records) if r.path == PATH] == ["client_gone"] * 2)


def test_there_are_so_many_followers(server: LocalServer, target: Target) -> None:
    """The server refuses newcomers first, with a time to come back; clients that go on have the reserve."""
    server.inside(lambda: setattr(feed(server), "followers", Capacity(5)))
    for count in range(4):
        target.send("GET", PATH)
        waiting(server, count + 1)
    refused = target.ask("GET", PATH)
    assert content(refused, 503)["detail"] == "limit reached: followers"
    assert int(refused.get("Retry-After") or 0) >= 1
    target.send("GET", url(after=feed(server).index))
    waiting(server, 5)
    assert target.ask("GET", url(after=0)).status == 503
    metrics = target.ask("GET", "/metrics").body.decode()
    assert 'tricklecast_limit_used{limit="followers"} 5.0' in metrics
    assert 'tricklecast_refusals_total{limit="followers"} 2.0' in metrics
    assert "tricklecast_changes_floor 0.0" in metrics
    assert 'tricklecast_subscription_ends_total{reason="OutOfCapacity"} 0.0' in metrics


def test_a_stop_ends_followers(server: LocalServer, target: Target) -> None:
    """A server that stops refuses long-polls, and ends streams with an event, both with a time to come back."""
    events = Events(target)
    events.begin()
    poll = target.send("GET", PATH)
    waiting(server, 2)
    server.inside(lambda: setattr(server.plane.registry, "shutting_down", True))
    retry, *end = events.block()
    assert 1000 <= int(retry.removeprefix("retry: ")) <= 5000
    assert (end[0], '"reason":"shutdown"' in end[2]) == ("event: end", True)
    assert events.connection.chunk() is None
    for refused in (poll.response(), target.ask("GET", PATH), target.ask("GET", PATH, {"Accept": "text/event-stream"})):
        assert content(refused, 503)["detail"] == "the server is shutting down"
        assert int(refused.get("Retry-After") or 0) >= 1


def test_a_client_that_does_not_read_costs_no_memory() -> None:
    """The facts that wait for a follower are bounded; if some are gone, its stream ends with the reason."""
    with local_server(reader_lag_s=600) as server, server.client() as target:
        server.inside(lambda: setattr(feed(server), "keep", 2_000))
        events = Events(target, after=0)
        events.begin()
        waiting(server)
        connections, journal = server.plane.connections, server.plane.registry.journal
        published = []

        def publish() -> int:
            for _ in range(200):
                created(journal, "x" * 255)
                published.append(journal.index)
            return max(connection.unsent() for connection in connections)

        most = 0

        def blocked() -> bool:
            nonlocal most
            most = max(most, server.inside(publish))
            return server.inside(lambda: any(connection.write_paused for connection in connections))

        eventually(blocked)
        for _ in range(100):
            most = max(most, server.inside(publish))
        assert most < 1_000_000
        indexes = []
        while (event := events.event())[0] != "end":
            indexes.append(event[2]["index"])
        assert indexes == published[: len(indexes)]
        assert event[2]["reason"] == "evicted"
        assert indexes[-1] <= event[2]["index"] < published[len(indexes)]
        assert "no longer kept" in event[2]["detail"]
        server.record(path=PATH, reason="evicted")
