"""Streams: one response over all segments of a channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.data_plane.support import LAG_S, PATIENT, SlowPeer, later, pattern
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.core.slow_readers import Cut
from tricklecast.app.data_plane.context import Streamed
from tricklecast.app.tools.conformance.connection import RawConnection
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.trickle import wire

CHUNK = 64 << 10


def opened(channel: RemoteChannel, query: str = "") -> RawConnection:
    """A stream whose request has arrived."""
    stream = channel.read("stream" + query)
    channel.target.settle()
    return stream


def test_a_stream_is_all_segments_from_the_newest_on(channel: RemoteChannel, server: LocalServer) -> None:
    """It begins with the newest segment that has begun, relays each chunk as it comes, and ends with the channel."""
    channel.create("video/mp2t").publish(0, b"zero")
    upload = channel.upload(1, b"one")
    channel.arrived(1, b"one").close()
    stream = opened(channel)
    stream.head().expect(200, content_type="video/mp2t", seq=1, latest=2, epoch=1)
    stream.gets(b"one")
    upload.chunk(b", and more").stored()
    assert stream.chunk() == b", and more"
    for seq in range(2, 5):
        upload = channel.upload(seq, b"<%d" % seq)
        assert stream.chunk() == b"<%d" % seq
        upload.chunk(b"%d>" % seq).stored()
        assert stream.chunk() == b"%d>" % seq
    channel.end()
    response = stream.ends()
    trailers = {wire.NEXT: "5", wire.GAPS: "0", wire.CLOSED: "terminated"}
    assert {name.decode(): value.decode() for name, value in response.trailers} == {
        name.lower(): value for name, value in trailers.items()
    }
    record = server.record(channel=channel.name, op="stream")
    assert (record.status, record.reason, record.seq, record.rseq, record.next_seq) == (200, "terminated", -2, 1, 5)
    assert record.bytes_out == len(b"one, and more" + b"<22><33><44>")
    assert record.detail == "4 whole segments, 0 left out, 0 cut short"
    assert server.plane.registry.readers == 0


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("latest", 3),
        ("current", 3),
        ("", 3),
        ("-2", 3),
        ("-3", 2),
        ("-99", 0),
        ("earliest", 0),
        ("1", 1),
        ("next", 4),
        ("-1", 4),
        ("4", 4),
    ],
)
def test_where_a_stream_starts(channel: RemoteChannel, start: str, first: int) -> None:
    """A seq, a number from the head as in a GET, or a name."""
    channel.publish(0, b"a", b"b", b"c", b"d")
    stream = opened(channel, f"?start={start}&cache=x")
    channel.publish(4, b"e")
    channel.end()
    assert stream.head().get(wire.SEQ) == str(first)
    assert stream.rest() == b"abcde"[first:]


@pytest.mark.parametrize("start", ["now", "1.5", "--1", "0x1", "%20", "1" * 16])
def test_a_bad_start_is_refused_with_one_line(channel: RemoteChannel, start: str) -> None:
    """400, and the line says what it may be."""
    channel.publish(0)
    answer = channel.get(f"stream?start={start}").expect(400)
    assert answer.body == b"Invalid start: it is earliest, current, next, N or -N"


def test_what_a_stream_cannot_have_is_answered_as_for_a_segment(channel: RemoteChannel) -> None:
    """404 without the channel, 470 beyond its head, 405 for a POST, and an empty 200 when it has ended."""
    channel.get("stream").expect(404)
    channel.publish(0)
    channel.get("stream?start=7").expect(470, latest=1)
    assert channel.post("stream").expect(405).get("Allow") == "GET, HEAD, OPTIONS"
    channel.end()
    answer = channel.get("stream?start=next").expect(200, closed="terminated")
    assert answer.body == b""


def test_a_head_is_answered_at_once(channel: RemoteChannel, server: LocalServer) -> None:
    """With what is known; and it leaves nothing behind."""
    channel.create("video/mp2t")
    target = channel.target
    target.ask("HEAD", channel.at("stream")).expect(200, content_type="video/mp2t", seq=0)
    channel.publish(0, b"a", b"b")
    target.ask("HEAD", channel.at("stream")).expect(200, seq=1, latest=2)
    assert server.plane.registry.readers == 0


def test_gaps_are_passed_over_and_counted(channel: RemoteChannel, server: LocalServer) -> None:
    """Empty segments are no gap; skipped ones are left out, truncated ones are cut short, and the trailer says so."""
    before = dict(server.plane.streamed)
    channel.publish(0, b"zero,")
    stream = opened(channel)
    channel.post(1, b"").expect(200)
    upload = channel.upload(2, b"cut,")
    channel.arrived(2, b"cut,").close()
    channel.close(2, {wire.TRUNCATED: "lost"}).expect(200)
    upload.answer()
    channel.post(7, b"seven,", {wire.RESET: "1"}).expect(200)
    upload = channel.upload(8, b"eight")
    assert stream.head().status == 200
    stream.gets(b"zero,cut,seven,eight")
    channel.end()
    upload.answer()
    response = stream.ends()
    assert response.marked(wire.GAPS) == "6"
    record = server.record(channel=channel.name, op="stream")
    assert record.detail == "2 whole segments, 4 left out, 2 cut short"
    counted = {what: n - before[what] for what, n in server.plane.streamed.items()}
    assert counted == {Streamed.WHOLE: 2, Streamed.LEFT_OUT: 4, Streamed.CUT_SHORT: 2}


def test_a_stream_from_a_seq_that_is_gone_begins_later() -> None:
    """Segments that have left the window are left out, at the beginning and in the middle."""
    with local_server(window_segments=2) as server, server.client() as target:
        channel = target.channel()
        channel.publish(0, b"a", b"b", b"c", b"d")
        stream = opened(channel, "?start=0")
        channel.end()
        assert stream.head().get(wire.SEQ) == "2"
        assert stream.ends(b"cd").marked(wire.GAPS) == "2"


def test_a_stream_that_waits_for_the_first_segment(channel: RemoteChannel, server: LocalServer) -> None:
    """No byte of the response comes before the first byte of a segment; empty ones do not count."""
    channel.create()
    stream = opened(channel)
    channel.post(0, b"", {"Content-Type": "video/mp2t"}).expect(200)
    stream.silent()
    channel.post(1, b"first").expect(200)
    stream.head().expect(200, content_type="video/mp2t", seq=1)
    stream.gets(b"first")
    empty = opened(channel, "?start=next")
    channel.end()
    stream.ends()
    assert empty.response().expect(200, closed="terminated").body == b""


def test_a_client_of_http_1_0_reads_until_the_connection_ends(channel: RemoteChannel) -> None:
    """It gets the bytes without chunks, over several segments."""
    channel.publish(0, b"zero,")
    connection = channel.target.open()
    connection.request("GET", channel.at("stream"), version="1.0")
    channel.target.settle()
    upload = channel.upload(1, b"one")
    connection.head().expect(200)
    connection.gets(b"zero,one")
    channel.end()
    upload.answer()
    assert connection.rest() == b""


def test_a_stream_does_not_go_on_with_another_epoch(channel: RemoteChannel) -> None:
    """The channel's new life is another stream."""
    channel.publish(0, b"old")
    stream = opened(channel)
    channel.end()
    channel.post(0, b"new", {wire.RESET: "1"}).expect(200)
    stream.head().expect(200, epoch=1)
    stream.ends(b"old")
    assert opened(channel).head().get(wire.EPOCH) == "2"


def test_two_segments_at_a_time_are_relayed_one_after_the_other(channel: RemoteChannel) -> None:
    """The next one has begun before this one ends: its bytes come behind."""
    first, stream = channel.upload(0, b"a"), opened(channel)
    stream.head().expect(200)
    stream.gets(b"a")
    second = channel.upload(1, b"B")
    channel.arrived(1, b"B").close()
    first.chunk(b"b").stored()
    stream.gets(b"bB")
    second.chunk(b"C").stored()
    stream.gets(b"C")


@given(
    st.lists(st.lists(st.binary(min_size=1, max_size=70_000), max_size=4), min_size=1, max_size=6),
    st.integers(-7, 6),
)
def test_a_stream_is_what_its_segments_are(server: LocalServer, segments: list[list[bytes]], start: int) -> None:
    """With any sizes and any start, a stream has the same bytes as the segments read one by one."""
    with server.client() as target:
        channel = target.channel()
        channel.create()
        streams = [opened(channel)] if start >= len(segments) else []
        for seq, chunks in enumerate(segments):
            channel.upload(seq, *chunks).stored()
        if not streams:
            streams = [opened(channel, f"?start={start}")]
        channel.end()
        wanted = [b"".join(chunks) for chunks in segments]
        if start < 0:
            wanted = wanted[max(0, len(wanted) + 1 + start) :]
        elif start < len(segments):
            wanted = wanted[start:]
        for stream in streams:
            assert stream.response().body == b"".join(wanted)


def test_a_stream_ends_at_the_end_of_a_segment_when_the_server_shuts_down() -> None:
    """One in the middle of a segment gets the rest, one that waits ends at once, and one without a byte gets 503."""
    with local_server(shutdown_deadline_s=60) as server, server.client() as target:
        busy, waiting, silent = target.channel(), target.channel(), target.channel()
        upload = busy.upload(0, b"begun,")
        waiting.publish(0, b"whole")
        silent.create()
        streams = [opened(channel) for channel in (busy, waiting, silent)]
        streams[0].head().expect(200)
        streams[0].gets(b"begun,")
        streams[1].head().expect(200)
        streams[1].gets(b"whole")
        server.inside(server.stop)
        assert streams[1].ends().marked(wire.NEXT) == "1"
        assert streams[1]._decoder is None
        streams[2].last(503)
        upload.chunk(b"rest").end()
        assert streams[0].ends(b"rest").marked(wire.NEXT) == "1"
        eventually(server.over)
        assert server.record(channel=waiting.name, op="stream").reason == "shutdown"


@pytest.fixture(scope="module")
def patient() -> Iterator[LocalServer]:
    """A server that cuts nobody off by itself."""
    with local_server(**PATIENT, window_segments=1000) as running:
        yield running


def stuck(server: LocalServer, channel: RemoteChannel, query: str = "") -> SlowPeer:
    """A client of a stream that reads nothing."""
    return SlowPeer(
        server.port, f"GET {channel.at('stream' + query)} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode()
    )


def test_a_stream_lags_by_all_that_was_published_since_it_was_at_the_live_edge(patient: LocalServer) -> None:
    """Bytes of the segments after its own count, and so does their age: it is cut off like a reader of one segment."""
    with patient.client() as target:
        channel = target.channel()
        upload = channel.upload(0, b"begun---")
        channel.lose(channel.arrived(0, b"begun---"))
        peer = stuck(patient, channel)
        eventually(lambda: patient.plane.registry.readers == 1)
        upload.chunk(pattern(40 * CHUNK)).stored()
        channel.publish(1, *[pattern(CHUNK)] * 8)
        (connection,) = eventually(lambda: list(patient.plane.slow_peers.stalled))
        reader = patient.inside(connection.reader)
        assert reader is not None
        assert patient.inside(reader.lag) > 8 * CHUNK
        later(patient, 0)
        later(patient, LAG_S - 1)
        assert patient.plane.registry.readers == 1
        later(patient, 2)
        record = patient.record(channel=channel.name, op="stream")
        assert (record.status, record.reason) == (200, "evicted")
        assert record.detail is not None
        assert record.detail.startswith(f"{Cut.STILL}; 0 whole segments")
        assert not peer.rest().endswith(b"0\r\n\r\n")
        peer.socket.close()


def test_a_stream_that_takes_something_is_cut_off_for_what_lies_in_later_segments(patient: LocalServer) -> None:
    """It has gone on to a segment that closed long ago: what that lacks is too old."""
    with patient.client() as target:
        channel = target.channel()
        upload = channel.upload(0, b"begun---")
        channel.lose(channel.arrived(0, b"begun---"))
        peer = stuck(patient, channel)
        eventually(lambda: patient.plane.registry.readers == 1)
        upload.stored()
        channel.publish(1, *[pattern(CHUNK)] * 100)
        later(patient, 0)
        for _ in range(4):
            peer.take(CHUNK)
            later(patient, LAG_S * 0.3)
        record = patient.record(channel=channel.name, op="stream")
        assert record.detail is not None
        assert record.detail.startswith(Cut.AGE)
        peer.socket.close()
        eventually(lambda: patient.plane.registry.readers == 0)


def test_a_stream_may_take_its_time_with_a_backlog(patient: LocalServer) -> None:
    """As long as it has never been at the live edge, only standing still is lag; and it misses nothing."""
    with patient.client() as target:
        channel = target.channel()
        channel.publish(0, *[pattern(CHUNK)] * 60)
        peer = stuck(patient, channel, "?start=earliest")
        eventually(lambda: patient.plane.slow_peers.stalled)
        later(patient, 0)
        for _ in range(5):
            peer.take(2 * CHUNK)
            channel.publish(channel.next_seq(), pattern(CHUNK))
            later(patient, LAG_S * 0.9)
        assert patient.plane.registry.readers == 1
        channel.end()
        assert peer.rest().endswith(
            b"lp-trickle-closed: terminated\r\n\r\n".replace(b"lp-trickle-closed", b"Lp-Trickle-Closed")
        )
        peer.socket.close()


def test_a_stream_reads_what_storage_keeps(tmp_path: Path) -> None:
    """Below the window it goes on from the data directory to memory, and from there to what is published."""
    with local_server(data_dir=tmp_path, window_segments=2) as server, server.client() as target:
        channel = target.channel()
        bodies = [pattern(100_000, 8 * seq) for seq in range(6)]
        channel.publish(0, *bodies)
        eventually(lambda: server.archive is not None and server.archive.segments >= 4)
        stream = opened(channel, "?start=earliest")
        assert stream.head().get(wire.SEQ) == "0"
        stream.gets(b"".join(bodies))
        channel.publish(6, b"live")
        stream.gets(b"live")
        channel.end()
        assert stream.ends().marked(wire.GAPS) == "0"


def test_the_bytes_of_a_stream_count_as_they_go_by(channel: RemoteChannel, server: LocalServer) -> None:
    """A stream may last for days: the counters do not wait for its end, and count nothing twice."""
    before = server.inside(lambda: server.plane.bytes_out)
    channel.publish(0, b"12345")
    stream = opened(channel)
    stream.head().expect(200)
    channel.publish(1, b"6789")
    stream.gets(b"123456789")
    eventually(lambda: server.inside(lambda: server.plane.bytes_out) >= before + 9)
    channel.lose(stream)
    record = server.record(channel=channel.name, op="stream")
    assert (record.reason, record.bytes_out) == ("client_gone", 9)
    assert server.plane.registry.channels[channel.name].bytes_out == 9
