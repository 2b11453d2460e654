"""One request's decisions, without sockets: what the core said, as status line and headers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, assert_never

from tricklecast.app.core.channel import Channel, Serve, Wait
from tricklecast.app.core.limits import SERVER_WIDE, Limit
from tricklecast.app.core.registry import Resolution
from tricklecast.app.core.results import Ahead, AlreadyStored, Ended, Gone, Outcome, Refusal, Verdict, Why
from tricklecast.app.core.segment import COMPLETE, EMPTY, SKIPPED, TERMINATED, TRUNCATED, Segment
from tricklecast.app.data_plane.replies import Reply
from tricklecast.app.data_plane.routes import Route
from tricklecast.trickle import wire
from tricklecast.trickle.records import Op, Reason
from tricklecast.trickle.wire import DEFAULT_CONTENT_TYPE, Status

SEQ_RETRY_S: Final = (1, 2)
OVERLOAD_RETRY_S: Final = (1, 5)
"""Shortest and longest ``Retry-After``: drawn evenly, so that clients refused together come back apart."""

ENDS_CONNECTION: Final = frozenset({Limit.CONNECTIONS, Limit.CLIENT_CONNECTIONS})
"""Where connections are short, who is refused does not keep one."""

REASON_OF_STATE: Final = {
    COMPLETE: Reason.COMPLETE,
    EMPTY: Reason.EMPTY,
    TRUNCATED: Reason.TRUNCATED,
    SKIPPED: Reason.SKIPPED,
    TERMINATED: Reason.TERMINATED,
}

_OK, _COMPLETE = Status.OK, Reason.COMPLETE

Jitter = Callable[[int, int], int]
"""Draws a whole number between two bounds, both included."""


def content_type_of(channel: Channel) -> str:
    """What a reader is told; a channel that nobody gave a type holds just bytes."""
    return channel.content_type or DEFAULT_CONTENT_TYPE


def truncation_of(segment: Segment) -> str:
    """Why a segment is not whole, as ``Lp-Trickle-Truncated`` says it; ``""`` if it is, or still grows."""
    state = segment.state
    cut = state is TRUNCATED or state is SKIPPED or (state is TERMINATED and segment.size > 0)
    return str(state) if cut else ""


def read_reply(resolution: Resolution, route: Route, jitter: Jitter) -> Reply | Serve | Wait:
    """What a GET is answered (section 4): a reply, or a segment to be relayed.

    A segment that closed without a byte is answered like any other reply: it is not an error.
    """
    match resolution:
        case Wait():
            return resolution
        case Serve():
            segment = resolution.segment
            return empty_reply(resolution.channel, segment) if segment.closed and not segment.size else resolution
        case Ahead(seq, head, earliest) | Gone(seq, head, earliest):
            asked = seq if route.seq is None else route.seq
            following = ((wire.NEXT, resolution.following),) if isinstance(resolution, Gone) else ()
            return Reply(
                Status.SEQ_MISSING,
                Reason.GONE if following else Reason.AHEAD,
                ((wire.LATEST, head), (wire.SEQ, asked), (wire.EARLIEST, earliest), *following),
                b"Entry not found",
                retry_after_s=jitter(*SEQ_RETRY_S),
            )
        case Ended(seq, head, epoch, content_type):
            headers = ((wire.SEQ, seq), (wire.LATEST, head), (wire.EPOCH, epoch))
            kind = content_type or DEFAULT_CONTENT_TYPE
            return Reply(Status.OK, Reason.TERMINATED, headers, content_type=kind, eos=True)
        case Refusal():
            return refusal_reply(resolution, route, jitter)
        case _:
            assert_never(resolution)


def empty_reply(channel: Channel, segment: Segment) -> Reply:
    """The answer for a segment that closed with no bytes: 200, and not the end of the stream.

    One that a publisher ended without a byte is whole; one that nobody wrote says so.
    """
    headers: tuple[tuple[str, str | int], ...] = (
        (wire.SEQ, segment.seq),
        (wire.LATEST, channel.next_seq),
        (wire.EPOCH, channel.epoch),
    )
    if why := truncation_of(segment):
        headers = (*headers, (wire.TRUNCATED, why))
    reason = REASON_OF_STATE[segment.state]
    return Reply(Status.OK, reason, headers, content_type=content_type_of(channel), eos=channel.ended)


def head_reply(found: Serve | Wait) -> Reply:
    """The answer to a HEAD: what is known now, and nothing is waited for."""
    segment, channel = found.segment, found.channel
    headers: list[tuple[str, str | int]] = [(wire.SEQ, segment.seq)]
    if found.head != segment.seq:
        headers.append((wire.LATEST, found.head))
    headers += [(wire.SIZE, segment.size), (wire.EPOCH, channel.epoch)]
    if why := truncation_of(segment):
        headers.append((wire.TRUNCATED, why))
    reason = REASON_OF_STATE.get(segment.state, Reason.COMPLETE)
    return Reply(Status.OK, reason, tuple(headers), content_type=content_type_of(channel))


def next_reply(channel: Channel) -> Reply:
    """The head, as text and as a header; never waits."""
    headers = ((wire.LATEST, channel.next_seq), (wire.EPOCH, channel.epoch))
    return Reply(Status.OK, Reason.COMPLETE, headers, str(channel.next_seq).encode(), eos=channel.ended)


def writer_reply(outcome: Outcome, seq: int, jitter: Jitter) -> Reply | None:
    """What a publisher is answered when its part has ended (section 3); ``None`` if nobody is there to hear it.

    Every answer but that to a complete segment closes the connection: the publisher may still be sending.
    """
    headers: tuple[tuple[str, str | int], ...] = ((wire.SEQ, seq), (wire.SIZE, outcome.size))
    match outcome.verdict:
        case Verdict.COMPLETE:
            return Reply(_OK, _COMPLETE, headers)
        case Verdict.EMPTY:
            return Reply(Status.OK, Reason.EMPTY, headers, close=True)
        case Verdict.CLOSED_BY_OTHER:
            reason = Reason.TRUNCATED if outcome.size else Reason.SKIPPED
            return Reply(Status.OK, reason, headers, close=True)
        case Verdict.TERMINATED:
            return Reply(Status.OK, Reason.TERMINATED, headers, close=True, eos=True)
        case Verdict.SUPERSEDED:
            return Reply(Status.CONFLICT, Reason.SUPERSEDED, headers, b"Another publisher took over", close=True)
        case Verdict.NOT_THE_SAME:
            return Reply(Status.CONFLICT, Reason.CONFLICT, headers, b"Not the body of this key", close=True)
        case Verdict.TOO_LARGE:
            return Reply(Status.TOO_LARGE, Reason.TOO_LARGE, headers, b"Segment too large", close=True)
        case Verdict.OVER_BUDGET:
            return limit_reply(Limit.TOTAL_BYTES, jitter, close=True)._replace(headers=headers)
        case Verdict.ABORTED:
            return None
        case _:
            assert_never(outcome.verdict)


def stored_reply(stored: AlreadyStored) -> Reply:
    """The answer to a retry of what is stored already."""
    headers = ((wire.SEQ, stored.seq), (wire.SIZE, stored.size))
    return Reply(Status.OK, Reason.COMPLETE, headers, close=True)


def refusal_reply(refusal: Refusal, route: Route, jitter: Jitter) -> Reply:
    """What a refused request is answered. A refused publisher's connection closes: its body is not read."""
    publishing = route.op is Op.PUBLISH
    latest = refusal.head
    match refusal.why:
        case Why.LIMIT:  # first, as a flood of them is to cost little
            assert refusal.limit is not None, "it says which"
            return limit_reply(refusal.limit, jitter, close=publishing)
        case Why.NOT_FOUND if route.op is Op.DELETE:
            return Reply(Status.BAD_REQUEST, Reason.NOT_FOUND, body=b"Invalid stream")
        case Why.NOT_FOUND | Why.ENDED:
            eos, body = refusal.recently_ended, b"Stream not found"
            headers = ((wire.LATEST, latest), (wire.EPOCH, refusal.epoch)) if eos else ()
            return Reply(Status.NOT_FOUND, Reason.NOT_FOUND, headers, body, close=publishing, eos=eos)
        case Why.AHEAD:
            headers = ((wire.LATEST, latest), (wire.SEQ, refusal.seq or 0))
            return Reply(Status.SEQ_MISSING, Reason.AHEAD, headers, b"Segment is ahead of the channel", close=True)
        case Why.CLOSED:
            headers = ((wire.LATEST, latest), (wire.SEQ, refusal.seq or 0))
            return Reply(Status.CONFLICT, Reason.CONFLICT, headers, b"Segment is closed", close=True)
        case Why.NO_SEGMENT:
            return Reply(Status.BAD_REQUEST, Reason.NOT_FOUND, ((wire.LATEST, latest),), b"Nonexistent segment")
        case Why.RESERVED:
            body = b"Names that begin with _ belong to the server"
            return Reply(Status.FORBIDDEN, Reason.FORBIDDEN, body=body, close=publishing)
        case Why.SHUTDOWN:
            return shutdown_reply(jitter, refusal.come_back_s)
        case _:
            assert_never(refusal.why)


def limit_reply(limit: Limit, jitter: Jitter, *, close: bool, wait_s: int = 1) -> Reply:
    """What who exceeds a limit is answered.

    Args:
        wait_s: seconds in which there cannot be room.
    """
    return _limit_reply(limit, close or limit in ENDS_CONNECTION, wait_s - 1 + jitter(*OVERLOAD_RETRY_S))


@lru_cache(maxsize=256)
def _limit_reply(limit: Limit, close: bool, retry_after_s: int) -> Reply:
    status = Status.UNAVAILABLE if limit in SERVER_WIDE else Status.TOO_MANY_REQUESTS
    body = f"Limit reached: {limit}".encode()
    return Reply(status, Reason.limit(limit), body=body, close=close, retry_after_s=retry_after_s)


def shutdown_reply(jitter: Jitter, come_back_s: tuple[int, int]) -> Reply:
    """The answer to everybody who waits, or begins something, while the server goes away.

    Args:
        come_back_s: shortest and longest time until it may be asked again.
    """
    body = b"Server is shutting down"
    retry = jitter(*come_back_s)
    return Reply(Status.UNAVAILABLE, Reason.SHUTDOWN, body=body, close=True, retry_after_s=retry)


def path_reply(route: Route) -> Reply | None:
    """The answer to a request whose path or method is wrong; ``None`` if both are right."""
    if route.not_found:
        return Reply(Status.NOT_FOUND, Reason.NOT_FOUND, body=b"Not found", close=True)
    if route.error and (route.op or not route.allow):
        return Reply(Status.BAD_REQUEST, Reason.BAD_REQUEST, body=route.error.encode(), close=True)
    if route.op is None:
        headers = (("allow", route.allow),)
        return Reply(Status.METHOD_NOT_ALLOWED, Reason.BAD_REQUEST, headers, b"Method not allowed", close=True)
    return None
