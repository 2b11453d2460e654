"""Findings on segments of real encoders: what is well made is fine, and each fault is found and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
from av import Packet
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.stream import Stream
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from tests.publisher.media.clips import make_clip
from tests.publisher.media.test_reader import Run as Published
from tests.subscriber.check.segments import (
    cut,
    in_time,
    judged,
    numbered,
    received,
    troubles,
)
from tests.support.inputs import made, picture, tone
from tricklecast.publisher.media.reader import MediaOptions
from tricklecast.subscriber.check.media import Media
from tricklecast.subscriber.check.rules import MEASURES, RULES, Level, judge
from tricklecast.subscriber.check.study import Ended, Head, Limits, Received, Run
from tricklecast.trickle.media.containers import Container

Clip = Callable[..., Path]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    """Clips by their options, each made once."""
    made: dict[str, Path] = {}

    def get(name: str = "clip.mp4", **options: Any) -> Path:
        key = f"{name} {options}"
        if key not in made:
            made[key] = make_clip(tmp_path_factory.mktemp("clip") / name, **{"seconds": 4.0, **options})
        return made[key]

    return get


@pytest.fixture(scope="module")
def good(clip: Clip) -> list[bytes]:
    """Four well-made segments with B-frames and sound."""
    return numbered(cut(clip()))


def video(packet: Packet[Stream]) -> bool:
    """Whether a packet is one of the picture."""
    return packet.stream.type == "video"


@pytest.mark.parametrize(
    ("name", "options", "how"),
    [
        ("clip.mp4", {}, {}),
        ("clip.mp4", {}, {"fresh": False}),
        ("clip.mp4", {}, {"format_": "mp4"}),
        ("open.ts", {"open_gop": True}, {}),
        ("hevc-open.ts", {"video": "libx265", "open_gop": True}, {}),
        ("hevc.mp4", {"video": "libx265"}, {"format_": "mp4"}),
        ("ac3.mp4", {"audio": "ac3"}, {}),
        ("mpeg2.ts", {"video": "mpeg2video", "audio": "mp2"}, {}),
        ("mpeg4.ts", {"video": "mpeg4", "audio": "libmp3lame"}, {}),
        ("opus.mp4", {"audio": "libopus"}, {}),
        ("opus.mp4", {"audio": "libopus"}, {"format_": "mp4"}),
        ("mute.mp4", {"audio": None}, {}),
        ("sound.mp4", {"video": None}, {"length_s": 1.0}),
        ("sound.mp4", {"video": None}, {"length_s": 1.0, "format_": "mp4"}),
        ("opus-sound.mp4", {"video": None, "audio": "libopus"}, {"length_s": 1.0}),
    ],
)
def test_well_made_segments_are_fine(clip: Clip, name: str, options: dict[str, Any], how: dict[str, Any]) -> None:
    """No warning for B-frames, open groups of pictures, any codec, either container, one muxer or several."""
    segments = cut(clip(name, **options), **how)
    is_mp4 = how.get("format_") == "mp4"
    segments = segments if is_mp4 else numbered(segments)
    judgement = judged(received(segments, decode=True, content_type="video/mp4" if is_mp4 else "video/mp2t"))
    assert troubles(judgement) == {}
    assert judgement.level is Level.OK
    for rule in (
        "stands_alone",
        "times_across",
        "times_inside",
        "streams",
        "lengths",
        "trickles",
        "real_time",
        "jitter",
    ):
        assert judgement.finding(rule).level is Level.OK, rule
    if options.get("video", "") is not None:
        assert judgement.finding("keyframes").level is Level.OK
        assert judgement.finding("decodes").level is Level.OK


@pytest.mark.parametrize(
    ("rate", "format_"),
    [(Fraction(30_000, 1001), "mpegts"), (Fraction(24_000, 1001), "mp4"), (Fraction(60_000, 1001), "mp4")],
)
def test_broken_frame_rates_are_fine(tmp_path: Path, rate: Fraction, format_: str) -> None:
    """Frames of 1001 / 30000 s do not fall on whole ticks, and frames of sound at 44.1 kHz do not either."""
    segments = cut(odd_clip(tmp_path / "clip.mp4", rate), format_=format_)
    segments = numbered(segments) if format_ == "mpegts" else segments
    seen = received(segments, content_type="video/mp2t" if format_ == "mpegts" else "video/mp4")
    assert troubles(judged(seen)) == {}
    assert judged(seen).finding("times_across").level is Level.OK


def odd_clip(path: Path, rate: Fraction) -> Path:
    """A clip at that frame rate, with silence at 44.1 kHz."""
    with av.open(str(path), "w") as container:
        picture = container.add_stream("libx264", rate=rate, options={"g": "24", "preset": "ultrafast", "bf": "2"})
        assert isinstance(picture, VideoStream)
        picture.width, picture.height, picture.pix_fmt = 64, 64, "yuv420p"
        picture.time_base = picture.codec_context.time_base = 1 / rate
        sound = container.add_stream("aac", rate=44_100)
        assert isinstance(sound, AudioStream)
        samples = 0
        for number in range(100):
            frame = VideoFrame(64, 64, "yuv420p")
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(picture.encode(frame))
            until = int((number + 1) / rate * 44_100)
            silence = AudioFrame(format="fltp", layout="mono", samples=until - samples)
            silence.planes[0].update(bytes(silence.planes[0].buffer_size))
            silence.sample_rate, silence.pts, silence.time_base = 44_100, samples, Fraction(1, 44_100)
            container.mux(sound.encode(silence))
            samples = until
        container.mux(picture.encode(None))
        container.mux(sound.encode(None))
    return path


def test_a_segment_that_does_not_begin_with_a_keyframe_is_found(clip: Clip) -> None:
    """Both by the bytes and by a decoder, in each such segment."""
    segments = numbered(cut(clip(), length_s=1.4, at_keyframes=False))
    judgement = judged(received(segments, decode=True))
    assert troubles(judgement)["keyframes"] == "fail"
    assert judgement.finding("keyframes").segments == (1, 2)
    assert judgement.finding("decodes").segments == (1, 2)


def test_fmp4_segments_without_a_keyframe_are_found(clip: Clip) -> None:
    """The flags of samples say it."""
    segments = cut(clip(), length_s=1.4, at_keyframes=False, format_="mp4")
    judgement = judged(received(segments, content_type="video/mp4"))
    assert judgement.finding("keyframes").segments == (1, 2)


@pytest.mark.parametrize("format_", ["mpegts", "mp4"])
@pytest.mark.parametrize(
    ("ticks", "verdict"), [(90_000, "fail"), (-90_000, "fail"), (9_000, "warn"), (-4_500, "warn"), (0, None)]
)
def test_timestamps_that_jump_between_segments_are_found(
    clip: Clip, format_: str, ticks: int, verdict: str | None
) -> None:
    """Forth and back, by a second or a few frames; with the segment and the size of the jump."""
    segments = cut(clip(), change=lambda packet, number: ticks * (number >= 2), format_=format_)
    segments = numbered(segments) if format_ == "mpegts" else segments
    judgement = judged(received(segments, content_type="video/mp2t" if format_ == "mpegts" else "video/mp4"))
    finding = judgement.finding("times_across")
    assert troubles(judgement).get("times_across") == verdict
    assert finding.segments == ((2,) if verdict else ())
    if verdict:
        assert finding.values["largest_s"] == pytest.approx(ticks / 90_000, abs=0.03)


@pytest.mark.parametrize("format_", ["mpegts", "mp4"])
def test_a_single_lost_frame_of_sound_is_found(clip: Clip, format_: str) -> None:
    """21 ms are missing at each seam, as when every segment is encoded by itself."""
    lost: set[int] = set()

    def change(packet: Packet[Stream], number: int) -> int | None:
        if video(packet) or number in lost or number == 0:
            return 0
        lost.add(number)
        return None

    segments = cut(clip(), change=change, format_=format_)
    segments = numbered(segments) if format_ == "mpegts" else segments
    judgement = judged(received(segments, content_type="video/mp2t" if format_ == "mpegts" else "video/mp4"))
    assert troubles(judgement) == {"times_across": "warn"}
    assert judgement.finding("times_across").segments == (1, 2, 3)
    assert judgement.finding("times_across").values["largest_s"] == pytest.approx(1024 / 48_000, abs=0.001)


@pytest.mark.parametrize("format_", ["mpegts", "mp4"])
def test_sound_that_pauses_inside_a_segment_is_found(clip: Clip, format_: str) -> None:
    """19 frames are missing, 405 ms; a frame more or less is no pause."""
    frames: dict[int, int] = {}

    def change(packet: Packet[Stream], number: int) -> int | None:
        if video(packet):
            return 0
        frames[number] = frames.get(number, 0) + 1
        return None if number == 2 and 10 < frames[number] < 30 else 0

    segments = cut(clip(), change=change, format_=format_)
    segments = numbered(segments) if format_ == "mpegts" else segments
    judgement = judged(received(segments, content_type="video/mp2t" if format_ == "mpegts" else "video/mp4"))
    assert troubles(judgement) == {"times_inside": "warn"}
    assert judgement.finding("times_inside").segments == (2,)
    assert "405 ms" in judgement.finding("times_inside").figure


def test_timestamps_that_begin_anew_are_named_so(clip: Clip) -> None:
    """Each segment begins at the same time: one finding with the cure, and no guesses about pace."""
    segments = numbered(cut(clip(), change=lambda packet, number: -90_000 * number))
    judgement = judged(received(segments))
    finding = judgement.finding("times_across")
    assert finding.level is Level.FAIL
    assert "begin anew in each segment" in finding.figure
    assert "-reset_timestamps" in finding.advice
    assert {judgement.finding(name).level for name in ("trickles", "real_time", "jitter")} == {Level.SKIP}


def test_times_that_wrap_go_on(clip: Clip) -> None:
    """33 bits are over in the middle of a channel: that is no jump."""
    wrap = 1 << 33
    segments = numbered(cut(clip(), change=lambda packet, number: wrap - 90_000 * 3 - 45_000))
    seen = received(segments)
    first = [track.first_dts for one in seen for track in one.media.tracks if track.name == "video 0x100"]
    assert max(first) > wrap - 300_000  # type: ignore[type-var, operator]
    assert min(first) < 300_000  # type: ignore[type-var, operator]
    assert troubles(judged(seen)) == {}


def test_timestamps_that_run_back_inside_a_segment_are_found(clip: Clip) -> None:
    """The time of one frame is before that of the frame before."""

    def back(segments: list[bytes]) -> list[bytes]:
        seen: list[bytes] = []
        for number, data in enumerate(segments):
            packets = [data[at : at + 188] for at in range(0, len(data), 188)]
            starts = [i for i, one in enumerate(packets) if one[1] & 0x40 and one[1:3] == b"\x41\x00"]
            if number == 1:
                one, other = starts[9], starts[12]
                packets = packets[:one] + packets[other : starts[13]] + packets[one:other] + packets[starts[13] :]
            seen.append(b"".join(packets))
        return seen

    judgement = judged(received(numbered(back(cut(clip(), fresh=True)))))
    assert troubles(judgement) == {"times_inside": "fail"}
    assert judgement.finding("times_inside").segments == (1,)


def test_lost_packets_are_found_inside_and_counters_that_begin_anew_across(clip: Clip, good: list[bytes]) -> None:
    """Packets missing in a segment fail; a muxer per segment only warns."""
    damaged = [good[0], good[1][: 188 * 20] + good[1][188 * 21 :], good[2], good[3]]
    judgement = judged(received(damaged))
    assert troubles(judgement) == {"counters_inside": "fail"}
    assert judgement.finding("counters_inside").segments == (1,)
    judgement = judged(received(cut(clip())))
    assert troubles(judgement) == {"counters_across": "warn"}
    assert judgement.finding("counters_across").segments == (1, 2, 3)


def test_counters_need_not_go_on_over_a_gap(good: list[bytes]) -> None:
    """What is missing is told once: as a gap, not as lost packets and a jump in time as well."""
    seen = received([good[0], good[1]])
    seen += [
        replace(one, number=one.number + 2, seq=one.seq + 3, gap=1 if one.number == 0 else 0)
        for one in received(good[3:])
    ]
    judgement = judged(in_time(seen))
    assert troubles(judgement) == {"gaps": "fail"}
    assert judgement.finding("gaps").segments == (3,)
    assert judgement.finding("gaps").values["missed"] == 1


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-50], "partial packet"),
        (lambda data: data[: 188 * 5] + b"\0" * 77 + data[188 * 5 :], "sync lost"),
        (lambda data: data[: 188 * 9 + 1] + bytes([data[188 * 9 + 1] | 0x80]) + data[188 * 9 + 2 :], "damaged packet"),
        (lambda data: data[: 188 + 12] + bytes([data[188 + 12] ^ 1]) + data[188 + 13 :], "bad table"),
    ],
)
def test_damaged_packets_are_named(good: list[bytes], damage: Callable[[bytes], bytes], says: str) -> None:
    """Each kind by its name, with the segment."""
    judgement = judged(received([good[0], damage(good[1]), *good[2:]]))
    finding = judgement.finding("damage")
    assert finding.level is Level.FAIL
    assert says in finding.figure
    assert finding.segments == (1,)


def test_a_segment_cut_by_its_publisher_is_truncated_and_nothing_else(good: list[bytes]) -> None:
    """It ends in the middle of a packet, and the next one does not join: both follow from the cut."""
    judgement = judged(received([good[0], good[1][:10_001], *good[2:]], truncated={1: "publisher lost"}))
    assert judgement.finding("truncated").figure == "1 truncated: publisher lost"
    assert {name for name in troubles(judgement) if name not in ("truncated", "counters_across")} == set()


def test_a_segment_that_nobody_wrote_is_skipped_and_nothing_else(good: list[bytes]) -> None:
    """The media that it lacks is told with it, whether the server can tell it from an empty one or not."""
    seen = received(good)
    hollow = replace(seen[1], size=0, media=Media(Container.OTHER))
    skipped = judged([seen[0], replace(hollow, skipped=True), *seen[2:]])
    assert troubles(skipped) == {"skipped": "fail"}
    assert skipped.finding("skipped").segments == (1,)
    unmarked = judged([seen[0], hollow, *seen[2:]])
    assert troubles(unmarked) == {"empty": "fail"}
    assert unmarked.finding("empty").figure == "1 segment dropped"


def test_an_empty_segment_beside_a_skipped_one_is_not_dropped(good: list[bytes]) -> None:
    """The skipped one accounts for the media that is missing; the other may have been meant to be empty."""
    seen = received(good)
    hollow = [replace(one, size=0, media=Media(Container.OTHER)) for one in seen[1:3]]
    judgement = judged([seen[0], replace(hollow[0], skipped=True), hollow[1], *seen[3:]])
    assert troubles(judgement) == {"skipped": "fail", "empty": "warn"}
    assert judgement.finding("empty").segments == (2,)


def test_empty_segments_of_an_idle_publisher_are_no_fault(good: list[bytes]) -> None:
    """One every ten seconds shows that it is there; among them, one that closed at once is told alone."""
    seen = received(good)
    hollow = [replace(one, size=0, media=Media(Container.OTHER), requested_s=0.0, answered_s=10.0) for one in seen[:2]]
    judgement = judged([*hollow, *seen[2:]])
    assert troubles(judgement) == {}
    assert judgement.finding("empty").figure == f"2 of {len(seen)} empty, as signs of life"
    judgement = judged([hollow[0], replace(hollow[1], answered_s=0.1), *seen[2:]])
    assert troubles(judgement) == {"empty": "warn"}
    assert judgement.finding("empty").segments == (1,)


def test_tables_and_parameters_that_are_missing_are_found(clip: Clip, good: list[bytes]) -> None:
    """Program tables, parameter sets and init segments have to stand in each segment."""
    bare = [data if number == 0 else data[188 * 3 :] for number, data in enumerate(good)]
    judgement = judged(received(numbered(bare)))
    assert judgement.finding("stands_alone").figure == "3 without PAT and PMT first, of 4"
    pieces = cut(clip(), format_="mp4")
    without_init = [data if number == 0 else data[data.index(b"moof") - 4 :] for number, data in enumerate(pieces)]
    judgement = judged(received(without_init, content_type="video/mp4", decode=True))
    assert judgement.finding("stands_alone").figure == "3 without an init segment, of 4"
    assert judgement.finding("decodes").segments == (1, 2, 3)
    assert judgement.finding("keyframes").level is Level.OK


def test_streams_that_change_are_found(clip: Clip, good: list[bytes]) -> None:
    """Another codec from one segment on."""
    others = cut(clip("mpeg2.ts", video="mpeg2video", audio="mp2"))
    judgement = judged(received(numbered([*good[:2], *others[2:]])))
    assert judgement.finding("streams").level is Level.WARN
    assert judgement.finding("streams").segments == (2,)


def test_codecs_that_look_alike_are_no_change(tmp_path: Path) -> None:
    """libavformat takes the sound of some segments for layer 2, of others for layer 3."""
    film = made(tmp_path / "film.mpg", f"{picture(6)} {tone(6)} -c:v mpeg1video -g 15 -bf 2 -c:a mp2")
    segments = Published(str(film), MediaOptions(realtime=False)).run().segments
    assert judged(received(numbered(segments))).finding("streams").level is Level.OK


def test_sound_that_begins_late_is_found(clip: Clip) -> None:
    """Three seconds between picture and sound of one segment."""
    segments = numbered(cut(clip(), change=lambda packet, number: 0 if video(packet) else 3 * 90_000))
    judgement = judged(received(segments))
    assert troubles(judgement) == {"skew": "warn"}
    assert judgement.finding("skew").values["median_s"] == pytest.approx(3.0, abs=0.1)


@pytest.mark.parametrize(
    ("rule", "limits", "name"),
    [("lengths", Limits(segment_s=0.5), "segment_s"), ("skew", Limits(skew_s=0.001), "skew_s")],
)
def test_a_limit_that_was_given_fails(good: list[bytes], rule: str, limits: Limits, name: str) -> None:
    """A default warns; what the user asked for fails."""
    run = Run(tuple(received(good)))
    assert judge(run, limits).finding(rule).level is Level.WARN
    assert judge(run, replace(limits, given=frozenset({name}))).finding(rule).level is Level.FAIL


def long_run(good: list[bytes], clip: Clip) -> list[Received]:
    """Twelve segments of a second each."""
    return received(numbered(cut(clip("long.mp4", seconds=12.0, audio=None))))


@pytest.mark.parametrize(
    ("arrival", "expected"),
    [
        ({}, {}),
        ({"speed": 0.99}, {}),
        ({"speed": 0.94}, {"real_time": "warn"}),
        ({"speed": 0.7}, {"real_time": "fail"}),
        ({"speed": 8.0}, {}),
        ({"share": 0.02}, {"trickles": "warn"}),
        ({"late_s": lambda number: 2.5 if number == 6 else 0.0}, {"jitter": "warn"}),
        ({"late_s": lambda number: 1.8 * (number >= 2)}, {"jitter": "warn"}),
        ({"late_s": lambda number: 1.8 * (number // 3)}, {"jitter": "warn", "real_time": "fail"}),
        ({"late_s": lambda number: 0.3 * (number % 3)}, {}),
    ],
)
def test_pace(good: list[bytes], clip: Clip, arrival: dict[str, Any], expected: dict[str, str]) -> None:
    """A slow publisher, one that sends lumps, one that pauses; and what a live channel may do."""
    assert troubles(judged(in_time(long_run(good, clip), **arrival))) == expected


def with_latency(seen: Sequence[Received], latency_s: Callable[[int], float]) -> list[Received]:
    """Producer times so that segments have these latencies."""
    return [
        replace(one, media=replace(one.media, producer_us=one.wall_us - round(latency_s(one.number) * 1e6)))
        for one in seen
    ]


@pytest.mark.parametrize(
    ("latency_s", "verdict", "says"),
    [
        (lambda number: 0.2 + 0.01 * number, "ok", "250 ms (95 %: 310 ms"),
        (lambda number: -0.01, "ok", ""),
        (lambda number: 7.0, "warn", "7.00 s"),
        (lambda number: -1.5, "warn", "clocks differ"),
        (lambda number: 0.3 if number else -0.4, "warn", "clocks differ"),
        (lambda number: 86_400.0 * 3, "warn", "72.0 h"),
    ],
)
def test_latency_by_producer_time(
    good: list[bytes], clip: Clip, latency_s: Callable[[int], float], verdict: str, says: str
) -> None:
    """Its quantiles; too much; and clocks that cannot be trusted are said so, not hidden."""
    finding = judged(with_latency(long_run(good, clip), latency_s)).finding("latency")
    assert finding.level == verdict
    assert says in finding.figure
    if "clocks" in says:
        assert finding.values["clock_skew_s"] == pytest.approx(-min(latency_s(0), latency_s(1)))
        assert "clock is ahead of this one" in finding.text


def test_segments_that_were_there_already_tell_nothing_of_latency(good: list[bytes], clip: Clip) -> None:
    """Whoever catches up receives old segments at once: neither late nor fast."""
    seen = with_latency(long_run(good, clip), lambda number: 30.0)
    seen = [replace(one, requested_s=one.answered_s - 0.001) for one in seen]
    judgement = judged(seen)
    assert troubles(judgement) == {}
    assert judgement.finding("latency").level is Level.SKIP


def test_a_channel_that_carries_no_media_is_judged_by_what_arrives() -> None:
    """Rules about media say that they do not apply; a gap is found all the same."""
    seen = received([b'{"n": 1}', b'{"n": 2}', b""], content_type="application/json")
    judgement = judged(seen)
    assert troubles(judgement) == {}
    media = ("damage", "stands_alone", "keyframes", "times_across", "lengths", "trickles", "latency")
    assert {judgement.finding(name).level for name in media} == {Level.SKIP}
    seen[1] = replace(seen[1], gap=3)
    assert troubles(judged(seen)) == {"gaps": "fail"}


@pytest.mark.parametrize(
    ("declared", "found", "verdict"),
    [
        ("video/mp2t", Container.MPEGTS, "ok"),
        ("Video/MP2T; codecs=x", Container.MPEGTS, "ok"),
        ("video/mp4", Container.MPEGTS, "fail"),
        ("video/mp2t", Container.FMP4, "fail"),
        ("video/mp2t", Container.JSON, "fail"),
        ("application/octet-stream", Container.MPEGTS, "warn"),
        ("", Container.FMP4, "warn"),
        ("application/octet-stream", Container.OTHER, "ok"),
        ("text/plain", Container.JSON, "ok"),
        ("image/jpeg", Container.OTHER, "ok"),
    ],
)
def test_content_type(declared: str, found: Container, verdict: str) -> None:
    """What is declared has to fit what is recognised; what is not recognised is believed."""
    seen = Received(0, 0, size=10, content_type=declared, media=Media(found))
    assert judged([seen]).finding("content_type").level == verdict


def test_a_content_type_that_fits_some_segments() -> None:
    """The line names the type that does not fit, and in how many segments it was found."""
    kinds = (Container.MPEGTS, Container.FMP4, Container.MPEGTS, Container.FMP4, Container.JSON)
    seen = [Received(seq, 0, size=10, content_type="video/mp2t", media=Media(kind)) for seq, kind in enumerate(kinds)]
    found = judged(seen).finding("content_type")
    assert found.figure == "declared video/mp2t, found fmp4, json in 3 of 5 segments"
    assert judged(seen[1:2]).finding("content_type").figure == "declared video/mp2t, found fmp4"


def test_what_arrives(good: list[bytes]) -> None:
    """Empty, cut and restarted segments, the end, and the server's head, each with its verdict."""
    seen = received(good)
    broken = [seen[0], replace(seen[1], broken="connection lost"), *seen[2:]]
    assert troubles(judged(broken))["broken"] == "fail"
    assert troubles(judged(seen, resumed=2)) == {"broken": "warn"}
    assert troubles(judged([replace(seen[0], size=0, media=Media(Container.OTHER)), *seen[1:]])) == {"empty": "warn"}
    assert troubles(judged([*seen[:2], replace(seen[2], restarted=True), seen[3]]))["restarts"] == "warn"
    assert troubles(judged(seen, missed_at_end=2)) == {"gaps": "fail"}
    assert troubles(judged(seen, ended=Ended.ERROR, error="connection lost")) == {"received": "fail"}
    assert judged([]).finding("received").figure == "no segment"
    assert "--wait" in judged([], ended=Ended.CHANNEL).finding("received").advice
    back = (Head(1, 0.001, 9, 8), Head(2, 0.001, 4, 8), Head(3, 0.001, 5, 8))
    assert troubles(judged(seen, heads=back)) == {"head": "fail"}
    behind = tuple(Head(at, 0.001, 10 + 2 * at, 5 + at) for at in range(9))
    assert troubles(judged(seen, heads=behind)) == {"lag": "warn"}
    catching_up = tuple(Head(at, 0.001, 30, 5 + 3 * at) for at in range(9))
    assert troubles(judged(seen, heads=catching_up)) == {}


def test_bytes_that_come_long_after_their_head_are_found(good: list[bytes]) -> None:
    """A proxy that sends the head on and holds the body back."""
    seen = [replace(one, first_s=one.answered_s + 2.0, last_s=one.answered_s + 3.0) for one in received(good)]
    assert troubles(judged(seen)) == {"first_byte": "warn"}


def test_every_rule_has_a_row_in_the_table() -> None:
    """With a title, and level, text and advice of each problem; a level may be the name of a limit."""
    assert set(RULES) == set(MEASURES)
    for row in RULES.values():
        assert row["title"]
        for name, problem in row.items():
            if name not in ("title", "needs"):
                level, text, advice = problem
                assert level in ("warn", "fail", *(limit.name for limit in fields(Limits)))
                assert text.endswith(".")
                assert advice.endswith((".", ")."))


def test_every_rule_is_documented() -> None:
    """The reference names each rule, and nothing that is not one."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "check.md").read_text(encoding="utf-8")
    rows = [line.split("`")[1] for line in page.partition("## JSON")[0].splitlines() if line.startswith("| `")]
    named = {row for row in rows if not row.startswith("--")}
    assert set(RULES) == named
