"""The lines that a server shows on its terminal: who comes, who leaves, and how many are left out."""

from __future__ import annotations

import os
import pty
import re
from types import SimpleNamespace

import pytest

from tests.support.local import local_server
from tests.support.server import serve
from tricklecast.app.activity import GONE_S, MAX_CONNECTIONS, MAX_LINES, Activity
from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, EndReason
from tricklecast.app.data_plane.client_address import client_key
from tricklecast.trickle.records import AccessRecord, Op


class Scene:
    """An activity whose clock a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.activity = Activity(lambda: self.now)

    def request(self, client: str = "cam-1", op: Op = Op.READ, channel: str = "c", **fields: object) -> None:
        """A request of this client has ended."""
        record = AccessRecord(0, op=op, channel=channel, client=client, ip="192.0.2.1", status=200)
        for name, value in fields.items():
            setattr(record, name, value)
        self.activity.note_exchange(record)

    def look(self, after_s: float = 0.0) -> list[str]:
        """The lines that are shown after this time, when no connection is open."""
        self.now += after_s
        return self.activity.look([])


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_client_is_shown_once(scene: Scene) -> None:
    """When it comes, not at each request; when it leaves, with its time and its bytes."""
    for _ in range(3):
        scene.request(bytes_out=1000)
        scene.now += 1.0
    assert scene.look() == ["c: reader cam-1 (192.0.2.1)"]
    assert scene.look(GONE_S - 1.0) == []
    assert scene.look(0.1) == ["c: reader cam-1 (192.0.2.1) left after 2 s, 3.0 kB"]
    assert scene.look(100.0) == []


def test_a_client_is_shown_in_each_role_on_each_channel(scene: Scene) -> None:
    """A relay reads one channel and publishes another one; the bytes of a publisher are those that it sent."""
    scene.request("relay", Op.READ, "in")
    scene.request("relay", Op.PUBLISH, "out", bytes_in=5, bytes_out=700)
    assert scene.look() == ["in: reader relay (192.0.2.1)", "out: publisher relay (192.0.2.1)"]
    assert scene.look(GONE_S + 1)[1] == "out: publisher relay (192.0.2.1) left after 0 s, 5 B"


@pytest.mark.parametrize(
    "fields", [{"status": 404}, {"op": Op.NEXT}, {"channel": None}, {"channel": "_changes"}, {"method": "HEAD"}]
)
def test_some_requests_are_not_shown(scene: Scene, fields: dict[str, object]) -> None:
    """Refused ones, those that carry no segment, and those of the server's own channels."""
    scene.request(**fields)  # type: ignore[arg-type]
    assert scene.look() == []


def test_a_client_without_a_name_is_shown_by_its_program(scene: Scene) -> None:
    """And by its address alone, if it does not say which program it is."""
    scene.request(client_key("192.0.2.1", "curl/8.5 x"), ua="curl/8.5 x", release="curl/8.5")
    scene.request(client_key("192.0.2.1", None))
    assert scene.look() == ["c: reader curl/8.5 (192.0.2.1)", "c: reader 192.0.2.1"]


def test_names_cannot_control_the_terminal(scene: Scene) -> None:
    """Names of clients and channels are shown without control characters."""
    scene.request("\x1b[2Jx", channel="a\x9b")
    assert scene.look() == ["a?: reader ?[2Jx (192.0.2.1)"]


def test_channels_are_shown(scene: Scene) -> None:
    """But not the server's own."""
    for name in ("c", "_changes"):
        scene.activity.note_fact(ChannelCreated(1, 1, 0.0, name, 1, "", ""))
        scene.activity.note_fact(ChannelEnded(2, 2, 0.0, name, 1, 7, EndReason.IDLE))
    assert scene.look() == ["c: created", "c: ended (idle)"]


def test_a_crowd_is_counted(scene: Scene) -> None:
    """At most so many lines at a time."""
    for number in range(MAX_LINES + 3):
        scene.request(f"r{number}")
    lines = scene.look()
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == "and 3 more lines"
    assert scene.look() == []


def test_too_many_connections_are_not_shown(scene: Scene) -> None:
    """The server says so once, and shows clients again when half of them have gone."""
    many = [SimpleNamespace(exchange=None)] * MAX_CONNECTIONS
    assert "no longer shown" in scene.activity.look(many)[0]
    scene.request()
    assert scene.activity.look(many) == scene.activity.look(many[: MAX_CONNECTIONS // 2]) == []
    assert scene.look() == []
    scene.request()
    assert scene.look() == ["c: reader cam-1 (192.0.2.1)"]


def test_running_requests_are_seen() -> None:
    """A publisher and a reader in the middle of a long segment are there, however long it takes."""
    with local_server() as server, server.client() as target:
        now = 0.0
        activity = Activity(lambda: now)

        def look() -> list[str]:
            return server.inside(lambda: activity.look(server.plane.connections))

        channel = target.channel()
        upload, _ = channel.started(0, b"x", headers={"Trickle-Client": "cam-1"})
        assert sorted(line.partition(": ")[2].split(" ")[0] for line in look()) == ["publisher", "reader"]
        now += 10 * GONE_S
        assert look() == []
        upload.stored()


def test_serve_shows_who_comes_on_its_terminal() -> None:
    """With the time of day."""
    ours, theirs = pty.openpty()
    with open(theirs, "w") as stderr, serve(stderr=stderr) as server, server.client() as target:
        target.channel("c").publish(0, b"x").end()
        shown = ""
        while "ended" not in shown:
            shown += os.read(ours, 4096).decode()
    os.close(ours)
    lines = [line.partition(" ")[2] for line in shown.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)]
    assert lines[0] == "c: created"
    assert lines[1].startswith("c: publisher ")
    assert lines[2] == "c: ended (deleted)"
