"""Text subtitles in fragmented MP4: cues in, samples of each segment out."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import av
import pytest

from tests.publisher.media.clips import make_clip
from tests.publisher.media.test_segmenter import joined
from tricklecast.publisher.media.encode import Encoding, Transcoder
from tricklecast.publisher.media.inputs import open_media
from tricklecast.publisher.media.muxers import ContainerName
from tricklecast.publisher.media.reader import Remuxer
from tricklecast.publisher.media.segmenter import Segmenter
from tricklecast.publisher.media.texts import (
    MAX_CUES,
    MAX_TEXT,
    UNTOLD,
    TextSample,
    TextTrack,
    plain_text,
)
from tricklecast.publisher.steps import Step
from tricklecast.trickle.media.containers import Track, tracks
from tricklecast.trickle.media.timeline import CLOCK_HZ, MAX_JUMP, fill_first_dts

if TYPE_CHECKING:
    from av import Packet

S = CLOCK_HZ
SRT = """1
00:00:00,480 --> 00:00:00,880
<i>Hello</i>

2
00:00:01,520 --> 00:00:02,400
Zwei
Zeilen

"""


def track() -> TextTrack:
    """An empty one."""
    return TextTrack("subrip", "deu", is_default=True)


def sample(begin: int, end: int, text: str = "") -> TextSample:
    """One as it should be."""
    return TextSample(begin, end, len(text.encode()).to_bytes(2) + text.encode())


@pytest.mark.parametrize(
    ("codec", "data", "text"),
    [
        (
            "subrip",
            b"<i>Hello</i> {\\an8}<font color=red>there</font>\r\n\r\n1 < 2 {sic} &amp;",
            "Hello there\n1 < 2 {sic} &amp;",
        ),
        ("webvtt", b"<v Ann>Hi</v> <c.big>a &amp; b</c> <00:01.000>late", "Hi a & b late"),
        ("ass", b"3,0,Default,,0,0,0,,{\\i1}One{\\i0}, two\\Nthree\\hfour\\nfive", "One, two\nthree four five"),
        ("ssa", b"3,0,Default,,0,0,0,,text", "text"),
        ("ass", b"3,0,Default,,0,0,0,,{\\an7\\p1}m 0 0 l 10 0", ""),
        ("ass", b"no event", ""),
        ("mov_text", b"\0\5Hello\0\0\0\x0cstyl\0\0\0\0", "Hello"),
        ("mov_text", b"\0\6\xfe\xff\0H\0i", "Hi"),
        ("mov_text", b"\0\0", ""),
        ("mov_text", b"", ""),
        ("subrip", b"\xffx\0", "\ufffdx"),
        ("subrip", b"x" * 9000, "x" * MAX_TEXT),
    ],
)
def test_text_is_plain(codec: str, data: bytes, text: str) -> None:
    """Tags, styles and drawings are left out; lines stay."""
    assert plain_text(codec, data) == text


def test_samples_cover_a_segment_and_the_next_one_has_the_rest() -> None:
    """Nothing is shown in between; a cue at the border is in both segments."""
    one = track()
    one.add(b"a", S, S)
    one.add(b"b", 3 * S, 2 * S)
    assert one.take(0, 4 * S) == [sample(0, S), sample(S, 2 * S, "a"), sample(2 * S, 3 * S), sample(3 * S, 4 * S, "b")]
    assert one.take(4 * S, 6 * S) == [sample(4 * S, 5 * S, "b"), sample(5 * S, 6 * S)]
    assert one.take(6 * S, 6 * S) == []


def test_segments_join_where_times_are_estimated() -> None:
    """The samples of a segment follow those before, unless the clock has jumped."""
    one = track()
    assert one.take(0, S) == [sample(0, S)]
    assert one.take(S + 9, 2 * S) == [sample(S, 2 * S)]
    assert one.take(2 * S - 9, 3 * S) == [sample(2 * S, 3 * S)]
    later = 3 * S + MAX_JUMP
    assert one.take(later, later + S) == [sample(later, later + S)]


def test_cues_at_the_same_time_are_lines_of_one_sample() -> None:
    """The same text is there once."""
    one = track()
    one.add(b"a", 0, 2 * S)
    one.add(b"b", S, 2 * S)
    one.add(b"b", S, 2 * S)
    assert one.take(0, 3 * S) == [sample(0, S, "a"), sample(S, 2 * S, "a\nb"), sample(2 * S, 3 * S, "b")]


def test_a_cue_that_comes_too_late_is_shown_late() -> None:
    """But not if nobody could have seen it: it was over before the first picture."""
    one = track()
    one.add(b"before", 0, S)
    assert one.take(S, 2 * S) == [sample(S, 2 * S)]
    one.add(b"late", S, S // 2)
    assert one.take(2 * S, 3 * S) == [sample(2 * S, 5 * S // 2, "late"), sample(5 * S // 2, 3 * S)]


def test_a_cue_without_an_end_is_shown_until_the_next_one() -> None:
    """Or for a while."""
    one = track()
    one.add(b"a", 0, 0)
    one.add(b"b", S, 0)
    end = S + UNTOLD
    assert one.take(0, end + S) == [sample(0, S, "a"), sample(S, end, "b"), sample(end, end + S)]


def test_what_is_held_has_a_limit() -> None:
    """Cues that are too many are counted; a sample's length fits into its two bytes."""
    one = track()
    for number in range(MAX_CUES + 2):
        one.add(f"{number:04}".encode() * 500, 0, S)
    assert one.left_out == 2
    (only,) = one.take(0, S)
    assert len(only.data) == 2 + int.from_bytes(only.data[:2]) == 2 + 0xFFFF


def film(path: Path, tmp_path: Path, codec: str = "subrip", seconds: float = 3) -> Path:
    """A clip, with text in two languages."""
    srt = tmp_path / "text.srt"
    srt.write_text(SRT)
    clip = make_clip(tmp_path / "clip.mkv", seconds=seconds)
    with av.open(str(clip)) as media, av.open(str(srt)) as text, av.open(str(path), "w") as out:
        copies: dict[Any, Any] = {one: out.add_stream_from_template(one) for one in media.streams}
        languages = ("deu", "x")
        for language in languages:
            copy = out.add_stream_from_template(text.streams[0], opaque=True)
            copy.metadata["language"] = language
            copies[language] = copy
        for packet in text.demux():
            for language in languages:
                if packet.size:
                    part = av.Packet(bytes(packet))
                    part.pts = part.dts = packet.pts
                    part.duration, part.time_base = packet.duration, packet.time_base
                    part.stream = copies[language]
                    out.mux_one(part)
        for packet in media.demux():
            if packet.size:
                packet.stream = copies[packet.stream]
                out.mux(packet)
    return path


def published(path: Path, container: ContainerName) -> tuple[list[bytes], list[str]]:
    """The segments, and what is said."""
    said: list[str] = []
    remuxer = Remuxer(Segmenter(container), warn=said.append, advice="; --transcode may help")
    return joined(list(remuxer.steps(open_media(str(path), path.name), path.name))), said


def test_text_of_a_film_is_in_each_segment_of_mp4(tmp_path: Path) -> None:
    """Times and texts are the film's, and each segment alone has what is shown in it, in each language."""
    segments, said = published(film(tmp_path / "film.mkv", tmp_path), "fmp4")
    assert said == []
    assert [one.codec for one in tracks(segments[0])] == [b"avc1", b"mp4a", b"tx3g", b"tx3g"]
    assert tracks(segments[0])[2] == Track(3, CLOCK_HZ, b"sbtl", b"tx3g")
    found: list[list[tuple[float, float, str]]] = []
    first: float | None = None
    for segment in segments:
        with av.open(io.BytesIO(segment), "r", "mp4") as container:
            texts = [one for one in container.streams if one.type == "subtitle"]
            assert [one.metadata["language"] for one in texts] == ["deu", "und"]
            packets = [packet for packet in container.demux() if packet.size]
            picture = min(float(cast(int, one.pts) * one.time_base) for one in packets if one.stream.type == "video")
            first = picture if first is None else first
            cues = [
                (
                    round(float(cast(int, one.pts) * one.time_base) - first, 3),
                    round(float((one.duration or 0) * one.time_base), 3),
                    bytes(one)[2:].decode(),
                )
                for one in packets
                if one.stream.index == 2
            ]
            assert cues[0][0] == pytest.approx(picture - first, abs=0.002)
            found.append(cues)
    assert [[text for *_, text in cues] for cues in found] == [
        ["", "Hello", ""],
        ["", "Zwei\nZeilen"],
        ["Zwei\nZeilen", ""],
    ]
    assert found[0][1][:2] == pytest.approx((0.48, 0.4), abs=0.002)
    assert found[1][1][:2] == pytest.approx((1.52, 0.48), abs=0.002)
    assert found[2][0][:2] == pytest.approx((2.0, 0.4), abs=0.002)


def text_packet(shown_ms: int | None, text: str = "cue") -> Packet[Any]:
    """A cue of half a second."""
    packet: Packet[Any] = av.Packet(text.encode())
    packet.pts = packet.dts = shown_ms
    packet.duration, packet.time_base = 500, Fraction(1, 1000)
    return packet


def test_text_changes_nothing_of_the_pictures(tmp_path: Path) -> None:
    """Wherever the source has it, ahead or behind: nothing waits, and no time and no segment is another one."""
    path = film(tmp_path / "film.mkv", tmp_path)
    runs: list[list[list[bytes]]] = []
    for cues in ([], [text_packet(500_000), text_packet(0), text_packet(None), text_packet(1_100)]):
        source = open_media(str(path), "film")
        segmenter = Segmenter("fmp4")
        segmenter.start({number: source.streams[number] for number in range(3)})
        steps: list[Step] = []
        for packet in cues[:2]:
            assert list(segmenter.add(2, packet)) == []
        for number, (track, packet) in enumerate(fill_first_dts(source.packets())):
            if track < 2:
                steps += segmenter.add(track, packet)
            if number == 20:
                for late in cues[2:]:
                    assert list(segmenter.add(2, late)) == []
        steps += segmenter.finish()
        assert segmenter.left_out == (1 if cues else 0)
        source.close()
        with av.open(io.BytesIO(b"".join(joined(steps))), "r", "mp4") as container:
            media = [packet for packet in container.demux() if packet.size and packet.stream.type != "subtitle"]
            runs.append([[str(one.pts).encode(), str(one.dts).encode(), bytes(one)] for one in media])
        assert joined(steps)[1].count(b"cue") == (1 if cues else 0)
    assert runs[0] == runs[1]


def test_text_that_comes_before_all_else_is_held_up_to_a_limit(tmp_path: Path) -> None:
    """Until the first picture tells the time line."""
    source = open_media(str(film(tmp_path / "film.mkv", tmp_path)), "film")
    segmenter = Segmenter("fmp4")
    segmenter.start({number: source.streams[number] for number in range(3)})
    for _ in range(MAX_CUES + 3):
        assert list(segmenter.add(2, text_packet(0))) == []
    assert segmenter.left_out == 3
    source.close()


def test_text_goes_on_where_pictures_have_stopped(tmp_path: Path) -> None:
    """It begins no segment with pictures that nobody sends, and is in those of the sound."""
    source = open_media(str(film(tmp_path / "film.mkv", tmp_path)), "film")
    segmenter = Segmenter("fmp4")
    segmenter.start({number: source.streams[number] for number in range(3)})
    packets = [(track, packet) for track, packet in fill_first_dts(source.packets()) if track < 2]
    sounds = [bytes(packet) for track, packet in packets if track == 1]
    steps: list[Step] = []
    for track, packet in packets:
        steps += segmenter.add(track, packet)
    step = 21
    for number in range(400):
        later: Packet[Any] = av.Packet(sounds[number % len(sounds)])
        later.pts = later.dts = 3_100 + step * number
        later.duration, later.time_base = step, Fraction(1, 1000)
        steps += segmenter.add(1, later)
        if number == 320:
            assert list(segmenter.add(2, text_packet(3_100 + step * number))) == []
    steps += segmenter.finish()
    source.close()
    last = [one for one in joined(steps) if b"cue" in one]
    assert [one.codec for one in tracks(last[-1])] == [b"mp4a", b"tx3g"]


def test_text_stays_where_pictures_are_encoded_anew(tmp_path: Path) -> None:
    """Beside the same pictures, in each size of a ladder."""
    path = film(tmp_path / "film.mkv", tmp_path)
    encoding = Encoding(gop_s=1.0)
    transcoder = Transcoder(open_media(str(path), "film"), [encoding] * 2, print)
    segmenters = [Segmenter("fmp4"), Segmenter("fmp4")]
    steps: list[list[Step]] = [[], []]
    for rung, segmenter in enumerate(segmenters):
        segmenter.start(transcoder.streams_of(rung))
    for rung, track, packet in transcoder.rungs():
        steps[rung] += segmenters[rung].add(track, packet)
    for rung, segmenter in enumerate(segmenters):
        steps[rung] += segmenter.finish()
        segments = joined(steps[rung])
        assert [("Hello" in str(one), "Zwei" in str(one)) for one in segments] == [
            (True, False),
            (False, True),
            (False, True),
        ]
        with av.open(io.BytesIO(segments[0]), "r", "mp4") as container:
            packets = [packet for packet in container.demux() if packet.size]
            first = min(float(cast(int, one.pts) * one.time_base) for one in packets if one.stream.type == "video")
            hello = next(one for one in packets if b"Hello" in bytes(one) and one.stream.type == "subtitle")
            assert float(cast(int, hello.pts) * hello.time_base) - first == pytest.approx(0.48, abs=0.03)
    transcoder.close()


def test_mpegts_leaves_text_out_and_says_what_carries_it(tmp_path: Path) -> None:
    """By name, of each stream."""
    _, said = published(film(tmp_path / "film.mkv", tmp_path), "mpegts")
    left = "left out: stream {} (subtitle, subrip); --container fmp4 can carry it"
    assert said == [left.format(2), left.format(3)]
