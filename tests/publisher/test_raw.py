"""Splitting plain bytes: what goes in comes out, cut where it was asked to be."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.publisher import raw
from tricklecast.publisher.raw import ByLine, BySize, ByTime, Splitter, StoppableReader, parse_by, read_steps
from tricklecast.publisher.steps import Chunk, SegmentEnd, Step
from tricklecast.trickle.errors import InvalidInput

pieces = st.lists(st.binary(min_size=1, max_size=40) | st.sampled_from([b"\n", b"a\n", b"\n\nb"]), max_size=30)


def feed(splitter: Splitter, data: list[bytes]) -> list[Step]:
    """Feed everything, a tenth of a second apart, to the end."""
    steps: list[Step] = []
    for number, piece in enumerate(data):
        steps += splitter.feed(piece, number / 10)
    return [*steps, *splitter.finish()]


def segments(steps: list[Step]) -> list[bytes]:
    """The segments, of which none is empty."""
    found: list[bytes] = []
    begins = True
    for step in steps:
        if isinstance(step, SegmentEnd):
            assert not begins
            begins = True
        elif begins:
            found.append(step.data)
            begins = False
        else:
            found[-1] += step.data
    return found


@given(pieces, st.integers(1, 50))
def test_by_size(data: list[bytes], size: int) -> None:
    """All segments but the last have the size; joined, they are the input."""
    found = segments(feed(BySize(size), data))
    assert b"".join(found) == b"".join(data)
    assert all(len(segment) == size for segment in found[:-1])
    assert all(0 < len(segment) <= size for segment in found[-1:])


@given(pieces)
def test_by_line(data: list[bytes]) -> None:
    """Each line is a segment of one chunk, the last one even without its end."""
    steps = feed(ByLine(), data)
    assert segments(steps) == b"".join(data).splitlines(keepends=True) if b"\r" not in b"".join(data) else True
    assert b"".join(segments(steps)) == b"".join(data)
    assert all(step.data.count(b"\n") <= 1 for step in steps if isinstance(step, Chunk))


@given(pieces, st.floats(0.05, 2.0))
def test_by_time(data: list[bytes], seconds: float) -> None:
    """A segment has what came within its time; joined, they are the input."""
    splitter = ByTime(seconds)
    steps = feed(splitter, data)
    assert b"".join(segments(steps)) == b"".join(data)


def test_a_long_line_is_passed_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, and the segment still ends with the line."""
    monkeypatch.setattr(raw, "MAX_LINE_BYTES", 4)
    assert feed(ByLine(), [b"ab", b"cd", b"ef\ng"]) == [Chunk(b"abcd"), Chunk(b"ef\n"), SegmentEnd(), Chunk(b"g")]


def test_time_passes_without_bytes() -> None:
    """A segment ends on time even if nothing follows, and a new one begins with the next byte."""
    splitter = ByTime(1.0)
    assert list(splitter.expire(9.0)) == []
    assert list(splitter.feed(b"a", 10.0)) == [Chunk(b"a")]
    assert splitter.deadline == 11.0
    assert list(splitter.feed(b"b", 10.9)) == [Chunk(b"b")]
    assert list(splitter.expire(10.99)) == []
    assert list(splitter.expire(11.0)) == [SegmentEnd()]
    assert splitter.deadline is None
    assert list(splitter.feed(b"c", 20.0)) == [Chunk(b"c")]
    assert list(splitter.feed(b"d", 21.0)) == [SegmentEnd(), Chunk(b"d")]
    assert list(BySize(1).expire(0)) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [("line", ByLine), ("size:3", BySize), ("SIZE:1.5KiB", BySize), ("time:1s", ByTime), ("time:250ms", ByTime)],
)
def test_how_to_split_is_spelled_briefly(text: str, kind: type[Splitter]) -> None:
    """Sizes have decimal and binary units, times seconds and others."""
    assert isinstance(parse_by(text), kind)


def test_units_mean_what_they_say() -> None:
    """A KiB is 1024 bytes, a ms a thousandth of a second."""
    assert segments(feed(parse_by("size:1.5KiB"), [b"x" * 2000]))[0] == b"x" * 1536
    splitter = parse_by("time:250ms")
    list(splitter.feed(b"x", 1.0))
    assert splitter.deadline == 1.25


@pytest.mark.parametrize(
    "text", ["", "line:1", "size", "size:0", "size:-1", "size:1s", "time:0", "time:1MiB", "word:1"]
)
def test_other_spellings_are_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(InvalidInput, match="split by"):
        parse_by(text)


def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    """All of it, in steps."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(200_000))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        steps = list(read_steps(descriptor, BySize(65_536), lambda: False))
    finally:
        os.close(descriptor)
    assert b"".join(segments(steps)) == path.read_bytes()
    assert [len(segment) for segment in segments(steps)] == [65_536] * 3 + [3_392]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that stays silent unless a test writes to it."""
    read_end, write_end = os.pipe()
    yield read_end, write_end
    os.close(read_end)
    os.close(write_end)


def test_a_silent_pipe_expires_and_stops(pipe: tuple[int, int]) -> None:
    """While nothing comes, the segment ends on time, and a stop is noticed."""
    read_end, write_end = pipe
    stopped = threading.Event()
    os.write(write_end, b"x")
    steps = read_steps(read_end, ByTime(0.02), stopped.is_set)
    assert next(steps) == Chunk(b"x")
    assert next(steps) == SegmentEnd()
    stopped.set()
    assert list(steps) == []


def test_a_reader_that_is_stopped_is_at_its_end(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that block in a read get what is there, and an end once stopped."""
    monkeypatch.setattr(raw, "POLL_S", 0.01)
    read_end, write_end = pipe
    os.write(write_end, b"data")
    answers = iter([False, False, False, True])
    reader = StoppableReader(read_end, lambda: next(answers))
    assert reader.begun_at is None
    before = time.monotonic()
    assert reader.read(100) == b"data"
    begun_at = reader.begun_at
    assert begun_at is not None
    assert before <= begun_at <= time.monotonic()
    assert reader.read(100) == b""
    assert reader.begun_at == begun_at
