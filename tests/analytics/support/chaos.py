"""Made-up traffic without a plan: whatever a line can say, at any rate, with any gaps, from a few clients."""

from __future__ import annotations

import random
from typing import Any

from tests.analytics.support.writer import LogWriter
from tricklecast.trickle.records import Event, Op, Reason

_STATUSES = (200, 404, 470, 503, 429, 500, 502, 409, 206)
_PACES = (0.004, 0.02, 0.1, 0.11, 0.125, 0.3, 0.9, 1.1, 4.9, 5.1, 29.0, 31.0)
_EVENTS = (
    Event.CHANNEL_END,
    Event.CHANNEL_CREATE,
    Event.SERVER_START,
    Event.SERVER_READY,
    Event.DRAIN,
    Event.CONFIG,
    Event.LOG_DROPPED,
)


def write_chaos(seed: int, servers: int) -> list[str]:
    """The lines of so many servers, in no order."""
    rng = random.Random(seed)
    lines: list[str] = []
    for number in range(servers):
        lines += _server(f"server-{number}", random.Random(f"{seed} {number}"))
    rng.shuffle(lines)
    return lines


def _server(name: str, rng: random.Random) -> list[str]:
    log = LogWriter(name, rng)
    crowd = rng.choice((1, 1, 2, 6, 20, 45))
    channels = [f"{name}-film-{number}" for number in range(rng.choice((1, 1, 2, 5)))]
    for event in range(rng.randrange(5)):
        of_channel = event % 2 == 0
        kind = rng.choice(_EVENTS[:2] if of_channel else _EVENTS[2:])
        log.event(round(rng.uniform(-30, 90), 6), kind, rng.choice(channels) if of_channel else None)
    cue = rng.uniform(0, 20) if rng.random() < 0.4 else None
    for client in range(crowd):
        for _ in range(rng.choice((1, 1, 2, 4))):
            _burst(log, f"{name}-client-{client}", rng.choice(channels), rng, cue)
    return log.lines()


def _burst(log: LogWriter, client: str, channel: str, rng: random.Random, cue: float | None) -> None:
    """Some requests of one client at one pace, with one kind of answer or a few in turn."""
    at = rng.uniform(0, 60) if cue is None else cue + rng.uniform(0, 0.9)
    pace, growth = rng.choice(_PACES), rng.choice((1.0, 1.0, 1.0, 1.6))
    answers = [_answer(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    named, rotating = rng.random() > 0.1, rng.random() < 0.06
    same_conn, releases = rng.random() < 0.7, rng.choice((["a/1"], ["a/1", "b/2"], [None]))
    seq, step, head = rng.randrange(200), rng.choice((0, 0, 1, 1, 3, -1)), rng.randrange(200)
    told = rng.choice((None, None, 100, 1000, 5000))
    for turn in range(rng.choice((1, 3, 5, 7, 8, 9, 10, 12, 29, 30, 31, 49, 50, 51, 120))):
        asked = max(0, seq + step * turn) if rng.random() > 0.05 else rng.randrange(400)
        fields: dict[str, Any] = answers[turn % len(answers)] | {
            "seq": asked,
            "rseq": asked if rng.random() < 0.8 else None,
            "next_seq": head if rng.random() < 0.9 else None,
            "conn": (hash_of(client) if same_conn else rng.randrange(5000)) if rng.random() < 0.97 else None,
            "release": rng.choice(releases),
            "ip": f"10.{rng.randrange(2)}.3.{rng.randrange(9)}" if rng.random() < 0.9 else "2001:db8::7",
            "retry_after_ms": told,
            "attempt": rng.choice((1, 1, 2)),
        }
        who = f"{client}-{turn}" if rotating else client
        log.exchange(round(at, 6), who if named else None, channel, **fields)
        at += pace * rng.uniform(0.8, 1.2)
        pace = min(pace * growth, 40)


def _answer(rng: random.Random) -> dict[str, Any]:
    status = rng.choice(_STATUSES)
    post = status == 409 or rng.random() < 0.15
    return {
        "status": status,
        "op": Op.PUBLISH if post else rng.choice((Op.READ, Op.READ, Op.READ, Op.READ, Op.NEXT, Op.API)),
        "method": "POST" if post else "GET",
        "bytes_out": rng.choice((0, 8192)) if status == 200 else 0,
        "eos": rng.random() < 0.3,
        "reason": rng.choice((Reason.COMPLETE, Reason.COMPLETE, Reason.COMPLETE, Reason.CLIENT_GONE, Reason.EVICTED)),
    }


def hash_of(text: str) -> int:
    """A number that is always the same for a text."""
    return sum(map(ord, text)) * 7919 % 5000
