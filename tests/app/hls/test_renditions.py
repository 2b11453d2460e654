"""A channel with several tracks of sound: a playlist and files for each track."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.app.hls.test_demuxed import FLAGS, film, languages, packets
from tests.app.hls.test_texts import subtitled
from tests.support.hls import Playlist, read, read_multivariant
from tests.support.local import LocalServer
from tests.support.waiting import eventually
from tricklecast.app.hls import demuxed, renditions
from tricklecast.app.hls.demuxed import track_init, track_media, track_packets
from tricklecast.app.hls.packager import Packager
from tricklecast.app.hls.rendered import KEPT_BYTES, KEPT_FILES, Kept
from tricklecast.app.hls.texts import text_file
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.trickle.media.containers import init_segment


@pytest.fixture
def data(channel: RemoteChannel, tmp_path: Path) -> bytes:
    """A segment with pictures and two tracks of sound, published."""
    found = film(tmp_path, FLAGS[1])
    channel.post(0, found).expect(200)
    return found


def of(server: LocalServer, channel: RemoteChannel) -> Packager:
    """The packager of the channel."""
    return server.plane.packagers.of(server.plane.registry.channels[channel.name])


def has_whole(channel: RemoteChannel, uri: str, number: int) -> bool:
    """Whether a playlist names this many segments that have ended."""
    return len(listed(channel, uri).whole) == number


def listed(channel: RemoteChannel, uri: str) -> Playlist:
    """A media playlist."""
    return read(channel.get(uri).expect(200).body.decode())


def test_each_track_has_a_playlist(channel: RemoteChannel, data: bytes) -> None:
    """The multivariant playlist names them; each has one track, all parts, and the same numbers."""
    found = read_multivariant(channel.get("index.m3u8").expect(200).body.decode())
    (variant,) = found.variants
    assert variant.groups == {"AUDIO": "sound"}
    assert [codec.partition(".")[0] for codec in variant.codecs] == ["avc1", "mp4a"]
    assert [(one.kind, one.name, one.default, one.uri) for one in found.renditions] == [
        ("AUDIO", "Sound 1", True, "media.m3u8?track=2"),
        ("AUDIO", "Sound 2", False, "media.m3u8?track=3"),
    ]
    init = init_segment(data)
    whole = packets(data)
    lists = [listed(channel, uri) for uri in (variant.uri, *(one.uri for one in found.renditions))]
    for track, playlist in enumerate(lists, 1):
        (segment,) = playlist.whole
        head = channel.get(segment.map).expect(200)
        assert head.body == track_init(init, track)
        media = channel.get(segment.uri).expect(200)
        assert media.get("Content-Type") == ("video/mp4" if track == 1 else "audio/mp4")
        assert media.body == track_media(data[len(init) :], track, None)
        assert packets(head.body + media.body) == [whole[track - 1]]
        assert b"".join(channel.get(part.uri).expect(200).body for part in segment.parts) == media.body
        assert (segment.msn, segment.duration) == (lists[0].whole[0].msn, lists[0].whole[0].duration)
        again = channel.get(segment.uri, {"Range": "bytes=3-9"}).expect(206)
        assert (again.body, again.get("ETag")) == (media.body[3:10], media.get("ETag"))


def test_each_track_of_mpeg_ts_has_a_playlist(channel: RemoteChannel, tmp_path: Path) -> None:
    """In which its files have the track alone; a playlist that begins in the past has all tracks at once."""
    data = languages(tmp_path, "fin", "swe")
    channel.post(0, data, {"Content-Type": "video/mp2t"}).expect(200)
    found = read_multivariant(channel.get("index.m3u8").expect(200).body.decode())
    (variant,) = found.variants
    assert (variant.groups, variant.uri) == ({"AUDIO": "sound"}, "media.m3u8?track=256")
    assert [(one.name, one.language, one.default, one.uri) for one in found.renditions] == [
        ("fin", "fi", True, "media.m3u8?track=257"),
        ("swe", "sv", False, "media.m3u8?track=258"),
    ]
    whole = packets(data)
    for track, wanted in zip((256, 257, 258), whole, strict=True):
        (segment,) = listed(channel, f"media.m3u8?track={track}").whole
        media = channel.get(segment.uri).expect(200)
        assert media.get("Content-Type") == "video/mp2t"
        assert media.body == track_packets(data, data, track)
        parts = [channel.get(part.uri).expect(200).body for part in segment.parts]
        assert len(parts) > 1
        assert packets(b"".join(parts)) == [wanted]
        channel.get(segment.uri.replace(f".t{track}", ".t99")).expect(404)
    past = read_multivariant(channel.get("index.m3u8?start=10min").expect(200).body.decode())
    assert [one.uri for one in past.variants] == ["media.m3u8?from=0"]
    assert [(one.language, one.uri) for one in past.renditions] == [("fi", "")]


def test_a_token_goes_on_into_the_playlists_of_tracks(channel: RemoteChannel, data: bytes) -> None:
    """Behind the number of the track, and to each file."""
    found = read_multivariant(channel.get("index.m3u8?token=x").expect(200).body.decode())
    assert found.renditions[0].uri == "media.m3u8?track=2&token=x"
    playlist = listed(channel, found.renditions[0].uri)
    assert playlist.whole[0].uri.endswith(".m4a?token=x")


def test_viewers_are_counted_once(channel: RemoteChannel, server: LocalServer, data: bytes) -> None:
    """Each asks for the playlist of pictures, and for that of one language."""
    for track in (1, 2, 1, 3):
        listed(channel, f"media.m3u8?track={track}")
    assert server.inside(lambda: of(server, channel)._players) == 2


def test_a_part_that_is_hinted_at_is_waited_for(channel: RemoteChannel, data: bytes) -> None:
    """Also that of one track."""
    hint = listed(channel, "media.m3u8?track=3").hint
    assert ".t3-1.0.m4a" in hint
    waiting = channel.read(hint)
    channel.target.settle()
    channel.post(1, data).expect(200)
    assert waiting.response().expect(200).body


def test_what_is_no_track_is_not_found(channel: RemoteChannel, data: bytes) -> None:
    """404, and at once."""
    assert channel.get("media.m3u8?track=4").expect(404).body.startswith(b"No such track")
    channel.get("media.m3u8?track=x").expect(400)
    uri = listed(channel, "media.m3u8?track=2").whole[0].uri
    for name in (uri.replace(".t2", ".tx"), uri.replace(".t2", ".t"), uri.replace("hls/", "hls/1")):
        channel.get(name).expect(404)
    assert channel.get(uri.replace(".t2", ".t9")).expect(200).body == b"", "a track that has nothing"


def test_a_channel_with_one_track_of_sound_is_as_it_was(channel: RemoteChannel, tmp_path: Path) -> None:
    """No track has a playlist of its own."""
    whole = film(tmp_path)
    init = init_segment(whole)
    media = track_media(whole[len(init) :], 1, None)
    assert media is not None
    channel.post(0, track_init(init, 1) + media).expect(200)
    found = read_multivariant(channel.get("index.m3u8").expect(200).body.decode())
    assert ([one.uri for one in found.variants], found.renditions) == (["media.m3u8"], [])
    channel.get("media.m3u8?track=1").expect(404)


def test_what_is_too_much_is_not_made(channel: RemoteChannel, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long file, or one of very many boxes: 404."""
    uri = listed(channel, "media.m3u8?track=2").whole[0].uri
    with monkeypatch.context() as patch:
        patch.setattr(renditions, "MAX_FILE", 100)
        channel.get(uri).expect(404)
    with monkeypatch.context() as patch:
        patch.setattr(demuxed, "MAX_BOXES", 5)
        channel.get(uri).expect(404)
    channel.get(uri).expect(200)


def test_the_newest_files_are_kept() -> None:
    """So many, and so many bytes; the newest one, however long it is."""
    kept = Kept()
    for number in range(KEPT_FILES + 3):
        kept.add(str(number), b"x")
    assert (kept.get("2"), kept.get("3")) == (None, b"x")
    kept.add("long", bytes(KEPT_BYTES - 1))
    assert (kept.get(str(KEPT_FILES + 1)), kept.get(str(KEPT_FILES + 2)), len(kept.get("long") or b"")) == (
        None, b"x", KEPT_BYTES - 1,
    )  # fmt: skip
    kept.add("longer", bytes(KEPT_BYTES + 1))
    assert (kept.get("long"), len(kept.get("longer") or b"")) == (None, KEPT_BYTES + 1)
    kept.add("next", b"y")
    assert (kept.get("longer"), kept.get("next")) == (None, b"y")


def test_texts_have_a_playlist_for_each_language(channel: RemoteChannel, tmp_path: Path) -> None:
    """Of whole media segments, beside the pictures and the sound as they were."""
    segments = subtitled(tmp_path, 3, "fin", "und")
    for seq, data in enumerate(segments):
        channel.post(seq, data, {"Content-Type": "video/mp4"}).expect(200)
    for query in ("", "?start=10min"):
        found = read_multivariant(channel.get(f"index.m3u8{query}").expect(200).body.decode())
        (variant,) = found.variants
        assert variant.groups == {"SUBTITLES": "text"}
        assert [codec.partition(".")[0] for codec in variant.codecs] == ["avc1", "Opus"]
        more = "&from=0" if query else ""
        assert [
            (one.kind, one.name, one.language, one.default, one.autoselect, one.uri) for one in found.renditions
        ] == [
            ("SUBTITLES", "fin", "fi", False, True, f"media.m3u8?track=11{more}"),
            ("SUBTITLES", "Text 2", "", False, True, f"media.m3u8?track=12{more}"),
        ]
        eventually(partial(has_whole, channel, variant.uri, 3), what="all segments")
        pictures = listed(channel, variant.uri)
        playlist = listed(channel, found.renditions[0].uri)
        assert [(one.msn, one.duration, one.date) for one in playlist.segments] == [
            (one.msn, one.duration, one.date) for one in pictures.whole
        ]
        for nth, (data, segment) in enumerate(zip(segments, playlist.segments, strict=True)):
            answer = channel.get(segment.uri).expect(200)
            init = init_segment(data)
            assert (answer.body, answer.get("Content-Type")) == (text_file(data[len(init) :], init, 11), "text/vtt")
            assert f"fin {nth} &amp;" in answer.body.decode()
            again = channel.get(segment.uri, {"Range": "bytes=0-5"}).expect(206)
            assert (again.body, again.get("ETag")) == (b"WEBVTT", answer.get("ETag"))
    uri = playlist.segments[0].uri
    channel.get(uri.replace(".t11", ".t1")).expect(404)
    channel.get(uri.replace(".t11", "")).expect(404)
    channel.get(uri.replace("-0.vtt", "-0.0.vtt")).expect(404)
    assert channel.get(uri.replace(".vtt", ".m4s")).expect(200).body != answer.body, "the track as it is"
    assert channel.get(uri).expect(200).body.startswith(b"WEBVTT")
