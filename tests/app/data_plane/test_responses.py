"""Responses: each result of the core as a reply."""

from __future__ import annotations

import pytest

from tricklecast.app.core.limits import Limit, Limits
from tricklecast.app.core.publishers import Identity, Occupied
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Ahead, AlreadyStored, Cause, Ended, Ending, Gone, Outcome, Refusal
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import Event, Segment
from tricklecast.app.data_plane.responses import (
    ENDS_CONNECTION,
    TEXT,
    Headers,
    Reply,
    content_type_of,
    empty_reply,
    ended_reply,
    head_reply,
    limit_reply,
    missing_reply,
    next_reply,
    path_reply,
    refusal_reply,
    segment_head,
    segment_lines,
    segment_trailers,
    shutdown_reply,
    stored_reply,
    truncation_of,
    type_fields,
    writer_reply,
)
from tricklecast.app.data_plane.routing import Route
from tricklecast.trickle.records import Op
from tricklecast.trickle.wire import Status

EPOCH = ("Lp-Trickle-Epoch", 1)


def lines(*fields: tuple[str, str | int]) -> bytes:
    """Header fields as they go over the wire."""
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in fields)


def jitter(low: int, high: int) -> int:
    """Tests have no chance: the longest wait."""
    return high


@pytest.fixture
def channel() -> OwnedChannel:
    """A channel with head 3."""
    channel = Registry(Limits(), autocreate=True).create("c", "video/mp2t", 0.0)
    assert isinstance(channel, OwnedChannel)
    channel.next_seq = 3
    return channel


def segment(seq: int = 2, body: bytes = b"", event: Event | None = None) -> Segment:
    """A segment in any state."""
    made = Segment(seq)
    if body:
        made.store(body, len(body))
    if event is not None:
        made.close(event, 1.0)
    return made


# Reading.


def test_a_channel_without_a_type_holds_plain_bytes(channel: OwnedChannel) -> None:
    """Readers are told the channel's content type, or the default."""
    assert content_type_of(channel) == "video/mp2t"
    channel.content_type = ""
    assert content_type_of(channel) == "application/octet-stream"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (segment(), ""),
        (segment(body=b"x"), ""),
        (segment(body=b"x", event=Event.FINISH), ""),
        (segment(body=b"x", event=Event.TRUNCATE), "truncated"),
        (segment(body=b"x", event=Event.TERMINATE), "terminated"),
        (segment(event=Event.TERMINATE), ""),
        (segment(event=Event.SKIP), "skipped"),
    ],
)
def test_which_segments_are_not_whole(made: Segment, why: str) -> None:
    """A segment is not whole if it holds bytes and its publisher did not end it, or if nobody wrote it."""
    assert truncation_of(made) == why


@pytest.mark.parametrize(
    ("event", "reason"), [(Event.FINISH, "empty"), (Event.SKIP, "skipped"), (Event.TERMINATE, "terminated")]
)
def test_an_empty_segment_is_200_and_not_the_end(channel: OwnedChannel, event: Event, reason: str) -> None:
    """The response is 200 with the seq and the head, without Closed; a skipped segment is marked as truncated."""
    skipped = (("Lp-Trickle-Truncated", "skipped"),) if reason == "skipped" else ()
    headers = (("Lp-Trickle-Seq", 2), ("Lp-Trickle-Latest", 3), EPOCH, *skipped)
    assert empty_reply(channel, segment(event=event)) == Reply(200, reason, headers, content_type="video/mp2t")


def test_an_empty_segment_of_an_ended_channel_says_closed(channel: OwnedChannel) -> None:
    """The response says that the channel has ended."""
    channel.ended = True
    assert empty_reply(channel, segment(event=Event.TERMINATE)).eos


def test_a_missing_segment_is_470() -> None:
    """The response is 470 with head, oldest seq, the seq as asked for, and a wait; below the head also the next seq."""
    headers = (("Lp-Trickle-Latest", 3), ("Lp-Trickle-Seq", -7), ("Lp-Trickle-Earliest", 1), ("Lp-Trickle-Epoch", 5))
    body = b"Entry not found"
    assert missing_reply(Ahead(9, 3, 1, 5), -7, jitter) == Reply(470, "ahead", headers, body, retry_after_s=2)
    following = (*headers, ("Lp-Trickle-Next", 2))
    assert missing_reply(Gone(0, 3, 1, 5, 2), -7, jitter) == Reply(470, "gone", following, body, retry_after_s=2)
    assert ("Lp-Trickle-Seq", 9) in missing_reply(Ahead(9, 3, 1, 5), None, jitter).headers


@pytest.mark.parametrize(("stored", "told"), [("video/mp2t", "video/mp2t"), ("", "application/octet-stream")])
def test_at_the_end_of_an_ended_channel(stored: str, told: str) -> None:
    """The response is 200 with Closed: nothing will ever be published there."""
    headers = (("Lp-Trickle-Seq", 3), ("Lp-Trickle-Latest", 3), EPOCH)
    assert ended_reply(Ended(3, 3, 1, stored)) == Reply(200, "terminated", headers, content_type=told, eos=True)


def test_a_head_request_tells_what_is_known(channel: OwnedChannel) -> None:
    """The response has seq, size and epoch; Latest where it differs from the seq; Truncated where it applies."""
    told = lines(("Lp-Trickle-Seq", 3), ("Lp-Trickle-Size", 0), EPOCH)
    assert head_reply(channel, segment(3), 3) == Reply(200, "complete", content_type="video/mp2t", lines=told)
    cut = head_reply(channel, segment(1, b"x", Event.TRUNCATE), 3, b'"tag"')
    assert cut.reason == "truncated"
    assert cut.lines == lines(
        ("Lp-Trickle-Seq", 1), ("Lp-Trickle-Size", 1), EPOCH,
        ("Lp-Trickle-Latest", 3), ("Lp-Trickle-Truncated", "truncated"), ("ETag", '"tag"'), ("Accept-Ranges", "bytes"),
    )  # fmt: skip


def test_the_head_as_text(channel: OwnedChannel) -> None:
    """`/next` answers with the head in the body and in a header."""
    assert next_reply(channel) == Reply(200, "complete", (("Lp-Trickle-Latest", 3), EPOCH), b"3")


# Publishing.

TAKEN_OVER = b"Another publisher took over"
NO_MEMORY = b"Limit reached: total_bytes"
TOO_LARGE = b"Segment too large: the limit is 4 bytes (max_segment_bytes)"
SEQ_SIZE = lines(("Lp-Trickle-Seq", 5), ("Lp-Trickle-Size", 4))
SEQ_EMPTY = lines(("Lp-Trickle-Seq", 5), ("Lp-Trickle-Size", 0))


@pytest.mark.parametrize(
    ("ending", "size", "reply"),
    [
        (Ending.COMPLETE, 4, Reply(200, "complete", lines=SEQ_SIZE)),
        (Ending.EMPTY, 0, Reply(200, "empty", close=True, lines=SEQ_EMPTY)),
        (Ending.CLOSED_BY_OTHER, 4, Reply(200, "truncated", close=True, lines=SEQ_SIZE)),
        (Ending.CLOSED_BY_OTHER, 0, Reply(200, "skipped", close=True, lines=SEQ_EMPTY)),
        (Ending.TERMINATED, 4, Reply(200, "terminated", close=True, eos=True, lines=SEQ_SIZE)),
        (Ending.SUPERSEDED, 4, Reply(409, "superseded", body=TAKEN_OVER, close=True, lines=SEQ_SIZE)),
        (Ending.NOT_THE_SAME, 4, Reply(409, "conflict", body=b"Not the body of this key", close=True, lines=SEQ_SIZE)),
        (Ending.TOO_LARGE, 4, Reply(413, "too_large", body=TOO_LARGE, close=True, lines=SEQ_SIZE)),
        (
            Ending.OVER_BUDGET, 4,
            Reply(503, "limit:total_bytes", body=NO_MEMORY, close=True, retry_after_s=5, lines=SEQ_SIZE),
        ),
        (Ending.ABORTED, 4, None),
    ],
)  # fmt: skip
def test_how_a_publisher_is_answered(ending: Ending, size: int, reply: Reply | None) -> None:
    """Each ending of a writer's part has its response; only that to a complete segment keeps the connection open."""
    assert writer_reply(Outcome(ending, size), 5, jitter) == reply


def test_a_retry_of_a_stored_body_is_a_success() -> None:
    """The retry with the same key is told the size that is stored."""
    assert stored_reply(AlreadyStored(5, 4, 1)) == Reply(200, "complete", close=True, lines=SEQ_SIZE)


# Refusals.


@pytest.mark.parametrize(
    ("why", "op", "status", "reason", "close"),
    [
        (Cause.NOT_FOUND, Op.READ, 404, "not_found", False),
        (Cause.NOT_FOUND, Op.PUBLISH, 404, "not_found", True),
        (Cause.NOT_FOUND, Op.DELETE, 400, "not_found", False),
        (Cause.ENDED, Op.PUBLISH, 404, "not_found", True),
        (Cause.AHEAD, Op.PUBLISH, 470, "ahead", True),
        (Cause.CLOSED, Op.PUBLISH, 409, "conflict", True),
        (Cause.NO_SEGMENT, Op.CLOSE_SEGMENT, 400, "not_found", False),
        (Cause.RESERVED, Op.PUBLISH, 403, "forbidden", True),
        (Cause.RESERVED, Op.DELETE, 403, "forbidden", False),
        (Cause.LIMIT, Op.PUBLISH, 503, "limit:readers", True),
        (Cause.LIMIT, Op.READ, 503, "limit:readers", False),
        (Cause.SHUTDOWN, Op.READ, 503, "shutdown", True),
    ],
)
def test_every_refusal_has_its_response(why: Cause, op: Op, status: int, reason: str, close: bool) -> None:
    """Each refusal has a status, a reason and a one-line body, and says whether the connection closes."""
    reply = refusal_reply(Refusal(why, 5, 3, 1, limit=Limit.READERS), op, jitter)
    assert (reply.status, reply.reason, reply.close, reply.eos) == (status, reason, close, False)
    assert reply.body
    assert b"\n" not in reply.body
    assert (reply.retry_after_s == 5) == (status == 503)
    if why in (Cause.AHEAD, Cause.CLOSED):
        assert reply.headers == (("Lp-Trickle-Latest", 3), ("Lp-Trickle-Seq", 5))


@pytest.mark.parametrize("why", [Cause.NOT_FOUND, Cause.ENDED])
def test_a_client_of_a_recently_ended_channel_is_told(why: Cause) -> None:
    """The 404 carries Closed, and the last head and epoch, so that a late reader can count by them."""
    reply = refusal_reply(Refusal(why, recently_ended=True, epoch=4, head=9), Op.READ, jitter)
    assert (reply.eos, reply.headers) == (True, (("Lp-Trickle-Latest", 9), ("Lp-Trickle-Epoch", 4)))


@pytest.mark.parametrize(
    ("limit", "status"), [(Limit.READERS, 503), (Limit.CONNECTIONS, 503), (Limit.CLIENT_CONNECTIONS, 429)]
)
def test_a_limit_says_whose_it_is_and_when_to_come_back(limit: Limit, status: int) -> None:
    """A limit of the server is 503, a client's own 429; a limit of connections closes the connection."""
    reply = limit_reply(limit, jitter, close=False, wait_s=10)
    assert (reply.status, reply.body, reply.retry_after_s) == (status, f"Limit reached: {limit}".encode(), 14)
    assert reply.close == (limit in ENDS_CONNECTION)


def test_the_response_to_a_client_at_shutdown() -> None:
    """The response is 503 with the wait that the core decides on, and closes the connection."""
    reply = shutdown_reply(jitter, (3, 4))
    assert (reply.status, reply.retry_after_s, reply.close) == (503, 4, True)
    assert refusal_reply(Refusal(Cause.SHUTDOWN, come_back_s=(3, 4)), Op.READ, jitter) == reply


@pytest.mark.parametrize(
    ("route", "status"),
    [
        (Route(None, "c", error="Not found", not_found=True), 404),
        (Route(None, error="Invalid channel name: empty"), 400),
        (Route(Op.READ, "c", error="Invalid idx", allow="GET"), 400),
        (Route(None, "c", error="Invalid idx", allow="GET"), 405),
        (Route(None, "c", allow="GET"), 405),
    ],
)
def test_wrong_paths_and_methods(route: Route, status: int) -> None:
    """The response is 404, 400 or 405 with Allow; the connection closes, since a body may follow."""
    reply = path_reply(route)
    assert reply is not None
    assert (reply.status, reply.close) == (status, True)
    assert (("allow", "GET") in reply.headers) == (status == 405)


def test_a_right_path_has_no_reply() -> None:
    """A request with a right path and method goes on to the core."""
    assert path_reply(Route(Op.READ, "c", -1)) is None


@pytest.mark.parametrize(
    ("content_type", "is_inert"),
    [
        *(
            (one, True)
            for one in ("text/html", "image/svg+xml", "text/plain, text/html", "video/mp4, text/html", "video")
        ),
        *((one, True) for one in ("", "application/json")),
        *((one, False) for one in (TEXT, "video/mp2t", "audio/mp4")),
    ],
)
def test_a_browser_runs_nothing_that_was_published(content_type: str, is_inert: bool) -> None:
    """Content that a browser might take for a page of the server is sent as a page that runs no script."""
    inert = (("x-content-type-options", "nosniff"), ("content-security-policy", "sandbox")) if is_inert else ()
    assert type_fields(content_type) == (("content-type", content_type), *inert)


def test_the_end_of_a_channel_and_the_wait_are_told() -> None:
    """`eos` and `retry_after_s` become header fields."""
    reply = Reply(Status.UNAVAILABLE, "x", (("a", 1),), eos=True, retry_after_s=4)
    assert reply.fields == (("a", 1), ("Lp-Trickle-Closed", "terminated"), ("Retry-After", 4))


@pytest.mark.parametrize(
    ("event", "head", "tag", "more"),
    [
        (None, 4, b"", ()),
        (None, 7, b"", (("Lp-Trickle-Latest", 7),)),
        (Event.FINISH, 4, b'"tag"', (("ETag", '"tag"'), ("Accept-Ranges", "bytes"))),
        (Event.FINISH, None, b"", (("Accept-Ranges", "bytes"),)),
        (Event.TRUNCATE, 4, b"", (("Lp-Trickle-Truncated", "truncated"), ("Accept-Ranges", "bytes"))),
    ],
)
def test_the_head_of_a_segment(
    channel: OwnedChannel, event: Event | None, head: int | None, tag: bytes, more: Headers
) -> None:
    """It has the seq, size and epoch; Latest where it differs from the seq; tag and ranges once it has closed."""
    made = segment(4, b"123456789", event)
    told = lines(("Lp-Trickle-Seq", 4), ("Lp-Trickle-Size", 9), EPOCH, *more)
    assert segment_lines(channel, made, head, tag) == told
    if head is not None:
        found = segment_head(channel, made, head, tag)
        assert (found.status, found.lines, found.content_type) == (Status.OK, told, "video/mp2t")


def test_the_trailers_of_a_segment_say_how_it_ended() -> None:
    """Its size, and the reason if it was cut short."""
    assert segment_trailers(segment(1, b"1234567", Event.FINISH)) == lines(("Lp-Trickle-Size", 7))
    cut = lines(("Lp-Trickle-Size", 7), ("Lp-Trickle-Truncated", "truncated"))
    assert segment_trailers(segment(1, b"1234567", Event.TRUNCATE)) == cut


@pytest.mark.parametrize(
    ("client", "grace_left_s", "who", "named", "retry_after_s"),
    [
        (Identity("cam 1"), None, "cam 1", [("Lp-Trickle-Publisher", "cam 1")], None),
        (Identity(address="192.0.2.1 curl"), 2.1, "Another client", [], 3),
        (Identity("caf\xe9"), None, "Another client", [], None),
    ],
)
def test_a_publisher_beside_another_one_is_told_of_it(
    client: Identity, grace_left_s: float | None, who: str, named: list[object], retry_after_s: int | None
) -> None:
    """Its name, if it can stand in a header, and never its address; when to come back, if it may be gone."""
    reply = refusal_reply(Refusal(Cause.OCCUPIED, 4, 3, occupied=Occupied(client, 61.9, grace_left_s)), None, jitter)
    assert (reply.status, reply.reason, reply.close, reply.retry_after_s) == (409, "occupied", True, retry_after_s)
    assert list(reply.headers) == [("Lp-Trickle-Latest", 3), ("Lp-Trickle-Publishing-For", 61), *named]
    assert reply.body == f"{who} has published to this channel for 61 s".encode()
