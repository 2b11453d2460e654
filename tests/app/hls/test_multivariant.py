"""What a multivariant playlist tells of the media that a channel has now."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.hls.test_codecs import message
from tests.app.hls.test_demuxed import languages
from tests.publisher.media.clips import make_clip
from tests.support.hls import read, read_multivariant
from tests.support.local import LocalServer
from tests.support.media import VIDEO_PID, pes, ts_packet, ts_pictures
from tricklecast.app.hls.codecs import SOUND, VIDEO, Stream
from tricklecast.app.hls.multivariant import bit_rates, codecs_of, usual_rate
from tricklecast.app.hls.timeline import MediaSegment
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.trickle.media.containers import Container


def ended(size: int, duration: float) -> MediaSegment:
    """A segment of so many bytes."""
    one = MediaSegment(1, 1, gap=False)
    one.start, one.end, one.duration = 100, 100 + size, duration
    return one


@pytest.mark.parametrize("suffix", ["ts", "mp4"])
@pytest.mark.parametrize(("video", "audio"), [("libx264", "aac"), ("libx264", None), (None, "aac")])
def test_a_player_learns_what_it_needs(
    channel: RemoteChannel, tmp_path: Path, suffix: str, video: str | None, audio: str | None
) -> None:
    """Codecs, size, rates; sound alone promises that each segment can be decoded."""
    data = make_clip(tmp_path / f"clip.{suffix}", video=video, audio=audio).read_bytes()
    if suffix == "mp4":
        import av

        with av.open(str(tmp_path / "clip.mp4")) as source:
            options = {"movflags": "frag_keyframe+empty_moov+default_base_moof+delay_moov"}
            with av.open(str(tmp_path / "f.mp4"), "w", options=options) as target:
                streams = {one.index: target.add_stream_from_template(one) for one in source.streams}
                for packet in source.demux():
                    if packet.dts is not None:
                        packet.stream = streams[packet.stream.index]
                        target.mux(packet)
        data = (tmp_path / "f.mp4").read_bytes()
    channel.post(0, data).expect(200)
    answer = channel.get("index.m3u8").expect(200)
    assert answer.get("Content-Type") == "application/vnd.apple.mpegurl"
    found = read_multivariant(answer.body.decode())
    (variant,) = found.variants
    assert variant.uri == "media.m3u8"
    assert [codec.partition(".")[0] for codec in variant.codecs] == ["avc1"] * bool(video) + ["mp4a"] * bool(audio)
    assert variant.size == ((64, 64) if video else None)
    assert variant.rate == (pytest.approx(25, abs=0.5) if video else None)
    assert found.independent == (video is None)
    whole = read(channel.get("media.m3u8").expect(200).body.decode()).whole
    sizes = [8 * len(channel.get(one.uri).expect(200).body) for one in whole]
    assert variant.average == pytest.approx(sum(sizes) / sum(one.duration or 0 for one in whole), rel=0.001)


def test_a_token_goes_on(channel: RemoteChannel) -> None:
    """Into the URL of the media playlist, and from there into those of media."""
    channel.post(0, b"".join(ts_pictures(0, 25))).expect(200)
    text = channel.get("index.m3u8?token=a%22b").expect(200).body.decode()
    (variant,) = read_multivariant(text).variants
    assert variant.uri == "media.m3u8?token=a%22b"
    assert (variant.codecs, variant.size, variant.rate) == ([], None, 25)
    assert read(channel.get(variant.uri).expect(200).body.decode()).whole[0].uri.endswith(".ts?token=a%22b")


def test_a_ladder_names_the_channels_of_its_rungs(channel: RemoteChannel, tmp_path: Path) -> None:
    """Their sizes and rates follow from the ladder: these channels may be elsewhere, and need not be here."""
    channel.post(0, make_clip(tmp_path / "clip.ts", side=256).read_bytes()).expect(200)
    text = channel.get("index.m3u8?ladder=360p,240p,144p&token=a%22b").expect(200).body.decode()
    high, middle, low = read_multivariant(text).variants
    name = quote(channel.name, safe="")
    assert [one.uri for one in (high, middle, low)] == [
        "media.m3u8?token=a%22b",
        f"../{name}_240p/media.m3u8?token=a%22b",
        f"../{name}_144p/media.m3u8?token=a%22b",
    ]
    assert [one.size for one in (high, middle, low)] == [(256, 256), (240, 240), (144, 144)]
    assert [one.average for one in (high, middle, low)] == [928_000, 528_000, 328_000]
    assert high.codecs == middle.codecs == low.codecs != []
    assert high.bandwidth > middle.bandwidth > low.bandwidth
    past = channel.get("index.m3u8?start=earliest&ladder=360p,144p")
    assert past.status == 400
    past = channel.get("index.m3u8?start=10min&ladder=360p,144p").expect(200)
    assert [one.uri for one in read_multivariant(past.body.decode()).variants] == [
        "media.m3u8?from=0",
        f"../{name}_144p/media.m3u8?from=0",
    ]


def test_the_ladder_of_a_channel_without_pictures_tells_no_sizes(channel: RemoteChannel, tmp_path: Path) -> None:
    """And what is no ladder is refused."""
    channel.post(0, make_clip(tmp_path / "clip.ts", video=None).read_bytes()).expect(200)
    text = channel.get("index.m3u8?ladder=360p,144p").expect(200).body.decode()
    assert [one.size for one in read_multivariant(text).variants] == [None, None]
    for query, why in (
        ("ladder=360p", "Invalid ladder: a ladder has 2 to 6 rungs"),
        ("ladder=x,360p", "Invalid ladder: not a rung: 'x'"),
        ("ladder=360p,144p&_HLS_msn=1", "_HLS_msn with ladder"),
    ):
        assert channel.get(f"index.m3u8?{query}").expect(400).body.decode().startswith(why)


def test_an_open_player_of_an_earlier_version_goes_on(channel: RemoteChannel, server: LocalServer) -> None:
    """It waits for media under the name of the multivariant playlist."""
    channel.post(0, b"".join(ts_pictures(0, 25))).expect(200)
    msn = read(channel.get("media.m3u8").expect(200).body.decode()).whole[0].msn
    for query in (f"?_HLS_msn={msn}", f"?_HLS_msn={msn}&_HLS_part=0"):
        assert read(channel.get("index.m3u8" + query).expect(200).body.decode()).msn == msn
    packager = server.plane.packagers.of(server.plane.registry.channels[channel.name])
    packager.count_players()
    before = server.inside(lambda: packager._players)
    channel.get("index.m3u8").expect(200)
    assert server.inside(lambda: packager._players) == before, "who asks for it only is no player yet"


def test_a_segment_that_begins_with_no_key_picture_has_the_codec_of_those_before(
    channel: RemoteChannel, tmp_path: Path
) -> None:
    """Its parameter sets do not come again."""
    data = make_clip(tmp_path / "clip.ts", audio=None).read_bytes()
    keys = [
        at for at in range(0, len(data), 188) if data[at + 1] & 0x40 and data[at + 3] & 0x20 and data[at + 5] & 0x40
    ]
    assert len(keys) >= 3
    for seq, (begin, end) in enumerate(((0, keys[1]), (keys[1], len(data)))):
        piece = data[begin:end]
        if seq:
            piece = data[: 188 * 3] + b"".join(piece[at : at + 188] for at in range(188, len(piece), 188))
        channel.post(seq, piece).expect(200)
    assert read_multivariant(channel.get("index.m3u8").expect(200).body.decode()).variants[0].codecs


def test_codecs_are_all_or_none() -> None:
    """A list that lacks one would be wrong; two tracks of one codec name it once."""
    sound, picture, unknown = Stream(2, SOUND, "mp4a.40.2"), Stream(1, VIDEO, "avc1.64000d"), Stream(3, SOUND)
    for container in Container.MPEGTS, Container.FMP4:
        assert codecs_of([picture, sound, sound], container) == "avc1.64000d,mp4a.40.2"
        assert codecs_of([picture, unknown], container) == ""
        assert codecs_of([], container) == ""


def test_sound_that_players_can_leave_out_is_not_told() -> None:
    """hls.js shows the picture of MPEG-TS without AC-3, unless the playlist names it."""
    streams = [Stream(1, VIDEO, "avc1.64000d"), Stream(2, SOUND, "ac-3")]
    assert codecs_of(streams, Container.MPEGTS) == ""
    assert codecs_of(streams, Container.FMP4) == "avc1.64000d,ac-3"


def test_rates_of_frames() -> None:
    """Rounded times come near a usual rate, and others stay."""
    assert [usual_rate(rate) for rate in (29.96, 24.99, 15.0, 12.5)] == [30000 / 1001, 25, 15, 12.5]


@pytest.mark.parametrize(
    ("segments", "wanted"),
    [
        ([ended(1000, 1.0), ended(3000, 1.0)], (24_000, 16_000)),
        ([ended(1000, 0.2), ended(1000, 1.0), ended(1000, 1.0)], (13_333, 10_909)),
        ([ended(1000, 9.0)], (889, 889)),
        ([], (1, 1)),
    ],
)
def test_bit_rates(segments: list[MediaSegment], wanted: tuple[int, int]) -> None:
    """The peak over half a target duration to one and a half, and the average."""
    assert bit_rates(segments, 2) == wanted


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.floats(0.01, 10)), max_size=12))
def test_a_peak_is_no_less_than_the_average(segments: list[tuple[int, float]]) -> None:
    """Whatever the segments are."""
    peak, average = bit_rates([ended(size, duration) for size, duration in segments], 2)
    assert 1 <= average <= peak


def test_the_language_of_sound_in_mpeg_ts_is_told(channel: RemoteChannel, tmp_path: Path) -> None:
    """If there is one track of it, that has no playlist of its own."""
    channel.post(0, languages(tmp_path, "fin")).expect(200)
    found = read_multivariant(channel.get("index.m3u8").expect(200).body.decode())
    (sound,) = found.renditions
    assert (sound.kind, sound.name, sound.language, sound.uri, sound.default) == ("AUDIO", "fin", "fi", "", True)
    assert found.variants[0].groups == {"AUDIO": sound.group}


def test_captions_are_named_once_they_are_there(channel: RemoteChannel) -> None:
    """Also when later pictures have none."""
    for seq, told in enumerate((b"\xfc\x94\x2c", b"\xfc\x80\x80")):
        pictures = ts_pictures(float(seq), 25)
        picture = ts_packet(VIDEO_PID, pes(90_000 * seq, message(0x1B, told)), key=True)
        pictures[0] = pictures[0][: 2 * 188] + picture + pictures[0][3 * 188 :]
        channel.post(seq, b"".join(pictures)).expect(200)
        found = read_multivariant(channel.get("index.m3u8").expect(200).body.decode())
        assert found.variants[0].groups == {"CLOSED-CAPTIONS": "captions"}
        assert [(one.kind, one.instream) for one in found.renditions] == [("CLOSED-CAPTIONS", "CC1")]
