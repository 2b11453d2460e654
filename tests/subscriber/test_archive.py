"""The folder of a recording: what a crash, a full disk or a second process can do to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.subscriber.faulty_disk import FULL, Crashed, FaultyDisk
from tricklecast.subscriber.archive import (
    COMPACT_LINES,
    INDEX,
    PART,
    DamagedIndex,
    DirectoryInUse,
    Disk,
    Entry,
    Folder,
    Keep,
    read_index,
)
from tricklecast.subscriber.segment import Segment
from tricklecast.subscriber.sinks import SinkFailed
from tricklecast.trickle.errors import InvalidInput, LocalProtocolError, Position


@dataclass(frozen=True)
class Sent:
    """A segment as a subscriber would have it."""

    seq: int
    data: bytes = b""
    epoch: int | None = 1
    life: str | None = None
    gap: int = 0
    restarted: bool = False
    content_type: str = "video/mp2t"
    truncated: str | None = None
    broken: Exception | None = None


@contextmanager
def opened(path: Path, *, keep: Keep | None = None, disk: Disk | None = None, channel: str = "cam") -> Iterator[Folder]:
    """A folder, open for the block."""
    folder = Folder(path, channel, keep=keep, disk=disk or FaultyDisk(), clock=lambda: 1.5)
    folder.open()
    try:
        yield folder
    finally:
        folder.close()


def put(folder: Folder, segment: Sent, *, pieces: int = 2) -> Entry:
    """Record a segment, in some pieces."""
    folder.begin()
    size = -(-len(segment.data) // pieces) or 1
    for at in range(0, len(segment.data), size):
        folder.write(segment.data[at : at + size])
    return folder.finish(cast(Segment, segment))


def look(path: Path) -> tuple[list[Entry], dict[str, bytes]]:
    """What a recording holds: its index, and every file with its bytes."""
    files = {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in (INDEX, ".lock")
    }
    return read_index(path), files


def record_all(path: Path, segments: list[Sent], keep: Keep | None, disk: Disk) -> None:
    """Record what is behind the folder's position, as a run of the program does."""
    with opened(path, keep=keep, disk=disk) as folder:
        place = folder.position
        done = 0
        if place is not None:
            done = 1 + next(
                number
                for number, segment in enumerate(segments)
                if (segment.seq + 1, segment.epoch) == (place.seq, place.epoch)
            )
        for segment in segments[done:]:
            put(folder, segment)


def test_a_segment_is_a_file_and_a_line(tmp_path: Path) -> None:
    """With all that a subscriber knows of it."""
    with opened(tmp_path / "new" / "folder") as folder:
        assert folder.position is None
        entry = put(folder, Sent(7, b"seven", epoch=3, life="abc", gap=2))
        assert folder.position == Position(8, 3, "abc")
    assert (tmp_path / "new" / "folder" / "life1" / "00000007.ts").read_bytes() == b"seven"
    first, second = [json.loads(text) for text in (tmp_path / "new" / "folder" / INDEX).read_bytes().splitlines()]
    assert first == {"v": 1, "kind": "channel", "channel": "cam"}
    assert second == {
        "v": 1,
        "kind": "segment",
        "seq": 7,
        "life": 1,
        "file": "life1/00000007.ts",
        "size": 5,
        "sha256": entry.sha256,
        "content_type": "video/mp2t",
        "epoch": 3,
        "began_at": 1.5,
        "ended_at": 1.5,
        "gap": 2,
        "restarted": False,
        "truncated": None,
        "broken": None,
        "numbering": "abc",
    }


TS = (b"\x47\x01\x00\x10" + bytes(184)) * 6
MP4 = b"\0\0\0\x10ftypisom\0\0\0\0" * 60


@pytest.mark.parametrize("pieces", [1, 20])
@pytest.mark.parametrize(
    ("content_type", "data", "name"),
    [
        ("video/mp2t", MP4, "00000007.mp4"),
        ("video/mp4", TS, "00000007.ts"),
        ("audio/mp4", MP4, "00000007.m4a"),
        ("video/mp4; codecs=avc1", MP4, "00000007.mp4"),
        ("application/octet-stream", TS, "00000007.bin"),
        ("text/plain", b"G" * 200, "00000007.txt"),
        ("video/mp2t", b"anything", "00000007.ts"),
    ],
)
def test_a_file_is_named_after_what_it_holds(
    tmp_path: Path, content_type: str, data: bytes, name: str, pieces: int
) -> None:
    """A program that joins all files of a name finds no MP4 among the MPEG-TS, whatever type the channel has."""
    with opened(tmp_path) as folder:
        assert put(folder, Sent(7, data, content_type=content_type), pieces=pieces).file == f"life1/{name}"
    assert (tmp_path / "life1" / name).read_bytes() == data


def test_names_are_durable(tmp_path: Path) -> None:
    """A new file, and a new folder, survive a power failure: their folders are synced before the index names them."""
    disk = FaultyDisk()
    with opened(tmp_path, disk=disk) as folder:
        assert disk.synced == [tmp_path]
        put(folder, Sent(0, b"zero"))
        assert disk.synced == [tmp_path, tmp_path / "life1", tmp_path]
        put(folder, Sent(1, b""))
        assert len(disk.synced) == 3
    with opened(tmp_path / "real", disk=Disk()) as folder:
        put(folder, Sent(0, b"zero"))
    assert len(read_index(tmp_path / "real")) == 1


def test_an_empty_segment_is_a_line_only(tmp_path: Path) -> None:
    """There is nothing to put into a file."""
    with opened(tmp_path) as folder:
        assert put(folder, Sent(0)).file is None
    entries, files = look(tmp_path)
    assert [entry.seq for entry in entries] == [0]
    assert files == {}


def test_faults_of_a_segment_are_in_its_line(tmp_path: Path) -> None:
    """The index says what was missed and which segments are not whole."""
    with opened(tmp_path) as folder:
        put(folder, Sent(0, b"a", truncated="terminated"))
        put(folder, Sent(1, b"b", broken=ConnectionError("cut off")))
    (first, second), _ = look(tmp_path)
    assert first.truncated == "terminated"
    assert second.broken == "cut off"


@pytest.mark.parametrize(
    "second",
    [
        Sent(0, b"new", epoch=2),
        Sent(9, b"new", epoch=2),
        Sent(3, b"new", epoch=1, restarted=True),
        Sent(1, b"new", epoch=1),
        Sent(0, b"new", epoch=None, restarted=True),
    ],
)
def test_lives_of_a_channel_are_kept_apart(tmp_path: Path, second: Sent) -> None:
    """Also if a restarted server counts epochs and segments from the beginning again."""
    with opened(tmp_path) as folder:
        put(folder, Sent(1, b"old"))
        put(folder, second)
        put(folder, replace(second, seq=second.seq + 1, restarted=False))
    entries, files = look(tmp_path)
    assert [entry.life for entry in entries] == [1, 2, 2]
    assert files["life1/00000001.ts"] == b"old"
    assert files[f"life2/{second.seq:08d}.ts"] == b"new"


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    """A second one is refused, until the first has gone."""
    with opened(tmp_path):
        with pytest.raises(DirectoryInUse, match="another process is recording"):
            Folder(tmp_path, "cam").open()
        assert look(tmp_path) == ([], {})
    with opened(tmp_path):
        pass


def test_a_folder_holds_one_channel(tmp_path: Path) -> None:
    """Two channels in one index would be told apart by nobody; the refused one leaves no lock behind."""
    with opened(tmp_path) as folder:
        put(folder, Sent(0, b"zero"))
    with pytest.raises(InvalidInput, match="recording of channel 'cam', not of 'other'"):
        Folder(tmp_path, "other").open()
    with opened(tmp_path):
        pass


def test_a_run_that_got_nothing_binds_the_folder_to_no_channel(tmp_path: Path) -> None:
    """The name of its channel may have been a slip of the pen."""
    with opened(tmp_path, channel="cma"):
        pass
    with opened(tmp_path, channel="cam") as folder:
        put(folder, Sent(0, b"zero"))
    lines = [json.loads(text) for text in (tmp_path / INDEX).read_text().splitlines()]
    assert [line.get("channel") for line in lines] == ["cam", None]
    with pytest.raises(InvalidInput, match="recording of channel 'cam'"):
        Folder(tmp_path, "cma").open()


@pytest.mark.parametrize("text", ['{"foo": 1}\n', '{"foo": 1}', '{"v": 1, "kind": "note"}\n', "seq,file\n", "\n"])
def test_the_index_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    """However little of it there is: it is not taken for a line that a crash has torn."""
    (tmp_path / INDEX).write_text(text)
    (tmp_path / PART).write_text("precious, too")
    with pytest.raises(DamagedIndex, match="no index of a recording"):
        Folder(tmp_path, "cam").open()
    assert (tmp_path / INDEX).read_text() == text
    assert (tmp_path / PART).exists()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    """A recording is not mixed with them, and replaces none: they may be those of one whose index was lost."""
    (tmp_path / "life1").mkdir()
    (tmp_path / ".DS_Store").touch()
    with pytest.raises(InvalidInput, match=r"holds other files \(life1, "):
        Folder(tmp_path, "cam").open()
    assert not (tmp_path / INDEX).exists()
    (tmp_path / "life1").rename(tmp_path / "lost+found")
    with opened(tmp_path) as folder:  # what every file system may have at its root
        put(folder, Sent(0, b"zero"))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """Before anything is received."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInput, match="cannot record into"):
        Folder(tmp_path / "file", "cam").open()


def test_a_folder_that_is_not_open_takes_nothing(tmp_path: Path) -> None:
    """It is locked by nobody."""
    with pytest.raises(LocalProtocolError):
        Folder(tmp_path, "cam").ended(0)


@pytest.mark.parametrize(
    "tail", [b"{", b'{"v": 1, "kind": "segm', b"\0\0\0\0", b"nonsense\n", b'{"kind": "segment"}\n', b"[]\n"]
)
def test_a_torn_last_line_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    """And the recording goes on behind the segment before."""
    with opened(tmp_path) as folder:
        put(folder, Sent(0, b"zero"))
    whole = (tmp_path / INDEX).read_bytes()
    (tmp_path / INDEX).write_bytes(whole + tail)
    with opened(tmp_path) as folder:
        assert folder.position == Position(1, 1)
    assert (tmp_path / INDEX).read_bytes() == whole


def test_a_damaged_line_in_the_middle_is_no_crash(tmp_path: Path) -> None:
    """Somebody else did that: nothing is changed, and it is said where."""
    with opened(tmp_path) as folder:
        put(folder, Sent(0, b"zero"))
    lines = (tmp_path / INDEX).read_bytes().splitlines(keepends=True)
    (tmp_path / INDEX).write_bytes(lines[0] + b"nonsense\n" + lines[1])
    with pytest.raises(DamagedIndex, match="line 2"):
        Folder(tmp_path, "cam").open()
    with pytest.raises(DamagedIndex, match="line 2"):
        read_index(tmp_path)


def test_lines_of_later_versions_are_passed_over(tmp_path: Path) -> None:
    """An older program reads on."""
    with opened(tmp_path) as folder:
        put(folder, Sent(0, b"zero"))
        folder.ended(gap=3)
    with (tmp_path / INDEX).open("ab") as index:
        index.write(b'{"v": 9, "kind": "comment", "text": "later"}\n')
    with opened(tmp_path) as folder:
        assert put(folder, Sent(1, b"one")).seq == 1
    assert [entry.seq for entry in look(tmp_path)[0]] == [0, 1]


def test_no_recording_is_said_so(tmp_path: Path) -> None:
    """Reading an index that is not there."""
    with pytest.raises(InvalidInput, match="no recording in"):
        read_index(tmp_path)


class TestKeeping:
    def test_the_oldest_goes_first(self, tmp_path: Path) -> None:
        """The index says what was removed, and the next run counts on."""
        with opened(tmp_path, keep=Keep(segments=2)) as folder:
            for seq in range(4):
                put(folder, Sent(seq, b"x"))
            assert folder.removed == 2
        entries, files = look(tmp_path)
        assert [entry.seq for entry in entries] == [2, 3]
        assert list(files) == ["life1/00000002.ts", "life1/00000003.ts"]
        with opened(tmp_path, keep=Keep(segments=1)) as folder:
            put(folder, Sent(4, b"x"))
            assert folder.removed == 4
        assert list(look(tmp_path)[1]) == ["life1/00000004.ts"]

    def test_bytes_count_too(self, tmp_path: Path) -> None:
        """But the newest segment stays, however large it is."""
        with opened(tmp_path, keep=Keep(bytes=10)) as folder:
            for seq, length in enumerate((4, 4, 4, 100, 4)):
                put(folder, Sent(seq, b"x" * length))
                assert sum(entry.size for entry in look(tmp_path)[0]) <= max(10, length)
        assert [entry.seq for entry in look(tmp_path)[0]] == [4]

    def test_an_index_does_not_grow_for_ever(self, tmp_path: Path) -> None:
        """Lines about what was removed are dropped now and then; how many there were is not forgotten."""
        with opened(tmp_path, keep=Keep(segments=2)) as folder:
            for seq in range(COMPACT_LINES):
                put(folder, Sent(seq))
            assert folder.removed == COMPACT_LINES - 2
        assert len((tmp_path / INDEX).read_bytes().splitlines()) < COMPACT_LINES
        with opened(tmp_path) as folder:
            assert folder.removed == COMPACT_LINES - 2
            assert folder.position == Position(COMPACT_LINES, 1)
        assert not (tmp_path / PART).exists()

    @pytest.mark.parametrize("keep", [{"segments": 0}, {"bytes": 0}])
    def test_nothing_is_no_limit(self, keep: dict[str, int]) -> None:
        """A recording of nothing helps nobody."""
        with pytest.raises(InvalidInput):
            Keep(**keep)


class TestFullDisk:
    def test_every_failing_step_is_told_and_harms_nothing(self, tmp_path: Path) -> None:
        """Whichever step fails: a typed error with the place to go on, and the next run completes the recording."""
        segments = [Sent(0, b"zero"), Sent(1, b"one")]
        wanted = tmp_path / "wanted"
        counter = FaultyDisk()
        record_all(wanted, segments, None, counter)
        for step in range(counter.steps):
            path = tmp_path / str(step)
            with pytest.raises((SinkFailed, InvalidInput)) as failed:
                record_all(path, segments, None, FaultyDisk(step, error=FULL))
            assert "No space left" in str(failed.value)
            kept = look(path)[0] if (path / INDEX).exists() else []
            if isinstance(failed.value, SinkFailed):
                assert failed.value.resume == (Position(kept[-1].seq + 1, 1) if kept else None)
            record_all(path, segments, None, FaultyDisk())
            assert look(path) == look(wanted)


@st.composite
def histories(draw: st.DrawFn) -> list[Sent]:
    """What a channel may do: segments of any size, gaps, new lives."""
    segments: list[Sent] = []
    seq, epoch = 0, 1
    for _ in range(draw(st.integers(1, 6))):
        gap = draw(st.sampled_from([0, 0, 2]))
        reborn = bool(segments) and draw(st.booleans())
        epoch += reborn
        seq = 0 if reborn else seq + gap
        data = draw(st.binary(max_size=9))
        segments.append(Sent(seq, data, epoch, gap=0 if reborn else gap, restarted=reborn))
        seq += 1
    return segments


@given(histories(), st.sampled_from([None, Keep(segments=2), Keep(bytes=8)]), st.data())
@settings(max_examples=75)
def test_a_run_after_any_crashes_completes_the_recording(
    segments: list[Sent], keep: Keep | None, data: st.DataObject
) -> None:
    """Killed at any step, any number of times, in the middle of a write: in the end the folder is as if nothing was."""
    with TemporaryDirectory() as folder:
        wanted, path = Path(folder, "wanted"), Path(folder, "crashed")
        counter = FaultyDisk()
        record_all(wanted, segments, keep, counter)
        for _ in range(data.draw(st.integers(1, 3))):
            disk = FaultyDisk(data.draw(st.integers(0, counter.steps)), torn=data.draw(st.sampled_from([0, 0.5, 1])))
            try:
                record_all(path, segments, keep, disk)
            except Crashed:
                for entry in read_index(path) if (path / INDEX).exists() else []:
                    assert keep is not None or entry.file is None or (path / entry.file).stat().st_size == entry.size
        record_all(path, segments, keep, FaultyDisk())
        assert look(path) == look(wanted)
