"""Lines are put together over chunks and segments, and never over something that was missed."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.subscriber.messages import Bad, Line, Lines

documents = st.lists(
    st.sampled_from([b'{"a":1}', b'[1,{"b":"}"}]', b"{}", b"12", b'"x y"', b"", b"null", b'{"s":"{\\"n\\":1}"}']),
    max_size=12,
)
cuts = st.lists(st.integers(0, 120), max_size=12)


def pieces(data: bytes, at: list[int]) -> list[bytes]:
    """The same bytes, cut at these places."""
    places = [0, *sorted(place for place in at if place <= len(data)), len(data)]
    return [data[begin:end] for begin, end in pairwise(places)]


def texts(items: list[Line | Bad]) -> list[bytes]:
    return [item.data for item in items if isinstance(item, Line)]


@given(documents, cuts, cuts)
def test_chunks_and_segments_do_not_matter(lines: list[bytes], chunks: list[int], segments: list[int]) -> None:
    """However the bytes are cut, the same lines come out, whether the last one is ended or not."""
    for data in (b"\n".join(lines), b"".join(line + b"\r\n" for line in lines)):
        splitter = Lines(100)
        items: list[Line | Bad] = []
        for seq, segment in enumerate(pieces(data, segments)):
            items += splitter.begin(seq, follows=True)
            for chunk in pieces(segment, chunks):
                items += splitter.feed(chunk)
            items += splitter.end(whole=True)
        items += splitter.finish(whole=True)
        assert texts(items) == [line for line in lines if line]
        assert not any(isinstance(item, Bad) for item in items)


@given(documents, cuts, st.sets(st.integers(0, 12)), st.sets(st.integers(0, 12)))
def test_nothing_is_glued_together(lines: list[bytes], cut: list[int], gone: set[int], short: set[int]) -> None:
    """With segments missing or cut short, whatever comes out was a line; and what was lost between is told."""
    segments = pieces(b"\n".join(lines), cut)
    splitter = Lines(100)
    items: list[Line | Bad] = []
    follows = True
    for seq, segment in enumerate(segments):
        if seq in gone:
            follows = False
            continue
        items += splitter.begin(seq, follows=follows)
        is_short = seq in short and len(segment) > 1
        items += splitter.feed(segment[: len(segment) // 2] if is_short else segment)
        items += splitter.end(whole=not is_short)
        follows = True
    items += splitter.finish(whole=follows)
    for item in items:
        if isinstance(item, Line):
            with suppress(ValueError):
                assert not item.doubtful or json.loads(item.data) is not None
                assert item.data in lines


def test_what_was_begun_before_a_gap_is_dropped_and_told() -> None:
    """And so is the rest of a line after it."""
    lines = Lines(100)
    lines.begin(0, follows=False)
    assert lines.feed(b'{"a":1}\n{"b":') == [Line(0, b'{"a":1}', (0, 8))]
    assert lines.begin(2, follows=False) == [Bad(0, "a part of a line", torn=True)]
    assert lines.feed(b'2}\n{"c":3}\n') == [Bad(2, "a part of a line", torn=True), Line(2, b'{"c":3}', (2, 11))]


def test_a_gap_between_lines_costs_no_line() -> None:
    """Segments that hold whole lines are the usual case; that they do is seen from the line itself."""
    lines = Lines(100)
    lines.begin(0, follows=False)
    assert lines.feed(b'{"a":1}\n') == [Line(0, b'{"a":1}', (0, 8))]
    assert lines.begin(5, follows=False) == []
    assert lines.feed(b'{"b":2}\n3\n') == [Line(5, b'{"b":2}', (5, 8), doubtful=True), Line(5, b"3", (5, 10))]


def test_a_number_after_a_gap_may_be_the_rest_of_one() -> None:
    """It is not taken for a line."""
    lines = Lines(100)
    lines.begin(7, follows=False)
    assert lines.feed(b"45\n67\n") == [Bad(7, "a part of a line", torn=True), Line(7, b"67", (7, 6))]


def test_a_segment_that_was_not_whole_ends_its_line() -> None:
    """Even if nothing was missed after it."""
    lines = Lines(100)
    lines.begin(0, follows=True)
    lines.feed(b'{"a":')
    assert lines.end(whole=False) == [Bad(0, "a part of a line", torn=True)]
    lines.begin(1, follows=True)
    assert lines.feed(b"1}\n") == [Bad(1, "a part of a line", torn=True)]


@pytest.mark.parametrize("size", [1, 3, 50])
def test_a_line_beyond_the_limit_is_dropped_to_its_end(size: int) -> None:
    """Told once, when it grew too long; it is never held; the next line is read."""
    lines = Lines(10)
    lines.begin(0, follows=True)
    data = b"1" * 40 + b"\n2\n"
    items = [item for at in range(0, len(data), size) for item in lines.feed(data[at : at + size])]
    assert items == [Bad(0, "a line of more than 10 bytes"), Line(0, b"2", (0, 43))]


def test_a_line_as_long_as_the_limit_is_read() -> None:
    """The limit is the longest, not the first that is too long."""
    lines = Lines(3)
    lines.begin(0, follows=True)
    assert lines.feed(b"123\n") == [Line(0, b"123", (0, 4))]


def test_the_last_line_needs_no_end() -> None:
    """Unless something was missed behind it."""
    for whole, items in ((True, [Line(0, b"1", (0, 1))]), (False, [Bad(0, "a part of a line", torn=True)])):
        lines = Lines(10)
        lines.begin(0, follows=True)
        lines.feed(b"1")
        assert lines.end(whole=True) == []
        assert lines.finish(whole=whole) == items
        assert lines.finish(whole=whole) == []
