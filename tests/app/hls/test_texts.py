"""Subtitles: the text of a track of MP4 as WebVTT."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.media import fragment
from tests.support.media import init_segment as pictures_init
from tricklecast.app.hls import texts
from tricklecast.app.hls.codecs import TEXT, Stream, mp4_streams
from tricklecast.app.hls.texts import MAX_BYTES, MAX_CUE_S, MAX_SAMPLES, MAX_TEXT, text_file
from tricklecast.trickle.media.containers import box, boxes, find_box, full_box, init_segment

SCALE = 1000
"""The time scale of texts made by hand. Pictures made by hand have 90 kHz."""

OWN_PLACES, FIXED_PLACES = 0x020000, 0x000001
OFFSET, DURATIONS, SIZES = 0x001, 0x100, 0x200


def text_track(number: int, language: str) -> bytes:
    """A ``trak`` of text."""
    packed = sum((ord(letter) - 0x60) << shift for letter, shift in zip(language, (10, 5, 0), strict=True))
    entry = box(b"tx3g", bytes(6), b"\0\1", bytes(30), box(b"ftab", struct.pack(">HHB5s", 1, 1, 5, b"Serif")))
    tables = [full_box(kind, 0, 0, bytes(4)) for kind in (b"stts", b"stsc", b"stco")]
    table = box(
        b"stbl", full_box(b"stsd", 0, 0, struct.pack(">I", 1), entry), *tables, full_box(b"stsz", 0, 0, bytes(8))
    )
    places = box(b"dinf", full_box(b"dref", 0, 0, struct.pack(">I", 1), full_box(b"url ", 0, 1)))
    matrix = struct.pack(">9I", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    return box(
        b"trak",
        full_box(b"tkhd", 0, 3, struct.pack(">III", 0, 0, number), bytes(24), matrix, bytes(8)),
        box(
            b"mdia",
            full_box(b"mdhd", 0, 0, struct.pack(">IIIIHH", 0, 0, SCALE, 0, packed, 0)),
            full_box(b"hdlr", 0, 0, struct.pack(">I4s", 0, b"sbtl"), bytes(13)),
            box(b"minf", full_box(b"nmhd", 0, 0), places, table),
        ),
    )


def with_tracks(init: bytes, *languages: str) -> bytes:
    """An init segment with a track of text more for each language, numbered from 11."""
    numbered = list(enumerate(languages, 11))
    made = []
    for item in boxes(init):
        whole = init[item.start : item.end]
        if item.kind == b"moov":
            parts = [
                (part.kind, bytes(item.body[part.start : part.end]), bytes(part.body)) for part in boxes(item.body)
            ]
            extends = [full_box(b"trex", 0, 0, struct.pack(">IIIII", number, 1, 500, 0, 0)) for number, _ in numbered]
            whole = box(
                b"moov",
                *(whole for kind, whole, _ in parts if kind != b"mvex"),
                *(text_track(number, language) for number, language in numbered),
                *(box(b"mvex", body, *extends) for kind, _, body in parts if kind == b"mvex"),
            )
        made.append(whole)
    return b"".join(made)


def sample(text: str | bytes) -> bytes:
    """A sample of text, with a box of styles behind it, which says nothing here."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(">H", len(data)) + data + box(b"styl", bytes(2))


def text_fragment(begin: int, shown: Sequence[tuple[int, bytes]], track: int = 11, flags: int = OWN_PLACES) -> bytes:
    """``moof`` and ``mdat`` of a track of text.

    Args:
        shown: durations and samples.
    """
    run = b"".join(struct.pack(">II", duration, len(data)) for duration, data in shown)
    place = 8 + 16 + 8 + (16 if flags == OWN_PLACES else 24) + 20 + (20 + len(run)) + 8
    base = b"" if flags == OWN_PLACES else bytes(8)
    traf = box(
        b"traf",
        full_box(b"tfhd", 0, flags, struct.pack(">I", track), base),
        full_box(b"tfdt", 1, 0, struct.pack(">Q", begin)),
        full_box(b"trun", 0, OFFSET | DURATIONS | SIZES, struct.pack(">II", len(shown), place), run),
    )
    moof = box(b"moof", full_box(b"mfhd", 0, 0, struct.pack(">I", 1)), traf)
    assert len(moof) + 8 == place
    return moof + box(b"mdat", *(data for _, data in shown))


def subtitled(folder: Path, seconds: int, *languages: str, begin_s: int = 0) -> list[bytes]:
    """A film in segments of a second each, with an init segment each, and a track of text for each language.

    In second N ``LANGUAGE N & <more>`` is shown from its first quarter to its last.
    """
    film = folder / "film.mp4"
    picture = ("-f", "lavfi", "-i", f"testsrc=size=320x180:rate=25:duration={seconds}")
    sound = ("-f", "lavfi", "-i", f"sine=sample_rate=48000:duration={seconds}", "-c:a", "libopus")
    codecs = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-g", "25")
    flags = ("-movflags", "frag_keyframe+empty_moov+default_base_moof")
    command = ["ffmpeg", "-v", "error", "-y", *picture, *sound, *codecs, *flags, "-strict", "-2", str(film)]
    subprocess.run(command, check=True, timeout=60)
    data = later(film.read_bytes(), begin_s)
    init = with_tracks(init_segment(data), *languages)
    found: list[bytes] = []
    for item in boxes(data):
        if item.kind == b"moof":
            found.append(init)
        if item.kind in (b"moof", b"mdat"):
            found[-1] += data[item.start : item.end]
    for nth in range(len(found)):
        for track, language in enumerate(languages, 11):
            shown = [(250, sample("")), (500, sample(f"{language} {nth} & <more>")), (250, sample(""))]
            found[nth] += text_fragment((begin_s + nth) * SCALE, shown, track)
    return found


def later(data: bytes, seconds: int) -> bytes:
    """The same media so much later."""
    media = [part for part in boxes(find_box(data, b"moov")) if part.kind == b"trak"]
    scales = [int.from_bytes(find_box(part.body, b"mdia", b"mdhd")[12:16]) for part in media]
    made = bytearray(data)
    for moof in (item for item in boxes(data) if item.kind == b"moof"):
        for traf in (part for part in boxes(moof.body) if part.kind == b"traf"):
            found = {part.kind: part for part in boxes(traf.body)}
            place = moof.start + 8 + traf.start + 8 + found[b"tfdt"].start + 12
            scale = scales[int.from_bytes(found[b"tfhd"].body[4:8]) - 1]
            made[place : place + 8] = (int.from_bytes(made[place : place + 8]) + seconds * scale).to_bytes(8)
    return bytes(made)


INIT = with_tracks(pictures_init(), "fin")
PICTURE = fragment(10 * 90_000, (90_000,), key=True)
"""A second from 10 s on."""


def cues(media: bytes, init: bytes = INIT) -> list[str]:
    """The cues of a media segment that begins with a picture at 10 s."""
    found = text_file(media, init, 11)
    assert found is not None
    head, _, rest = found.decode().partition("\n\n")
    assert head == "WEBVTT\nX-TIMESTAMP-MAP=MPEGTS:900000,LOCAL:00:00:00.000"
    assert rest.endswith("\n\n") or not rest
    return rest.split("\n\n")[:-1]


def test_tracks_of_text_have_their_language() -> None:
    """The init segment names it; ``und`` is no language."""
    init = with_tracks(pictures_init(), "fin", "und")
    assert mp4_streams(init)[1:] == [Stream(11, TEXT, "tx3g", language="fin"), Stream(12, TEXT, "tx3g")]


def test_texts_stand_at_the_times_of_their_pictures(tmp_path: Path) -> None:
    """In each segment those of its language, from the time of its first picture on, on a clock of 33 bits."""
    segments = subtitled(tmp_path, 3, "fin", "eng", begin_s=100_000)
    assert len(segments) == 3
    for nth, data in enumerate(segments):
        init = init_segment(data)
        ticks = (100_000 + nth) * 90_000 % (1 << 33)
        for number, language in ((11, "fin"), (12, "eng")):
            found = (text_file(data[len(init) :], init, number) or b"").decode()
            stamp = int(found.partition("MPEGTS:")[2].partition(",")[0])
            assert abs(stamp - ticks) < 90_000 * 0.03, "the encoder of sound begins before the picture"
            assert found.endswith(f"\n{language} {nth} &amp; &lt;more&gt;\n\n")
        assert text_file(data[len(init) :], init, 1) is None, "pictures"
        assert text_file(data[len(init) :], init, 99) is None


def test_an_empty_sample_shows_nothing() -> None:
    """A text has the times of its own sample; what stands behind its bytes is left out."""
    shown = [(250, sample("one")), (500, b"\0\0"), (250, sample("two\r\nlines\n\n"))]
    assert cues(PICTURE + text_fragment(10_000, shown)) == [
        "00:00:00.000 --> 00:00:00.250\none",
        "00:00:00.750 --> 00:00:01.000\ntwo\nlines",
    ]
    assert cues(PICTURE) == []


def test_times_begin_with_the_segment() -> None:
    """What is over before is left out; nothing begins, or goes on, more than an hour behind."""
    shown = [(500, sample("before")), (1000, sample("over the cut")), (1 << 31, sample("for ever"))]
    assert cues(PICTURE + text_fragment(9_000, shown)) == [
        "00:00:00.000 --> 00:00:00.500\nover the cut",
        "00:00:00.500 --> 01:00:00.000\nfor ever",
    ]
    assert cues(PICTURE + text_fragment(10_000 + MAX_CUE_S * SCALE, [(500, sample("much later"))])) == []


def test_without_pictures_the_first_text_begins() -> None:
    """It may be that a part of a long segment has no others."""
    assert cues(text_fragment(10_000, [(500, sample("alone"))])) == ["00:00:00.000 --> 00:00:00.500\nalone"]


def test_text_may_have_any_letters() -> None:
    """Of UTF-8 and UTF-16; what ends a cue, or begins markup, does not."""
    marked = b"\xfe\xff" + "äł".encode("utf-16-be")
    shown = [
        (100, sample("a\0 --> b\n \n<i>&amp;")),
        (100, sample(marked)),
        (100, sample(b"\xff")),
        (100, sample(" \n")),
    ]
    assert [cue.partition("\n")[2] for cue in cues(PICTURE + text_fragment(10_000, shown))] == [
        "a --&gt; b\n&lt;i&gt;&amp;amp;",
        "äł",
        "\ufffd",
    ]


def test_samples_may_have_the_values_of_their_track_or_fragment() -> None:
    """A duration and a size that is told once for all."""
    data = sample("same")
    run = full_box(b"trun", 0, 0, struct.pack(">I", 2))

    def media(flags: int, told: bytes) -> bytes:
        head = full_box(b"tfhd", 0, OWN_PLACES | flags, struct.pack(">I", 11), told)
        # Without a place samples would begin at that of moof.
        placed = full_box(b"trun", 0, OFFSET | 0x04, struct.pack(">III", 0, 0, 0))
        traf = box(b"traf", head, full_box(b"tfdt", 0, 0, struct.pack(">I", 10_000)), placed, run)
        size = len(box(b"moof", traf)) + 8
        placed = full_box(b"trun", 0, OFFSET | 0x04, struct.pack(">III", 0, size, 0))
        traf = box(b"traf", head, full_box(b"tfdt", 0, 0, struct.pack(">I", 10_000)), placed, run)
        return PICTURE + box(b"moof", traf) + box(b"mdat", data * 2)

    told = struct.pack(">III", 1, 200, len(data))
    assert cues(media(0x02 | 0x08 | 0x10, told)) == [
        "00:00:00.000 --> 00:00:00.200\nsame",
        "00:00:00.200 --> 00:00:00.400\nsame",
    ]
    assert cues(media(0, b"")) == [], "the track says that samples have no bytes"
    assert cues(media(0, b""), INIT.replace(b"trex", b"free")) == [], "nothing says anything"


def test_what_names_places_of_a_file_is_refused() -> None:
    """Nobody knows where they are."""
    assert text_file(PICTURE + text_fragment(0, [(1, sample("x"))], flags=FIXED_PLACES), INIT, 11) is None


def test_hostile_boxes_make_no_long_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers and sizes that are false, and places that are elsewhere, or all the same."""
    long = sample("x" * (MAX_TEXT + 1000))
    (cue,) = cues(PICTURE + text_fragment(10_000, [(100, long)]))
    assert len(cue) == len("00:00:00.000 --> 00:00:00.100\n") + MAX_TEXT
    many = [(1, sample("x"))] * (MAX_SAMPLES + 100)
    assert (
        len(cues(PICTURE + text_fragment(10_000, many)))
        == MAX_SAMPLES
        == len(cues(PICTURE + text_fragment(10_000, many) + text_fragment(10_000, many)))
    )
    whole = text_file(PICTURE + text_fragment(10_000, [(1, sample("&" * MAX_TEXT))] * MAX_SAMPLES), INIT, 11)
    assert whole is not None
    assert MAX_BYTES < len(whole) < 6 * MAX_BYTES
    endless = struct.pack(">II", 0xFFFFFFFF, 0x80000000)
    traf = box(
        b"traf",
        full_box(b"tfhd", 0, OWN_PLACES | 0x08 | 0x10, struct.pack(">III", 11, 1, 0xFFFFFFFF)),
        full_box(b"tfdt", 1, 0, b"\xff" * 8),
        full_box(b"trun", 0, OFFSET, endless),
    )
    assert cues(PICTURE + box(b"moof", traf)) == []
    monkeypatch.setattr(texts, "MAX_BOXES", 3)
    assert text_file(PICTURE * 2, INIT, 11) is None


@given(st.data())
def test_no_bytes_raise(data: st.DataObject) -> None:
    """Whatever a publisher sends."""
    media = bytearray(PICTURE + text_fragment(10_000, [(100, sample("text")), (100, b"\0\0")]))
    for _ in range(data.draw(st.integers(1, 8))):
        media[data.draw(st.integers(0, len(media) - 1))] = data.draw(st.integers(0, 255))
    made = text_file(bytes(media), INIT, 11)
    assert made is None or made.startswith(b"WEBVTT\n")
    text_file(bytes(media), bytes(media), 11)
