"""Lines of a simulated log: every answer that a server gives, as a line that knows when it is written."""

from __future__ import annotations

from typing import Any, Final

from tricklecast.analytics.simulate.clients import Client
from tricklecast.trickle.records import AccessRecord, Event, Kind, Op, Reason

Line = dict[str, Any]
"""One line of a log as its JSON object."""

TimedLine = tuple[int, Line]
"""When a line is written (its request's end, microseconds) and the line."""

SECOND_US: Final = 1_000_000


def micros(seconds: float) -> int:
    """Seconds as microseconds."""
    return round(seconds * SECOND_US)


def when(entry: TimedLine) -> int:
    """When an entry is written: the key to sort by (lines themselves have no order)."""
    return entry[0]


POST: Final[dict[str, Any]] = {"op": Op.PUBLISH, "method": "POST"}
"""The fields of a request that publishes."""

ANSWERS: Final[dict[str, dict[str, Any]]] = {
    # Answered with a segment, or while one is awaited.
    "served": {"status": 200, "reason": Reason.COMPLETE, "bytes_out": 120_000, "head": 1},
    "empty": {"status": 200, "reason": Reason.EMPTY, "head": 1},
    "ended": {"status": 200, "reason": Reason.TERMINATED, "eos": True, "head": 0},
    "abandoned": {"reason": Reason.CLIENT_GONE, "wait_us": None, "head": 0},
    # Answered with a no.
    "not_found": {"status": 404, "reason": Reason.NOT_FOUND, "bytes_out": 16, "epoch": None, "seq": -1},
    "missing": {"status": 470, "bytes_out": 15, "retry_after_ms": 1000},
    "refused": {"status": 503, "bytes_out": 21, "seq": -1},
    "failed": {"status": 500, "reason": Reason.ERROR, "bytes_out": 22, "seq": 3},
    "rejected": {"status": 401, "reason": Reason.EXPIRED, "bytes_out": 14, "epoch": None, "seq": -1},
    # Published.
    "posted": {"status": 200, "reason": Reason.COMPLETE, "bytes_in": 80_000, "head": 1, **POST},
    "conflict": {"status": 409, "reason": Reason.CONFLICT, "bytes_out": 17, **POST},
    "created": {"status": 200, "reason": Reason.COMPLETE, "op": Op.CREATE, "method": "POST"},
    "deleted": {"status": 200, "reason": Reason.COMPLETE, "op": Op.DELETE, "method": "DELETE"},
    "changes": {"status": 200, "reason": Reason.COMPLETE, "op": Op.CHANGES, "bytes_out": 60, "head": 1},
    # Anything else: the fields say what.
    "other": {"status": 200, "reason": Reason.COMPLETE},
}
"""The fields of each answer. With ``head``, the seq was resolved, and the channel's head is so far above it."""


def entry(
    client: Client,
    ts_us: int,
    answer: str,
    *,
    channel: str | None,
    seq: int | None = None,
    asked: int | None = None,
    **fields: Any,
) -> TimedLine:
    """One request with its answer: a GET that is answered at once unless the answer or the fields say otherwise.

    Args:
        ts_us: its arrival, microseconds.
        answer: one of :data:`ANSWERS`.
        seq: as resolved, or as requested where it is not; without one that of the answer.
        asked: as requested, if that was not the same: -1, -2.
        fields: of :class:`~trickle.records.AccessRecord`.
    """
    usual = dict(ANSWERS[answer])
    head, usual_seq = usual.pop("head", None), usual.pop("seq", None)
    seq = usual_seq if seq is None else seq
    requested = seq if asked is None else asked
    known: dict[str, Any] = {
        "op": Op.READ,
        "method": "GET",
        "path": f"/trickle/{channel}" if requested is None else f"/trickle/{channel}/{requested}",
        "channel": channel,
        "epoch": 1,
        "seq": requested,
        "bytes_out": 0,
        "wait_us": 180,
        "dur_us": 190,
        "client": client.key,
        "ip": client.ip,
        "conn": client.conn(),
        "ua": client.ua,
        "release": client.release,
        # A reader that was served has nothing to try again.
        "attempt": client.attempt if usual.get("status") != 200 or answer == "posted" else 1,
    }
    if head is not None and seq is not None:
        known |= {"rseq": seq, "next_seq": seq + head}
    if answer == "missing" and seq is not None:
        known["reason"] = Reason.AHEAD if seq >= fields["next_seq"] else Reason.GONE
    if answer == "refused":
        known["reason"] = Reason.limit("per_ip" if fields.get("status") == 429 else "readers")
    record = AccessRecord(ts_us, **(known | usual | fields))
    return ts_us + (record.dur_us or 0), record.as_dict()


def event(ts_us: int, event: Event, node: str, channel: str | None = None, **fields: Any) -> TimedLine:
    """Something that happens to a channel or a server; the time is in microseconds."""
    record = AccessRecord(ts_us, kind=Kind.EVENT, event=event, node=node, channel=channel, **fields)
    return ts_us, record.as_dict()
