"""The classes of storm: the likely cause of each, what helps, and which columns of a line the verdict rests on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class StormClass(StrEnum):
    """The class of a storm (docs/reference/storm-classes.md)."""

    ZERO_BYTE_LOOP = "zero_byte_loop"
    SAME_SEGMENT_LOOP = "same_segment_loop"
    ENDED_LOOP = "ended_loop"
    NOT_FOUND_LOOP = "not_found_loop"
    NOT_FOUND_DRIP = "not_found_drip"
    SEQ_BEHIND_LOOP = "seq_behind_loop"
    SEQ_AHEAD_SWEEP = "seq_ahead_sweep"
    REPOST_LOOP = "repost_loop"
    OVERLOAD_CLIENT = "overload_client"
    OVERLOAD_AMPLIFICATION = "overload_amplification"
    THUNDERING_HERD = "thundering_herd"
    SERVER_ERROR_LOOP = "server_error_loop"
    REJECTED_LOOP = "rejected_loop"
    ABANDONED_LOOP = "abandoned_loop"
    WEB_LOOP = "web_loop"


class Side(StrEnum):
    """Which side should change. ``either``: the log cannot tell."""

    CLIENT = "client"
    SERVER = "server"
    PUBLISHER = "publisher"
    EITHER = "either"


@dataclass(frozen=True, slots=True)
class Words:
    """The words about a class.

    Attributes:
        cause: why it happens, most likely. advice: what helps. side: which side should change.
        decided_by: columns of a line without which it cannot be told from another class.
        instead: that other class; ``None`` if what looks like it may be no storm at all.
    """

    cause: str
    advice: str
    side: Side
    decided_by: tuple[str, ...] = ()
    instead: StormClass | None = None


WORDS: Final[dict[StormClass, Words]] = {
    StormClass.ZERO_BYTE_LOOP: Words(
        "the server serves the same empty segment again: its head does not advance when a segment is closed empty",
        "fix the server: an empty close must advance the head; let the publisher DELETE the channel before it closes"
        " its preconnect; let the client ask for the next seq after an empty answer",
        Side.SERVER,
        ("eos",),
        StormClass.ENDED_LOOP,
    ),
    StormClass.SAME_SEGMENT_LOOP: Words(
        "the head went backwards, or the client does not advance after a segment",
        "check that the head never decreases within an epoch; let the client ask for Lp-Trickle-Seq + 1, not for -2",
        Side.EITHER,
        ("conn",),
    ),
    StormClass.ENDED_LOOP: Words(
        "the client ignores Lp-Trickle-Closed: it was told that the channel has ended, and asks again",
        "stop at Lp-Trickle-Closed, on any status",
        Side.CLIENT,
    ),
    StormClass.NOT_FOUND_LOOP: Words(
        "the client takes 404 for a temporary fault and retries without a pause",
        "stop at a 404 after the stream has begun; before, wait with a pause of a second or more and a limit",
        Side.CLIENT,
    ),
    StormClass.NOT_FOUND_DRIP: Words(
        "the client keeps polling a channel that has ended",
        "stop at Lp-Trickle-Closed and at 404 after the stream has begun; follow the changefeed to learn of a new one",
        Side.CLIENT,
    ),
    StormClass.SEQ_BEHIND_LOOP: Words(
        "the client asks for a segment that has left the window, and ignores Lp-Trickle-Latest",
        "after a 470 go on from Lp-Trickle-Earliest or Lp-Trickle-Latest, never repeat the same request",
        Side.CLIENT,
        ("next_seq",),
        StormClass.SEQ_AHEAD_SWEEP,
    ),
    StormClass.SEQ_AHEAD_SWEEP: Words(
        "the client runs ahead of the publisher: it counts errors as segments, or keeps another epoch's position",
        "never increment on an error; wait at the head, where the server holds the request until the segment begins",
        Side.CLIENT,
        ("next_seq",),
        StormClass.SEQ_BEHIND_LOOP,
    ),
    StormClass.REPOST_LOOP: Words(
        "the publisher sends the same segment again and again: it does not see, or does not accept, the answer",
        "send an Idempotency-Key and treat a 409 as done; read early answers while the body is being sent",
        Side.PUBLISHER,
    ),
    StormClass.OVERLOAD_CLIENT: Words(
        "the client retries while it is refused, without backing off",
        "back off exponentially with full jitter, with Retry-After as the floor and a retry budget",
        Side.CLIENT,
    ),
    StormClass.OVERLOAD_AMPLIFICATION: Words(
        "many clients retry faster than they are told to; their retries keep the server overloaded",
        "back off with full jitter and a retry budget in every client; refuse early and cheaply until it ends",
        Side.CLIENT,
    ),
    StormClass.THUNDERING_HERD: Words(
        "many clients act on one cue, and come again together: they reconnect without jitter",
        "full jitter on the first reconnect too; stagger restarts; spread Retry-After over a range",
        Side.CLIENT,
    ),
    StormClass.SERVER_ERROR_LOOP: Words(
        "the client repeats a request that makes the server fail",
        "look for the error in the server's log; let the client back off and give up after a budget",
        Side.SERVER,
    ),
    StormClass.REJECTED_LOOP: Words(
        "the client repeats what is rejected each time: its token is missing, has expired (401) or does not allow it"
        " (403), or the request is malformed (400, 405)",
        "stop at a 4xx: fetch a new token before the old one expires, and ask once more with it",
        Side.CLIENT,
    ),
    StormClass.ABANDONED_LOOP: Words(
        "the client's read timeout is shorter than the wait for the next segment: it gives up before it is answered,"
        " and asks again at once",
        "raise the client's read timeout well above the duration of a segment, and back off between attempts; find out"
        " why the publisher has stalled",
        Side.CLIENT,
        ("dur_us",),
    ),
    StormClass.WEB_LOOP: Words(
        "the client repeats a request that fails each time",
        "stop at a 4xx; back off with jitter and give up after a budget",
        Side.CLIENT,
    ),
}


GRPC_POLICY: Final = (
    "set the client's gRPC retry policy: few maxAttempts, backoffMultiplier 2 from initialBackoff to maxBackoff, and"
    " retryThrottling as the budget"
)

SCANS: Final = 5
"""Paths from which a client that is refused on each of them may be a scanner."""

_UNTIL_TOLD: Final = "stop after a few, and ask again only when something has changed"

WEB: Final[tuple[tuple[range, str, str, Side], ...]] = (
    (
        range(100, 300),
        "the client asks for the same thing again, as soon as it has it",
        "poll with a pause of a second or more, or let the server hold the request until there is something new; if"
        " several programs share this key, nothing is wrong",
        Side.EITHER,
    ),
    (
        range(300, 400),
        "a redirect leads back to where it came from, or the client does not keep what it was given (a cookie)",
        "look at the Location of the answer; let the client keep cookies, and stop after ten redirects",
        Side.EITHER,
    ),
    (
        range(401, 402),
        "the client repeats a request that is rejected each time: its token is missing or has expired",
        f"fetch a new token and ask once more with it; {_UNTIL_TOLD}",
        Side.CLIENT,
    ),
    (range(403, 404), "the client repeats what it may not do", _UNTIL_TOLD, Side.CLIENT),
    (
        range(400, 404),
        "the client repeats a request that the server does not understand",
        f"look at the request: it is malformed; {_UNTIL_TOLD}",
        Side.CLIENT,
    ),
    (
        range(404, 411),
        "the client takes a final answer for a temporary fault, and asks again for what is not there",
        _UNTIL_TOLD,
        Side.CLIENT,
    ),
    (
        range(499, 500),
        "the client gives up before it is answered, and asks again",
        "raise the client's timeout above what the server needs, and back off between attempts",
        Side.CLIENT,
    ),
)
"""The words about loops on paths of any web server: statuses, cause, advice, side. Else :data:`WORDS`."""


def words(
    storm: StormClass,
    *,
    trigger: str | None = None,
    passed: bool = False,
    ends: bool = False,
    ignores_retry_after: bool = False,
    limit: str | None = None,
    grpc: str | None = None,
    status: int | None = None,
    paths: int = 1,
) -> Words:
    """The words for an incident whose root is of a class.

    Args:
        storm: the class. trigger: the event that set it off.
        passed: the head was beyond its last seq: the server had moved on.
        ends: the channel ended while the storm went on, or just after.
        ignores_retry_after: the clients came back sooner than they were told.
        limit: the name of the server's limit that refused them. grpc: the name of the status of gRPC.
        status: of a loop on a path of any web server. paths: on how many of them one client looped.
    """
    known = WORDS[storm]
    cause, advice, side = known.cause, known.advice, known.side
    if storm is StormClass.ZERO_BYTE_LOOP and passed:
        side = Side.CLIENT
        cause = "the client asks again for a segment that was empty; the head has moved past it"
        advice = "let the client ask for the next seq after an empty answer: empty segments are normal"
    elif storm in (StormClass.ZERO_BYTE_LOOP, StormClass.SAME_SEGMENT_LOOP) and ends:
        cause += "; the channel is ended only after that"
    elif storm in (StormClass.NOT_FOUND_LOOP, StormClass.NOT_FOUND_DRIP) and trigger == "channel_end":
        cause = "the client ignores that the channel has ended (404, Lp-Trickle-Closed)"
    elif storm is StormClass.NOT_FOUND_LOOP and trigger is None:
        cause = "the client asks for a channel that does not exist, and takes 404 for a temporary fault"
    elif storm is StormClass.WEB_LOOP:
        got = 499 if status is None else status
        _, cause, advice, side = next((one for one in WEB if got in one[0]), (range(0), cause, advice, side))
        if 400 <= got < 499 and paths >= SCANS:
            cause = f"one client asks for {paths:,} paths that it does not get: a scanner, or a wrong base URL"
            advice = "block it before the server, at the edge; if the client is yours, correct its URL"
    elif storm is StormClass.THUNDERING_HERD and trigger == "channel_end":
        cause = (
            "many clients act on one cue, the channel's end, and ask on together: they take it for a temporary fault"
        )
        advice = "stop at Lp-Trickle-Closed and at 404 after the stream has begun, or back off with jitter and a budget"
    if ignores_retry_after:
        cause += "; Retry-After is ignored"
    if grpc:
        cause += f" (gRPC status {grpc})"
        advice = (
            f"{GRPC_POLICY}; {advice}"
            if status is None or status in (429, 499) or status >= 500
            else f"take {grpc} out of retryableStatusCodes in the client's gRPC retry policy; {advice}"
        )
    if limit:
        cause += f"; the server's limit {limit!r} refused them, as it should"
    return Words(cause, advice, side, known.decided_by, known.instead)
