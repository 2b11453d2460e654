"""Clips: what a channel carried between two moments, as one file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.app.data_plane.support import later, slow_peer
from tests.support.compiled import needs_interpreter
from tests.support.local import LocalServer, local_server
from tests.support.media import init_segment, mp4_pictures, ts_pictures
from tests.support.waiting import eventually
from tricklecast.app.data_plane import clips
from tricklecast.app.hls.clips import HEAD_BYTES
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.trickle.media.containers import box

TYPES = {"ts": "video/mp2t", "mp4": "video/mp4"}
DRAINED_S = 100.0


def segment(ending: str, seq: int, size: int = 0, marker: bytes = b"") -> bytes:
    """Make a whole segment of this container, with at least ``size`` bytes."""
    if ending == "ts":
        data = b"".join(ts_pictures(float(seq), 5))
        return data * (size // len(data) + 1)
    return b"".join(mp4_pictures(float(seq), 5, marker=marker)) + (box(b"free", bytes(size)) if size else b"")


def post(channel: RemoteChannel, ending: str, seq: int, data: bytes) -> bytes:
    """Publish a segment."""
    channel.post(seq, data, {"Content-Type": TYPES[ending]}).expect(200)
    return data


def joined(ending: str, segments: list[bytes]) -> bytes:
    """One file of them."""
    return b"".join(segments) if ending == "ts" else init_segment() + b"".join(
        one.removeprefix(init_segment()) for one in segments
    )  # fmt: skip


def named(moment_us: int) -> str:
    """A moment in a query."""
    return f"{datetime.fromtimestamp(moment_us / 1e6, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


@pytest.fixture(params=TYPES)
def ending(request: pytest.FixtureRequest) -> str:
    """Of the file."""
    name: str = request.param
    return name


def test_a_clip_is_the_bytes_of_the_segments(channel: RemoteChannel, server: LocalServer, ending: str) -> None:
    """In their order, behind one init segment; its size is known, and nothing is written anew."""
    data = [post(channel, ending, seq, segment(ending, seq)) for seq in range(4)]
    clip = channel.get(f"clip.{ending}?since=1h").expect(200)
    assert clip.body == joined(ending, data)
    assert (clip.get("Content-Type"), clip.get("Content-Length")) == (TYPES[ending], str(len(clip.body)))
    assert (clip.get("Lp-Trickle-Seq"), clip.get("Lp-Trickle-Gaps")) == ("0", "0")
    assert clip.get("Cache-Control") == "private, no-store"
    name = quote(channel.name, safe="")
    assert (clip.get("Content-Disposition") or "").startswith(f"attachment; filename*=UTF-8''{name}-2")
    record = server.record(op="clip", method="GET", channel=channel.name)
    assert (record.status, record.reason, record.bytes_out, record.rseq) == (200, "complete", len(clip.body), 0)
    assert record.detail == "4 segments to 3, 0 gaps"
    head = channel.target.ask("HEAD", channel.at(f"clip.{ending}?since=1h")).expect(200)
    assert (head.body, head.get("Content-Length")) == (b"", str(len(clip.body)))
    eventually(lambda: server.plane.clips == 0)


def test_a_clip_lies_between_two_moments(channel: RemoteChannel, server: LocalServer) -> None:
    """It has the segment that was being written at each of them. An open segment is not in it."""
    data, moments = [], []
    for seq in range(5):
        upload, _ = channel.started(seq, one := segment("ts", seq), headers={"Content-Type": TYPES["ts"]})
        moments.append(server.plane.wall_us() + 2000)
        eventually(lambda: server.plane.wall_us() > moments[-1] + 2000)
        data.append(one)
        if seq < 4:
            upload.end()
            assert upload.answer().status == 200

    def asked(since: int, until: int | None) -> list[int]:
        query = f"since={named(since)}" + ("" if until is None else f"&until={named(until)}")
        body = channel.get(f"clip.ts?{query}").expect(200).body
        return [seq for seq, one in enumerate(data) if one in body]

    assert asked(moments[1], moments[2]) == [1, 2]
    assert asked(moments[3], None) == [3]
    assert asked(moments[0], moments[4]) == [0, 1, 2, 3]


def fixed(server: LocalServer, channel: RemoteChannel, ending: str) -> tuple[str, list[bytes]]:
    """Publish four segments; a clip of the first three by its moments, and what is in it."""
    begin = server.plane.wall_us()
    data = [post(channel, ending, seq, segment(ending, seq)) for seq in range(2)]
    until = server.plane.wall_us() + 1000
    eventually(lambda: server.plane.wall_us() > until)
    data += [post(channel, ending, seq, segment(ending, seq)) for seq in range(2, 4)]
    return f"clip.{ending}?since={named(begin)}&until={named(until)}", data[:3]


def test_ranges_of_a_clip(channel: RemoteChannel, server: LocalServer, ending: str) -> None:
    """A clip between two moments that are over has a tag, and ranges over its init segment and its segments."""
    path, data = fixed(server, channel, ending)
    whole = joined(ending, data)
    clip = channel.get(path).expect(200)
    tag = clip.get("ETag") or ""
    assert (clip.body, clip.get("Accept-Ranges")) == (whole, "bytes")
    assert channel.get(path).get("ETag") == tag
    third = len(whole) // 3
    for asked, begin, end in (
        ("0-9", 0, 10),
        ("5-", 5, len(whole)),
        ("-7", len(whole) - 7, len(whole)),
        (f"{third - 10}-{2 * third + 10}", third - 10, 2 * third + 11),
        (f"{len(init_segment()) - 3}-{len(init_segment()) + 3}", len(init_segment()) - 3, len(init_segment()) + 4),
    ):
        part = channel.get(path, {"Range": f"bytes={asked}", "If-Range": tag}).expect(206)
        assert part.body == whole[begin:end]
        assert part.get("Content-Range") == f"bytes {begin}-{end - 1}/{len(whole)}"
        assert (part.get("Content-Length"), part.get("ETag")) == (str(end - begin), tag)
    beyond = channel.get(path, {"Range": f"bytes={len(whole)}-"}).expect(416)
    assert beyond.get("Content-Range") == f"bytes */{len(whole)}"
    assert channel.get(path, {"Range": "bytes=1-2", "If-Range": '"other"'}).expect(200).body == whole
    assert channel.get(path, {"If-None-Match": tag}).expect(304).body == b""
    head = channel.target.ask("HEAD", channel.at(path), {"Range": "bytes=1-2"}).expect(200)
    assert (head.get("Content-Length"), head.get("ETag")) == (str(len(whole)), tag)
    eventually(lambda: server.plane.clips == 0)


def test_a_clip_that_moves_has_no_ranges(channel: RemoteChannel, server: LocalServer) -> None:
    """The same URL would have other bytes a moment later; when the channel is over, it has not."""
    path, _ = fixed(server, channel, "ts")
    since = path.partition("&")[0]
    for moving in (
        "clip.ts?since=1h",
        f"{path.partition('?')[0]}?since=1h&until=0.001s",
        since,
        f"{since}&until=2999-01-01",
    ):
        clip = channel.get(moving, {"Range": "bytes=1-2", "If-None-Match": "*"}).expect(200)
        assert (clip.get("ETag"), clip.get("Accept-Ranges")) == (None, "none")
    channel.end()
    assert channel.get(f"{since}&until=2999-01-01", {"Range": "bytes=1-2"}).expect(206).body == segment("ts", 0)[1:3]


def test_a_clip_has_one_tag_wherever_its_segments_are(tmp_path: Path, ending: str) -> None:
    """In the window, in the data directory when the channel has ended and drained, and after a restart."""
    with local_server(data_dir=tmp_path) as server, server.client() as target:
        channel = target.channel("film")
        path, data = fixed(server, channel, ending)
        clip = channel.get(path).expect(200)
        archive = server.archive
        assert archive is not None
        eventually(lambda: len(archive.latest["film"].seqs) == 4)
        channel.end()
        later(server, DRAINED_S)
        channel.get(0).expect(404)
        channel.get(path, {"If-None-Match": clip.get("ETag") or ""}).expect(304)
    with local_server(data_dir=tmp_path) as server, server.client() as target:
        channel = target.channel("film")
        part = channel.get(path, {"Range": f"bytes={len(data[0]) + 1}-", "If-Range": clip.get("ETag") or ""}).expect(
            206
        )
        assert part.body == clip.body[len(data[0]) + 1 :]


def test_a_clip_of_what_storage_has(tmp_path: Path, ending: str) -> None:
    """From the data directory and the window, in turns; also of a channel that has ended, and is no longer here."""
    with local_server(data_dir=tmp_path, window_segments=3) as server, server.client() as target:
        channel = target.channel("film")
        data = [post(channel, ending, seq, segment(ending, seq, 3 * HEAD_BYTES)) for seq in range(40)]
        whole = joined(ending, data)
        assert channel.get(f"clip.{ending}?since=1h").expect(200).body == whole
        archive = server.archive
        assert archive is not None
        eventually(lambda: len(archive.latest["film"].seqs) == 40)
        channel.end()
        later(server, DRAINED_S)
        channel.get(0).expect(404)
        assert channel.get(f"clip.{ending}?since=1h").expect(200).body == whole
        eventually(lambda: server.plane.clips == 0)


def test_what_is_missing_is_told(channel: RemoteChannel, server: LocalServer, ending: str) -> None:
    """A segment that nobody wrote, and one that broke off, which is sent as far as a decoder can use it."""
    data = [post(channel, ending, 0, segment(ending, 0))]
    cut = segment(ending, 2)
    channel.started(2, cut[:-7], headers={"Content-Type": TYPES[ending]})
    eventually(lambda: server.plane.registry.channels[channel.name].segments[2].size == len(cut) - 7)
    channel.close(2, {"Lp-Trickle-Truncated": "1"})
    channel.post(3, b"").expect(200)  # an empty segment is none that is missing
    data += [cut[:-7], post(channel, ending, 4, segment(ending, 4))]
    if ending == "mp4":
        data[1] = b"".join(mp4_pictures(2.0, 4))
    clip = channel.get(f"clip.{ending}?since=1h").expect(200)
    assert (clip.body, clip.get("Lp-Trickle-Gaps")) == (joined(ending, data), "2")


@pytest.mark.parametrize(
    ("query", "status", "why"),
    [
        ("", 400, "since is missing"),
        ("?since=then", 400, "Invalid since"),
        ("?since=1h&until=then", 400, "Invalid until"),
        ("?since=1min&until=2min", 400, "until is before since"),
        ("?since=0.000001&until=0", 404, "ask for an earlier time"),
    ],
)
def test_a_query_that_names_no_clip(channel: RemoteChannel, query: str, status: int, why: str) -> None:
    """The answer says what to ask for."""
    post(channel, "ts", 0, segment("ts", 0))
    assert why in channel.get(f"clip.ts{query}").expect(status).body.decode()


def test_other_media_have_no_clip(channel: RemoteChannel) -> None:
    """The answer names the file that there is; a channel without media has none, and neither has no channel."""
    post(channel, "ts", 0, segment("ts", 0))
    assert "ask for clip.ts" in channel.get("clip.mp4?since=1h").expect(415).body.decode()
    text = channel.target.channel("text")
    text.post(0, b"words " * 100).expect(200)
    assert "subscribe -o" in text.get("clip.ts?since=1h").expect(415).body.decode()
    channel.target.channel("none").get("clip.ts?since=1h").expect(404)
    assert channel.target.ask("POST", channel.at("clip.ts"), body=b"").status == 405


def test_media_that_change_are_two_clips(channel: RemoteChannel) -> None:
    """The answer says where; a first segment without an init segment cannot begin one."""
    post(channel, "mp4", 0, segment("mp4", 0))
    post(channel, "mp4", 1, segment("mp4", 1, marker=b"other"))
    assert "The media change at segment 1: ask for one clip until 2" in (
        channel.get("clip.mp4?since=1h").expect(415).body.decode()
    )
    bare = channel.target.channel("bare")
    post(bare, "mp4", 0, segment("mp4", 0).removeprefix(init_segment()))
    assert "no init segment" in bare.get("clip.mp4?since=1h").expect(415).body.decode()


def test_clips_have_limits(channel: RemoteChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of their segments, and of how many are sent at a time."""
    needs_interpreter()
    for seq in range(3):
        post(channel, "ts", seq, segment("ts", seq))
    monkeypatch.setattr(clips, "MAX_SEGMENTS", 2)
    assert "ask for one until=2" in channel.get("clip.ts?since=1h").expect(400).body.decode()
    monkeypatch.setattr(clips, "MAX_SEGMENTS", 3)
    channel.get("clip.ts?since=1h").expect(200)
    monkeypatch.setattr(clips, "MAX_CLIPS", 0)
    assert channel.get("clip.ts?since=1h").expect(503).get("Retry-After") == "5"


def test_a_segment_that_is_gone_breaks_the_connection() -> None:
    """A client that is slow sees that its file is too short."""
    with local_server(window_segments=2) as server, server.client() as target:
        channel = target.channel("slow")
        size = 8 << 20
        for seq in range(2):
            post(channel, "ts", seq, segment("ts", seq, size))
        request = b"GET /trickle/slow/clip.ts?since=1h HTTP/1.1\r\nHost: x\r\n\r\n"
        with slow_peer(server, request) as peer:
            assert server.plane.clips == 1
            for seq in range(2, 4):
                post(channel, "ts", seq, segment("ts", seq))
            assert len(peer.rest()) < 2 * size
        assert server.record(op="clip").reason == "evicted"
        eventually(lambda: server.plane.clips == 0)
