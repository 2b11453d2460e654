"""The exception tree, the table from statuses to exceptions, and positions."""

from __future__ import annotations

import inspect
import pickle
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.trickle import errors, wire
from tricklecast.trickle.errors import (
    BrokenByPeer,
    ChannelBusy,
    ChannelEnded,
    ChannelNotFound,
    ClosedHere,
    ConnectionLost,
    InvalidChannelName,
    InvalidInput,
    InvalidSeq,
    InvalidURL,
    LocalProtocolError,
    NoHardware,
    Position,
    PublisherFull,
    Refused,
    RemoteProtocolError,
    SegmentDropped,
    SegmentMissing,
    SegmentsUnconfirmed,
    SegmentTooLarge,
    Superseded,
    TrickleError,
    as_bytes,
    error_for,
    header_int,
    needs,
    retry_after_s,
)

_ALL = [
    error
    for name, error in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error, Exception) and not name.startswith("_")
]


def test_an_error_has_no_position_of_its_own() -> None:
    """Only the subscription that fails sets ``resume``."""
    assert ConnectionLost().resume is None


def test_an_invalid_url_shows_no_secrets() -> None:
    """Neither its text nor its arguments, which a traceback may print, contain the password or a token."""
    error = InvalidURL("http://me:secret@host:x/cam?token=abc", "why")
    assert str(error) == "not a usable URL: 'http://***@host:x/cam?token=***': why"
    assert "secret" not in repr(error) + error.url


@pytest.mark.parametrize("error", _ALL)
def test_everything_raised_on_purpose_is_a_trickle_error(error: type[Exception]) -> None:
    """One except clause catches every error of the package."""
    assert issubclass(error, TrickleError)


@pytest.mark.parametrize("error", _ALL)
def test_the_module_docstring_shows_the_whole_tree(error: type[Exception]) -> None:
    """The tree in the docstring names each class."""
    assert error.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize(("one", "other"), [(LocalProtocolError, BrokenByPeer), (ChannelEnded, BrokenByPeer)])
def test_the_families_do_not_overlap(one: type[Exception], other: type[Exception]) -> None:
    """No class belongs to two of: closed by me, ended normally, broken by the peer."""
    assert not issubclass(one, other)
    assert not issubclass(other, one)


@pytest.mark.parametrize("error", [InvalidSeq("x"), InvalidChannelName("x", "empty"), InvalidURL("x", "why")])
def test_invalid_input_is_a_value_error(error: InvalidInput) -> None:
    """Programs may catch ValueError."""
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InvalidSeq("abc"), "not a seq: 'abc'"),
        (InvalidSeq("9" * 100), f"not a seq: '{'9' * 40}'"),
        (InvalidChannelName("a..b", "contains '..'"), "not a channel name: 'a..b' (contains '..')"),
        (InvalidURL("ftp://x", "it must be http"), "not a usable URL: 'ftp://x': it must be http"),
        (NoHardware("cuda", "none is here"), "no hwaccel 'cuda': none is here"),
        (ChannelEnded(), "the channel has ended"),
        (BrokenByPeer(), "the server failed the request"),
        (ChannelNotFound(404, seq=3), "channel not found (HTTP 404, segment 3)"),
        (
            SegmentMissing(seq=0, detail="Entry not found"),
            "segment not available: Entry not found (HTTP 470, segment 0)",
        ),
        (Superseded(seq=19, detail="Another one"), "another one (HTTP 409, segment 19)"),
        (Superseded(), "another publisher has taken over, or the segment is closed (HTTP 409)"),
        (ChannelNotFound(404, seq=-2), "channel not found (HTTP 404)"),
        (ChannelNotFound(404, detail="Stream not found"), "channel not found (HTTP 404)"),
        (ChannelNotFound(404, detail="Not found: so"), "channel not found: Not found: so (HTTP 404)"),
        (ChannelNotFound(404, hint="wait for it"), "channel not found (HTTP 404); wait for it"),
        (
            SegmentTooLarge(413, detail="Segment too large: the limit is 4 bytes"),
            "segment too large: the limit is 4 bytes (HTTP 413)",
        ),
        (Refused(503), "refused by the server (HTTP 503)"),
        (Refused(401, detail="Token expired"), "the server wants a valid token: Token expired (HTTP 401)"),
        (Refused(403, seq=1), "the server does not allow this (HTTP 403, segment 1)"),
        (RemoteProtocolError(200), "the answer is not from a trickle server (HTTP 200)"),
        (ConnectionLost(detail="refused"), "connection lost: refused"),
        (ConnectionLost(detail="refused", server="http://h:1"), "cannot connect to http://h:1: refused"),
    ],
)
def test_texts_say_what_happened_in_one_line(error: TrickleError, text: str) -> None:
    """The text names the failure, the seq, the status and the server's own words, as far as they are known. It is the
    same in another process."""
    assert str(error) == text
    assert str(pickle.loads(pickle.dumps(error))) == text


def test_attributes_of_invalid_input() -> None:
    """The error keeps the wrong value uncut, in typed attributes."""
    assert InvalidSeq("9" * 100).text == "9" * 100
    name = InvalidChannelName("raw", "why")
    assert (name.raw, name.why) == ("raw", "why")
    url = InvalidURL("u", "w")
    assert (url.url, url.why) == ("u", "w")


def test_closed_here_is_the_users_own_doing() -> None:
    """The use of a closed object is a local protocol error."""
    assert issubclass(ClosedHere, LocalProtocolError)


@pytest.mark.parametrize(
    ("status", "temporary"),
    [(403, False), (429, True), (500, True), (503, True), (501, False), (505, False), (418, False), (None, False)],
)
def test_refused_tells_whether_waiting_helps(status: int | None, temporary: bool) -> None:
    """429 and 5xx are temporary, but for 501 and 505, which no later request changes; other refusals are not."""
    assert Refused(status).temporary is temporary


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, Refused),
        (401, Refused),
        (403, Refused),
        (404, ChannelNotFound),
        (405, Refused),
        (409, Superseded),
        (413, SegmentTooLarge),
        (429, Refused),
        (470, SegmentMissing),
        (500, Refused),
        (503, Refused),
        (200, RemoteProtocolError),
        (302, RemoteProtocolError),
    ],
)
def test_status_table(status: int, expected: type[TrickleError]) -> None:
    """Each status has exactly one exception, which carries status, seq and the server's words."""
    error = error_for(status, {}, seq=7, detail="words")
    assert type(error) is expected
    assert isinstance(error, BrokenByPeer)
    assert (error.status, error.seq, error.detail) == (status, 7, "words")


@pytest.mark.parametrize("status", [200, 404, 470, 503])
def test_closed_wins_over_every_status(status: int) -> None:
    """A response with the header Closed means the channel's end, with any status."""
    error = error_for(status, {wire.CLOSED: wire.TERMINATED}, seq=4)
    assert isinstance(error, ChannelEnded)
    assert error.seq == 4


def test_470_carries_where_to_go_on() -> None:
    """The error has the head, the oldest segment and the wait as numbers."""
    headers = {wire.LATEST: "12", wire.EARLIEST: "3", wire.RETRY_AFTER: "2"}
    error = error_for(470, headers, seq=99)
    assert isinstance(error, SegmentMissing)
    assert (error.latest, error.earliest, error.retry_after) == (12, 3, 2.0)


def test_409_to_a_publisher_that_asked_says_who_publishes() -> None:
    """The error has the other client's name and time, and when its place is free."""
    headers = {wire.PUBLISHING_FOR: "60", wire.PUBLISHER: "studio", wire.LATEST: "12", wire.RETRY_AFTER: "3"}
    error = error_for(409, headers, seq=12, detail="busy")
    assert isinstance(error, ChannelBusy)
    assert (error.publishing_s, error.publisher, error.latest, error.retry_after) == (60, "studio", 12, 3.0)
    assert str(error) == "studio has published to this channel for 60 s; pass takeover=True to publish in its place"
    unnamed = error_for(409, {wire.PUBLISHING_FOR: "1"})
    assert str(unnamed).startswith("another client has published")


def test_unconfirmed_segments_are_named() -> None:
    """The text names the first ten of them."""
    assert str(SegmentsUnconfirmed((3,))) == "not confirmed by the server: segment 3"
    assert str(SegmentsUnconfirmed((8, 9), 7)) == "not confirmed by the server: segments 8, 9, and 7 others"
    assert str(SegmentsUnconfirmed((), 1)) == "not confirmed by the server: 1 segment"
    assert str(SegmentsUnconfirmed((), 2)) == "not confirmed by the server: 2 segments"
    many = SegmentsUnconfirmed(tuple(range(12)))
    assert many.seqs == tuple(range(12))
    assert str(many) == "not confirmed by the server: segments 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …"


def test_409_carries_the_head() -> None:
    """A superseded publisher learns the head from the error."""
    error = error_for(409, {wire.LATEST: "12"})
    assert isinstance(error, Superseded)
    assert error.latest == 12


def test_409_of_a_channel_that_was_begun_anew_says_so() -> None:
    """The error has the epoch and the name of the numbering, and the text says what has happened."""
    error = error_for(409, {wire.EPOCH: "2", wire.LIFE: "abc.2"}, detail="Conflict")
    assert isinstance(error, Superseded)
    assert (error.epoch, error.numbering) == (2, "abc.2")
    assert str(error) == "another client has begun the channel anew: it is in epoch 2 (HTTP 409)"


def test_a_refusal_carries_the_wait() -> None:
    """A refusal has Retry-After in seconds."""
    error = error_for(503, {wire.RETRY_AFTER: "3"})
    assert isinstance(error, Refused)
    assert error.retry_after == 3.0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0),
        ("12", 12),
        ("-1", -1),
        (" 7 ", 7),
        ("", None),
        ("x", None),
        ("1.5", None),
        ("-", None),
        ("\u0663", None),
    ],
)
def test_header_int_reads_only_ascii_integers(value: str, expected: int | None) -> None:
    """A header whose value is no ASCII integer counts as missing."""
    assert header_int({"X": value}, "X") == expected


def test_header_int_of_a_missing_header() -> None:
    """A missing header has no number."""
    assert header_int({}, "X") is None


@pytest.mark.parametrize("value", ["--1", "9" * 5000])
def test_header_int_of_what_int_refuses(value: str) -> None:
    """Too many digits for Python's int() count as missing: a header must not be able to raise."""
    assert header_int({"X": value}, "X") is None


@given(st.text(max_size=50))
def test_header_int_never_fails(value: str) -> None:
    """For any text of a peer, the result is its number or None."""
    result = header_int({"X": value}, "X")
    assert result is None or result == int(value.strip())


@pytest.mark.parametrize(
    ("value", "expected"), [("2", 2.0), ("0", 0.0), ("-3", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None)]
)
def test_retry_after_in_seconds(value: str, expected: float | None) -> None:
    """Seconds are read, never below zero; a date counts as missing."""
    assert retry_after_s({wire.RETRY_AFTER: value}) == expected


def test_a_full_publisher_says_how_much_waits() -> None:
    """The text names the number of segments and tells the user how to avoid it."""
    error = PublisherFull(3, 30.0)
    assert (error.waiting, error.waited_s) == (3, 30.0)
    assert str(error) == (
        "no room for another segment within 30 s: 3 wait to be confirmed by the server; "
        "publish less, or give the publisher a larger buffer_bytes or buffer_s"
    )


def test_a_dropped_segment_names_itself_if_it_had_a_number() -> None:
    """The error names the seq, if the program had written to the segment."""
    assert isinstance(SegmentDropped(), ClosedHere)
    assert (SegmentDropped(7).seq, str(SegmentDropped(7))) == (
        7,
        "segment 7 was dropped: the buffer is full of segments that the server has not confirmed",
    )
    assert (
        str(SegmentDropped())
        == "a segment was dropped: the buffer is full of segments that the server has not confirmed"
    )


def test_a_missing_package_names_the_extra_that_has_it() -> None:
    """PyPI has no tricklecast, so the command works in a clone."""
    assert needs("PyAV", "media") == "needs PyAV: pip install '.[media]' in a clone of tricklecast"


def test_an_error_is_equal_to_itself_alone() -> None:
    """Errors can be members of sets, as all exceptions can; their representation shows every attribute."""
    assert ChannelEnded(3) != ChannelEnded(3)
    assert len({ChannelEnded(3), ChannelEnded(3)}) == 2
    assert repr(ChannelEnded(3)) == "ChannelEnded(seq=3)"


@pytest.mark.parametrize(
    ("error", "shown"), [(SegmentsUnconfirmed((1, 2), 5), "seqs=(1, 2), more=5"), (PublisherFull(3, 9), "waiting=3, ")]
)
def test_the_representation_of_an_error_shows_what_it_carries(error: TrickleError, shown: str) -> None:
    """Fields that its class sets itself are in it, and the position to go on at; a note is not."""
    error.resume = Position(4)
    error.add_note("a note")
    assert f", {shown}" in repr(error)
    assert repr(error).endswith("resume=Position(seq=4, epoch=None, life=None, offset=None))")


@pytest.mark.parametrize(
    ("values", "named"), [(("a",), {}), (("a", "b", "c"), {}), (("a", "b"), {"raw": "a"}), (("a", "b"), {"other": "a"})]
)
def test_an_error_needs_its_fields(values: tuple[str, ...], named: dict[str, str]) -> None:
    """Each once, and no other."""
    with pytest.raises(TypeError, match=r"InvalidChannelName has the fields \(raw, why\)"):
        InvalidChannelName(*values, **named)


# Positions.

seqs = st.integers(0, 10**15 - 1)


@given(seqs, st.none() | seqs, st.none() | seqs)
def test_a_position_survives_its_text(seq: int, epoch: int | None, offset: int | None) -> None:
    """A position that was stored as text is read back unchanged."""
    position = Position(seq, epoch, offset=offset)
    assert Position.parse(str(position)) == position


def test_the_text_of_a_position() -> None:
    """The text is the seq, then an at sign and the epoch if it is known."""
    assert str(Position(128, 3)) == "128@3"
    assert str(Position(128)) == "128"
    assert str(Position(128, 3, "9f86d081884c7d65.3")) == "128@3:9f86d081884c7d65.3"
    assert Position.parse("128@3:9f86d081884c7d65.3") == Position(128, 3, "9f86d081884c7d65.3")
    assert str(Position(128, None, "abc")) == "128"
    assert str(Position(128, 3, "9f86d081884c7d65.3", 512)) == "128@3:9f86d081884c7d65.3+512"
    assert Position.parse("128@3:9f86d081884c7d65.3+0") == Position(128, 3, "9f86d081884c7d65.3", 0)


@pytest.mark.parametrize(
    "text", ["", "@3", "1@", "-1", "1@-1", "x", "1 @3", "1@3@4", "\u0661", "1\u00a0", "9" * 16, "1+", "+1", "1+-2"]
)
def test_other_texts_are_no_positions(text: str) -> None:
    """A text with words, signs or more than 15 digits is no position."""
    with pytest.raises(InvalidSeq, match="not a seq"):
        Position.parse(text)


def test_white_space_around_a_position_does_not_count() -> None:
    """A file that was written by echo ends with a line feed."""
    assert Position.parse(" \t128@3+5\r\n") == Position(128, 3, offset=5)


@pytest.mark.parametrize("given", [None, b"128", 128])
def test_a_position_is_read_from_a_text(given: Any) -> None:
    """The error shows a text that would do."""
    with pytest.raises(
        InvalidInput, match=r"^a position is read from a text such as 128@3:\w+, not (None|b'128'|128)$"
    ):
        Position.parse(given)


@pytest.mark.parametrize(("seq", "epoch"), [(-1, None), (0, -1), (10**15, None), (0, 10**15)])
def test_impossible_positions_are_refused(seq: int, epoch: int | None) -> None:
    """The same limits hold for numbers that a program passes."""
    with pytest.raises(InvalidSeq):
        Position(seq, epoch)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (("5",), "the seq of a position is a whole number, not '5'; Position.parse() reads a text"),
        ((True,), "the seq of a position is a whole number, not True; Position.parse() reads a text"),
        ((5, "1"), "the epoch of a position is a whole number or None, not '1'"),
        ((5, 1, 7), "the life of a position is a text or None, not 7"),
        ((5, 1, "a", 1.0), "the offset of a position is a whole number or None, not 1.0"),
    ],
)
def test_a_position_of_other_types_is_refused(values: tuple[Any, ...], text: str) -> None:
    """Its text would look right, but it would equal no other position, and could not be counted on."""
    with pytest.raises(InvalidInput) as failed:
        Position(*values)
    assert str(failed.value) == text


@pytest.mark.parametrize("data", [b"ab", bytearray(b"ab"), memoryview(b"a.b")[::2], array("B", b"ab")])
def test_bytes_are_taken_as_they_are(data: object) -> None:
    """Any object with the buffer protocol is accepted."""
    assert as_bytes(data) == b"ab"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (5, "bytes are expected, not int"),
        (None, "bytes are expected, not NoneType"),
        ([1, 2], "bytes are expected, not list"),
        ("text", "bytes are expected, not str: encode it, or use publish_json"),
    ],
)
def test_what_is_not_bytes_is_refused(data: object, text: str) -> None:
    """Other objects raise TypeError; ``bytes(5)`` would be five zeros."""
    with pytest.raises(TypeError) as refused:
        as_bytes(data)
    assert str(refused.value) == text
