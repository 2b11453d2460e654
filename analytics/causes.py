"""Words for what was found: the likely cause of an episode, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tricklecast.analytics.classes import StormClass
from tricklecast.trickle.records import Event


@dataclass(frozen=True, slots=True)
class Cause:
    """Why it happened, most likely, and what helps."""

    cause: str
    advice: str


_CAUSES: Final[dict[StormClass, Cause]] = {
    StormClass.ZERO_BYTE_LOOP: Cause(
        "the server serves the same empty segment again: its head does not advance when a segment is closed empty",
        "fix the server: an empty close must advance the head; have the publisher DELETE the channel before it closes"
        " its preconnect; let the client ask for the next seq after an empty answer",
    ),
    StormClass.SAME_SEGMENT_LOOP: Cause(
        "the head went backwards, or the client does not advance after a segment",
        "check that the head never decreases within an epoch; have the client ask for Lp-Trickle-Seq + 1, not for -2",
    ),
    StormClass.ENDED_LOOP: Cause(
        "the client ignores Lp-Trickle-Closed: it was told that the channel has ended, and asks again",
        "stop at Lp-Trickle-Closed, on any status",
    ),
    StormClass.NOT_FOUND_LOOP: Cause(
        "the client takes 404 for a passing fault and retries without a pause",
        "stop at a 404, or back off with jitter and give up after a budget",
    ),
    StormClass.NOT_FOUND_DRIP: Cause(
        "the client keeps polling a channel that has ended",
        "stop at Lp-Trickle-Closed and at 404 after the stream has begun; follow the changefeed to learn of a new one",
    ),
    StormClass.SEQ_BEHIND_LOOP: Cause(
        "the client asks for a segment that has left the window, and ignores Lp-Trickle-Latest",
        "after a 470 go on from Lp-Trickle-Earliest or Lp-Trickle-Latest, never repeat the same request",
    ),
    StormClass.SEQ_AHEAD_SWEEP: Cause(
        "the client runs ahead of the publisher: it counts errors as segments, or keeps another epoch's position",
        "never increment on an error; wait at the head, where the server holds the request until the segment begins",
    ),
    StormClass.REPOST_LOOP: Cause(
        "the publisher sends the same segment again and again: it does not see, or does not accept, the answer",
        "send an Idempotency-Key and take a 409 for done; read early answers while the body is being sent",
    ),
    StormClass.OVERLOAD_CLIENT: Cause(
        "the client retries while it is refused, without backing off",
        "back off exponentially with full jitter, with Retry-After as the floor and a retry budget",
    ),
    StormClass.OVERLOAD_AMPLIFICATION: Cause(
        "many clients retry faster than they are told to; their retries keep the server overloaded",
        "back off with full jitter and a retry budget in every client; shed load early and cheaply until it has passed",
    ),
    StormClass.THUNDERING_HERD: Cause(
        "many clients act on one cue, and come again together: they reconnect without jitter",
        "full jitter on the first reconnect too; stagger restarts; spread Retry-After over a range",
    ),
    StormClass.SERVER_ERROR_LOOP: Cause(
        "the client repeats a request that makes the server fail",
        "look for the error in the server's log; have the client back off and give up after a budget",
    ),
    StormClass.REJECTED_LOOP: Cause(
        "the client repeats what is rejected each time: its token is missing, has expired (401) or does not allow it"
        " (403), or the request is malformed (400, 405)",
        "stop at a 4xx: fetch a new token before the old one expires, and ask once more with it",
    ),
    StormClass.ABANDONED_LOOP: Cause(
        "the client's read timeout is shorter than the wait for the next segment: it gives up before it is answered,"
        " and asks again at once",
        "raise the client's read timeout well above the duration of a segment, and back off between attempts; look why"
        " the publisher has stalled",
    ),
}


_EMPTY_AND_PASSED: Final = Cause(
    "the client asks again for a segment that was empty; the head has moved past it",
    "let the client ask for the next seq after an empty answer: empty segments are normal",
)


_END_OF_CHANNEL: Final = Cause(
    "many clients act on one cue, the channel's end, and ask on together: they take it for a passing fault",
    "stop at Lp-Trickle-Closed and at 404 after the stream has begun, or back off with jitter and a retry budget",
)


def likely_cause(
    storm: StormClass, trigger: str | None, *, passed: bool = False, retry_after: str | None = None
) -> Cause:
    """The words for an episode.

    Args:
        storm: its class.
        trigger: the event that it was joined to.
        passed: the head was beyond its last seq, so that the server had moved on.
        retry_after: ``"ignored"`` if the client came back sooner than it was told.
    """
    known = _CAUSES[storm]
    match storm, trigger:
        case StormClass.NOT_FOUND_LOOP, Event.CHANNEL_END:
            return Cause(f"{known.cause}; it ignores that the channel has ended (404, Lp-Trickle-Closed)", known.advice)
        case StormClass.THUNDERING_HERD, Event.CHANNEL_END:
            return _END_OF_CHANNEL
        case StormClass.ZERO_BYTE_LOOP, _ if passed:
            return _EMPTY_AND_PASSED
        case StormClass.ZERO_BYTE_LOOP | StormClass.SAME_SEGMENT_LOOP, Event.CHANNEL_END:
            return Cause(f"{known.cause}, and the channel is ended only after that", known.advice)
        case _ if retry_after == "ignored":
            return Cause(f"{known.cause}; Retry-After is ignored", known.advice)
    return known
