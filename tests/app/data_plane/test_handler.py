"""The stages of a request: faults in them, and the waits between them."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, Fact, SegmentClosed
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.context import ParkedFor, Serve
from tricklecast.app.data_plane.exchange import Caller, Exchange, Parked
from tricklecast.app.data_plane.handler import resolve
from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.responses import FORGED, Reply
from tricklecast.app.data_plane.routing import Route
from tricklecast.app.data_plane.stages import park
from tricklecast.app.data_plane.upload import Upload
from tricklecast.trickle import wire
from tricklecast.trickle.records import Reason
from tricklecast.trickle.wire import Status


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("method", "at", "broken"),
    [
        ("GET", "0", "resolve"),
        ("HEAD", "0", "resolve"),
        ("POST", "0", "reserve"),
        ("DELETE", "", "end"),
        ("GET", "next", "find"),
    ],
)
def test_a_fault_in_the_core_is_answered(
    method: str, at: str, broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client is told 500 and its connection closes; the fault is logged once, with a stack trace, and counted."""
    with local_server() as server, server.client() as target:
        channel = target.channel()
        channel.publish(0, b"x")
        with monkeypatch.context() as patched:
            patched.setattr(Registry, broken, lambda *_, **__: 1 // 0)
            path = channel.at(at) if at else channel.path
            answer = target.ask(method, path, body=b"x" if method == "POST" else None)
        assert (answer.status, answer.closes) == (500, True)
        assert server.record(status=500).reason == "error"
        assert server.plane.faults == 1
        (logged,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert logged.exc_info is not None
        assert channel.get(0).body == b"x"


def raising(_: Fact) -> None:
    """A listener with a fault."""
    raise ZeroDivisionError


@pytest.mark.parametrize("how", ["create", "delete", "close", "publish"])
def test_a_listener_of_the_core_that_raises_changes_no_answer(
    how: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The change is done, and storage, which has heard of it, says how durable it is. The fault is logged."""
    with local_server(data_dir=tmp_path, ack="journal") as server, server.client() as target:
        channel = target.channel()
        if how != "create":
            channel.create()
        upload = channel.upload(0, b"x")
        channel.arrived(0, b"x")
        journal = server.plane.registry.journal
        server.inside(lambda: journal.subscribe(raising, ChannelCreated, ChannelEnded, SegmentClosed))
        match how:
            case "create":
                answer = target.channel().ask("POST")
            case "delete":
                answer = channel.ask("DELETE")
            case "close":
                answer = channel.close(0)
            case _:
                answer = upload.end().answer()
        assert (answer.status, answer.get("Lp-Trickle-Durability")) == (200, "journal")
        eventually(lambda: any(record.exc_info for record in list(caplog.records)), what="the fault is logged")
        assert server.plane.faults


class OneChannelElsewhere:
    """Another node of a cluster, which has one channel and answers all that is asked of it."""

    protocol = b"none"

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[bytes] = []

    def switch(self, request: Request) -> Reply | Serve:
        """Refuse it."""
        return Reply(Status.BAD_REQUEST, Reason.BAD_REQUEST)

    def sender(self, request: Request) -> Reply:
        """No node has signed it."""
        return FORGED

    def answer(self, connection: Caller, request: Request, route: Route) -> Reply | Exchange | None:
        """Answer HEAD at once, and the others after a wait; other channels are here."""
        if route.channel != self.name:
            return None
        waited = request.method in self.asked
        self.asked.append(request.method)
        if request.method == b"HEAD" or waited:
            return Reply(Status.OK, Reason.COMPLETE, body=b"elsewhere")
        parked = park(connection, request, route, ParkedFor.REPLICA, resolve)
        parked.wait(0)
        return parked


def test_a_request_for_a_channel_of_another_node_is_answered_by_the_cluster() -> None:
    """It is asked once for each request that is allowed and well formed; ``None`` leaves a request to this node."""
    with local_server() as server, server.client() as target:
        here, there = target.channel(), target.channel()
        server.plane.cluster = cluster = OneChannelElsewhere(there.name)
        here.publish(0, b"here")
        assert here.get(0).body == b"here"
        assert target.ask("HEAD", there.at(0)).status == 200
        assert there.get(0).body == b"elsewhere"
        assert target.ask("POST", there.at(0), body=b"x").body == b"elsewhere"
        assert target.ask("GET", there.at("x")).status == 400
        assert target.ask("GET", here.at(0), {"Trickle-Cluster": "me"}).status == 403
        assert cluster.asked == [b"HEAD", b"GET", b"GET", b"POST", b"POST"]
        server.plane.cluster = None


def overtaking(server: LocalServer) -> Parked:
    """The one POST that waits for those that it has overtaken."""
    (parked,) = eventually(lambda: list(server.plane.parked[ParkedFor.OVERTAKEN]), what="the POST is parked")
    assert isinstance(parked, Parked)
    return parked


@pytest.mark.interpreted
@pytest.mark.parametrize("broken", [(Registry, "reserve"), (Upload, "body_ended")], ids=["resolve", "body"])
def test_a_fault_after_a_wait_is_answered(broken: tuple[type, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A parked publisher that meets a fault when it goes on, or when its body is taken, is told 500."""
    with local_server(overtaking_grace_s=1e6) as server, server.client() as target:
        channel = target.channel()
        channel.publish(0, b"a")
        connection = target.send("POST", channel.at(3), body=b"early")
        parked = overtaking(server)
        channel.publish(1, b"b")
        with monkeypatch.context() as patched:
            patched.setattr(*broken, lambda *_, **__: 1 // 0)
            server.inside(parked.go_on)
            answer = connection.response()
        assert (answer.status, answer.closes) == (500, True)
        assert server.plane.faults == 1
        eventually(lambda: not server.plane.parked[ParkedFor.OVERTAKEN])


def test_a_wait_that_is_over_does_not_go_on_twice() -> None:
    """A timer that comes too late changes nothing."""
    with local_server(overtaking_grace_s=1e6) as server, server.client() as target:
        channel = target.channel()
        channel.publish(0, b"a")
        connection = target.send("POST", channel.at(3), {"Content-Length": "0"})
        parked = overtaking(server)
        connection.abort()
        eventually(lambda: not server.plane.parked[ParkedFor.OVERTAKEN])
        server.inside(parked.go_on)
        assert server.record(channel=channel.name, seq=3).reason == "client_gone"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ("", 200),
        ("Content-Length: 0\r\n", 200),
        ("Content-Length: 4\r\n", 400),
        ("Content-Length: 4\r\nExpect: 100-continue\r\n", 400),
        ("Transfer-Encoding: chunked\r\n", 400),
    ],
)
def test_a_body_for_a_channel_is_refused(fields: str, status: int) -> None:
    """A segment that is posted without a seq does not vanish with a 200: its client is told at the head."""
    with local_server() as server, server.client() as target:
        connection = target.open()
        connection.send(f"POST /trickle/forgot HTTP/1.1\r\nHost: x\r\n{fields}\r\n".encode())
        connection.expects("POST")
        answer = connection.response()
        assert (answer.status, answer.closes) == (status, status == 400)
        if status == 400:
            assert answer.body == b"Unexpected body: this URL names a channel; its segments are at CHANNEL/SEQ"
        assert ("forgot" in server.plane.registry.channels) == (status == 200)


def test_a_reader_that_follows_another_numbering_is_told_instead_of_waiting() -> None:
    """At the head of a numbering that is not its own; what is there is served, and its own one is waited for."""
    with local_server() as server, server.client() as target:
        channel = target.channel()
        channel.publish(0, b"B0")
        own = (channel.get(0).get(wire.LIFE) or "").partition(":")[0]

        def ask(method: str, seq: int, life: str) -> int:
            return target.ask(method, channel.at(seq), [(wire.LIFE, life)]).status

        told = channel.get(1, [(wire.LIFE, "other")])
        assert (told.status, told.get(wire.LATEST), told.get(wire.LIFE)) == (470, "1", f"{own}:0")
        assert server.record(status=470).rseq == 1
        assert ask("GET", 0, "other") == 200  # nothing can be before the first one
        assert ask("HEAD", 1, own) == ask("HEAD", 1, "no name!") == 200
        assert ask("HEAD", 1, "other") == 470


def test_a_reader_whose_segments_were_written_anew_is_told_of_all_that_followed(tmp_path: Path) -> None:
    """Whether the segment that it wants is there, gone, or after the end; until then it is served as any other."""
    settings: dict[str, Any] = {"data_dir": tmp_path, "ack": "journal", "window_segments": 1}
    for seq, life in ((3, "a:3"), (5, "b:5")):
        with local_server(**settings) as server, closing(server.target()) as target:
            target.channel("film").post(seq, headers={wire.LIFE: life}).expect(200)
    with local_server(**settings) as server, closing(server.target()) as target:
        channel = target.channel("film")

        def ask(seq: int, life: str, method: str = "GET", epoch: str = "1") -> tuple[int, str | None]:
            told = target.ask(method, channel.at(seq), [(wire.LIFE, life), (wire.EPOCH, epoch)])
            return told.status, told.get(wire.LIFE)

        assert [ask(seq, "a", "HEAD") for seq in (3, 5, 6, 99)] == [(200, "b:5"), (200, "b:5"), *[(470, "b:5")] * 2]
        assert [ask(seq, "b", "HEAD") for seq in (3, 6, 99)] == [(200, "b:5"), (200, "b"), (470, "b")]
        assert [ask(99, "z", epoch=text) for text in ("1", "x", "2")] == [(470, "b"), (470, "b"), (470, "b:3")]
        for seq in (8, 9):
            channel.post(seq, headers={wire.LIFE: "c:8"}).expect(200, life=None)
        assert [ask(seq, "a") for seq in (5, 6, 8, 9, 10, 99)] == [(200, "c:8"), *[(470, "c:5")] * 5]
        assert [ask(seq, "b") for seq in (8, 9, 10)] == [(200, "c:8"), (200, "c:8"), (470, "c:8")]
        assert (ask(9, "c"), ask(-2, "a")) == ((200, "c:8"), (200, "c:8"))
        told = channel.get(9, {wire.LIFE: "a"}).expect(470)
        assert (told.get(wire.EARLIEST), told.get(wire.LATEST), told.get(wire.SEQ)) == ("3", "10", "9")
        channel.end()
        assert [ask(10, life) for life in ("a", "c")] == [(470, "c:5"), (200, "c:8")]
