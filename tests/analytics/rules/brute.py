"""An oracle in plain Python over raw lines: slow, and so simple that it is obviously right.

It knows the definition in the documentation (8 hits at 8 per second, or 30 at any pace, pauses of at most 5 s) and none
of the way the rules take: no buckets, no bits, no windows. Where the rules look at more, near a threshold or at
look-alikes, it says nothing: it tells *clear* storms, which have to be found, and *clear* silence, in which nothing may
be found; and it counts what an incident says it counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tricklecast.analytics.rules.incidents import Incident

Line = dict[str, Any]

GAP_US: Final = 5_000_000
FAST: Final = 8
SLOW: Final = 30
MARGIN: Final = 1.5
"""How far beyond a threshold is clear."""

FAILED: Final = {400: "rejected", 401: "rejected", 403: "rejected", 405: "rejected"} | {
    404: "not_found",
    470: "seq_missing",
    429: "overload",
    503: "overload",
}
FAILURES: Final = {*FAILED.values(), "server_error"}
CLASSES: Final = {
    "rejected": {"rejected_loop"},
    "not_found": {"not_found_loop", "not_found_drip"},
    "seq_missing": {"seq_behind_loop", "seq_ahead_sweep"},
    "overload": {"overload_client", "overload_amplification", "thundering_herd"},
    "server_error": {"server_error_loop"},
    "ended": {"ended_loop"},
    "empty": {"zero_byte_loop"},
    "served": {"same_segment_loop"},
}


@dataclass(frozen=True, slots=True)
class Run:
    """What one client got of one kind on one channel and server, without a pause of more than 5 s.

    Attributes:
        kind: of answer. hits: lines that count. rate: hits in the fullest second. lines: all of them.
    """

    client: str
    channel: str
    node: str
    kind: str
    hits: int
    rate: int
    lines: tuple[Line, ...]

    @property
    def since_us(self) -> int:
        """Its first arrival."""
        return int(self.lines[0]["ts_us"])

    @property
    def until_us(self) -> int:
        """Its last arrival."""
        return int(self.lines[-1]["ts_us"])

    @property
    def length_s(self) -> float:
        """Seconds from the first to the last."""
        return (self.until_us - self.since_us) / 1e6


def kind_of(line: Line) -> str | None:
    """The kind of answer; ``None`` for what is no failure and no repeat, or is given up or published."""
    status, op = line.get("status"), line.get("op")
    if line.get("kind") != "exchange" or line.get("client") is None:
        return None
    if (status is not None and status >= 500) or status == 429:
        return FAILED.get(status, "server_error")
    if line.get("channel") is None or op == "api":
        return None
    if op == "read" and line.get("method") == "GET" and status == 200:
        if line.get("reason") in ("client_gone", "evicted") and not line.get("bytes_out"):
            return None
        return "served" if line.get("bytes_out") else "ended" if line.get("eos") else "empty"
    return FAILED.get(status) if status is not None else None


def runs(lines: Iterable[Line]) -> list[Run]:
    """All runs of a log."""
    sequences: defaultdict[tuple[str, str, str, str], list[Line]] = defaultdict(list)
    for line in lines:
        if kind := kind_of(line):
            sequences[line["client"], line.get("channel") or "", line.get("node") or "", kind].append(line)
    found = []
    for (client, channel, node, kind), mine in sequences.items():
        mine.sort(key=lambda line: int(line["ts_us"]))
        start = 0
        for place in range(1, len(mine) + 1):
            if place == len(mine) or mine[place]["ts_us"] - mine[place - 1]["ts_us"] > GAP_US:
                part = tuple(mine[start:place])
                counted = _counted(part) if kind in ("served", "empty") else [int(line["ts_us"]) for line in part]
                found.append(Run(client, channel, node, kind, len(counted), _fullest(counted), part))
                start = place
    return found


def _counted(part: tuple[Line, ...]) -> list[int]:
    """Arrivals that ask again for what the same connection has got already, and that of the first such segment."""
    got: set[tuple[Any, Any]] = set()
    again: list[int] = []
    for line in part:
        what = (line.get("conn"), line.get("rseq"))
        if what in got:
            again.append(int(line["ts_us"]))
        got.add(what)
    return [int(part[0]["ts_us"]), *again] if again else []


def _fullest(arrivals: list[int]) -> int:
    """The largest number of arrivals within one second."""
    arrivals = sorted(arrivals)
    first, most = 0, 0
    for last, at in enumerate(arrivals):
        while at - arrivals[first] >= 1_000_000:
            first += 1
        most = max(most, last - first + 1)
    return most


def clear_storms(found: Iterable[Run]) -> list[Run]:
    """Runs that are storms by a margin, and by no rule a look-alike: one connection, no waiting, no politeness."""
    return [run for run in found if _is_clear(run)]


def _is_clear(run: Run) -> bool:
    told = max((line.get("retry_after_ms") or 0) for line in run.lines)
    polite = run.kind == "overload" and run.length_s * 1000 / max(1, len(run.lines) - 1) > 0.25 * max(told, 400)
    held = any(line.get("guard_ms") for line in run.lines)
    conns = len({line.get("conn") for line in run.lines})
    if polite or held or len(run.lines) < 4 * conns:
        return False
    if run.kind in ("served", "empty"):
        # Few segments, each many times: no monitor, and no player that seeks.
        seqs = len({line.get("rseq") for line in run.lines})
        return run.hits >= MARGIN * max(SLOW, 15 * seqs * conns) and run.hits >= 2 * run.length_s
    steady = run.hits >= 3 * max(1.0, run.length_s)
    if run.kind in ("not_found", "seq_missing", "overload"):
        return run.hits >= MARGIN * SLOW and steady
    return run.hits >= MARGIN * SLOW or (run.hits >= MARGIN * FAST and run.rate >= MARGIN * FAST)


def covers(incident: Incident, run: Run) -> bool:
    """Whether an incident tells of a run. Who gets several kinds of failure in turn is told by the commonest."""
    kinds = FAILURES if run.kind in FAILURES else {run.kind}
    return (
        run.client in incident.clients
        and run.channel in incident.channels
        and any(phase.storm in CLASSES[kind] for kind in kinds for phase in incident.phases)
        and incident.since_us <= run.until_us
        and run.since_us <= incident.until_us
    )


def could_be(incident: Incident, found: Iterable[Run]) -> bool:
    """Whether some of the lines of an incident could be a storm at all: enough of them."""
    mine: Counter[str] = Counter()
    for run in found:
        if run.client in incident.clients and run.channel in incident.channels:
            inside = [line for line in run.lines if incident.since_us <= line["ts_us"] <= incident.until_us]
            mine[run.client] += len(inside)
    return max(mine.values(), default=0) >= FAST or (len(mine) > 5 and mine.total() >= SLOW)


def count(incident: Incident, lines: Iterable[Line]) -> tuple[int, float] | None:
    """Requests of an incident, and the most in one second of the clock; of a short burst their mean, if that is more.

    ``None`` where it takes rules to say which lines those are: several clients, channels or kinds of answer.
    """
    if len(incident.clients) > 1 or len(incident.channels) > 1 or len(incident.phases) > 1:
        return None
    seconds: Counter[int] = Counter()
    kinds = set()
    for line in lines:
        kind = kind_of(line)
        if (
            (kind in FAILURES or kind == "ended")
            and (line["client"],) == incident.clients
            and (line.get("channel"),) == incident.channels
            and incident.since_us <= line["ts_us"] <= incident.until_us
        ):
            kinds.add(kind)
            seconds[line["ts_us"] // 1_000_000] += 1
    if len(kinds) != 1:
        return None
    length_s = (incident.until_us - incident.since_us) / 1e6
    short = [seconds.total() / max(1.0, length_s)] if length_s < 2 else []
    return seconds.total(), max(*seconds.values(), *short, 0.0)
