"""The playlist of key pictures: each is a range of the media, by which a decoder shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.hls.test_demuxed import FLAGS, film
from tests.app.hls.test_recording import FORMATS, Film
from tests.publisher.media.clips import decode, make_clip
from tests.publisher.media.test_muxers import read as packets_of
from tests.publisher.media.test_muxers import times
from tests.support.hls import Playlist, Segment, read, read_multivariant
from tests.support.local import local_server
from tests.support.media import fragment, init_segment, tables, ts_pictures
from tricklecast.app.hls import recording as recordings
from tricklecast.app.hls.timeline import picture_of
from tricklecast.app.hls.units import Mp4Scanner, TsScanner
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.publisher.media.muxers import CONTAINERS, ContainerName

NAME = "iframes.m3u8"
STUFFING = b"\x47\x1f\xff\x10" + b"\xff" * 184


def segments(path: Path, container: ContainerName) -> list[bytes]:
    """A film of two seconds, as `publish` writes it: each second is a segment."""
    streams, packets = packets_of(make_clip(path, seconds=2.0))
    muxer, found = CONTAINERS[container]().muxer(dict(enumerate(streams)), 0), [b""]
    for packet in packets:
        track = packet.stream_index
        if track == 0 and packet.is_keyframe and found[-1]:
            found[-1] += muxer.end(last=False)
            found.append(b"")
        found[-1] += muxer.add(track, packet, times(packet))
    found[-1] += muxer.end(last=True)
    return found


def listed(channel: RemoteChannel, uri: str = NAME) -> Playlist:
    """The playlist, which keeps the rules and has key pictures only."""
    found = read(channel.get(uri).expect(200).body.decode())
    assert found.pictures_only
    return found


def picture(channel: RemoteChannel, one: Segment) -> bytes:
    """What a player fetches to show it: the bytes that ``EXT-X-MAP`` names, and the range."""
    found = b""
    for uri, span in ((one.map, one.map_span), (one.uri, one.span)):
        size, _, at = span.partition("@")
        asked = {"Range": f"bytes={at}-{int(at) + int(size) - 1}"} if span else {}
        found += channel.get(uri, asked).expect(206 if span else 200).body if uri else b""
    return found


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
def test_each_picture_can_be_decoded_alone(channel: RemoteChannel, tmp_path: Path, container: ContainerName) -> None:
    """It has the number, date and duration of its media segment; caches, tags and tokens are those of media.m3u8."""
    for seq, data in enumerate(segments(tmp_path / "clip.mp4", container)):
        channel.post(seq, data).expect(200)
    found, media = listed(channel), read(channel.get("media.m3u8").expect(200).body.decode())
    assert len(found.whole) == 2
    for one, whole in zip(found.whole, media.whole, strict=True):
        assert (one.msn, one.uri, one.duration, one.date) == (whole.msn, whole.uri, whole.duration, whole.date)
        assert len(decode(picture(channel, one)).hashes["video"]) == 1
        assert int(one.span.partition("@")[0]) < len(channel.get(whole.uri).body) / 2
    (about,) = read_multivariant(channel.get("index.m3u8?token=x").expect(200).body.decode()).pictures
    assert (about.uri, about.size, about.rate) == (f"{NAME}?token=x", (64, 64), None)
    assert [codec.partition(".")[0] for codec in about.codecs] == ["avc1"]
    peak = max(8 * int(one.span.partition("@")[0]) / (one.duration or 1) for one in found.whole)
    assert about.bandwidth == pytest.approx(peak, rel=0.001)
    assert listed(channel, about.uri).whole[0].uri.endswith("?token=x")
    answer, beside = channel.get(NAME).expect(200), channel.get("media.m3u8").expect(200)
    assert answer.get("Cache-Control") == beside.get("Cache-Control")
    tag = answer.get("ETag") or ""
    assert channel.get(NAME, {"If-None-Match": tag}).expect(304).body == b""
    assert channel.get(NAME, {"Accept-Encoding": "gzip"}).expect(200).get("Content-Encoding") == "gzip"
    channel.end()
    ended = listed(channel)
    assert (ended.ended, [one.span for one in ended.whole]) == (True, [one.span for one in found.whole])


@pytest.mark.parametrize("content_type", FORMATS)
def test_a_recording_has_its_pictures(tmp_path: Path, content_type: str) -> None:
    """All of them, with the names of the recording; also of a segment that has one picture alone."""
    with local_server(data_dir=tmp_path, window_segments=2) as server:
        taken = Film(server, content_type)
        for seq in range(30):
            taken.publish(seq, float(seq), 1 if seq == 7 else 25)
        live = {one.uri.partition("-")[2]: one.span for one in listed(taken.channel).whole}
        taken.end()
        found, media = listed(taken.channel), taken.playlist()
        assert found.ended
        assert [(one.msn, one.uri) for one in found.whole] == [(one.msn, one.uri) for one in media.whole]
        spans = {one.uri.partition("-")[2]: one.span for one in found.whole}
        assert all(spans.values())
        assert live
        assert {name: spans[name] for name in live} == live
        told = read_multivariant(taken.channel.get("index.m3u8").expect(200).body.decode())
        assert [one.uri for one in told.pictures] == [NAME]
        taken.channel.target.close()


def test_a_picture_that_is_too_long_is_a_gap_of_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is not looked for."""
    monkeypatch.setattr(recordings, "MAX_PICTURE", 100 << 10)
    with local_server(data_dir=tmp_path) as server:
        taken, long = Film(server), ts_pictures(0.0, 2)
        taken.post(0, long[0] + 1500 * STUFFING + long[1])
        taken.publish(1, 1.0)
        taken.end()
        assert [bool(one.span) for one in listed(taken.channel).whole] == [False, True]
        taken.channel.target.close()


def test_a_segment_without_a_key_picture_is_a_gap(channel: RemoteChannel) -> None:
    """The numbers stay those of the media."""
    for seq, is_key in enumerate((True, False, True)):
        data = init_segment() + fragment(seq * 90_000, (3600,) * 25, key=is_key)
        channel.post(seq, data).expect(200)
    assert [(bool(one.span), one.gap) for one in listed(channel).whole] == [(True, False), (False, True), (True, False)]


def test_tables_elsewhere_in_the_segment_are_named() -> None:
    """If the picture does not begin with them; a segment that is cut has them in its first piece."""
    scan, pictures = TsScanner(), ts_pictures(0.0, 3)
    data = tables() + b"".join(one.removeprefix(tables()) for one in pictures)
    scan.feed(data)
    first, later = scan.units[0], scan.units[2]
    size = scan.finish(len(data))
    found = picture_of(scan, 0, later.at)
    assert found == (0, scan.units[1].at, None)
    assert scan.tables == (0, len(tables()))
    later.is_key = True
    assert picture_of(scan, later.at, size) == (0, size - later.at, scan.tables)
    first.is_key = later.is_key = False
    assert picture_of(scan, 0, size) is None
    assert picture_of(Mp4Scanner(b""), 0, 100) is None


def test_sound_alone_has_no_pictures(channel: RemoteChannel, tmp_path: Path) -> None:
    """Live."""
    channel.post(0, make_clip(tmp_path / "clip.ts", video=None).read_bytes()).expect(200)
    assert not read_multivariant(channel.get("index.m3u8").expect(200).body.decode()).pictures
    assert channel.get(NAME).expect(404).body == b"No such pictures: ask for index.m3u8 again"


def test_several_tracks_of_sound_in_mp4_have_no_pictures(tmp_path: Path) -> None:
    """Their init segment names all tracks, which no player takes; neither live nor of a recording."""
    with local_server(data_dir=tmp_path / "data") as server:
        taken = Film(server, "video/mp4")
        taken.post(0, film(tmp_path, FLAGS[1]))
        taken.channel.get("index.m3u8").expect(200)
        taken.channel.get(NAME).expect(404)
        taken.end()
        taken.channel.get("index.m3u8").expect(200)
        taken.channel.get(NAME).expect(404)
        taken.channel.target.close()
