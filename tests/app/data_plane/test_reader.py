"""Readers: many of them, slow ones, and ones that go away."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from tests.app.data_plane.support import later, pattern
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.data_plane import scheduling
from tricklecast.app.tools.conformance.connection import RawConnection, encode_chunk
from tricklecast.app.tools.conformance.response import ConnectionCut
from tricklecast.app.tools.conformance.target import RemoteChannel, Target

READERS = 60


def state(target: Target, channel: RemoteChannel) -> dict[str, Any]:
    """The control plane's description of a channel."""
    found: dict[str, Any] = json.loads(target.ask("GET", f"/api/v1/channels/{channel.name}").body)
    return found


def test_many_readers_get_exactly_the_same_bytes(channel: RemoteChannel, target: Target) -> None:
    """Those who wait, those who come in the middle and those who come late: the same chunks in the same order."""
    channel.create("video/mp2t")
    waiting = [channel.read(0) for _ in range(READERS)]
    eventually(lambda: state(target, channel)["readers"] == READERS)
    upload = channel.upload(0)
    chunks = [pattern(2000, 2000 * number) for number in range(50)]
    for chunk in chunks[:25]:
        upload.chunk(chunk)
    middle = [channel.read(0) for _ in range(5)]
    for connection in middle:
        assert connection.head().status == 200
    for chunk in chunks[25:]:
        upload.chunk(chunk)
    upload.end()
    assert upload.answer().status == 200
    for connection in waiting:
        response = connection.response()
        assert response.chunks == chunks
        assert response.get("Content-Type") == "video/mp2t"
    for connection in middle:
        assert connection.rest() == b"".join(chunks)
    assert channel.get(0).chunks == chunks
    eventually(lambda: state(target, channel)["readers"] == 0)


def test_the_next_segment_goes_before_the_end_of_the_last(
    channel: RemoteChannel, target: Target, server: LocalServer
) -> None:
    """When a segment closes, readers of other things do not wait until all its readers are told."""
    upload, first = channel.started(0, b"begun")
    others = [channel.arrived(0, b"begun") for _ in range(READERS)]
    plane = server.plane

    def close() -> int:
        assert plane.registry.close_segment(channel.name, 0, plane.clock()) is None
        return plane.registry.readers

    assert server.inside(close) == READERS + 1, "the readers are told in a later turn of the loop"
    assert [reader.rest() for reader in (first, *others)] == [b""] * (READERS + 1)
    assert upload.answer().status == 200
    eventually(lambda: state(target, channel)["readers"] == 0)


@pytest.mark.interpreted
def test_publishers_expect_the_next_request_of_a_reader_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is so from the end of a segment that is not the newest until the request comes; the newest ends it."""
    monkeypatch.setattr(scheduling, "EXPECTED_TURNS", 10**9)
    with local_server() as server, server.client() as target:
        channel, flows = target.channel(), server.plane.turns.flows
        channel.publish(0, b"0", b"1", b"2")
        reader = target.open()
        for seq in range(3):
            reader.request("GET", channel.at(seq))
            assert reader.response().body == b"%d" % seq
            eventually(partial(lambda expected: server.inside(lambda: bool(flows)) == expected, seq < 2))
        leaving = target.send("GET", channel.at(0), {"Connection": "close"})
        assert leaving.response().body == b"0"
        leaving.closed()
        assert not server.inside(lambda: flows)


def test_readers_of_several_channels_get_only_theirs(target: Target) -> None:
    """Nothing of one channel reaches the readers of another, also when they share a connection."""
    channels = [target.channel() for _ in range(5)]
    for number, channel in enumerate(channels):
        channel.publish(0, b"%d" % number * 1000)
    connection = target.open()
    for _ in range(3):
        for number, channel in enumerate(channels):
            connection.request("GET", channel.at(0))
            assert connection.response().body == b"%d" % number * 1000


def test_a_waiting_reader_that_goes_leaves_no_trace(
    channel: RemoteChannel, target: Target, server: LocalServer
) -> None:
    """The segment it waited for is forgotten with it; the head has not moved."""
    channel.create()
    reader = channel.read(0)
    eventually(lambda: state(target, channel)["readers"] == 1)
    reader.abort()
    eventually(lambda: state(target, channel)["readers"] == 0)
    after = state(target, channel)
    assert (after["next_seq"], after["window"]["segments"]) == (0, 0)
    found = server.plane.registry.channels[channel.name]
    assert not found.segments
    record = server.record(channel=channel.name, op="read")
    assert (record.reason, record.status, record.bytes_out, record.rseq) == ("client_gone", None, 0, 0)


def test_a_reader_that_goes_mid_segment_disturbs_nobody(
    channel: RemoteChannel, target: Target, server: LocalServer
) -> None:
    """Others get everything, and the record says how much the lost one had been sent."""
    upload, staying = channel.started(0, b"12345678")
    leaving = channel.arrived(0, b"12345678")
    leaving.abort()
    eventually(lambda: state(target, channel)["readers"] == 1)
    upload.chunk(b"abc").end()
    assert staying.rest() == b"abc"
    assert upload.answer().status == 200
    record = server.record(channel=channel.name, op="read", reason="client_gone")
    assert (record.status, record.bytes_out) == (200, 8)


CHUNK = 64 << 10


def stall(channel: RemoteChannel, server: LocalServer, chunks: int) -> RawConnection:
    """Publish so much to a reader that takes nothing that its connection is full; the publisher is not slowed."""
    upload = channel.upload(0, b"begun---")
    reader = channel.read(0)
    eventually(lambda: server.plane.registry.readers == 1)
    for number in range(chunks):
        upload.chunk(pattern(CHUNK, CHUNK * number))
    upload.end()
    assert upload.answer().get("Lp-Trickle-Size") == str(chunks * CHUNK + 8)
    return reader


def test_a_slow_reader_catches_up_exactly() -> None:
    """It stalls, the publisher and others do not; when it reads again, it gets every byte in order."""
    chunks = 200
    with local_server(reader_lag_s=60, reader_lag_bytes="1GiB") as server, server.client() as target:
        channel = target.channel()
        reader = stall(channel, server, chunks)
        assert len(server.plane.slow_peers.stalled) == 1
        assert channel.get(0).body == b"begun---" + pattern(CHUNK * chunks)
        assert reader.head().status == 200
        assert reader.rest() == b"begun---" + pattern(CHUNK * chunks)
        eventually(lambda: not server.plane.slow_peers.stalled)


@pytest.mark.parametrize(
    "settings", [{"reader_lag_s": 60, "reader_lag_bytes": "1MiB"}, {"reader_lag_s": 0.3, "reader_lag_bytes": "1GiB"}]
)
def test_a_reader_too_far_behind_is_cut_off_without_an_end(settings: dict[str, Any]) -> None:
    """Past the lag in bytes or time the connection breaks without a final chunk: nobody takes the part for all."""
    with local_server(**settings) as server, server.client() as target:
        channel = target.channel()
        reader = stall(channel, server, 200)
        record = server.record(channel=channel.name, op="read", reason="evicted")
        assert record.status == 200
        assert record.bytes_out is not None
        assert record.bytes_out < 200 * CHUNK
        eventually(lambda: server.plane.registry.readers == 0)
        assert reader.head().status == 200
        with pytest.raises(ConnectionCut):
            reader.rest()
        assert channel.get(0).body == b"begun---" + pattern(CHUNK * 200)


def test_a_reader_of_an_old_segment_may_take_its_time_as_long_as_it_takes() -> None:
    """A backlog that was there when the reader came is no lag: only standing still is."""
    with local_server(reader_lag_s=60, reader_lag_bytes="1MiB") as server, server.client() as target:
        channel = target.channel()
        body = pattern(12 << 20)
        upload = channel.upload(0)
        upload.connection.send(encode_chunk(body))
        assert upload.end().answer().status == 200
        reader = channel.read(0)
        eventually(lambda: server.plane.slow_peers.stalled)
        for _ in range(3):
            later(server, 1)
        assert reader.head().status == 200
        assert reader.rest() == body


def test_readers_that_break_while_chunks_come(channel: RemoteChannel, server: LocalServer) -> None:
    """A write to a connection that is gone breaks only that connection."""
    upload, staying = channel.started(0, b"begun")
    for _ in range(20):
        channel.arrived(0, b"begun").abort()
        upload.chunk(b"x" * 1000)
    upload.end()
    assert upload.answer().status == 200
    assert staying.rest() == b"x" * 20_000
    eventually(lambda: server.plane.registry.readers == 0)


def test_answers_behind_a_stalled_one_come_in_order(channel: RemoteChannel, server: LocalServer) -> None:
    """A request behind a large segment on the same connection waits for its bytes, although the client reads late."""
    body = pattern(6 << 20)
    channel.publish(0, body)
    connection = channel.target.open()
    for _ in range(3):
        connection.request("GET", channel.at(0))
        connection.request("GET", channel.at("next"))
        connection.request("GET", channel.at(9))
    eventually(lambda: server.plane.slow_peers.stalled)
    for _ in range(3):
        assert connection.response().body == body
        assert connection.response().body == b"1"
        assert connection.response().status == 470


def test_a_publisher_that_says_it_is_done_is_answered(channel: RemoteChannel) -> None:
    """Half-closing after a whole request is no disconnect: the answer comes."""
    connection = channel.target.open()
    connection.request("POST", channel.at(0), body=b"body")
    connection.half_close()
    assert connection.response().status == 200
    assert channel.get(0).body == b"body"


def test_a_publisher_that_half_closes_in_the_middle_is_lost(channel: RemoteChannel, server: LocalServer) -> None:
    """Without the end of its body it can be resumed like any other lost publisher."""
    upload, reader = channel.started(0, b"one,")
    upload.connection.half_close()
    assert server.record(channel=channel.name, op="publish").reason == "client_gone"
    channel.upload(0, b"two").end().answer()
    assert reader.rest() == b"two"
