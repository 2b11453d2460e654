"""A log as it would be with the storm guard on: by the server's own rule, of clients that keep their own pauses."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tricklecast.analytics.simulate.truth import Storm, Truth
from tricklecast.app.core.storm_guard import Answer, StormGuard
from tricklecast.trickle.wire import Status

Line = dict[str, Any]
Account = tuple[object, object, object]

_NAMELESS = re.compile("[0-9a-f]{16}")
"""The key of clients that sent no name: many may share their address and user agent."""

AT_ONCE_US = 50_000
"""Who waits longer for a segment reads one that is still being written."""


@dataclass
class Guarded:
    """A log, and what became of each request.

    Attributes:
        lines: in the order in which they were written.
        moved: of each client and channel, when its requests came without the guard, and with it. Microseconds.
    """

    lines: list[str]
    moved: dict[tuple[object, object], list[tuple[int, int]]] = field(default_factory=dict)

    def truth(self, truth: Truth) -> Truth:
        """What is true of the guarded log."""
        return replace(truth, storms=tuple(self._moved(storm) for storm in truth.storms))

    def _moved(self, storm: Storm) -> Storm:
        found = [
            new
            for client in storm.clients
            for channel in storm.channels
            for old, new in self.moved.get((client, channel), ())
            if storm.start_us <= old <= storm.end_us
        ]
        return replace(storm, start_us=min(found), end_us=max(found)) if found else storm


def guarded(lines: Iterable[str], *, crowds: bool = False) -> Guarded:
    """What the guard makes of a log of JSON lines; those that it does not hear of stay as they are.

    Args:
        crowds: each request is another client's, so that none comes later since one before it was held.
    """
    records: list[Line] = [json.loads(line) for line in lines]
    told: defaultdict[Account, list[tuple[Line, Answer]]] = defaultdict(list)
    served: defaultdict[Account, list[int]] = defaultdict(list)
    read: dict[object, tuple[object, int]] = {}
    stored: set[object] = set()
    for line in sorted(records, key=lambda line: line["ts_us"]):
        if line.get("channel") is None or line.get("status") is None:
            continue
        account = (line.get("client") or line.get("ip"), line["channel"], line.get("op"))
        answer = _answer(line, stored)
        if answer is Answer.SAME:
            answer = _again(line, read)
            if answer is None:
                served[account].append(line["ts_us"])
        if answer is not None:
            told[account].append((line, answer))
    result = Guarded([])
    for account, asked in told.items():
        result.moved[account[:2]] = result.moved.get(account[:2], []) + _hold(asked, served[account], crowds)
    result.lines = [json.dumps(line, separators=(",", ":")) for line in sorted(records, key=_written)]
    return result


def _hold(asked: list[tuple[Line, Answer]], served: list[int], crowd: bool) -> list[tuple[int, int]]:
    """One account's requests: each comes later by all holds before it, unless they are a crowd's."""
    guard, late_us, moved = StormGuard(), 0, []
    served.reverse()
    for line, answer in asked:
        before, now = line["ts_us"], line["ts_us"] + late_us
        while served and served[-1] <= now:
            served.pop()
            guard.progress(0, "")
        many = line.get("op") in ("read", "next") and _NAMELESS.fullmatch(line.get("client") or "") is not None
        hold_us = round(1e6 * guard.hold(0, "", answer, _seq(line), now / 1e6, many=many))
        line["ts_us"] = now
        if hold_us:
            line["guard_ms"] = hold_us // 1000
        late_us += 0 if crowd else hold_us
        moved.append((before, now))
    return moved


def _answer(line: Line, stored: set[object]) -> Answer | None:
    """What a client is told in vain, or may have had before; ``None`` for anything else."""
    status = line["status"]
    if status == Status.NOT_FOUND:
        return Answer.MISSING
    if status == Status.SEQ_MISSING:
        return Answer.AHEAD if _seq(line) >= (line.get("next_seq") or 0) else Answer.GONE
    if status == Status.CONFLICT:
        return Answer.CLOSED
    if status >= Status.BAD_REQUEST:
        return Answer.REFUSED
    if line.get("op") == "publish":
        segment = (line["channel"], line.get("epoch"), _seq(line))
        again = segment in stored
        stored.add(segment)
        return Answer.CLOSED if again else None
    if line.get("op") != "read" or line.get("bytes_out"):
        return Answer.SAME if line.get("op") == "read" else None
    return Answer.ENDED if line.get("eos") else Answer.EMPTY


def _again(line: Line, read: dict[object, tuple[object, int]]) -> Answer | None:
    """What the guard hears of a segment that was served; ``None`` for a reader that goes on."""
    if (line.get("wait_us") or 0) > AT_ONCE_US:
        return None
    connection, place, seq = (line.get("node"), line.get("conn")), (line["channel"], line.get("epoch")), _seq(line)
    last = read.get(connection)
    if last is None or last[0] != place or last[1] >= seq:
        read[connection] = (place, seq)
        return Answer.SAME
    read[connection] = (place, seq)
    return None


def _seq(line: Line) -> int:
    rseq = line.get("rseq")
    return int(rseq if rseq is not None else line.get("seq") or 0)


def _written(line: Line) -> int:
    return int(line["ts_us"] + (line.get("dur_us") or 0) + 1000 * (line.get("guard_ms") or 0))
