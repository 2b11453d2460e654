"""Publishers: early answers, taking over, resuming, being ended, limits."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.app.data_plane.support import connections, later, pattern
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.data_plane import handler, scheduling
from tricklecast.app.data_plane.context import DataPlane, ParkedFor
from tricklecast.app.data_plane.scheduling import CHANNEL, SlowReader
from tricklecast.app.data_plane.upload import Upload
from tricklecast.app.http1.connection import UNSPLIT, Connection
from tricklecast.app.tools.conformance.connection import encode_chunk
from tricklecast.app.tools.conformance.response import ConnectionCut
from tricklecast.app.tools.conformance.target import RemoteChannel, Target

# How chunks reach readers.


@pytest.mark.parametrize("size", [8, 1000, UNSPLIT])
def test_a_small_chunk_in_many_packets_stays_one_chunk(channel: RemoteChannel, target: Target, size: int) -> None:
    """A chunk of at most 32 KiB reaches a waiting reader as one HTTP chunk, however it was cut by TCP."""
    upload = channel.upload(0)
    reader = channel.waiting(0)
    body = pattern(size)
    wire = encode_chunk(body)
    for start, stop in ((0, 3), (3, len(wire) // 2), (len(wire) // 2, len(wire) - 1), (len(wire) - 1, len(wire))):
        upload.connection.send(wire[start:stop])
        target.settle()
    assert reader.head().status == 200
    assert reader.chunk() == body
    upload.end()
    assert reader.chunk() is None
    assert upload.answer().get("Lp-Trickle-Size") == str(size)


def test_chunks_in_one_packet_stay_apart(channel: RemoteChannel) -> None:
    """Control clients read one chunk at a time: chunks are not merged either."""
    upload = channel.upload(0)
    upload.connection.send(b"".join(map(encode_chunk, (b"one", b"two", b"three"))))
    upload.end()
    assert upload.answer().status == 200
    assert channel.get(0).chunks == [b"one", b"two", b"three"]


def test_a_large_chunk_streams(channel: RemoteChannel) -> None:
    """Readers do not wait for the end of a chunk of more than 32 KiB."""
    body = pattern(1 << 20)
    upload = channel.upload(0)
    upload.connection.send(b"%x\r\n" % len(body) + body[: len(body) // 2])
    reader = channel.read(0)
    assert reader.head().status == 200
    early = reader.body(len(body) // 2 - UNSPLIT)
    assert early == body[: len(early)]
    upload.connection.send(body[len(body) // 2 :] + b"\r\n")
    upload.end()
    assert upload.answer().get("Lp-Trickle-Size") == str(len(body))
    assert early + reader.rest() == body
    assert channel.get(0).body == body


def test_a_counted_body_is_relayed_as_it_arrives(channel: RemoteChannel) -> None:
    """With Content-Length there are no chunks to keep together: readers get what has arrived."""
    connection = channel.target.open()
    connection.send(connection.render("POST", channel.at(0), {"Content-Length": "10"}) + b"01234")
    connection.expects("POST")
    reader = channel.arrived(0, b"01234")
    connection.send(b"56789")
    assert connection.response().status == 200
    assert reader.rest() == b"56789"


def test_what_arrived_of_a_chunk_counts_when_its_publisher_is_lost(channel: RemoteChannel) -> None:
    """Half a chunk is half a chunk: it is kept and can be continued by a second POST."""
    upload = channel.upload(0)
    upload.connection.send(b"a\r\n01234")
    channel.target.settle()
    upload.connection.close()
    reader = channel.arrived(0, b"01234")
    second = channel.upload(0, b"56789").end()
    assert second.answer().get("Lp-Trickle-Size") == "10"
    assert reader.rest() == b"56789"


MALFORMED = {
    "size": b"xyz\r\n",
    "negative": b"-5\r\n",
    "overflow": b"fffffffffffffffff\r\n",
    "after": b"2\r\nabc\r\n",
}


@pytest.mark.parametrize("bad", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_chunk_is_refused_and_what_came_before_is_kept(channel: RemoteChannel, bad: bytes) -> None:
    """The publisher is told at once; its segment stays open for one that can go on."""
    upload = channel.upload(0, b"good ")
    reader = channel.arrived(0, b"good ")
    upload.connection.send(bad)
    assert upload.answer().status == 400
    upload.connection.half_close()
    upload.connection.closed()
    second = channel.upload(0, b"again").end()
    assert second.answer().status == 200
    assert reader.rest()[-5:] == b"again"


def test_chunks_before_a_malformed_one_in_the_same_packet_are_kept(channel: RemoteChannel) -> None:
    """The result for good chunks does not depend on how TCP cut the stream."""
    upload = channel.upload(0)
    upload.connection.send(encode_chunk(b"good ") + b"xyz\r\n")
    assert upload.answer().status == 400
    channel.upload(0, b"again").end().answer()
    assert channel.get(0).body == b"good again"


def test_a_malformed_chunk_first_leaves_nothing(channel: RemoteChannel, server: LocalServer) -> None:
    """A preconnect that turns out to be nonsense moves no head and leaves no segment."""
    channel.create()
    upload = channel.upload(0)
    upload.connection.send(b"nonsense\r\n")
    assert upload.answer().status == 400
    assert channel.next_seq() == 0
    assert server.record(channel=channel.name, op="publish").reason == "bad_request"


# How a publisher is answered.


@pytest.mark.parametrize("headers", [{}, {"Expect": "100-continue"}], ids=["plain", "expects"])
def test_an_idle_preconnect_is_sent_only_what_it_has_asked_for(headers: dict[str, str]) -> None:
    """No interim answer but the one that it expects, however long it is idle: proxies take it for the final one."""
    with local_server() as server, server.client() as target:
        preconnect = target.channel().upload(0, headers=headers)
        if headers:
            assert preconnect.connection.interim().status == 100
        for _ in range(4):
            later(server, 60)
        preconnect.connection.silent()
        assert preconnect.chunk(b"x").end().answer().status == 200


def test_a_first_byte_timeout_closes_a_silent_preconnect() -> None:
    """Switched on, it answers the publisher and moves readers on."""
    with local_server(first_byte_timeout_s=0.3) as server, server.client() as target:
        channel = target.channel()
        preconnect = channel.preconnect(0)
        waiting = channel.waiting(0)
        assert waiting.response().body == b""
        assert preconnect.answer().status == 200


@pytest.mark.parametrize("counted", [True, False])
def test_a_full_memory_refuses_what_does_not_fit(counted: bool) -> None:
    """503 with a wait, to the channel that holds most, once it has nothing to evict; what is held stays held."""
    with local_server(max_total_bytes=300_000, window_bytes=300_000) as server, server.client() as target:
        full, other = target.channel(), target.channel()
        other.publish(0, bytes(5_000))
        upload, reader = full.started(0, bytes(280_000))
        if counted:
            refused = full.post(1, bytes(50_000))
        else:
            late = full.upload(1, bytes(30_000))
            refused = late.answer()
        assert refused.status == 503
        assert 1 <= int(refused.get("Retry-After") or 0) <= 5
        assert full.next_seq() == 1
        assert server.record(channel=full.name, op="publish").reason == "limit:total_bytes"
        other.has(0, bytes(5_000))
        upload.chunk(b"end").end()
        assert upload.answer().status == 200
        assert reader.rest() == b"end"


@pytest.mark.parametrize("quota", ["max_channel_bytes", "max_publisher_bytes"])
def test_a_publisher_that_finishes_nothing_takes_no_window_from_others(quota: str) -> None:
    """429 that names the quota, and the windows of the others stay: they publish on."""
    limits: dict[str, Any] = {"max_total_bytes": 1 << 20, quota: 500_000}
    with local_server(**limits) as server, server.client() as target:
        others = [target.channel().publish(0, bytes(8_000), bytes(8_000)) for _ in range(20)]
        greedy = target.channel()
        uploads = [greedy.upload(seq, bytes(60_000)) for seq in range(8)]
        target.settle()
        refused = greedy.post(8, bytes(60_000))
        assert (refused.status, refused.body) == (429, f"Limit reached: {quota.removeprefix('max_')}".encode())
        assert (refused.get("Lp-Trickle-Seq"), int(refused.get("Retry-After") or 0) > 0) == ("8", True)
        record = server.record(channel=greedy.name, rseq=8)
        assert record.reason == f"limit:{quota.removeprefix('max_')}"
        for other in others:
            other.publish(2, bytes(8_000))
            assert [other.get(seq).status for seq in range(3)] == [200] * 3
        for upload in uploads:
            upload.end()
            assert upload.answer().status == 200


def test_a_channel_that_holds_less_gets_the_memory_of_the_one_that_holds_most() -> None:
    """Where everything is being written, the largest segment of that channel is truncated: 503 to its publisher."""
    with local_server(max_total_bytes=300_000) as server, server.client() as target:
        full, other = target.channel(), target.channel()
        upload, reader = full.started(0, bytes(280_000))
        other.publish(0, bytes(50_000))
        answer = upload.answer()
        assert (answer.status, answer.body) == (503, b"Limit reached: total_bytes")
        with pytest.raises(ConnectionCut):
            reader.rest()
        other.has(0, bytes(50_000))


def test_an_unfit_content_type_is_refused(channel: RemoteChannel, server: LocalServer) -> None:
    """It would stand in every reader's headers: too long or not printable is 400, and creates nothing."""
    for headers in ({"Content-Type": "x" * 300}, {"Content-Type": "caf\xe9"}, {"Idempotency-Key": "k" * 300}):
        assert channel.post(0, b"x", headers).status == 400
    assert channel.target.ask("POST", channel.path, {"Expect-Content": "x" * 300}, b"").status == 400
    assert channel.name not in server.plane.registry.channels


def test_a_post_that_overtook_others_is_held_until_they_come() -> None:
    """The one in between arrives late, on another connection: nothing is refused, and nothing lost."""
    with local_server(overtaking_grace_s=30) as server, server.client() as target:
        channel = target.channel()
        channel.publish(0, b"a")
        early = channel.upload(3, b"d")
        eventually(lambda: server.plane.parked[ParkedFor.OVERTAKEN], what="the POST is held")
        reader = channel.waiting(1)
        earlier = channel.upload(2, b"c").end()
        assert earlier.answer().status == 200
        assert channel.post(1, b"b").status == 200
        assert reader.response().body == b"b"
        early.chunk(b"dd").end()
        answer = early.answer()
        assert (answer.status, answer.get("Lp-Trickle-Seq"), answer.get("Lp-Trickle-Size")) == (200, "3", "3")
        assert [channel.get(seq).body for seq in range(4)] == [b"a", b"b", b"c", b"ddd"]
        assert not server.plane.parked[ParkedFor.OVERTAKEN]


@pytest.mark.parametrize("ended", [True, False])
def test_what_came_with_a_held_post_is_kept(ended: bool) -> None:
    """A body that is whole already, or has begun, is stored when its time comes."""
    with local_server(overtaking_grace_s=30) as server, server.client() as target:
        channel = target.channel()
        channel.publish(0, b"a")
        early = target.open()
        body = encode_chunk(b"whole") + (b"0\r\n\r\n" if ended else b"")
        early.send(early.render("POST", channel.at(3), {"Transfer-Encoding": "chunked"}) + body)
        early.expects("POST")
        eventually(lambda: server.plane.parked[ParkedFor.OVERTAKEN], what="the POST is held")
        channel.publish(1, b"b")
        if not ended:
            early.send(b"0\r\n\r\n")
        assert early.response().get("Lp-Trickle-Size") == "5"


def test_a_post_that_is_ahead_for_good_is_refused_after_the_grace(channel: RemoteChannel, server: LocalServer) -> None:
    """Nobody comes: 470, with where the head is, and the record counts from its arrival."""
    channel.publish(0)
    upload = channel.upload(3, b"x")
    answer = upload.answer()
    assert (answer.status, answer.get("Lp-Trickle-Latest")) == (470, "1")
    record = server.record(channel=channel.name, seq=3)
    assert record.dur_us is not None
    assert record.dur_us >= 0.9 * server.settings.overtaking_grace_s * 1e6  # the loop's timers have milliseconds


def test_a_held_post_whose_client_goes_is_forgotten() -> None:
    """Its connection breaks: nothing is left of it, and its seq is free."""
    with local_server(overtaking_grace_s=30) as server, server.client() as target:
        channel = target.channel()
        channel.publish(0)
        gone = channel.upload(3, b"x")
        eventually(lambda: server.plane.parked[ParkedFor.OVERTAKEN], what="the POST is held")
        gone.abort()
        channel.publish(1)
        channel.publish(2)
        assert channel.post(3, b"mine").get("Lp-Trickle-Size") == "4"


def test_a_held_post_without_a_body_is_forgotten_as_soon_as_its_client_goes() -> None:
    """Nothing has to be held back, so that its connection is read from all the time."""
    with local_server(overtaking_grace_s=30) as server, server.client() as target:
        channel = target.channel()
        channel.publish(0)
        gone = target.send("POST", channel.at(3), {"Content-Length": "0"})
        eventually(lambda: server.plane.parked[ParkedFor.OVERTAKEN], what="the POST is held")
        gone.abort()
        assert server.record(channel=channel.name, seq=3).reason == "client_gone"
        assert not server.plane.parked[ParkedFor.OVERTAKEN]


@pytest.mark.interpreted
def test_few_posts_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit they are refused at once."""
    monkeypatch.setattr(handler, "MAX_OVERTAKEN", 1)
    with local_server(overtaking_grace_s=30) as server, server.client() as target:
        channel = target.channel()
        channel.publish(0)
        channel.upload(3)
        eventually(lambda: server.plane.parked[ParkedFor.OVERTAKEN], what="the POST is held")
        assert channel.upload(4).answer().status == 470


# A publisher is read at the pace at which willing readers are served.


class Willing:
    """A reader that lacks something for as long as the test says, though its socket takes data."""

    def __init__(self, plane: DataPlane, name: str) -> None:
        self.channel = plane.registry.channels[name]
        self.segment = self.channel.segments[0]
        self.queued = False
        self.lacks = True
        self._turns = plane.turns

    def take_turn(self) -> None:
        if self.lacks:
            self._turns.add_reader(cast(SlowReader, self))

    def has(self) -> int:
        return self.segment.size


@pytest.mark.interpreted
def test_a_publisher_is_held_while_its_readers_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is not read, another channel's publisher is, and it goes on when the readers are served."""
    monkeypatch.setattr(scheduling, "HOLD_S", 10.0**6)
    with local_server() as server, server.client() as target:
        channel, other = target.channel(), target.channel()
        upload, reader = channel.started(0, b"one")
        (publisher,) = publishers(server)
        willing = Willing(server.plane, channel.name)
        server.inside(lambda: server.plane.turns.add_reader(cast(SlowReader, willing)))
        upload.chunk(b"two")
        assert reader.body(3) == b"two"
        eventually(lambda: server.inside(lambda: publisher.pauses) == CHANNEL)
        upload.chunk(b"three").end()
        other.publish(0, b"x")
        target.settle()
        assert server.inside(lambda: (publisher.pauses, willing.segment.size)) == (CHANNEL, 6)
        server.inside(lambda: setattr(willing, "lacks", False))
        assert upload.answer().get("Lp-Trickle-Size") == "11"
        assert reader.rest() == b"three"
        eventually(lambda: not server.plane.turns.flows)


def test_a_publisher_is_released_after_a_while() -> None:
    """Readers that are never served completely delay their publisher, and do not stop it."""
    with local_server() as server, server.client() as target:
        channel = target.channel()
        upload, _ = channel.started(0, b"one")
        willing = Willing(server.plane, channel.name)
        server.inside(lambda: server.plane.turns.add_reader(cast(SlowReader, willing)))
        for _ in range(3):
            upload.chunk(b"more")
        upload.end()
        assert upload.answer().get("Lp-Trickle-Size") == "15"
        server.inside(lambda: setattr(willing, "lacks", False))


@pytest.mark.interpreted
def test_a_held_publisher_that_goes_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection breaks at the shutdown or by its timeouts, and the release finds nothing to read from."""
    monkeypatch.setattr(scheduling, "HOLD_S", 10.0**6)
    with local_server() as server, server.client() as target:
        channel = target.channel()
        upload, _ = channel.started(0, b"one")
        (publisher,) = publishers(server)
        willing = Willing(server.plane, channel.name)
        server.inside(lambda: server.plane.turns.add_reader(cast(SlowReader, willing)))
        upload.chunk(b"two")
        eventually(lambda: server.inside(lambda: publisher.pauses) == CHANNEL)
        server.inside(publisher.abort)
        eventually(lambda: publisher not in server.plane.connections)
        server.inside(lambda: setattr(willing, "lacks", False))
        eventually(lambda: not server.plane.turns.flows)
        assert (publisher.pauses, server.plane.faults) == (0, 0)


def publishers(server: LocalServer) -> list[Connection]:
    """The connections that publish."""
    return [connection for connection in connections(server) if isinstance(connection.exchange, Upload)]
