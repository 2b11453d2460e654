"""Names and numbers of the protocol. The values are the contract, so they are spelled out here."""

from __future__ import annotations

import re

import pytest

from tricklecast.trickle import wire


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (wire.SEQ, "Lp-Trickle-Seq"),
        (wire.LATEST, "Lp-Trickle-Latest"),
        (wire.EARLIEST, "Lp-Trickle-Earliest"),
        (wire.SIZE, "Lp-Trickle-Size"),
        (wire.EPOCH, "Lp-Trickle-Epoch"),
        (wire.CLOSED, "Lp-Trickle-Closed"),
        (wire.TRUNCATED, "Lp-Trickle-Truncated"),
        (wire.LIFE, "Lp-Trickle-Life"),
        (wire.RESET, "Lp-Trickle-Reset"),
        (wire.EXPECT_CONTENT, "Expect-Content"),
        (wire.IDEMPOTENCY_KEY, "Idempotency-Key"),
        (wire.RETRY_AFTER, "Retry-After"),
    ],
)
def test_header_names_are_those_of_the_wire(name: str, expected: str) -> None:
    """Headers keep the names that existing clients read and send."""
    assert name == expected


def test_the_closed_token_is_the_reference_one() -> None:
    """Existing clients compare the value of Closed with this word."""
    assert wire.TERMINATED == "terminated"


def test_seq_aliases_are_those_of_the_wire() -> None:
    """-1 is the next segment and -2 the current one."""
    assert (wire.SEQ_NEXT, wire.SEQ_CURRENT) == (-1, -2)


def test_the_changefeed_is_a_reserved_name() -> None:
    """The changefeed's name begins with an underscore, so clients cannot write to it."""
    assert wire.CHANGEFEED.startswith("_")


def test_470_says_that_the_segment_is_missing() -> None:
    """The status for a missing segment has the reference's number."""
    assert int(wire.Status.SEQ_MISSING) == 470


@pytest.mark.parametrize("status", list(wire.Status))
def test_every_status_has_a_reason_phrase(status: wire.Status) -> None:
    """Each status has a phrase that fits a status line."""
    assert re.fullmatch(r"[A-Z][A-Za-z -]+", wire.PHRASES[status])


def test_no_phrase_is_left_over() -> None:
    """Each phrase belongs to a status."""
    assert set(wire.PHRASES) == set(wire.Status)


def test_browsers_may_read_every_response_header_of_the_protocol() -> None:
    """Scripts may read each response header of the protocol, and Retry-After."""
    defined = {
        wire.SEQ,
        wire.LATEST,
        wire.EARLIEST,
        wire.NEXT,
        wire.SIZE,
        wire.EPOCH,
        wire.CLOSED,
        wire.TRUNCATED,
        wire.LIFE,
        wire.DURABILITY,
        wire.PUBLISHER,
        wire.PUBLISHING_FOR,
        wire.NODE,
        wire.DEGRADED,
        wire.ELSEWHERE,
        wire.RETRY_AFTER,
        wire.ETAG,
        wire.ACCEPT_RANGES,
        wire.CONTENT_RANGE,
    }
    assert set(wire.EXPOSED_HEADERS) == defined


def test_browsers_may_send_every_request_header_of_the_protocol() -> None:
    """Scripts may send the request headers that the protocol lists for browsers."""
    needed = {"Expect-Content", "Content-Type", "Lp-Trickle-Reset", wire.IF_IDLE, wire.LEAVE, "Authorization"}
    needed |= {"Idempotency-Key", wire.EPOCH, "Range", "If-Range", "If-None-Match"}
    assert needed <= set(wire.ALLOWED_REQUEST_HEADERS)


@pytest.mark.parametrize("names", [wire.EXPOSED_HEADERS, wire.ALLOWED_REQUEST_HEADERS])
def test_header_lists_hold_valid_and_distinct_names(names: tuple[str, ...]) -> None:
    """Each name is an HTTP token, and none is listed twice in any case."""
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name) for name in names)
    assert len({name.lower() for name in names}) == len(names)


def test_the_default_base_path_has_no_trailing_slash() -> None:
    """URLs are built from base path, slash and name."""
    assert wire.DEFAULT_BASE_PATH == "/trickle"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://host:2939/trickle/cam", "http://host:2939/trickle/cam"),
        ("http://host/trickle/a@b", "http://host/trickle/a@b"),
        ("https://me:secret@host/trickle/cam", "https://***@host/trickle/cam"),
        ("https://secret@host", "https://***@host"),
        ("rtsp://me:s@cr@t@host/stream?x=1", "rtsp://***@host/stream?x=***"),
        ("http://host/trickle/cam?token=abc&flag&b=#end", "http://host/trickle/cam?token=***&flag&b=#end"),
        ("me:secret@host/cam", "***@host/cam"),
        ("", ""),
    ],
)
def test_a_shown_url_has_no_secrets(url: str, shown: str) -> None:
    """User, password and each value of the query are hidden; the rest stays."""
    assert wire.redacted(url) == shown


def test_no_url_of_a_list_shows_its_secrets() -> None:
    """Each is hidden like a single one, and a comma within a URL ends none."""
    text = "http://me:secret@a,b/cam?token=abc,http://me:secret@b/cam?token=def , https://c/cam"
    assert wire.split_urls(text) == [
        *("http://me:secret@a,b/cam?token=abc", "http://me:secret@b/cam?token=def", "https://c/cam"),
    ]
    assert wire.redacted_urls(text) == "http://***@a,b/cam?token=***, http://***@b/cam?token=***, https://c/cam"


def test_a_text_of_another_machine_controls_no_terminal() -> None:
    """Each character that is not printable becomes a question mark."""
    assert wire.printable("ä \x1b[31m\n\u202e") == "ä ?[31m??"


@pytest.mark.parametrize(
    ("text", "life"),
    [
        ("9f86d081884c7d65:0", wire.Life("9f86d081884c7d65", 0)),
        ("9f86d081884c7d65.3", wire.Life("9f86d081884c7d65.3")),
        ("a-B.9:999999999999999", wire.Life("a-B.9", 999999999999999)),
    ],
)
def test_a_life_is_a_name_and_perhaps_where_it_begins(text: str, life: wire.Life) -> None:
    """A life that was written is read back unchanged."""
    assert wire.parse_life(text) == life
    assert str(life) == text


@pytest.mark.parametrize(
    "text", ["", ":0", "a:", "a:-1", "a:1:2", "a b:0", "a:" + 16 * "1", 65 * "a", "\u00e4:0", "a:0\n"]
)
def test_anything_else_is_no_life(text: str) -> None:
    """A value that breaks the grammar is no life."""
    assert wire.parse_life(text) is None
