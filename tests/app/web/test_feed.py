"""The dashboard's feed: what a frame says of a channel, who gets which frames, and when a stream ends."""

from __future__ import annotations

import asyncio
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.signing import SECRET, bearer, token
from tests.app.core.support import grant, make_registry, publish
from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.core.publishers import Identity
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.app.tools.conformance.target import Target
from tricklecast.app.web import events as events_module
from tricklecast.app.web import feed as module
from tricklecast.app.web.feed import (
    DRAINING,
    GONE,
    IDLE,
    IDLE_S,
    LIVE,
    ORPHANED,
    PRECONNECTED,
    SEGMENT_STATES,
    STALLED,
    STALLED_S,
    WRITING,
    ChannelView,
    DashboardFeed,
    Frame,
)

PATH = "/api/v1/dashboard"
WAITING, OPEN, COMPLETE, EMPTY, TRUNCATED, SKIPPED, TERMINATED = range(7)
assert [SEGMENT_STATES[state] for state in (OPEN, COMPLETE, SKIPPED)] == ["open", "complete", "skipped"]


class Looks:
    """The row of one channel, looked at as a test says."""

    def __init__(self, channel: Channel) -> None:
        self.row = ChannelView(1, channel)
        self._first = True

    def at(self, now: float, elapsed_s: float = 1.0) -> tuple[list[int], list[tuple[int, ...]]] | None:
        """Figures, and segments, that are told now."""
        told = self.row.look(now, math.inf if self._first else elapsed_s, 0, 0.0)
        self._first = False
        if told is None:
            return None
        tail = told[module.FIGURES :]
        return told[: module.FIGURES], [tuple(tail[at : at + 4]) for at in range(0, len(tail), 4)]


def looks(registry: Registry, name: str = "cam") -> Looks:
    return Looks(registry.channels[name])


def test_a_channel_from_its_first_byte_to_its_end() -> None:
    """Segments with their sizes and durations, rates, and the state of the channel; nothing if nothing changes."""
    registry, _ = make_registry()
    writer = grant(registry, "cam", 0, 10.0)
    seen = looks(registry)
    assert seen.at(10.0) == ([1, LIVE, 0, 0, 0, 0, 0, 0, 0, PRECONNECTED], [(0, WAITING, 0, 0)])
    writer.channel.append(writer, (b"abcd",), 10.5)
    assert seen.at(11.0) == ([1, LIVE, 1, 0, 0, 4, 0, 0, 0, WRITING], [(0, OPEN, 4, 10500)])
    writer.channel.finish(writer, (b"ef",), 11.5)
    assert seen.at(12.0, 2.0) == ([1, LIVE, 1, 0, 0, 1, 0, 1, 6, 0], [(0, COMPLETE, 6, 1000)])
    assert seen.at(13.0) == ([1, LIVE, 1, 0, 0, 0, 0, 1, 6, 0], [])
    assert seen.at(14.0) is None
    idle = seen.at(11.5 + IDLE_S)
    assert idle is not None
    assert (idle[0][1], seen.row.quiet, seen.row.is_still()) == (IDLE, True, True)
    registry.end("cam", 20.0)
    assert not seen.row.is_still()
    ended = seen.at(20.5)
    assert ended is not None
    assert (ended[0][1], seen.row.quiet) == (DRAINING, True)


def test_an_open_segment_may_have_begun_before_the_clock() -> None:
    """A snapshot tells the same time of it as a frame: below 0, if it began before anybody followed."""
    registry, _ = make_registry()
    writer = grant(registry, "cam", 0, 10.0)
    writer.channel.append(writer, (b"x",), 10.0)
    row = ChannelView(1, registry.channels["cam"])
    told = row.look(15.0, math.inf, 0, 14.0)
    assert told is not None
    assert told[module.FIGURES :] == row.snapshot(14.0)[module.FIGURES :] == [0, OPEN, 1, -4000]


def test_a_channel_stalls_while_its_open_segment_gets_nothing() -> None:
    """Also if the publisher has gone, whose return the segment waits for; with the next byte it is live again."""
    registry, _ = make_registry()
    writer = grant(registry, "cam", 0)
    writer.channel.append(writer, (b"x",), 0.0)
    seen = looks(registry)
    seen.at(0.0)
    writer.channel.abort(writer, 1.0)
    gone = seen.at(2.0)
    assert gone is not None
    assert (gone[0][1], gone[0][9]) == (LIVE, ORPHANED)
    stalled = seen.at(STALLED_S)
    assert stalled is not None
    assert stalled[0][1] == STALLED
    again = grant(registry, "cam", 0, 4.0)
    again.channel.append(again, (b"y",), 4.0)
    live = seen.at(4.5)
    assert live is not None
    assert (live[0][1], live[0][9]) == (LIVE, WRITING)


def test_segments_that_close_otherwise() -> None:
    """Empty, truncated, skipped, terminated; one that was waited for in vain is gone."""
    registry, _ = make_registry()
    seen_states: dict[int, int] = {}
    publish(registry, "cam", 0, b"")
    late = grant(registry, "cam", 1, 1.0)
    next_one = grant(registry, "cam", 2, 1.0)
    seen = looks(registry)
    seen.at(1.0)
    next_one.channel.append(next_one, (b"x",), 1.0)
    registry.close_segment("cam", 2, 1.5, truncate=True)
    registry.expire(10.0)
    told = seen.at(10.0)
    assert told is not None
    seen_states |= {seq: state for seq, state, _, _ in told[1]}
    assert (late.outcome is not None, seen_states) == (True, {1: SKIPPED, 2: TRUNCATED})
    open_one = grant(registry, "cam", 3, 11.0)
    open_one.channel.append(open_one, (b"y",), 11.0)
    grant(registry, "cam", 4, 11.0)
    seen.at(11.0)
    registry.end("cam", 12.0)
    told = seen.at(12.0)
    assert told is not None
    assert {seq: state for seq, state, _, _ in told[1]} == {3: TERMINATED, 4: GONE}
    assert [state for seq, state, *_ in looks(registry).at(12.0)[1] if seq == 0] == [EMPTY]  # type: ignore[index]


def test_of_many_segments_in_one_frame_the_newest_are_told() -> None:
    """A frame does not grow with the rate of segments."""
    registry, _ = make_registry()
    publish(registry, "cam", 0)
    seen = looks(registry)
    seen.at(0.0)
    for seq in range(1, 200):
        publish(registry, "cam", seq)
    told = seen.at(1.0)
    assert told is not None
    assert [seq for seq, *_ in told[1]] == list(range(200 - module.FRAME_SEGMENTS, 200))


def test_what_a_channel_is_called_is_told_again_when_it_changes() -> None:
    """Its content type, and who publishes: by the client's own name, or else by its address and program."""
    registry, _ = make_registry()
    writer = grant(registry, "cam", 0, client=Identity("", "192.0.2.1 ffmpeg"))
    row = ChannelView(7, writer.channel)
    assert row.may_differ()
    assert row.describe(1000.0)
    assert row.about == [7, "cam", 1, "", "192.0.2.1 ffmpeg", 1000.0]
    writer.channel.finish(writer, (b"x",), 1.0)
    row.describe(1000.0)
    assert not row.may_differ()
    other = grant(registry, "cam", 1, content_type="video/mp4", client=Identity("encoder-2"))
    other.channel.finish(other, (b"x",), 2.0)
    assert row.may_differ()
    assert row.describe(1000.0)
    assert row.about[3:5] == ["video/mp4", "encoder-2"]


# The stream.


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """A server of its own: the feed tells of all of it."""
    with local_server(channel_drain_s=0) as running:
        yield running


class Events:
    """A stream of Server-Sent Events, read strictly, compressed or not."""

    def __init__(self, target: Target, headers: dict[str, str] | None = None) -> None:
        self.connection = target.send("GET", PATH, headers or {})
        self.response = self.connection.head()
        packed = self.response.get("Content-Encoding") == "gzip"
        self._unpack = zlib.decompressobj(16 + zlib.MAX_WBITS) if packed else None
        self._text = ""

    def event(self) -> tuple[str, Any]:
        """Name and data of the next event."""
        while True:
            while "\n\n" not in self._text:
                piece = self.connection.chunk(WITHIN_S)
                assert piece is not None, "the stream has ended"
                self._text += (piece if self._unpack is None else self._unpack.decompress(piece)).decode()
            block, _, self._text = self._text.partition("\n\n")
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            if "data" in fields:
                return fields["event"], json.loads(fields["data"])

    def until(self, fact: Any) -> Any:
        """The first frame that a condition holds for."""
        while True:
            _, data = self.event()
            if fact(data):
                return data


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_follower_sees_the_server_live(server: LocalServer, target: Target, encoding: str) -> None:
    """A snapshot of what there is, then what changes: a new channel, its segments, an event, its end."""
    target.channel("before").publish(0, b"four")
    events = Events(target, {"Accept-Encoding": encoding})
    assert (events.response.status, events.response.get("Content-Type")) == (200, "text/event-stream; charset=utf-8")
    assert events.response.get("Content-Encoding") == (None if encoding == "identity" else encoding)
    kind, snapshot = events.event()
    assert (kind, [about[1] for about in snapshot["about"]]) == ("snapshot", ["before"])
    assert snapshot["rows"][0][10:] == [0, COMPLETE, 4, snapshot["rows"][0][13]]
    assert snapshot["server"]["instance"] == server.plane.registry.instance
    assert snapshot["server"]["limits_of_window"]["segments"] == server.settings.window_segments
    assert [limit for limit in snapshot["server"]["limits"] if limit[0] == "channels"] == [
        ["channels", 1, server.settings.max_channels, True]
    ]
    target.channel("later").publish(0, b"ab", b"cd")
    told = events.until(lambda data: data["about"])
    [about] = told["about"]
    assert (about[1], [row[0] for row in told["rows"] if row[0] == about[0]]) == ("later", [about[0]])
    target.ask("DELETE", "/trickle/later")
    ended = events.until(lambda data: data["gone"])
    assert ended["gone"] == [about[0]]
    named = [(one["kind"], one["channel"]) for data in (snapshot, told, ended) for one in data["events"]]
    assert ("created", "before") in named


def test_refusals_and_holds_are_told_with_channel_and_client(target: Target, server: LocalServer) -> None:
    """As they happen; a flood of them costs one event."""
    events = Events(target)
    events.event()
    for _ in range(15):
        target.ask("GET", "/trickle/none/0", {"Trickle-Client": "loop"})
    told: list[Any] = []
    while sum(one["count"] for one in told) < 1:
        _, data = events.event()
        told += [one for one in data["events"] if one["kind"] == "held"]
    assert {(one["why"], one["channel"], one["client"]) for one in told} == {("missing", "none", "loop")}


def test_every_refusal_is_told_with_its_limit() -> None:
    """Of a limit of the server, of the memory for segments, of the API; whoever asked for what. All are counted."""
    with local_server(max_channels=2, max_total_bytes=70_000, max_segment_bytes=60_000) as server:
        with server.client() as target:
            target.channel("one").publish(0, b"x")
            target.ask("POST", "/trickle/two")
            target.ask("POST", "/trickle/three", {"Trickle-Client": "late"})
            target.channel("one").upload(1, b"x" * 40_000)
            eventually(lambda: server.plane.registry.budget.used > 40_000)
            assert target.channel("one").upload(2, b"y" * 40_000).answer().status == 503
            target.ask("POST", "/trickle/one/9", body=b"z" * 60_001)
            target.ask("PUT", PATH)
            assert Events(target).event()[1]["server"]["counters"]["refused"] == 4
        feed = _feed(server)
        server.inside(feed.events.seal)
        told = {(one.why, one.channel, one.client) for one in feed.events.after(0) if one.kind == "refused"}
    assert told == {
        ("limit:channels", "three", "late"),
        ("limit:total_bytes", "one", "127.0.0.1"),
        ("too_large", "one", "127.0.0.1"),
        ("bad_request", "", "127.0.0.1"),
    }


def test_nothing_is_computed_while_nobody_follows(target: Target, server: LocalServer) -> None:
    """The last follower's end ends the work, and the next one begins it anew."""
    events = Events(target)
    events.event()
    feed = _feed(server)
    assert (feed.followers.used, feed._task is not None) == (1, True)
    events.connection.close()
    eventually(lambda: feed.followers.used == 0 and feed._task is None)
    assert (feed.frame, feed._views) == (None, {})
    assert Events(target).event()[0] == "snapshot"


def test_a_follower_that_comes_when_the_last_one_leaves_is_served(server: LocalServer) -> None:
    """Both in one turn of the event loop: what is over ends, and does not end the work for the one that comes."""
    feed = _feed(server)

    async def numbers() -> list[tuple[bytes, int]]:
        async def first() -> tuple[bytes, int]:
            async for frame in feed.follow(None, lambda: None):
                return frame.kind, frame.number
            raise AssertionError("the stream has ended")

        feed.join()
        frames = [await first()]
        feed.leave()
        feed.join()
        await asyncio.sleep(0)
        frames.append(await first())
        feed.leave()
        return frames

    assert asyncio.run_coroutine_threadsafe(numbers(), server.loop).result(WITHIN_S) == [(b"snapshot", 1)] * 2
    assert (feed._task, feed._views) == (None, {})


def test_a_follower_that_reads_nothing_gets_a_snapshot_later(server: LocalServer) -> None:
    """Frames that it could not take are made for nobody: it is not told of them one by one."""

    async def main() -> list[tuple[int, bytes]]:
        registry, _ = make_registry()
        publish(registry, "cam", 0)
        plane = DataPlane(registry, Options())
        feed = DashboardFeed(plane, events_module.Events(plane.clock, plane.wall_us), lambda dashboards: [])
        feed.followers.take()
        feed._lag_counts = list(feed.plane.loop_lag.counts)
        over: list[str] = []
        feed._task = asyncio.get_running_loop().create_task(asyncio.sleep(WITHIN_S))
        frames = feed.follow(None, lambda: over[0] if over else None)
        told: list[Frame] = []
        for skipped in (0, 0, 3, 0):
            for _ in range(1 + skipped):
                await feed._tick()
            told.append(await anext(frames))
        feed._task.cancel()
        return [(frame.number, frame.kind) for frame in told]

    assert asyncio.run(main()) == [(1, b"snapshot"), (2, b"frame"), (6, b"snapshot"), (7, b"frame")]


def test_a_mirror_is_told_of_when_it_has_changed() -> None:
    """In every snapshot for those who may see the server, and in frames only if it is not as in the one before."""

    async def main() -> list[object]:
        plane = DataPlane(make_registry()[0], Options())
        stands: list[dict[str, str] | None] = [None]
        events = events_module.Events(plane.clock, plane.wall_us)
        feed = DashboardFeed(plane, events, lambda dashboards: [], mirror=lambda: stands[-1])
        feed._lag_counts = list(plane.loop_lag.counts)
        told: list[object] = []
        for state in (None, {"state": "looking"}, {"state": "looking"}, {"state": "following"}):
            stands.append(state)
            told.append((await feed._tick()).server.get("mirror", "unchanged"))
        whole = await feed.all_of(await feed._tick())
        return [*told, whole.server["mirror"], "mirror" in whole.shown_to(lambda name: True, set()).server]

    changes = ["unchanged", {"state": "looking"}, "unchanged", {"state": "following"}]
    assert asyncio.run(main()) == [*changes, {"state": "following"}, False]


def test_sources_and_what_does_not_work_are_told_when_they_have_changed() -> None:
    """A snapshot has them, too. Who may see some channels alone sees the sources of these."""

    async def main() -> None:
        plane = DataPlane(make_registry()[0], Options())
        events = events_module.Events(plane.clock, plane.wall_us)
        sources = [{"name": name, "state": "waiting"} for name in ("door", "yard")]
        wrong: dict[str, str] = {}
        feed = DashboardFeed(
            plane, events, lambda dashboards: [], sources=lambda: [dict(one) for one in sources], ailments=lambda: wrong
        )
        feed._lag_counts = list(plane.loop_lag.counts)

        async def told() -> dict[str, Any]:
            return {name: (await feed._tick()).server.get(name, "unchanged") for name in ("sources", "troubles")}

        assert (await feed._tick()).server["sources"] == sources
        assert await told() == {"sources": "unchanged", "troubles": "unchanged"}
        sources[0]["state"] = "failed"
        frame = await feed._tick()
        assert frame.server["sources"] == sources
        assert frame.shown_to(lambda name: name == "yard", set()).server["sources"] == sources[1:]
        wrong["storage"] = "disk full"
        assert (await feed._tick()).server["troubles"] == [["storage", "disk full"]]
        assert await told() == {"sources": "unchanged", "troubles": "unchanged"}
        whole = (await feed.all_of(await feed._tick())).server
        assert (whole["sources"], whole["troubles"]) == (sources, [["storage", "disk full"]])
        feed._forget()
        assert (await feed._tick()).server["troubles"] == [["storage", "disk full"]]

    asyncio.run(main())


def test_a_stream_ends_with_a_reason_when_the_server_stops(server: LocalServer, target: Target) -> None:
    """Its client is told when to come back; the request is recorded as one of the API."""
    events = Events(target)
    events.event()
    server.inside(lambda: server.plane.registry.shut_down((1, 5)))
    while (event := events.event())[0] != "end":
        pass
    assert event[1] == {"reason": "shutdown"}
    assert events.connection.chunk(WITHIN_S) is None
    server.inside(lambda: setattr(server.plane.registry, "shutting_down", False))
    record = server.record(path=PATH)
    assert (record.op, record.status, record.reason) == ("api", 200, "shutdown")


def test_dashboards_have_a_limit(server: LocalServer, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is refused with a time to come back."""
    feed = _feed(server)
    monkeypatch.setattr(feed.followers, "limit", 1)
    first = Events(target)
    first.event()
    refused = target.ask("GET", PATH)
    assert (refused.status, json.loads(refused.body)) == (503, {"detail": "limit reached: dashboards"})
    assert refused.get("Retry-After") is not None
    assert server.record(path=PATH, status=503).reason == "limit:dashboards"


def test_a_fault_of_the_feed_ends_its_streams(
    server: LocalServer, target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are not left waiting, and the next one works."""
    events = Events(target)
    events.event()
    feed = _feed(server)
    with monkeypatch.context() as patched:
        patched.setattr(feed, "_server", lambda *_: 1 / 0)
        while (event := events.event())[0] != "end":
            pass
        assert event[1] == {"reason": "error"}
    eventually(lambda: feed.followers.used == 0)
    assert Events(target).event()[0] == "snapshot"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server with tokens."""
    secret = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_bytes(SECRET)
    with local_server(jwt_secret_file=Path(secret)) as running:
        yield running


def test_a_token_shows_only_the_channels_that_it_may_manage(guarded: LocalServer) -> None:
    """And nothing of the server but the time; without a token, or with another right, there is no stream."""

    def publish_all() -> None:
        for name in ("cam-1", "cam-2", "secret"):
            guarded.plane.registry.create(name, "", guarded.plane.clock())

    guarded.inside(publish_all)
    with guarded.client() as target:
        assert target.ask("GET", PATH).status == 401
        assert target.ask("GET", PATH, bearer(token(trickle={"subscribe": ["*"]}))).status == 403
        events = Events(target, bearer(token(trickle={"manage": ["cam-*"]})))
        _, snapshot = events.event()
        assert [about[1] for about in snapshot["about"]] == ["cam-1", "cam-2"]
        numbers = {about[0] for about in snapshot["about"]}
        assert {row[0] for row in snapshot["rows"]} == numbers
        assert {one["channel"] for one in snapshot["events"]} == {"cam-1", "cam-2"}
        assert "cpu" not in snapshot["server"]
        guarded.inside(lambda: guarded.plane.registry.create("cam-3", "", guarded.plane.clock()) and None)
        guarded.inside(lambda: guarded.plane.registry.create("secret-2", "", guarded.plane.clock()) and None)
        told = events.until(lambda data: data["about"])
        assert [about[1] for about in told["about"]] == ["cam-3"]
        assert Events(target, bearer(token())).event()[1]["server"]["cpu"] >= 0


def _feed(server: LocalServer) -> DashboardFeed:
    assert server.node.feed is not None
    return server.node.feed
