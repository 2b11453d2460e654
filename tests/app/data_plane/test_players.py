"""HLS playlists over the segments of a channel, and the media that they name."""

from __future__ import annotations

import gc
import gzip
import struct
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.app.data_plane.support import LAG_S, PATIENT, SlowPeer, later
from tests.app.replication.bridge import Bridge
from tests.support.hls import Part, Playlist, Watcher, read, read_multivariant
from tests.support.local import LocalServer, local_server
from tests.support.media import (
    PMT_PID,
    VIDEO_PID,
    fragment,
    init_segment,
    mp4_pictures,
    section,
    tables,
    ts_packet,
    ts_pictures,
)
from tests.support.waiting import eventually
from tricklecast.app.core.segment import Segment
from tricklecast.app.data_plane import players
from tricklecast.app.data_plane.routing import parse_route
from tricklecast.app.hls import packager as module
from tricklecast.app.hls import timeline, units
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.trickle import wire
from tricklecast.trickle.media.containers import Container, box, full_box, sniff

Pictures = Callable[..., list[bytes]]

FORMATS: dict[str, Pictures] = {"video/mp2t": ts_pictures, "video/mp4": mp4_pictures}


class Live:
    """A channel to which segments of 25 pictures in a second are published, and a player that watches its playlist."""

    def __init__(self, channel: RemoteChannel, content_type: str = "video/mp2t") -> None:
        self.channel, self.content_type = channel, content_type
        self.pictures: Pictures = FORMATS[content_type]
        self.watcher = Watcher()

    def publish(self, seq: int, at_s: float | None = None, pictures: int = 25, **fields: Any) -> bytes:
        """A whole segment."""
        data = b"".join(self.pictures(float(seq) if at_s is None else at_s, pictures, **fields))
        self.channel.post(seq, data, {"Content-Type": self.content_type}).expect(200)
        return data

    def playlist(self, query: str = "") -> Playlist:
        """The playlist, once there is one and it has what the query asks for."""
        answer = self.channel.get("media.m3u8" + query).expect(200)
        assert answer.get("Content-Type") == "application/vnd.apple.mpegurl"
        target = int(answer.body.decode().partition("#EXT-X-TARGETDURATION:")[2].partition("\n")[0])
        age_s = 6 * target if "_HLS_msn" in query else max(1, target // 2)
        assert answer.get("Cache-Control") == f"public, max-age={age_s}"
        return self.watcher.see(answer.body.decode())

    def until(self, seq: int) -> Playlist:
        """The playlist in which this segment has ended."""
        while (found := self.watcher.last) is None or seqs(found)[-1:] != [str(seq)]:
            self.playlist(self.next_query())
        return found

    def next_query(self) -> str:
        """The query of a player that has the last playlist, and wants to know more."""
        last = self.watcher.last
        if last is None or not last.segments:
            return ""
        newest = last.segments[-1]
        msn, part = (newest.msn, len(newest.parts)) if newest.duration is None else (newest.msn + 1, 0)
        return f"?_HLS_msn={msn}" + (f"&_HLS_part={part}" if last.part_target else "")

    def media(self, uri: str) -> bytes:
        """The URLs in the playlist."""
        answer = self.channel.get(uri).expect(200)
        assert answer.get("Cache-Control") == "public, max-age=3600, immutable"
        assert answer.get("Content-Length") == str(len(answer.body))
        return answer.body


@pytest.fixture(params=FORMATS)
def live(request: pytest.FixtureRequest, channel: RemoteChannel) -> Live:
    """A channel of either kind."""
    return Live(channel, request.param)


def seqs(playlist: Playlist) -> list[str]:
    """The segments that a playlist names: ``~`` for a gap, ``|`` for a discontinuity."""
    found = []
    for segment in playlist.whole:
        found += ["|"] if segment.breaks else []
        found.append("~" if segment.gap else segment.uri.rpartition("-")[2].partition(".")[0])
    return found


def body(segment: bytes, init: bytes) -> bytes:
    """A segment without its init segment."""
    return segment.removeprefix(init)


def test_a_playlist_of_what_is_there(live: Live) -> None:
    """The newest closed segments, their durations and times; each can be had, and its init segment."""
    data = [live.publish(seq) for seq in range(15)]
    found = live.playlist()
    assert seqs(found) == [str(seq) for seq in range(3, 15)]
    assert [segment.duration for segment in found.whole] == [1.0] * 12
    assert found.target == 2
    assert found.part_target == 0.4
    dates = [segment.date for segment in found.whole]
    assert all(dates)
    init = live.media(found.whole[0].map) if found.whole[0].map else b""
    assert bool(init) == (live.content_type == "video/mp4")
    for segment, whole in zip(found.whole, data[3:], strict=True):
        assert live.media(segment.uri) == body(whole, init)


def test_parts_come_as_they_are_published(live: Live) -> None:
    """Ten pictures each; a request for the playlist, or for the part that it hints at, waits for it."""
    for seq in range(3):
        live.publish(seq)
    live.playlist()
    pictures = live.pictures(3.0, 25)
    upload = live.channel.upload(3)
    sent, parts, init = iter(pictures), [], b""
    for number in range(3):
        last = live.watcher.last
        assert last is not None
        waiting = live.channel.read("media.m3u8" + live.next_query())
        hinted = live.channel.read(last.hint)
        live.channel.target.settle()
        for _ in range((11, 10, 4)[number]):  # a part is whole when the picture behind it begins
            upload.chunk(next(sent))
        if number == 2:
            upload.stored()
        found = live.watcher.see(waiting.response().expect(200).body.decode())
        segment = found.segments[-1]
        assert [part.independent for part in segment.parts] == [True, False, False][: number + 1]
        parts.append(hinted.response().expect(200).body)
        assert live.media(segment.parts[-1].uri) == parts[-1]
        init = live.media(segment.map) if segment.map else b""
    assert b"".join(parts) == body(b"".join(pictures), init)
    found = live.until(3)
    assert [round(part.duration, 5) for part in found.whole[-1].parts] == [0.4, 0.4, 0.2]
    assert live.media(found.whole[-1].uri) == b"".join(parts)


def test_missing_segments_are_gaps_as_long_as_what_is_missing(live: Live) -> None:
    """Empty ones, and those that nobody wrote; where the time goes on, nothing is missing."""
    for seq in range(3):
        live.publish(seq)
    live.playlist()
    live.channel.post(3, b"").expect(200)
    live.publish(4, 4.0)
    live.until(4)
    live.channel.post(7, b"".join(live.pictures(7.5, 25)), {wire.RESET: "1"}).expect(200)
    found = live.until(7)
    live.channel.post(8, b"").expect(200)
    live.publish(9, 8.5)
    found = live.until(9)
    assert seqs(found) == ["0", "1", "2", "~", "4", "~", "~", "7", "9"]
    gaps = [segment for segment in found.whole if segment.gap]
    assert [segment.duration for segment in gaps] == [1.0, 1.25, 1.25]
    live.channel.get(gaps[0].uri).expect(404)


def test_what_does_not_follow_is_behind_a_discontinuity(live: Live) -> None:
    """A truncated segment, times that jump (a publisher that began anew), and another init segment."""
    live.publish(0)
    live.publish(1)
    live.playlist()
    upload = live.channel.upload(2, b"".join(live.pictures(2.0, 12)))
    live.channel.arrived(2, b"".join(live.pictures(2.0, 12))).close()
    live.channel.close(2, {wire.TRUNCATED: "1"}).expect(200)
    upload.answer()
    live.publish(3, 3.0)
    live.until(3)
    live.publish(4, 1000.0)
    live.until(4)
    wanted = ["0", "1", "2", "|", "3", "|", "4"]
    if live.content_type == "video/mp4":
        live.publish(5, 1001.0, marker=b"another")
        wanted += ["|", "5"]
        maps = {segment.map for segment in live.until(5).whole}
        assert len(maps) == 2
        assert all(live.media(uri) for uri in maps)
    last = live.watcher.last
    assert last is not None
    assert seqs(last) == wanted
    assert last.whole[2].duration == pytest.approx(0.48)


def test_numbers_go_on_in_another_epoch(live: Live) -> None:
    """The playlist ends with the channel; that of its next life has higher numbers, and other URLs."""
    for seq in range(3):
        live.publish(seq)
    before = live.playlist()
    live.channel.end()
    ended = live.playlist()
    assert ended.ended
    assert seqs(ended) == ["0", "1", "2"]
    assert ended.discontinuity == before.discontinuity
    live.channel.post(0, b"".join(live.pictures(0.0, 25)), {"Content-Type": live.content_type}).expect(200)
    after = live.playlist()
    assert after.msn > ended.whole[-1].msn
    assert after.discontinuity > ended.discontinuity
    live.channel.get(ended.whole[0].uri).expect(404)
    assert live.media(after.whole[0].uri)


def test_the_last_playlist_names_no_parts(live: Live) -> None:
    """hls.js would wait for the middle of the last one, which may have no sound; it says how long parts would be."""
    for seq in range(3):
        live.publish(seq)
    assert live.until(2).whole[-1].parts
    live.channel.end()
    ended = live.playlist()
    assert ended.ended
    assert ended.part_target is not None
    assert not any(segment.parts for segment in ended.segments)


def test_the_part_that_never_comes_is_told_behind_the_end(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shaka gives the stream up at a 404 for it, unless it knows by then that the stream has ended."""
    monkeypatch.setattr(players, "NEVER_COMES_S", 0.3)
    live.publish(0)
    last = live.playlist()
    hinted = live.channel.read(last.hint)
    live.channel.end()
    assert live.playlist(live.next_query()).ended
    hinted.response().expect(404)


def test_numbers_go_on_when_the_server_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even within a second, although the first playlist begins with segments of the past."""
    last = 0
    for second in (1_800_000_000, 1_800_000_001):
        with local_server() as server, server.client() as target:
            live = Live(target.channel())
            monkeypatch.setattr("tricklecast.app.clock.UNIX_S", second - time.monotonic())
            for seq in range(6):
                live.publish(seq)
            found = live.playlist()
            assert found.msn > last
            last = found.whole[-1].msn
            assert last < 1 << 31


def test_a_playlist_waits_for_the_first_segment(live: Live) -> None:
    """As soon as that has ended the target duration is known."""
    live.channel.create(live.content_type)
    waiting = live.channel.read("media.m3u8")
    live.channel.target.settle()
    live.publish(0)
    assert seqs(read(waiting.response().expect(200).body.decode())) == ["0"]


@pytest.mark.interpreted
def test_a_playlist_that_does_not_come(channel: RemoteChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    """404, and when to ask again; a HEAD does not wait at all."""
    channel.get("media.m3u8").expect(404)
    channel.create("video/mp2t")
    channel.target.ask("HEAD", channel.at("media.m3u8")).expect(404)
    monkeypatch.setattr(players, "FIRST_SEGMENT_S", 0.05)
    answer = channel.get("media.m3u8").expect(404)
    assert answer.body == b"No whole segment yet"
    assert answer.get("Retry-After") in ("1", "2")


def test_other_media_are_nothing_for_hls(channel: RemoteChannel) -> None:
    """415, and one line."""
    channel.publish(0, b'{"a": 1}', b'{"a": 2}')
    assert channel.get("media.m3u8").expect(415).body.startswith(b"HLS needs MPEG-TS or fragmented MP4")


def sample_entries(*tracks: tuple[bytes, bytes]) -> bytes:
    """An init segment with these tracks: what each holds, and its codec."""
    traks = []
    for number, (kind, codec) in enumerate(tracks, 1):
        table = box(b"stbl", full_box(b"stsd", 0, 0, struct.pack(">I", 1), box(codec, bytes(28))))
        media = [full_box(b"mdhd", 0, 0, struct.pack(">IIIII", 0, 0, 90_000, 0, 0)), box(b"minf", table)]
        media.append(full_box(b"hdlr", 0, 0, struct.pack(">I4s", 0, kind), bytes(13)))
        header = full_box(b"tkhd", 0, 3, struct.pack(">III", 0, 0, number), bytes(68))
        traks.append(box(b"trak", header, box(b"mdia", *media)))
    return box(b"ftyp", b"iso6\0\0\0\0iso6") + box(b"moov", *traks)


VIDEO, SOUND = (b"vide", b"avc1"), (b"soun", b"mp4a")
FIXED = fragment(0).replace(full_box(b"tfhd", 0, 0x020000, b"\0\0\0\1"), full_box(b"tfhd", 0, 0, b"\0\0\0\1"))
"""A fragment whose samples stand behind those of another track."""


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"".join(ts_pictures(0, 25)).replace(tables(), tables(0x02)), b"no player of HLS can play MPEG-2 video"),
        (sample_entries((b"vide", b"mp4v")) + fragment(0), b"no player of HLS can play the codec mp4v"),
        (sample_entries(VIDEO, SOUND, (b"soun", b"Opus")) + FIXED, b"tracks of sound cannot be told apart: publish"),
    ],
)
def test_media_that_no_player_can_play_are_not_offered(channel: RemoteChannel, data: bytes, why: bytes) -> None:
    """415 says why and what to do; media that can be played are found when they come."""
    channel.post(0, data).expect(200)
    assert channel.get("media.m3u8").expect(415).body.startswith(why)
    channel.post(1, sample_entries(VIDEO, SOUND) + fragment(0) + fragment(3600)).expect(200)
    channel.get("media.m3u8").expect(200)


def test_sound_alone_is_named_as_sound(channel: RemoteChannel) -> None:
    """Shaka takes the type from the name."""
    channel.post(0, sample_entries(SOUND) + fragment(0, (90_000,))).expect(200)
    found = read(channel.get("media.m3u8").expect(200).body.decode())
    assert channel.get(found.whole[0].uri).expect(200).get("Content-Type") == "audio/mp4"
    assert found.whole[0].uri.endswith(".m4a")


@pytest.mark.parametrize("kind", [0x03, 0x04])
def test_mp3_in_mpeg_ts_has_no_parts(channel: RemoteChannel, kind: int) -> None:
    """hls.js plays only the first one of each segment."""
    live = Live(channel)
    stream = struct.pack(">BHH", kind, 0xE101, 0xF000)
    both = struct.pack(">BHH", 0x1B, 0xE000 | VIDEO_PID, 0xF000) + stream
    pmt = ts_packet(PMT_PID, b"\0" + section(2, struct.pack(">HBBBHH", 1, 0xC1, 0, 0, 0xE100, 0xF000) + both))
    data = b"".join(ts_pictures(0, 25)).replace(tables()[188:], pmt)
    channel.post(0, data).expect(200)
    assert live.playlist().part_target is None


@pytest.mark.parametrize("content_type", FORMATS)
def test_a_segment_that_is_no_media_is_looked_at_once(
    channel: RemoteChannel, server: LocalServer, monkeypatch: pytest.MonkeyPatch, content_type: str
) -> None:
    """Its first bytes only, however many follow; media that come later are found, and the channel is suited then."""
    looked: list[int] = []

    def counted(data: bytes) -> Container:
        looked.append(len(data))
        return sniff(data)

    monkeypatch.setattr(module, "sniff", counted)
    channel.publish(0, b'{"a": 1}')
    channel.get("media.m3u8").expect(415)
    channel.post(1, b"{" * (2 << 20)).expect(200)
    packager = server.plane.packagers.of(server.plane.registry.channels[channel.name])
    eventually(lambda: packager.next_part[0] == 2)
    assert len(looked) == 2
    assert sum(looked) <= 8 + module.RUN_BYTES
    assert server.inside(lambda: len(packager._first) + len(packager._new)) == 0
    channel.get("media.m3u8").expect(415)
    live = Live(channel, content_type)
    live.publish(2)
    assert seqs(live.playlist()) == ["2"]


def test_a_segment_that_is_given_up_has_what_was_found(
    channel: RemoteChannel, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of it is not looked at, and the segments behind it are as they should be."""
    monkeypatch.setattr(units, "MAX_SKIPPED", 1000)
    live = Live(channel)
    live.publish(0)
    live.playlist()
    channel.post(1, b"".join(ts_pictures(1.0, 25)) + bytes(500_000)).expect(200)
    live.publish(2)
    found = live.until(2)
    assert [(segment.duration, segment.gap) for segment in found.whole] == [(1.0, False)] * 3


@pytest.mark.parametrize("query", ["_HLS_msn=x", "_HLS_msn=-1", "_HLS_part=1", "_HLS_msn=1&_HLS_part=1.5"])
def test_a_bad_query_is_refused_with_one_line(channel: RemoteChannel, query: str) -> None:
    """400."""
    answer = channel.get(f"media.m3u8?{query}").expect(400)
    assert b"_HLS_" in answer.body


def test_a_player_that_is_too_far_ahead_is_told(channel: RemoteChannel) -> None:
    """Two segments beyond the last one are 400; a whole segment, and what is there, is answered at once."""
    live = Live(channel)
    for seq in range(3):
        live.publish(seq)
    found = live.playlist()
    last = found.whole[-1].msn
    channel.get(f"media.m3u8?_HLS_msn={last + 3}").expect(400)
    live.playlist(f"?_HLS_msn={last}")
    live.playlist(f"?_HLS_msn={last - 1}&_HLS_part=7")
    live.playlist(f"?_HLS_msn={found.msn - 1}&_HLS_part=0")
    live.playlist(f"?_HLS_msn={last}&_HLS_part=0&other=x")


@pytest.mark.interpreted
def test_a_player_does_not_wait_for_ever(channel: RemoteChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 after three target durations without anything new."""
    monkeypatch.setattr(players, "BLOCKING_TARGETS", 0.02)
    live = Live(channel)
    live.publish(0)
    live.playlist()
    assert channel.get("media.m3u8" + live.next_query()).expect(503).get("Retry-After") == "1"
    assert live.watcher.last is not None
    channel.get(live.watcher.last.hint).expect(404)


def test_a_token_in_the_url_is_in_each_url(channel: RemoteChannel) -> None:
    """So that players that know nothing of tokens can follow; it cannot break out of its line."""
    live = Live(channel, "video/mp4")
    live.publish(0)
    text = channel.get("media.m3u8?token=a.b-c_d%22%0A%23EXT").expect(200).body.decode()
    found = read(text)
    assert found.whole[0].uri.endswith(".m4s?token=a.b-c_d%22%0A%23EXT")
    assert found.whole[0].map.endswith(".mp4?token=a.b-c_d%22%0A%23EXT")
    assert found.hint.endswith("token=a.b-c_d%22%0A%23EXT")
    channel.get(found.whole[0].uri).expect(200)
    other = read(channel.get("media.m3u8?token=other").expect(200).body.decode())
    assert other.whole[0].uri.endswith(".m4s?token=other")


def test_what_no_playlist_names_is_not_there(channel: RemoteChannel) -> None:
    """404, of whatever form; 405 for a method that changes something; and a HEAD has everything but the body."""
    live = Live(channel)
    data = live.publish(0)
    uri = live.playlist().whole[0].uri
    life = uri.rpartition("-")[0]
    for name in (
        f"{life}-7.ts",
        f"{life}-0.99.ts",
        f"{life}-init-0123456789ab.mp4",
        "hls/x.9-0.ts",
        "hls/0",
        "hls/a/b",
    ):
        channel.get(name).expect(404)
    refused = channel.target.ask("POST", channel.at("hls/x-0.ts"), {}, b"").expect(405)
    assert refused.get("Allow") == "GET, HEAD, OPTIONS"
    head = channel.target.ask("HEAD", channel.at(uri)).expect(200, content_type="video/mp2t")
    assert head.get("Content-Length") == str(len(data))
    channel.target.ask("HEAD", channel.at("media.m3u8")).expect(200)
    answer = channel.get(uri, {"Origin": "https://elsewhere.example"}).expect(200)
    assert answer.get("Access-Control-Allow-Origin") == "*"


def test_a_player_of_http_1_0(channel: RemoteChannel) -> None:
    """It gets media with their length, and the end of the connection."""
    live = Live(channel)
    data = live.publish(0)
    uri = live.playlist().whole[0].uri
    connection = channel.target.open()
    connection.request("GET", channel.at(uri), version="1.0")
    assert connection.response().body == data
    connection.closed()


def test_a_playlist_moves_on(channel: RemoteChannel) -> None:
    """It names what lasts six target durations, and parts near its end only; the numbers count what has gone."""
    live = Live(channel)
    for seq in range(30):
        live.publish(seq)
        live.until(seq)
    last = live.watcher.last
    assert last is not None
    assert seqs(last) == [str(seq) for seq in range(18, 30)]
    assert [bool(segment.parts) for segment in last.whole] == [False] * 6 + [True] * 6


def test_media_can_be_had_after_they_left_the_playlist(channel: RemoteChannel) -> None:
    """By a player that is late: whole segments as long as the window has them, and parts as long as those are named."""
    live, parts = Live(channel), list[Part]()
    data = [live.publish(seq) for seq in range(3)]
    first = live.playlist()
    for seq in range(3, 15):
        data.append(live.publish(seq))
        last = live.until(seq)
        parts = last.whole[-1].parts if seq == 3 else parts
    assert seqs(last)[0] == "3"
    assert not last.whole[0].parts
    assert live.media(first.whole[0].uri) == data[0]
    assert b"".join(live.media(part.uri) for part in parts) == data[3]


def test_a_playlist_holds_no_media() -> None:
    """The memory of a segment that has left the window is free, even if the playlist still names it."""
    with local_server(window_segments=2) as server, server.client() as target:
        live = Live(target.channel(), "video/mp4")
        for seq in range(6):
            live.publish(seq, marker=b"held by a playlist")
            assert live.until(seq)
        held = [one for one in gc.get_objects() if isinstance(one, Segment) and b"held by" in b"".join(one.frames)]
        assert sorted(segment.seq for segment in held) == [4, 5]


def test_what_only_storage_keeps_is_no_gap(tmp_path: Path) -> None:
    """A packager that the window has overtaken reads storage, and players get the media from there."""
    with local_server(data_dir=tmp_path, window_segments=1) as server, server.client() as target:
        live = Live(target.channel())
        data = [live.publish(0)]
        live.playlist()
        packager = server.plane.packagers.of(server.plane.registry.channels[live.channel.name])
        later: list[Callable[[], None]] = []
        server.inside(lambda: setattr(packager, "_defer", later.append))
        data += [live.publish(seq) for seq in (1, 2, 3)]
        eventually(lambda: server.archive is not None and server.archive.segments >= 3)

        def resume() -> None:
            packager._defer = server.loop.call_soon
            for function in later:
                function()

        server.inside(resume)
        found = live.until(3)
        assert seqs(found) == ["0", "1", "2", "3"]
        assert [live.media(segment.uri) for segment in found.whole] == data
        assert b"".join(live.media(part.uri) for part in found.whole[1].parts) == data[1]


@pytest.mark.parametrize("content_type", FORMATS)
def test_a_server_that_is_restarted_with_its_data_answers_alike(tmp_path: Path, content_type: str) -> None:
    """The same playlist, names, media and tags, whatever has happened before; then numbers go on."""
    answers = []
    for start in range(3):
        with local_server(data_dir=tmp_path) as server:
            live = Live(RemoteChannel(server.target(), "cam"), content_type)
            if not start:
                history(live)
                eventually(lambda: server.archive is not None and server.archive.segments >= 10)
            found = live.playlist()
            text = live.channel.get("media.m3u8").body.decode()
            tags = [live.channel.get(seq).expect(200).get("ETag") for seq in (3, 4, 9, 11)]
            names = [one.uri for one in found.whole if not one.gap] + [
                part.uri for one in found.whole for part in one.parts
            ]
            answers.append((text, tags, [live.media(name) for name in names]))
            if start == 2:
                live.publish(12, 20.0)
                assert [live.until(12).whole[-1].msn] == [found.whole[-1].msn + 1]
            live.channel.target.close()
    assert all(answers[0][1])
    assert answers[1:] == [answers[0]] * 2


def history(live: Live) -> None:
    """A player has watched a channel of 12 segments. Two were cut, one is missing, and three do not follow."""
    live.publish(0)
    live.playlist()
    live.publish(1, 1.0, 100)
    for seq in range(2, 8):
        live.publish(seq, seq + 40.0)
        live.until(seq)
    live.publish(9, 60.0, 100)
    live.publish(10, 12.0)
    live.publish(11, 13.0)
    found = live.until(11)
    assert any("-9-" in segment.uri for segment in found.whole)
    assert found.discontinuity > 1


# After the end.


def test_without_storage_an_ended_channel_has_a_playlist_while_it_drains() -> None:
    """Then it is gone."""
    with local_server(channel_drain_s=0.3) as server, server.client() as target:
        live = Live(target.channel())
        live.publish(0)
        live.playlist()
        live.channel.end()
        eventually(lambda: live.channel.get("media.m3u8").status == 404)


# From the past.


def event(live: Live, uri: str, wanted: Callable[[Playlist], object], watcher: Watcher | None = None) -> Playlist:
    """The playlist, as soon as it is as wanted; the server goes on with each request."""
    watcher, found = watcher or Watcher(), list[Playlist]()

    def ask() -> object:
        found.append(watcher.see(live.channel.get(uri).expect(200).body.decode()))
        return wanted(found[-1])

    eventually(ask)
    return found[-1]


def from_start(live: Live, start: str) -> tuple[str, Playlist]:
    """The media playlist that a multivariant playlist names, and what is in it."""
    text = live.channel.get(f"index.m3u8?start={start}").expect(200).body.decode()
    (variant,) = read_multivariant(text).variants
    body = live.channel.get(variant.uri).expect(200).body.decode()
    assert "#EXT-X-PLAYLIST-TYPE:EVENT\n" in body
    return variant.uri, read(body)


@pytest.mark.parametrize("content_type", FORMATS)
def test_a_playlist_begins_in_the_past(tmp_path: Path, content_type: str) -> None:
    """It has all segments from there on, those of storage included, under the live names, and grows to the end."""
    with local_server(data_dir=tmp_path, window_segments=3) as server, server.client() as target:
        live = Live(target.channel("cam"), content_type)
        data = [live.publish(seq) for seq in range(20)]
        now = live.playlist()
        eventually(lambda: server.archive is not None and server.archive.segments >= 20)
        watcher, wanted = Watcher(), [str(seq) for seq in range(20)]
        uri, _ = from_start(live, "3600")
        found = event(live, uri, lambda found: len(found.whole) == 20, watcher)
        assert seqs(found) == wanted
        assert not any(segment.parts for segment in found.segments)
        init = live.media(found.whole[0].map) if found.whole[0].map else b""
        assert [live.media(segment.uri) for segment in found.whole] == [body(whole, init) for whole in data]
        assert [one.uri for one in found.whole][-len(now.whole) :] == [one.uri for one in now.whole]
        waiting = live.channel.read(f"{uri}&_HLS_msn={found.whole[-1].msn + 1}")
        live.publish(20)
        found = watcher.see(waiting.response().expect(200).body.decode())
        assert seqs(found) == [*wanted, "20"]
        live.channel.end()
        found = event(live, uri, lambda found: found.ended)
        assert seqs(found) == [*wanted, "20"]
        server.inside(lambda: server.plane.packagers.expire(server.plane.clock() + 1000))
        assert not server.plane.packagers._events


def test_where_a_playlist_begins(channel: RemoteChannel) -> None:
    """Seconds before the live edge, or a time; what lies before all segments begins with the first one."""
    live = Live(channel)
    for seq in range(3):
        live.publish(seq)
    live.playlist()
    uris = [from_start(live, start)[0] for start in ("0", "2h", "2026-01-01", "2026-01-01T00:00:00Z")]
    assert uris == ["media.m3u8?from=2", "media.m3u8?from=0", "media.m3u8?from=0", "media.m3u8?from=0"]
    text = channel.get("index.m3u8?start=9999&token=a.b").expect(200).body.decode()
    assert read_multivariant(text).variants[0].uri == "media.m3u8?from=0&token=a.b"
    late = channel.get("index.m3u8?start=2999-01-01").expect(200).body.decode()
    assert read_multivariant(late).variants[0].uri == "media.m3u8?from=3"


@pytest.mark.parametrize(
    "name", ["index.m3u8?start=x", "index.m3u8?start=-5", "index.m3u8?start=5&_HLS_msn=1", "media.m3u8?from=x"]
)
def test_where_no_playlist_begins(channel: RemoteChannel, name: str) -> None:
    """What cannot be read is refused."""
    channel.create()
    channel.get(name).expect(400)


def test_the_server_reads_no_more_of_the_past_than_somebody_asks_for(
    channel: RemoteChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many bytes it waits for the next request; then it goes on."""
    monkeypatch.setattr(module, "EVENT_BYTES", 1)
    live = Live(channel)
    for seq in range(3):
        live.publish(seq)
    live.playlist()
    uri, found = from_start(live, "9999")
    assert seqs(found) == ["0"]
    event(live, uri, lambda found: seqs(found) == ["0", "1", "2"])


def test_only_so_many_playlists_begin_in_the_past(channel: RemoteChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was asked for longest ago makes way."""
    monkeypatch.setattr(module, "EVENTS", 1)
    live = Live(channel)
    for seq in range(3):
        live.publish(seq)
    live.playlist()
    for seq in (0, 1, 0):
        assert seqs(read(channel.get(f"media.m3u8?from={seq}").expect(200).body.decode()))[0] == str(seq)


def test_what_is_not_held_any_more_is_a_gap() -> None:
    """Of a playlist that begins in the past: it keeps its segments, and numbers."""
    with local_server(window_segments=3) as server, server.client() as target:
        live = Live(target.channel())
        for seq in range(3):
            live.publish(seq)
        live.playlist()
        uri, watcher = "media.m3u8?from=0", Watcher()
        event(live, uri, lambda found: len(found.whole) == 3, watcher)
        for seq in range(3, 6):
            live.publish(seq)
            live.until(seq)
        found = event(live, uri, lambda found: len(found.whole) == 6, watcher)
        assert seqs(found) == ["~", "~", "~", "3", "4", "5"]


@pytest.mark.parametrize("content_type", FORMATS)
def test_a_replica_has_the_playlist_of_its_owner(content_type: str) -> None:
    """Word for word, whatever has happened before. It forwards what it does not have, or its owner has not marked."""
    with local_server() as owner, local_server() as holder, owner.client() as target, holder.client() as readers:
        bridge, live = Bridge(owner, holder), Live(target.channel(), content_type)
        plane, name = holder.plane, live.channel.name

        def is_forwarded(place: str, query: bytes = b"") -> bool:
            asked = parse_route(b"GET", (name.encode(), *place.encode().split(b"/")), query)
            return holder.inside(partial(players.only_owner_answers, plane, asked))

        live.channel.create(content_type)
        bridge.hold(name)
        assert is_forwarded("media.m3u8"), "nobody has asked the owner"
        history(live)
        bridge.hold(name)
        eventually(lambda: not is_forwarded("media.m3u8"))
        there = readers.channel(name)
        found = live.playlist()
        assert not is_forwarded("iframes.m3u8")
        for playlist in ("media.m3u8", "iframes.m3u8"):
            assert there.get(playlist).expect(200).body == live.channel.get(playlist).expect(200).body
        for segment in found.whole:
            if not segment.gap:
                assert not is_forwarded(segment.uri)
                assert there.get(segment.uri).expect(200).body == live.media(segment.uri)
        assert is_forwarded(found.hint)
        assert is_forwarded(found.whole[0].uri.replace(".400-", ".360-"))
        last = found.whole[-1].msn
        for msn, wanted in ((last, False), (last + 2, False), (last + 3, True)):
            assert is_forwarded("media.m3u8", b"_HLS_msn=%d" % msn) == wanted
        assert is_forwarded("media.m3u8", b"_HLS_msn=x")
        owner.inside(lambda: owner.plane.packagers.expire(owner.plane.clock() + 1000))
        for seq in range(12, 15):
            live.publish(seq, seq + 2.0)
        bridge.hold(name)
        eventually(lambda: is_forwarded("media.m3u8"), what="nobody asks the owner any more")
        name = "not-here"
        assert is_forwarded("media.m3u8")
        bridge.close()


def test_the_times_of_mpeg_ts_begin_anew(channel: RemoteChannel) -> None:
    """Their clock has 33 bits; between segments that is no jump, and no discontinuity."""
    live = Live(channel)
    for seq in range(3):
        live.publish(seq, units.WRAP_S - 2 + seq)
    found = live.playlist()
    assert seqs(found) == ["0", "1", "2"]
    assert [segment.duration for segment in found.whole] == pytest.approx([1.0] * 3)


def test_a_fragment_that_was_cut_off_is_left_out(channel: RemoteChannel) -> None:
    """Its beginning would spoil the next segment; a segment that has nothing else is a gap."""
    live = Live(channel, "video/mp4")
    live.publish(0)
    live.playlist()
    pictures = mp4_pictures(1.0, 25)
    for seq, broken in ((1, b"".join(pictures)[:-2]), (2, mp4_pictures(2.0, 1)[0][:-2])):
        channel.post(seq, broken, {"Content-Type": "video/mp4"}).expect(200)
    live.publish(3, 3.0)
    found = live.until(3)
    assert seqs(found) == ["0", "1", "~", "|", "3"]
    assert found.whole[1].duration == pytest.approx(0.96)
    assert live.media(found.whole[1].uri) == body(b"".join(pictures[:-1]), live.media(found.whole[1].map))
    assert live.media(found.whole[1].parts[-1].uri).endswith(pictures[-2])


def test_what_leaves_the_window_leaves_the_playlist() -> None:
    """Segments of the last three target durations stay in the playlist, as gaps if need be."""
    with local_server(window_segments=2) as server, server.client() as target:
        live = Live(target.channel())
        for seq in range(12):
            live.publish(seq)
            found = live.until(seq) if seq else live.playlist()
        assert seqs(found) == ["~"] * 4 + ["10", "11"]
        live.channel.get(found.whole[-3].uri).expect(404)


def test_a_longer_segment_becomes_several(live: Live) -> None:
    """The target never changes. Each begins with a key picture where there are enough, and follows the one before."""
    live.publish(0)
    assert live.playlist().target == 2
    runs = [b"".join(live.pictures(at, 50)) for at in (1.0, 3.0, 5.0)]
    data = runs[0] + b"".join(run.removeprefix(init_segment()) for run in runs[1:])
    live.channel.post(1, data, {"Content-Type": live.content_type}).expect(200)
    live.publish(2, 7.0)
    found = live.until(2)
    assert [segment.duration for segment in found.whole] == pytest.approx([1.0, 2.0, 2.0, 2.0, 1.0])
    assert not any(segment.breaks or segment.gap for segment in found.whole)
    pieces = found.whole[1:4]
    assert b"".join(live.media(piece.uri) for piece in pieces) == body(data, init_segment())
    for piece in pieces:
        assert piece.parts[0].independent
        assert b"".join(live.media(part.uri) for part in piece.parts) == live.media(piece.uri)
    starts = [segment.date for segment in found.whole]
    steps = [(after - before).total_seconds() for before, after in pairwise(starts) if after and before]
    assert steps == pytest.approx([1.0, 2.0, 2.0, 2.0], abs=0.002)


def test_a_longer_segment_of_one_key_picture_is_cut_before_any(channel: RemoteChannel) -> None:
    """Where no key picture comes in time, a player goes on with the picture that does."""
    live = Live(channel)
    live.publish(0)
    live.playlist()
    channel.post(1, b"".join(ts_pictures(1.0, 100))).expect(200)
    live.publish(2, 5.0)
    assert [segment.duration for segment in live.until(2).whole] == pytest.approx([1.0, 2.48, 1.52, 1.0])


def test_a_longer_segment_without_parts_becomes_several(channel: RemoteChannel) -> None:
    """Of whole fragments; only one that is too long itself raises the target, to a minute: nobody can cut it."""
    live = Live(channel, "video/mp4")
    for seq, pictures, at_s in ((0, 1, 0.0), (1, 5, 1.2), (2, 1, 7.2)):
        data = b"".join(mp4_pictures(at_s, pictures, 1.2))
        channel.post(seq, data, {"Content-Type": "video/mp4"}).expect(200)
        if not seq:
            assert live.playlist().part_target is None
    assert [segment.duration for segment in live.until(2).whole] == pytest.approx([1.2, 2.4, 2.4, 1.2, 1.2])
    for seq, at_s, length_s, target in ((3, 8.4, 4.0, 4), (4, 12.4, 60.0, 60), (5, 72.4, 61.0, 60)):
        channel.post(seq, b"".join(mp4_pictures(at_s, 1, length_s)), {"Content-Type": "video/mp4"}).expect(200)
        last = channel.get("media.m3u8" + live.next_query()).expect(200).body.decode()
        assert live.watcher.see(last, constant_target=False).target == target


def test_a_player_that_names_no_part_waits_for_the_first_one(channel: RemoteChannel) -> None:
    """Safari asks so for a segment that is about to begin."""
    live = Live(channel)
    for seq in range(3):
        live.publish(seq)
    found = live.playlist()
    msn = found.whole[-1].msn + 1
    waiting = channel.read(f"media.m3u8?_HLS_msn={msn}")
    channel.target.settle()
    upload = channel.upload(3)
    for picture in ts_pictures(3.0, 12):
        upload.chunk(picture)
    newest = live.watcher.see(waiting.response().body.decode()).segments[-1]
    assert (newest.msn, newest.duration, len(newest.parts)) == (msn, None, 1)


def test_a_film_that_is_published_at_once_advances_as_it_plays(live: Live) -> None:
    """Its dates do, whenever its segments arrive; behind a discontinuity there is a new one."""
    for seq in range(3):
        live.publish(seq)
    live.playlist()
    live.publish(3)
    live.publish(4, 100.0)
    found = live.until(4)
    assert [segment.breaks for segment in found.whole] == [False] * 4 + [True]
    dates = [segment.date for segment in found.whole]
    steps = [(after - before).total_seconds() for before, after in pairwise(dates) if after and before]
    assert steps[:3] == pytest.approx([1.0] * 3, abs=0.002)
    assert steps[3] < 0


def test_one_turn_looks_at_few_bytes(
    channel: RemoteChannel, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large the pieces are in which media arrive: nobody else waits for long."""
    monkeypatch.setattr(module, "RUN_BYTES", 1000)
    live = Live(channel)
    live.publish(0)
    live.playlist()
    packager = server.plane.packagers.of(server.plane.registry.channels[channel.name])
    turns: list[Callable[[], None]] = []
    server.inside(lambda: setattr(packager, "_defer", turns.append))
    data = b"".join(ts_pictures(1.0, 25)) * 20
    channel.post(1, data).expect(200)

    def resume() -> int:
        done = 0
        while turns:
            turns.pop(0)()
            done += 1
        return done

    assert server.inside(resume) >= len(data) / module.RUN_BYTES


def test_a_segment_of_too_many_parts_has_none(channel: RemoteChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A playlist does not grow with the number of parts: the segment is named without them."""
    monkeypatch.setattr(timeline, "MAX_PARTS", 4)
    live = Live(channel)
    live.publish(0)
    live.playlist()
    live.publish(1)
    channel.post(2, b"".join(ts_pictures(2.0, 50)), {"Content-Type": "video/mp2t"}).expect(200)
    found = live.until(2).whole
    assert [(segment.duration, len(segment.parts)) for segment in found[1:]] == [(1.0, 3), (2.0, 0)]


def test_a_picture_that_is_longer_than_the_part_target_is_a_part(live: Live) -> None:
    """The target stays: another publisher may have longer fragments, and a camera may stand still."""
    live.publish(0)
    live.playlist()
    pictures = [*live.pictures(1.0, 19), *live.pictures(1.76, 1, 0.84), *live.pictures(2.6, 10)]
    data = pictures[0] + b"".join(pictures[1:]).replace(init_segment(), b"")
    live.channel.post(1, data, {"Content-Type": live.content_type}).expect(200)
    live.publish(2, 3.0)
    found = live.until(2)
    assert found.part_target == 0.4
    durations = [part.duration for part in found.whole[1].parts]
    assert durations == pytest.approx([0.4, 0.36, 0.4, 0.4, 0.4, 0.04])
    assert found.whole[2].parts


def test_media_of_one_piece_have_no_parts(channel: RemoteChannel) -> None:
    """A fragment of more than a second cannot be divided: the playlist has whole segments only."""
    live = Live(channel, "video/mp4")
    for seq in range(3):
        channel.post(seq, b"".join(mp4_pictures(2.0 * seq, 1, 2.0)), {"Content-Type": "video/mp4"}).expect(200)
    found = live.playlist()
    assert found.part_target is None
    assert [segment.duration for segment in found.whole] == [2.0] * 3
    waiting = channel.read("media.m3u8" + live.next_query())
    channel.target.settle()
    channel.post(3, b"".join(mp4_pictures(6.0, 1, 2.0))).expect(200)
    assert seqs(live.watcher.see(waiting.response().body.decode())) == ["0", "1", "2", "3"]


def test_what_nobody_asks_for_is_forgotten() -> None:
    """Then it costs nothing, and is no reader; a player that asks again finds the same names and numbers."""
    with local_server(**PATIENT) as server, server.client() as target:
        live = Live(target.channel())
        for seq in range(3):
            live.publish(seq)
        live.playlist()
        assert server.inside(lambda: (len(server.plane.packagers), server.plane.registry.readers)) == (1, 1)
        later(server, module.IDLE_S + 1)
        assert server.inside(lambda: (len(server.plane.packagers), server.plane.registry.readers)) == (0, 0)
        before = live.watcher.last
        assert before is not None
        after = live.playlist()
        named = [(segment.msn, segment.uri) for segment in before.whole]
        assert [(segment.msn, segment.uri) for segment in after.whole] == named


def test_a_client_that_leaves_waits_no_longer(channel: RemoteChannel, server: LocalServer) -> None:
    """Its request is forgotten."""
    live = Live(channel)
    live.publish(0)
    live.playlist()
    packager = server.plane.packagers.of(server.plane.registry.channels[channel.name])
    waiting = channel.read("media.m3u8" + live.next_query())
    eventually(lambda: packager.waiting)
    waiting.abort()
    eventually(lambda: not packager.waiting)


def test_many_players_wait_for_the_same_part(channel: RemoteChannel, server: LocalServer) -> None:
    """All of them get it, some in each turn of the event loop."""
    live = Live(channel)
    for seq in range(2):
        live.publish(seq)
    live.playlist()
    waiting = [channel.read("media.m3u8" + live.next_query()) for _ in range(2 * module.WAKE_BATCH + 3)]
    packager = server.plane.packagers.of(server.plane.registry.channels[channel.name])
    eventually(lambda: len(packager.waiting) == len(waiting))
    upload = channel.upload(2, *ts_pictures(2.0, 12))
    for connection in waiting:
        assert len(read(connection.response().expect(200).body.decode()).segments) == 3
    upload.stored()


def test_players_are_counted_as_people_do(channel: RemoteChannel, server: LocalServer) -> None:
    """Those that wait for the same part, and those that just ask; the server's own cursor is none, nor is a fetch."""
    live = Live(channel)
    for seq in range(2):
        live.publish(seq)
    found = server.plane.registry.channels[channel.name]
    packager = server.inside(lambda: server.plane.packagers.of(found))
    now = [packager._clock()]
    server.inside(lambda: setattr(packager, "_clock", lambda: now[0]))
    live.playlist()
    live.media(live.playlist().whole[0].uri)
    assert server.inside(lambda: (found.audience, found.reading.used)) == (2, 1)
    now[0] += 2.5
    waiting = [channel.read("media.m3u8" + live.next_query()) for _ in range(4)]
    eventually(lambda: len(packager.waiting) == 4)
    live.publish(2)
    for connection in waiting:
        connection.response().expect(200)
    assert server.inside(lambda: found.audience) == 4
    now[0] += 100
    server.inside(packager.count_players)
    assert server.inside(lambda: found.audience) == 0


def test_what_is_remembered_of_players_is_bounded(channel: RemoteChannel, server: LocalServer) -> None:
    """Any number of requests for playlists is told from the newest ones."""
    Live(channel).publish(0)
    found = server.plane.registry.channels[channel.name]
    packager = server.inside(lambda: server.plane.packagers.of(found))

    def ask() -> tuple[int, int]:
        for _ in range(module.MAX_POLLS + 10):
            packager.served(None, None)
        for part in range(module.ROUNDS + 10):
            packager.served(7, part)
        return len(packager._polls), len(packager._rounds)

    assert server.inside(ask) == (module.MAX_POLLS, module.ROUNDS)


def test_a_player_that_waits_is_sent_away_when_the_server_shuts_down() -> None:
    """503, like every client that waits."""
    with local_server() as server, server.client() as target:
        live = Live(target.channel())
        live.publish(0)
        live.playlist()
        waiting = live.channel.read("media.m3u8" + live.next_query())
        target.settle()
        server.inside(server.stop)
        waiting.last(503)


def test_a_client_that_does_not_read_its_media_is_cut_off() -> None:
    """It holds no copy, lags behind nothing, and stands still like any other client."""
    with local_server(**PATIENT) as server, server.client() as target:
        channel = target.channel()
        big = ts_pictures(0.0, 25)
        channel.post(0, b"".join(big) + b"".join(big[1:2]) * 20_000).expect(200)
        uri = read(channel.get("media.m3u8").body.decode()).whole[0].uri
        peer = SlowPeer(server.port, f"GET {channel.at(uri)} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        eventually(lambda: server.plane.slow_peers.stalled)
        later(server, 0)
        later(server, LAG_S)
        record = server.record(channel=channel.name, op="hls", reason="evicted")
        assert (record.status, record.rseq) == (200, 0)
        peer.rest()
        peer.socket.close()


# Caches.


def test_a_playlist_has_a_tag_and_may_be_cached(live: Live) -> None:
    """A client that has the newest state gets 304; one state later it gets the playlist. Errors are not cached."""
    live.publish(0)
    first = live.channel.get("media.m3u8").expect(200)
    tag = first.get("ETag") or ""
    assert tag.startswith('"')
    assert first.get("Vary") == "accept-encoding"
    again = live.channel.get("media.m3u8", {"If-None-Match": tag}).expect(304)
    assert (again.body, again.get("ETag"), again.get("Cache-Control")) == (b"", tag, first.get("Cache-Control"))
    live.publish(1)
    live.until(1)
    assert live.channel.get("media.m3u8", {"If-None-Match": tag}).expect(200).get("ETag") != tag
    assert live.channel.get("media.m3u8?_HLS_msn=999999999").expect(400).get("Cache-Control") == "no-store"


def test_both_names_of_a_playlist_have_the_same_text(live: Live) -> None:
    """``index.m3u8`` with ``_HLS_msn`` is a media playlist, for players that have it open."""
    live.publish(0)
    query = f"?_HLS_msn={live.playlist().whole[0].msn}"
    bodies = {live.channel.get(name + query).expect(200).body for name in ("index.m3u8", "media.m3u8")}
    assert len(bodies) == 1


def test_a_playlist_is_compressed_for_those_who_take_it(live: Live) -> None:
    """It has another tag then; with a token in the query each client has URLs of its own, and no compressed text."""
    live.publish(0)
    packed = live.channel.get("media.m3u8", {"Accept-Encoding": "gzip"}).expect(200)
    plain = live.channel.get("media.m3u8").expect(200)
    assert (packed.get("Content-Encoding"), gzip.decompress(packed.body)) == ("gzip", plain.body)
    assert packed.get("ETag") != plain.get("ETag")
    assert live.channel.get("media.m3u8?token=x", {"Accept-Encoding": "gzip"}).get("Content-Encoding") is None


def test_files_of_a_playlist_have_ranges_and_tags(live: Live) -> None:
    """A segment, a part and an init segment: 206 for a range, 416 beyond the end, 304 for a client that has it."""
    live.publish(0)
    live.publish(1)
    found = live.playlist()
    uris = [found.whole[0].uri, found.whole[0].parts[0].uri]
    uris += [found.whole[0].map] if found.whole[0].map else []
    tags = set()
    for uri in uris:
        whole = live.channel.get(uri).expect(200)
        size = len(whole.body)
        assert whole.get("Accept-Ranges") == "bytes"
        tags.add(tag := whole.get("ETag") or "")
        part = live.channel.get(uri, {"Range": "bytes=5-9"}).expect(206)
        assert (part.body, part.get("Content-Range")) == (whole.body[5:10], f"bytes 5-9/{size}")
        assert live.channel.get(uri, {"Range": "bytes=-7"}).expect(206).body == whole.body[-7:]
        assert live.channel.get(uri, {"Range": f"bytes={size}-"}).expect(416).get("Content-Range") == f"bytes */{size}"
        assert live.channel.get(uri, {"Range": "bytes=5-9", "If-Range": '"x"'}).expect(200).body == whole.body
        assert live.channel.get(uri, {"If-None-Match": tag}).expect(304).get("ETag") == tag
    assert len(tags) == len(uris)
