"""Recordings: the playlist of a channel that has ended, over all that the data directory has of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from tests.app.data_plane.support import later
from tests.app.hls.test_demuxed import FLAGS, languages
from tests.app.hls.test_demuxed import film as several_tracks
from tests.app.hls.test_texts import subtitled
from tests.support.hls import Playlist, read, read_multivariant
from tests.support.local import LocalServer, local_server
from tests.support.media import mp4_pictures, tables, ts_pictures
from tests.support.waiting import eventually
from tricklecast.app.hls import recording as module
from tricklecast.app.hls.demuxed import track_init, track_media, track_packets
from tricklecast.app.hls.packager import IDLE_S
from tricklecast.app.hls.texts import text_file
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.trickle.media.containers import init_segment
from tricklecast.trickle.wire import CUT, LEFT_OUT

Pictures = Callable[..., list[bytes]]
FORMATS: dict[str, Pictures] = {"video/mp2t": ts_pictures, "video/mp4": mp4_pictures}
DRAINED_S = 100.0


class Film:
    """A channel that is published, ended, and forgotten by its server."""

    def __init__(self, server: LocalServer, content_type: str = "video/mp2t", name: str = "film") -> None:
        self.server, self.content_type = server, content_type
        self.channel = RemoteChannel(server.target(), name)
        self.segments = 0

    def publish(self, seq: int, at_s: float, pictures: int = 25) -> bytes:
        """A whole segment."""
        data = b"".join(FORMATS[self.content_type](at_s, pictures))
        self.post(seq, data)
        return data

    def post(self, seq: int, data: bytes) -> None:
        self.channel.post(seq, data, {"Content-Type": self.content_type}).expect(200)
        self.segments += 1

    def cut(self, seq: int, at_s: float) -> None:
        """A segment that its publisher does not finish."""
        upload, reader = self.channel.started(
            seq, b"".join(FORMATS[self.content_type](at_s, 10)), headers={"Content-Type": self.content_type}
        )
        upload.connection.close()
        reader.close()
        self.channel.close(seq, {"Lp-Trickle-Truncated": "1"}).expect(200)
        self.segments += 1

    def end(self) -> None:
        """End it, and let its drain pass."""
        archive = self.server.archive
        assert archive is not None
        eventually(lambda: len(archive.latest[self.channel.name].seqs) == self.segments)
        self.channel.end()
        later(self.server, DRAINED_S)
        self.channel.get(0).expect(404)

    def playlist(self) -> Playlist:
        """Its recording."""
        answer = self.channel.get("media.m3u8").expect(200)
        assert "#EXT-X-PLAYLIST-TYPE:VOD" in answer.body.decode()
        found = read(answer.body.decode())
        assert found.ended
        return found


@pytest.mark.parametrize("content_type", FORMATS)
def test_an_ended_channel_is_a_recording(tmp_path: Path, content_type: str) -> None:
    """All segments are there with their durations and media, also after a restart."""
    with local_server(data_dir=tmp_path, window_segments=2) as server:
        film = Film(server, content_type)
        data = [film.publish(seq, float(seq)) for seq in range(40)]
        film.end()
        found = film.playlist()
        assert [one.duration for one in found.whole] == [1.0] * 40
        assert not any(one.breaks for one in found.whole)
        dates = [one.date for one in found.whole if one.date is not None]
        # It was published at once: the dates are those of its media, as in the live playlist.
        assert [(date - dates[0]).total_seconds() for date in dates] == pytest.approx(list(range(40)), abs=0.002)
        inits = {one.map for one in found.whole} - {""}
        init = b"".join(film.channel.get(uri).expect(200).body for uri in inits)
        assert [init + film.channel.get(one.uri).expect(200).body for one in found.whole] == data
        text = film.channel.get("index.m3u8").body
        (variant,) = read_multivariant(text.decode()).variants
        assert (variant.uri, variant.rate) == ("media.m3u8", 25)
        part = film.channel.get(found.whole[3].uri, {"Range": "bytes=0-9"}).expect(206)
        assert part.body == data[3][len(init) :][:10]
        film.channel.target.close()
    with local_server(data_dir=tmp_path) as server:
        again = Film(server, content_type)
        later(server, DRAINED_S)
        assert again.channel.get("index.m3u8").expect(200).body == text
        assert again.channel.get(found.whole[39].uri).expect(200).body == data[39][len(init) :]
        again.channel.target.close()


def test_tracks_of_a_recording_have_playlists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a live channel: the thread makes each file of a track, and many may wait for it."""
    data = several_tracks(tmp_path, FLAGS[1])
    with local_server(data_dir=tmp_path / "data") as server:
        film = Film(server, "video/mp4")
        film.post(0, data)
        film.end()
        found = read_multivariant(film.channel.get("index.m3u8").expect(200).body.decode())
        (variant,) = found.variants
        assert (variant.groups, variant.size) == ({"AUDIO": "sound"}, (64, 64))
        init = init_segment(data)
        for track, uri in enumerate((variant.uri, *(one.uri for one in found.renditions)), 1):
            (segment,) = read(film.channel.get(uri).expect(200).body.decode()).whole
            assert segment.uri.endswith("m4s" if track == 1 else "m4a")
            assert film.channel.get(segment.map).expect(200).body == track_init(init, track)
            media = film.channel.get(segment.uri).expect(200)
            assert media.body == track_media(data[len(init) :], track, None)
            assert film.channel.get(segment.uri, {"If-None-Match": media.get("ETag") or ""}).expect(304).body == b""
        film.channel.get("media.m3u8?track=9").expect(404)
        film.channel.get(segment.uri.replace("-0.", "-7.")).expect(404)
        film.channel.get(segment.map.replace(".t3-", ".t9-")).expect(200)  # an init segment without a track
        film.channel.target.close()
    with local_server(data_dir=tmp_path / "packets") as server:
        film, data = Film(server), languages(tmp_path, "fin", "swe")
        film.post(0, data)
        film.end()
        found = read_multivariant(film.channel.get("index.m3u8").expect(200).body.decode())
        for track, uri in zip(
            (256, 257, 258), (found.variants[0].uri, *(one.uri for one in found.renditions)), strict=True
        ):
            (packets,) = read(film.channel.get(uri).expect(200).body.decode()).whole
            assert film.channel.get(packets.uri).expect(200).body == track_packets(data, data, track)
        film.channel.target.close()
    monkeypatch.setattr(module, "MAX_FILE", 100)
    with local_server(data_dir=tmp_path / "data") as server:
        again = Film(server, "video/mp4")
        later(server, DRAINED_S)
        again.channel.get("index.m3u8").expect(200)
        again.channel.get(segment.uri).expect(404)  # it is too long
        again.channel.target.close()


def test_the_subtitles_of_a_recording_have_playlists(tmp_path: Path) -> None:
    """As those of a live channel, with the same text."""
    data = subtitled(tmp_path, 3, "fin")
    with local_server(data_dir=tmp_path / "data") as server:
        film = Film(server, "video/mp4")
        for seq, segment in enumerate(data):
            film.post(seq, segment)
        film.end()
        found = read_multivariant(film.channel.get("index.m3u8").expect(200).body.decode())
        assert [(one.kind, one.language, one.uri) for one in found.renditions] == [
            ("SUBTITLES", "fi", "media.m3u8?track=11")
        ]
        listed = read(film.channel.get("media.m3u8?track=11").expect(200).body.decode())
        assert len(listed.whole) == 3
        for segment, one in zip(data, listed.whole, strict=True):
            init = init_segment(segment)
            media = film.channel.get(one.uri).expect(200)
            assert (media.body, media.get("Content-Type")) == (text_file(segment[len(init) :], init, 11), "text/vtt")
            film.channel.get(one.uri.replace(".t11", "")).expect(404)
            film.channel.get(one.uri.replace(".t11", ".t1")).expect(404)


def test_holes_jumps_and_parts_are_discontinuities(tmp_path: Path) -> None:
    """A segment before one keeps its own duration; a missing segment without missing time is none."""
    with local_server(data_dir=tmp_path) as server:
        film = Film(server)
        for seq, at_s in ((0, 0.0), (1, 1.0), (2, 2.0), (3, 50.0), (4, 51.0), (6, 52.0), (7, 53.0), (9, 55.0)):
            film.publish(seq, at_s)
        film.end()
        found = film.playlist()
        assert [one.duration for one in found.whole] == [1.0] * 8
        assert [at for at, one in enumerate(found.whole) if one.breaks] == [3, 7]
        film.channel.target.close()


def test_what_is_not_whole_or_left_out_is_told_beside_the_media(tmp_path: Path) -> None:
    """In comments, which players pass over: why a segment is not whole, and which have bytes and no media."""
    with local_server(data_dir=tmp_path) as server:
        film = Film(server)
        film.publish(0, 0.0)
        film.post(1, b"no media" * 100)
        film.cut(2, 2.0)
        film.post(3, b"no media" * 100)
        film.publish(4, 4.0)
        film.end()
        assert len(film.playlist().whole) == 3
        lines = film.channel.get("media.m3u8").expect(200).body.decode().splitlines()
        assert [line for line in lines if line.startswith("#LP-")] == [f"{CUT}:truncated", f"{LEFT_OUT}:1,3"]
        place = lines.index(f"{CUT}:truncated")
        assert next(line for line in lines[place:] if not line.startswith("#")).endswith("-2.ts")
        film.channel.target.close()


def test_a_recording_of_both_containers(tmp_path: Path) -> None:
    """MPEG-TS behind MP4 has its tables as init segment: a playlist cannot take an EXT-X-MAP back."""
    with local_server(data_dir=tmp_path) as server:
        film = Film(server)
        data = []
        for seq, kind in enumerate(["video/mp2t", "video/mp4", "video/mp4", "video/mp2t", "video/mp2t"]):
            film.content_type = kind
            data.append(film.publish(seq, float(seq)))
        film.end()
        found = film.playlist()
        assert [at for at, one in enumerate(found.whole) if one.breaks] == [1, 3]
        inits = [one.map and film.channel.get(one.map).expect(200).body for one in found.whole]
        assert inits == ["", init_segment(data[1]), init_segment(data[1]), tables(), tables()]
        assert found.whole[3].map.endswith(".ts")
        media = [film.channel.get(one.uri).expect(200).body for one in found.whole]
        assert media == [
            one if ts else one[len(init_segment(one)) :] for one, ts in zip(data, [1, 0, 0, 1, 1], strict=True)
        ]
        film.channel.target.close()


def test_other_media_have_no_recording(tmp_path: Path) -> None:
    """415 with the reason, as for a live channel; a name without a channel is 404."""
    with local_server(data_dir=tmp_path) as server:
        film = Film(server, name="text")
        film.post(0, b"no media" * 100)
        film.end()
        assert b"HLS needs" in film.channel.get("index.m3u8").expect(415).body
        film.channel.target.channel("nothing").get("index.m3u8").expect(404)
        film.channel.target.close()


def test_a_name_that_is_live_again_has_its_live_playlist(tmp_path: Path) -> None:
    """A recording is of the last channel of its name; files of the earlier one are gone then."""
    with local_server(data_dir=tmp_path) as server:
        film = Film(server)
        film.publish(0, 0.0)
        film.end()
        uri = film.playlist().whole[0].uri
        film.publish(0, 7.0)
        assert not read(film.channel.get("media.m3u8").expect(200).body.decode()).ended
        film.channel.get(uri).expect(404)
        film.channel.target.close()


def test_what_retention_removes_leaves_the_recording(tmp_path: Path) -> None:
    """Who asks then gets a playlist that begins later."""
    with local_server(data_dir=tmp_path) as server:
        film = Film(server)
        for seq in range(3):
            film.publish(seq, float(seq))
        film.end()
        first = film.playlist()
        archive = server.archive
        assert archive is not None
        server.inside(lambda: archive.remove(archive.latest["film"], 0))
        found = film.playlist()
        assert [one.uri for one in found.whole] == [one.uri for one in first.whole[1:]]
        film.channel.get(first.whole[0].uri).expect(404)
        film.channel.target.close()


def test_what_is_stored_late_comes_into_the_recording(tmp_path: Path) -> None:
    """A playlist that was asked for before storage had written the last segments is made anew with them."""
    with local_server(data_dir=tmp_path) as server:
        film, archive, busy = Film(server), server.archive, Event()
        assert archive is not None
        film.publish(0, 0.0)
        eventually(lambda: len(archive.latest["film"].seqs) == 1)
        archive._thread.submit(busy.wait)
        try:
            film.publish(1, 1.0)
            film.channel.end()
            later(server, DRAINED_S)
            assert len(film.playlist().whole) == 1
        finally:
            busy.set()
        eventually(lambda: len(film.playlist().whole) == 2)
        film.channel.target.close()


def test_few_recordings_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that nobody has asked for longest gives way; all of them after a minute."""
    monkeypatch.setattr(module, "MAX_RECORDINGS", 2)
    with local_server(data_dir=tmp_path) as server:
        films = [Film(server, name=name) for name in ("a", "b", "c")]
        for film in films:
            film.publish(0, 0.0)
            film.end()
        recordings = server.plane.recordings
        assert recordings is not None
        for film in [*films, films[0]]:
            film.playlist()
        assert server.inside(lambda: len(recordings)) == 2
        later(server, IDLE_S + 1)
        assert server.inside(lambda: len(recordings)) == 0
        for film in films:
            film.channel.target.close()
