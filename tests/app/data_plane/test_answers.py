"""What the core said, as replies: every resolution, refusal and verdict has its answer."""

from __future__ import annotations

import pytest

from tricklecast.app.core.channel import Channel, Serve, Wait
from tricklecast.app.core.limits import Limit, Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Ahead, AlreadyStored, Ended, Gone, Outcome, Refusal, Verdict, Why
from tricklecast.app.core.segment import Event, Segment
from tricklecast.app.data_plane.answers import (
    content_type_of,
    empty_reply,
    head_reply,
    next_reply,
    path_reply,
    read_reply,
    refusal_reply,
    shutdown_reply,
    stored_reply,
    truncation_of,
    writer_reply,
)
from tricklecast.app.data_plane.replies import Reply
from tricklecast.app.data_plane.routes import Route
from tricklecast.trickle.records import Op

READ = Route(Op.READ, "c", -1)
PUBLISH = Route(Op.PUBLISH, "c", 5)
EPOCH = ("Lp-Trickle-Epoch", 1)


def jitter(low: int, high: int) -> int:
    """No chance in tests: always the longest wait."""
    return high


@pytest.fixture
def channel() -> Channel:
    """A channel with head 3."""
    registry = Registry(Limits(), autocreate=True)
    channel = registry.create("c", "video/mp2t", 0.0)
    assert isinstance(channel, Channel)
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


def test_a_channel_without_a_type_holds_just_bytes(channel: Channel) -> None:
    """The channel's type, or the default."""
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
    """A segment was cut short if it holds bytes and its publisher did not end it; or nobody ever wrote it."""
    assert truncation_of(made) == why


def test_what_can_be_relayed_is_handed_on(channel: Channel) -> None:
    """A segment with bytes, or one that may still get some, is no reply yet."""
    for found in (Serve(channel, segment(body=b"x"), 3), Serve(channel, segment(body=b"x", event=Event.FINISH), 3),
                  Wait(channel, segment(3), 3)):  # fmt: skip
        assert read_reply(found, READ, jitter) is found


@pytest.mark.parametrize(
    ("event", "reason"), [(Event.FINISH, "empty"), (Event.SKIP, "skipped"), (Event.TERMINATE, "terminated")]
)
def test_an_empty_segment_is_200_and_not_the_end(channel: Channel, event: Event, reason: str) -> None:
    """200 with Seq, the head now, and no Closed; one that nobody wrote says so."""
    reply = read_reply(Serve(channel, segment(event=event), 3), READ, jitter)
    skipped = (("Lp-Trickle-Truncated", "skipped"),) if reason == "skipped" else ()
    headers = (("Lp-Trickle-Seq", 2), ("Lp-Trickle-Latest", 3), EPOCH, *skipped)
    assert reply == Reply(200, reason, headers, content_type="video/mp2t")


def test_an_empty_segment_of_an_ended_channel_says_closed(channel: Channel) -> None:
    """Then it is the end, and said so."""
    channel.ended = True
    assert empty_reply(channel, segment(event=Event.TERMINATE)).eos


def test_a_missing_segment_is_470(channel: Channel) -> None:
    """470 with the head, the oldest kept, the seq as asked for, and a wait; one below the head also with the next."""
    reply = read_reply(Ahead(9, 3, 1), Route(Op.READ, "c", -7), jitter)
    headers = (("Lp-Trickle-Latest", 3), ("Lp-Trickle-Seq", -7), ("Lp-Trickle-Earliest", 1))
    assert reply == Reply(470, "ahead", headers, b"Entry not found", retry_after_s=2)
    reply = read_reply(Gone(0, 3, 1, 2), Route(Op.READ, "c", -7), jitter)
    assert reply == Reply(470, "gone", (*headers, ("Lp-Trickle-Next", 2)), b"Entry not found", retry_after_s=2)
    reply = read_reply(Ahead(9, 3, 1), Route(Op.READ, "c"), jitter)
    assert isinstance(reply, Reply)
    assert ("Lp-Trickle-Seq", 9) in reply.headers


def test_at_the_end_of_an_ended_channel(channel: Channel) -> None:
    """200 + Closed: there will be nothing more."""
    headers = (("Lp-Trickle-Seq", 3), ("Lp-Trickle-Latest", 3), EPOCH)
    assert read_reply(Ended(3, 3, channel.epoch, channel.content_type), READ, jitter) == Reply(
        200, "terminated", headers, content_type="video/mp2t", eos=True
    )


def test_a_head_request_tells_what_is_known(channel: Channel) -> None:
    """Seq, size and epoch; Latest where it differs; Truncated where it applies."""
    assert head_reply(Wait(channel, segment(3), 3)) == Reply(
        200, "complete", (("Lp-Trickle-Seq", 3), ("Lp-Trickle-Size", 0), EPOCH), content_type="video/mp2t"
    )
    cut = head_reply(Serve(channel, segment(1, b"x", Event.TRUNCATE), 3))
    assert cut.reason == "truncated"
    assert cut.headers == (
        ("Lp-Trickle-Seq", 1), ("Lp-Trickle-Latest", 3), ("Lp-Trickle-Size", 1), EPOCH,
        ("Lp-Trickle-Truncated", "truncated"),
    )  # fmt: skip


def test_the_head_as_text(channel: Channel) -> None:
    """`/next` says it in the body and in a header."""
    assert next_reply(channel) == Reply(200, "complete", (("Lp-Trickle-Latest", 3), EPOCH), b"3")


SEQ_SIZE = (("Lp-Trickle-Seq", 5), ("Lp-Trickle-Size", 4))


@pytest.mark.parametrize(
    ("verdict", "size", "reply"),
    [
        (Verdict.COMPLETE, 4, Reply(200, "complete", SEQ_SIZE)),
        (Verdict.EMPTY, 0, Reply(200, "empty", (SEQ_SIZE[0], ("Lp-Trickle-Size", 0)), close=True)),
        (Verdict.CLOSED_BY_OTHER, 4, Reply(200, "truncated", SEQ_SIZE, close=True)),
        (Verdict.CLOSED_BY_OTHER, 0, Reply(200, "skipped", (SEQ_SIZE[0], ("Lp-Trickle-Size", 0)), close=True)),
        (Verdict.TERMINATED, 4, Reply(200, "terminated", SEQ_SIZE, close=True, eos=True)),
        (Verdict.SUPERSEDED, 4, Reply(409, "superseded", SEQ_SIZE, b"Another publisher took over", close=True)),
        (Verdict.NOT_THE_SAME, 4, Reply(409, "conflict", SEQ_SIZE, b"Not the body of this key", close=True)),
        (Verdict.TOO_LARGE, 4, Reply(413, "too_large", SEQ_SIZE, b"Segment too large", close=True)),
        (
            Verdict.OVER_BUDGET, 4,
            Reply(503, "limit:total_bytes", SEQ_SIZE, b"Limit reached: total_bytes", close=True, retry_after_s=5),
        ),
        (Verdict.ABORTED, 4, None),
    ],
)  # fmt: skip
def test_what_a_publisher_is_answered(verdict: Verdict, size: int, reply: Reply | None) -> None:
    """Every verdict on a writer has its answer; only a complete segment keeps the connection."""
    assert writer_reply(Outcome(verdict, size), 5, jitter) == reply


def test_what_is_stored_already_is_a_success(channel: Channel) -> None:
    """The retry with the same key is told what is stored."""
    assert stored_reply(AlreadyStored(5, 4, 1)) == Reply(200, "complete", SEQ_SIZE, close=True)


LATEST_SEQ = (("Lp-Trickle-Latest", 3), ("Lp-Trickle-Seq", 5))


@pytest.mark.parametrize(
    ("why", "route", "status", "reason", "close"),
    [
        (Why.NOT_FOUND, READ, 404, "not_found", False),
        (Why.NOT_FOUND, PUBLISH, 404, "not_found", True),
        (Why.NOT_FOUND, Route(Op.DELETE, "c"), 400, "not_found", False),
        (Why.ENDED, PUBLISH, 404, "not_found", True),
        (Why.AHEAD, PUBLISH, 470, "ahead", True),
        (Why.CLOSED, PUBLISH, 409, "conflict", True),
        (Why.NO_SEGMENT, Route(Op.CLOSE_SEGMENT, "c", 5), 400, "not_found", False),
        (Why.RESERVED, PUBLISH, 403, "forbidden", True),
        (Why.RESERVED, Route(Op.DELETE, "_x"), 403, "forbidden", False),
        (Why.LIMIT, PUBLISH, 503, "limit:readers", True),
        (Why.LIMIT, READ, 503, "limit:readers", False),
        (Why.SHUTDOWN, READ, 503, "shutdown", True),
    ],
)
def test_every_refusal_has_its_answer(
    channel: Channel, why: Why, route: Route, status: int, reason: str, close: bool
) -> None:
    """Status, reason, a one-line body, and whether the connection ends."""
    reply = refusal_reply(channel.refuse(why, 5)._replace(limit=Limit.READERS), route, jitter)
    assert (reply.status, reply.reason, reply.close, reply.eos) == (status, reason, close, False)
    assert reply.body
    assert b"\n" not in reply.body
    assert (reply.retry_after_s == 5) == (status == 503)
    if why in (Why.AHEAD, Why.CLOSED):
        assert reply.headers == LATEST_SEQ


def test_the_recently_ended_are_told(channel: Channel) -> None:
    """404 for a channel that was there not long ago carries Closed, and how far it came: a late reader counts by it."""
    forgotten = refusal_reply(Refusal(Why.NOT_FOUND, recently_ended=True, epoch=4, head=9), READ, jitter)
    assert (forgotten.eos, forgotten.headers) == (True, (("Lp-Trickle-Latest", 9), ("Lp-Trickle-Epoch", 4)))
    draining = refusal_reply(channel.refuse(Why.ENDED, 5)._replace(recently_ended=True), READ, jitter)
    assert (draining.eos, draining.headers) == (True, (("Lp-Trickle-Latest", channel.next_seq), EPOCH))
    assert read_reply(Refusal(Why.NOT_FOUND), READ, jitter) == refusal_reply(Refusal(Why.NOT_FOUND), READ, jitter)


def test_shutdown_sends_away() -> None:
    """503 with the wait that the core decides on, and the end of the connection."""
    reply = shutdown_reply(jitter, (3, 4))
    assert (reply.status, reply.retry_after_s, reply.close) == (503, 4, True)
    assert refusal_reply(Refusal(Why.SHUTDOWN, come_back_s=(3, 4)), READ, jitter) == reply


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
    """404, 400 or 405 with Allow; the connection closes, as a body may follow."""
    reply = path_reply(route)
    assert reply is not None
    assert (reply.status, reply.close) == (status, True)
    assert (("allow", "GET") in reply.headers) == (status == 405)


def test_a_right_path_is_no_reply() -> None:
    """What is right goes on to the core."""
    assert path_reply(READ) is None
