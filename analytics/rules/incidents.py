"""Incidents as values: what an SRE is told, and what every form of a report is made of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from tricklecast.analytics.rules import engine
from tricklecast.analytics.rules.classes import Side, StormClass, words
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.normalise import MAX_TS_US

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class Severity(StrEnum):
    """Severity by cost, in rising order. ``minor``: no impact can be measured."""

    MINOR = "minor"
    WARN = "warn"
    CRITICAL = "critical"


class Confidence(StrEnum):
    """How sure the class is. ``low``: the format lacks what decides; ``medium``: few requests, or no client's name."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Pace(StrEnum):
    """How a client paces its requests, in its own time (without what the storm guard held).

    ``hot loop``: it does not wait. ``fixed``: its pauses are much alike. ``backing off``: they have at least doubled.
    """

    HOT_LOOP = "hot loop"
    FIXED = "fixed"
    BACKING_OFF = "backing off"
    IRREGULAR = "irregular"


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of an incident in which the answers were of one kind.

    Attributes:
        storm: its class. n: requests. since_us, until_us: first and last arrival, microseconds since the epoch.
    """

    storm: StormClass
    n: int
    since_us: int
    until_us: int


@dataclass(frozen=True, slots=True)
class Impact:
    """The cost of an incident, and the clients that it harmed.

    Attributes:
        request_share, handler_share, byte_share: of all requests, handler time (without what the storm guard held) and
            body bytes on its nodes in its minutes, 0 to 1.
        bytes: body bytes. handler_us: handler time, microseconds. Like their shares, ``None`` where no line has any.
        others_refused: 429, 503 and 5xx to others on its nodes, beyond those of the minutes before.
        others_slowed: waits of others for segments that were there already, beyond those of the minutes before.
        measurable: whether any of it is above what can be told from chance.
    """

    request_share: float
    handler_share: float | None
    byte_share: float | None
    bytes: int | None
    handler_us: int | None
    others_refused: int
    others_slowed: int
    measurable: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """Where to find one of its lines: the server's name, the arrival, and the request's id where the format has one."""

    node: str
    ts_us: int
    request: str | None


@dataclass(frozen=True, slots=True)
class Incident:
    """One storm, with everything that belongs to it.

    Attributes:
        id: the same in every report and in the live watch, whichever part of the storm these see: it follows from the
            client and channel of the storm, or, of many clients, from its server. Of several storms of the same ones in
            a report the newest has it; those before it have ``-2``, ``-3`` behind it.
        fingerprint: the same for all storms of a class by a kind of client, on a kind of channel, of a release. Names
            are of a kind if they differ in numbers only.
        number: its key in the tables of the rules (:func:`analytics.rules.engine.explain`).
        storm: class of its root. instead: another class that it may be as well, where the format cannot tell.
        confidence, severity: see there.
        clients: their keys, the busiest first; named: whether they are clients' keys, not networks.
        release, ua: product and version if all have the same; a user agent.
        channels: names, or method, path and status where no route matched. seq_lo, seq_hi: range of the seqs.
        nodes: servers; none where the log does not say.
        n: requests. peak_rps: of all clients together, requests in one second. mean_rps: over its time.
        pace, pause_ms: how its busiest client paces itself, and the median of its pauses, milliseconds; none for a
            crowd, for fewer than six requests, and where times are whole seconds.
        since_us, until_us: first and last arrival, microseconds since the epoch.
        held_s: how long the storm guard held its requests, all together, seconds.
        trigger, trigger_us: the event before it that set it off, and when.
        ended_us: when the channel ended in its course, or just after.
        phases: what it consists of, in the order of time. impact: what it cost.
        passed: whether the server's head was beyond the last seq that was asked for. side: which side should change.
        cause, fix: in words. samples: where to find some of its lines.
        shared: whether several programs behind one key would look the same.
    """

    id: str
    fingerprint: str
    number: int
    storm: StormClass
    instead: StormClass | None
    confidence: Confidence
    severity: Severity
    clients: tuple[str, ...]
    named: bool
    release: str | None
    ua: str | None
    channels: tuple[str, ...]
    seq_lo: int | None
    seq_hi: int | None
    nodes: tuple[str, ...]
    n: int
    peak_rps: float
    mean_rps: float
    pace: Pace | None
    pause_ms: float | None
    since_us: int
    until_us: int
    held_s: float
    trigger: str | None
    trigger_us: int | None
    ended_us: int | None
    phases: tuple[Phase, ...]
    impact: Impact
    passed: bool
    side: Side
    cause: str
    fix: str
    samples: tuple[Sample, ...]
    shared: bool = False


def incidents(
    connection: DuckDBPyConnection, line: str = "line", *, params: Params | None = None, latest_us: int = MAX_TS_US
) -> list[Incident]:
    """Finds the incidents in a relation of lines, in the order of time.

    The connection then has the tables of every step, for figures and :func:`analytics.rules.engine.explain`.

    Args:
        connection: with the relation. line: its name; columns as :data:`analytics.scan.normalise.COLUMNS`, those that
            it lacks are null.
        params: thresholds.
        latest_us: lines that arrived later have a wrong clock and are only counted. Microseconds since the epoch.
    """
    embedded.roll_up(connection, line, latest_us=latest_us)
    embedded.reduce(connection)
    engine.run(connection, params)
    return found(connection)


def found(connection: DuckDBPyConnection) -> list[Incident]:
    """The incidents of a connection on which all steps have run."""
    answer = connection.execute("SELECT * FROM incidents ORDER BY first_us, incident")
    names = [column[0] for column in answer.description or ()]
    every = [_incident(dict(zip(names, row, strict=True))) for row in answer.fetchall()]
    times: Counter[str] = Counter()
    for place, one in sorted(enumerate(every), key=lambda each: (-each[1].until_us, -each[1].since_us, each[0])):
        times[one.id] += 1
        if times[one.id] > 1:
            every[place] = replace(one, id=f"{one.id}-{times[one.id]}")
    return every


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:12]


def _id(clients: Sequence[str], channels: Sequence[str], nodes: Sequence[str]) -> str:
    """Made of what stays while a storm grows, or a part of it is seen: no times, no class, no list of clients.

    Of several servers it is the first by name: a restart that is cut off no longer holds them together.
    """
    paths = {pathed(channel) for channel in channels}
    where = paths.pop() if len(paths) == 1 else ""
    return _digest(clients[0], where) if len(clients) == 1 else _digest("", where, nodes[0])


def without_place(name: str) -> str:
    """An id without what tells several storms of the same ones apart."""
    return name.partition("-")[0]


def pathed(channel: str) -> str:
    """A channel, or method and path without the status: this changes in the course of a storm."""
    return channel.rpartition(" ")[0] if " /" in channel else channel


_FAMILY: Final = re.compile(
    # An address, which may have a port or a checksum of the user agent behind it; a UUID; an id of letters and digits;
    # a number.
    r"^(?:[0-9]+(?:[.][0-9]+){3}|(?=[^:]*:[^:]*:)[0-9a-fA-F:.]+)(?=$|[:+#]).*"
    r"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|\b(?=[a-zA-Z]*[0-9])(?:[0-9a-fA-F]+|[0-9a-zA-Z]{16,})\b|[0-9]+"
)


def family(names: Sequence[str]) -> str:
    """The kind of most of some names, without their numbers: ``player-17`` and ``player-4`` are ``player-#``.

    The first 100 names are looked at; without a majority it is ``*``.
    """
    kinds = Counter(_FAMILY.sub("#", name) for name in names[:100])
    kind, n = max(kinds.items(), key=lambda each: (each[1], each[0]), default=("", 0))
    return kind if 2 * n > kinds.total() or not kinds else "*"


def _incident(row: Mapping[str, Any]) -> Incident:
    storm = StormClass(row["class"])
    reason = row["reason"] or ""
    told = words(
        storm,
        trigger=row["trigger"],
        passed=bool(row["passed"]),
        ends=row["ends_us"] is not None,
        ignores_retry_after=bool(row["ignores_retry_after"]),
        limit=reason.removeprefix("limit:") if reason.startswith("limit:") else None,
        grpc=reason.removeprefix("grpc:") if reason.startswith("grpc:") else None,
        status=row["status"],
        paths=len(row["channels"]) if len(row["clients"]) == 1 else 1,
    )
    undecided = not set(told.decided_by).isdisjoint((row["blind"] or "").split(","))
    cause, fix = told.cause, told.advice
    if undecided and told.instead is not None:
        other = words(told.instead, trigger=row["trigger"])
        cause = f"either {cause}; or {other.cause}. This log's format cannot tell"
        fix = f"{fix}; or: {other.advice}"
    impact = Impact(
        request_share=row["request_share"],
        handler_share=None if row["dur_us"] is None else row["handler_share"],
        byte_share=None if row["bytes"] is None else row["byte_share"],
        bytes=None if row["bytes"] is None else round(row["bytes"]),
        handler_us=None if row["dur_us"] is None else round(row["dur_us"]),
        others_refused=row["others_refused"],
        others_slowed=row["others_slowed"],
        measurable=row["severity"] != Severity.MINOR,
    )
    # One good answer is like the other.
    shared = not row["solo"] or (storm is StormClass.WEB_LOOP and (row["status"] or 499) < 300)
    sure = Confidence.HIGH if row["clear"] and row["named"] and not shared else Confidence.MEDIUM
    route = any(" /" in channel for channel in row["channels"])
    where = [pathed(channel) for channel in row["channels"]]
    return Incident(
        id=_id(row["clients"], row["channels"], row["nodes"]),
        fingerprint=_digest(storm, family(row["clients"]), family(where), row["release"] or ""),
        number=row["incident"],
        storm=storm,
        instead=told.instead if undecided else None,
        confidence=Confidence.LOW if undecided else sure,
        severity=Severity(row["severity"]),
        clients=tuple(row["clients"]),
        named=row["named"],
        release=row["release"],
        ua=row["ua"],
        channels=tuple(row["channels"]),
        # On a path of any web server the "seq" is that of its query.
        seq_lo=None if route else row["seq_lo"],
        seq_hi=None if route else row["seq_hi"],
        nodes=tuple(node for node in row["nodes"] if node),
        n=row["n"],
        peak_rps=row["peak_rps"],
        mean_rps=row["mean_rps"],
        pace=Pace(row["pace"]) if row["pace"] else None,
        pause_ms=None if row["pause_us"] is None else round(row["pause_us"] / 1000, 1),
        since_us=row["first_us"],
        until_us=row["last_us"],
        held_s=(row["guard_ms"] or 0) / 1000,
        trigger=row["trigger"],
        trigger_us=row["trigger_us"],
        ended_us=row["ends_us"],
        phases=tuple(
            Phase(StormClass(one["class"]), one["n"], one["first_us"], one["last_us"]) for one in row["phases"]
        ),
        impact=impact,
        passed=bool(row["passed"]),
        side=Side.EITHER if undecided and told.instead is not None else told.side,
        cause=cause,
        fix=fix,
        samples=tuple(Sample(one["node"], one["ts_us"], one["request"]) for one in row["samples"]),
        shared=shared,
    )
