"""Segments joined into files: every file is opened again, and every frame in it decoded and compared."""

from __future__ import annotations

import io
import random
import resource
import shutil
from collections import Counter
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import av
import pytest

from tests.publisher.media.clips import Decoded, decode, make_clip
from tests.support.segments import cut
from tricklecast.subscriber.media.joiner import Joiner, is_joined
from tricklecast.subscriber.media.opening import NotMedia
from tricklecast.subscriber.sinks import SinkFailed

SECONDS = 4
GOP = 25
WRAP_S = Fraction(1 << 33, 90_000)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four GOPs with B-frames, and a tone."""
    return make_clip(tmp_path_factory.mktemp("clips") / "clip.mp4", seconds=SECONDS)


@pytest.fixture(scope="module")
def wanted(clip: Path) -> Decoded:
    """What is in it."""
    return decode(clip)


class Said(list[str]):
    """What people were told."""


def join(path: Path, segments: list[bytes], *, whole: bool = True, said: Said | None = None) -> Joiner:
    """Join segments that follow one another."""
    joiner = Joiner(path, (Said() if said is None else said).append)
    add(joiner, segments, whole=whole)
    joiner.close()
    return joiner


def add(joiner: Joiner, segments: list[bytes], *, whole: bool = True) -> None:
    """Add segments that follow one another."""
    for number, data in enumerate(segments):
        joiner.add(io.BytesIO(data), f"segment {number}", whole=whole)


def boxes(path: Path) -> list[str]:
    """The outermost boxes of an MP4 file."""
    data, at, names = path.read_bytes(), 0, []
    while at < len(data):
        names.append(data[at + 4 : at + 8].decode())
        at += int.from_bytes(data[at : at + 4], "big") or len(data)
    return names


def offsets(got: Decoded, wanted: Decoded, kind: str) -> set[Fraction]:
    """By how much frames are shown later than in the clip."""
    return {mine - theirs for mine, theirs in zip(got.times[kind], wanted.times[kind], strict=True)}


def sounds(path: Path) -> set[bytes]:
    """The packets of its sound, as they are: AAC frames sound differently after a missing one."""
    with av.open(str(path)) as container:
        return {bytes(packet) for packet in container.demux(audio=0) if packet.size}


@pytest.mark.parametrize("name", ["out.mp4", "out.MKV", "out.mov"])
@pytest.mark.parametrize("container", ["mpegts", "mp4"])
def test_every_frame_comes_through(tmp_path: Path, clip: Path, wanted: Decoded, container: str, name: str) -> None:
    """In its order and at its time, sound and picture moved alike."""
    assert join(tmp_path / name, cut(clip, container)).files == [tmp_path / name]
    got = decode(tmp_path / name)
    assert got.hashes == wanted.hashes
    moved = offsets(got, wanted, "video") | offsets(got, wanted, "audio")
    assert max(moved) - min(moved) <= (Fraction(1, 1000) if name.endswith("MKV") else Fraction(1, 90_000))


def test_a_finished_file_is_an_ordinary_one(tmp_path: Path, clip: Path) -> None:
    """Not a fragmented one: its index lets players seek at once."""
    join(tmp_path / "out.mp4", cut(clip))
    assert boxes(tmp_path / "out.mp4") == ["ftyp", "free", "mdat", "moov"]
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert container.duration is not None
        assert container.duration / 1e6 == pytest.approx(SECONDS, abs=0.15)
        container.seek(2_500_000)
        assert next(container.decode(video=0)).time == pytest.approx(2.08)


@pytest.mark.parametrize("name", ["out.mp4", "out.mkv"])
def test_an_unfinished_file_can_be_read(tmp_path: Path, clip: Path, wanted: Decoded, name: str) -> None:
    """As it is found after a kill: all but the last moments, and nothing broken."""
    joiner = Joiner(tmp_path / name, print)
    for number, data in enumerate(cut(clip)):
        joiner.add(io.BytesIO(data), f"segment {number}")
    shutil.copy(tmp_path / name, tmp_path / f"killed-{name}")
    joiner.close()
    frames = decode(tmp_path / f"killed-{name}").hashes["video"]
    assert len(frames) >= (SECONDS - 2) * GOP
    last = 3  # B-frames come after the picture that is shown behind them
    assert frames[:-last] == wanted.hashes["video"][: len(frames) - last]
    assert set(frames) <= set(wanted.hashes["video"])


@pytest.mark.parametrize("name", ["out.m4a", "out.mka"])
def test_a_file_for_sound_holds_the_sound(tmp_path: Path, clip: Path, wanted: Decoded, name: str) -> None:
    """Of a channel with pictures, too; that these are left out is said."""
    said = Said()
    join(tmp_path / name, cut(clip), said=said)
    assert decode(tmp_path / name).hashes == {"audio": wanted.hashes["audio"]}
    assert said == [f"left out: a stream (video, h264) that a {Path(name).suffix} file does not hold"]


@pytest.mark.parametrize(
    ("video", "audio"), [("libx264", None), (None, "aac"), ("mpeg2video", "mp2"), ("libx265", "ac3")]
)
def test_other_streams_come_through(tmp_path: Path, video: str | None, audio: str | None) -> None:
    """Only pictures, only sound, and other codecs."""
    clip = make_clip(tmp_path / "clip.mp4", seconds=2, video=video, audio=audio)
    join(tmp_path / "out.mp4", cut(clip))
    assert decode(tmp_path / "out.mp4").hashes == decode(clip).hashes


@pytest.mark.parametrize("container", ["mpegts", "mp4"])
def test_a_missed_segment_leaves_a_hole(tmp_path: Path, clip: Path, wanted: Decoded, container: str) -> None:
    """Of its own length: what follows is on time, and no frame is broken."""
    segments = cut(clip, container)
    joiner = Joiner(tmp_path / "out.mp4", print)
    for number in (0, 1, 3):
        joiner.add(io.BytesIO(segments[number]), f"segment {number}", follows=number != 3)
    joiner.close()
    got = decode(tmp_path / "out.mp4")
    assert got.hashes["video"] == wanted.hashes["video"][: 2 * GOP] + wanted.hashes["video"][3 * GOP :]
    assert got.times["video"][2 * GOP] - got.times["video"][0] == 3


@pytest.mark.parametrize("container", ["mpegts", "mp4"])
def test_cut_segments_never_break_a_frame(tmp_path: Path, clip: Path, wanted: Decoded, container: str) -> None:
    """Cut anywhere: every frame in the file is one of the clip's, and whole segments are in it whole."""
    segments, dice = cut(clip, container), random.Random(1)
    for number in range(12):
        path = tmp_path / f"{number}.mp4"
        joiner = Joiner(path, print)
        for at, data in enumerate(segments):
            part = data[: dice.randrange(len(data))] if at in (0, 2) else data
            joiner.add(io.BytesIO(part), f"segment {at}", whole=part is data)
        joiner.close()
        got = decode(path)
        assert set(got.hashes["video"]) <= set(wanted.hashes["video"])
        assert sounds(path) <= sounds(clip)
        assert got.hashes["video"][-GOP:] == wanted.hashes["video"][-GOP:]
        assert set(wanted.hashes["video"][GOP : 2 * GOP]) <= set(got.hashes["video"])


def test_pictures_that_refer_to_missed_ones_are_left_out(tmp_path: Path) -> None:
    """An open GOP begins with some; a player would show them broken."""
    clip = make_clip(tmp_path / "clip.mp4", seconds=4, open_gop=True)
    wanted = decode(clip)
    segments = cut(clip)
    assert len(segments) == 4
    joiner = Joiner(tmp_path / "out.mp4", print)
    for number in (0, 2, 3):
        joiner.add(io.BytesIO(segments[number]), f"segment {number}", follows=number != 2)
    joiner.close()
    got = decode(tmp_path / "out.mp4")
    assert set(got.hashes["video"]) < set(wanted.hashes["video"])
    assert got.hashes["video"][-GOP:] == wanted.hashes["video"][-GOP:]


def test_a_publisher_that_begins_anew_goes_on_in_the_file(tmp_path: Path, clip: Path, wanted: Decoded) -> None:
    """Its times begin anew; those of the file go on."""
    segments = cut(clip)
    join(tmp_path / "out.mp4", segments + segments)
    got = decode(tmp_path / "out.mp4")
    assert got.hashes["video"] == 2 * wanted.hashes["video"]
    assert got.times["video"] == sorted(got.times["video"])
    assert got.times["video"][-1] < 2 * SECONDS + Fraction(1, 2)


def test_times_of_33_bits_may_begin_again(tmp_path: Path, clip: Path, wanted: Decoded) -> None:
    """Between segments, and within one."""
    for at in (WRAP_S - 2, WRAP_S - Fraction(3, 2)):
        join(tmp_path / "out.mp4", cut(clip, at=at))
        got = decode(tmp_path / "out.mp4")
        assert got.hashes == wanted.hashes
        assert len(offsets(got, wanted, "video")) == 1


def test_media_that_changes_goes_on_in_another_file(tmp_path: Path, clip: Path, wanted: Decoded) -> None:
    """One file could not hold both."""
    other = make_clip(tmp_path / "other.mp4", seconds=2, video="mpeg2video", audio=None)
    said = Said()
    joiner = join(tmp_path / "out.mp4", [*cut(clip), *cut(other), *cut(clip)], said=said)
    assert [path.name for path in joiner.files] == ["out.mp4", "out-2.mp4", "out-3.mp4"]
    assert decode(tmp_path / "out.mp4").hashes == wanted.hashes
    assert decode(tmp_path / "out-2.mp4").hashes == decode(other).hashes
    assert decode(tmp_path / "out-3.mp4").hashes == wanted.hashes
    assert said[0] == f"the media changes: it goes on in {tmp_path / 'out-2.mp4'}"


def test_an_init_segment_is_needed_once(tmp_path: Path, clip: Path, wanted: Decoded) -> None:
    """Some publishers of fragmented MP4 send it by itself, or with the first segment only."""
    segments = cut(clip, "mp4")
    starts = [data.index(b"moof") - 4 for data in segments]
    alone = [segments[0][: starts[0]], *(data[start:] for data, start in zip(segments, starts, strict=True))]
    join(tmp_path / "out.mp4", alone)
    assert decode(tmp_path / "out.mp4").hashes == wanted.hashes


class TestNoMedia:
    def test_it_is_said_at_the_second_segment(self, tmp_path: Path) -> None:
        """The first one may have been cut; nobody waits for an hour to learn that there is no file."""
        joiner = Joiner(tmp_path / "out.mp4", print)
        joiner.add(io.BytesIO(b'{"a": 1}'), "segment 7")
        with pytest.raises(
            NotMedia,
            match=r"segment 7 is no media .* a \.mp4 file: it is neither MPEG-TS nor MP4$",
        ):
            joiner.add(io.BytesIO(b'{"a": 2}'), "segment 8")
        assert not (tmp_path / "out.mp4").exists()

    def test_or_at_the_end(self, tmp_path: Path) -> None:
        """Of a channel with one segment."""
        with pytest.raises(NotMedia, match="segment 0 is no media"):
            join(tmp_path / "out.mp4", [b"hello"])

    def test_in_the_middle_it_is_left_out(self, tmp_path: Path, clip: Path, wanted: Decoded) -> None:
        """And said."""
        said = Said()
        segments = cut(clip)
        assert join(tmp_path / "out.mp4", [*segments[:2], b"\0" * 1000, *segments[2:]], said=said).left_out == 1
        assert decode(tmp_path / "out.mp4").hashes == wanted.hashes
        assert len(said) == 1
        assert said[0].startswith("segment 2 is left out: ")

    def test_streams_that_no_such_file_holds(self, tmp_path: Path) -> None:
        """Are named."""
        clip = make_clip(tmp_path / "clip.mp4", seconds=1, audio=None)
        with pytest.raises(NotMedia, match=r"a \.m4a file holds none of this channel's streams: h264"):
            join(tmp_path / "out.m4a", cut(clip))

    def test_mp4_with_an_index_is_not_read(self, tmp_path: Path, clip: Path) -> None:
        """The index of an ordinary file may announce any number of samples; of fragments, these are counted."""
        with pytest.raises(NotMedia, match="an ordinary MP4 file"):
            join(tmp_path / "out.mp4", [clip.read_bytes()])
        said, segments = Said(), cut(clip, "mp4")
        at = segments[1].index(b"trun") + 8
        bomb = segments[1][:at] + (1 << 27).to_bytes(4) + segments[1][at + 4 :]
        join(tmp_path / "out.mp4", [segments[0], bomb], said=said)
        assert said == ["segment 1 is left out: more than 1048576 samples"]

    def test_nothing_at_all_makes_no_file(self, tmp_path: Path) -> None:
        """A channel that ends before it has begun."""
        assert join(tmp_path / "out.mp4", []).files == []
        assert list(tmp_path.iterdir()) == []


def test_a_sound_that_begins_later_is_waited_for(tmp_path: Path, clip: Path, wanted: Decoded) -> None:
    """For some segments: the file says at its beginning what it holds."""
    segments = cut(clip)
    with av.open(io.BytesIO(segments[0])) as container:
        sound = container.streams.audio[0].id
    silent = b"".join(
        packet
        for packet in (segments[0][at : at + 188] for at in range(0, len(segments[0]), 188))
        if (packet[1] & 0x1F) << 8 | packet[2] != sound
    )
    join(tmp_path / "out.mp4", [silent, *segments[1:]])
    got = decode(tmp_path / "out.mp4")
    assert got.hashes["video"] == wanted.hashes["video"]
    assert sounds(tmp_path / "out.mp4") < sounds(clip)
    said = Said()
    join(tmp_path / "silent.mp4", [silent], said=said)
    assert decode(tmp_path / "silent.mp4").hashes == {"video": wanted.hashes["video"][:GOP]}
    assert said == ["left out: a stream (audio) that has not begun"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_so(tmp_path: Path, clip: Path) -> None:
    """As the typed error that all outputs raise."""
    (tmp_path / "out.mp4").symlink_to("/dev/full")
    with pytest.raises(SinkFailed, match="No space left"):
        join(tmp_path / "out.mp4", cut(clip))


def packets(data: bytes) -> Counter[str]:
    """How many packets of each kind it has."""
    with av.open(io.BytesIO(data), "r") as container:
        return Counter(packet.stream.type for packet in container.demux() if packet.size)


@pytest.mark.parametrize("name", ["out.mp4", "out.mov", "out.mkv"])
def test_what_a_full_disk_has_is_known(tmp_path: Path, name: str) -> None:
    """The muxer gathers packets: a segment that it was given is not on disk yet, and has to be read again."""
    segments = cut(make_clip(tmp_path / "clip.mp4", seconds=12))
    sizes = [packets(data) for data in segments]
    path = tmp_path / name
    (tmp_path / "all").mkdir()
    join(tmp_path / "all" / name, segments)
    room = (tmp_path / "all" / name).stat().st_size // 2
    before = resource.getrlimit(resource.RLIMIT_FSIZE)  # Python ignores the signal that comes with it
    joiner = Joiner(path, print)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(SinkFailed):
            add(joiner, segments)
        with suppress(SinkFailed):  # that room is made now does not bring back what was lost
            joiner.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert 2 < joiner.saved < len(segments) - 2
    assert packets(path.read_bytes()) >= sum(sizes[: joiner.saved], Counter())


def test_all_is_saved_at_the_end(tmp_path: Path, clip: Path) -> None:
    """Segments that are no media count as well: reading them again would bring nothing."""
    segments = cut(clip)
    assert join(tmp_path / "out.mp4", [segments[0], b"no media", *segments[1:]]).saved == SECONDS + 1


def test_a_damaged_description_ends_its_file_only(tmp_path: Path) -> None:
    """libavformat refuses it at the end of the file. That is no failure of the disk: what follows is recorded."""
    segments = cut(make_clip(tmp_path / "clip.mp4", seconds=3, audio="libopus"), "mp4")
    said = Said()
    joiner = join(tmp_path / "out.mp4", [segments[0].replace(b"dOps", b"xxxx"), *segments[1:]], said=said)
    assert any(line.startswith(f"{tmp_path / 'out.mp4'} is not whole: ") for line in said)
    assert decode(joiner.files[1]).hashes["video"]


def test_names_say_what_is_joined() -> None:
    """All other files get the bytes as they come."""
    assert [name for name in ("a.ts", "a.mp4", "b.MKV", "a", "a.m4a", "mp4") if is_joined(Path(name))] == [
        "a.mp4",
        "b.MKV",
        "a.m4a",
    ]
