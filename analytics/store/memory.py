"""The incidents that earlier reports told, and those that are muted, in a table's folder or a watch's state.

    incidents/*.parquet   a row for each incident and run in which something of it was new; nothing is ever changed
    mutes/*.json          a fingerprint, and until when it is muted; the newest counts

Incidents are of one *kind* if they have the same class, and clients and channels of the same families: a fingerprint
without the release, so that one can be told that was over before a release and is back with it. What several runs saw
of one storm overlaps in time, so an occurrence is a stretch of time.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.report.formats import date_and_time
from tricklecast.analytics.report.model import History
from tricklecast.analytics.report.words import history
from tricklecast.analytics.rules.incidents import Incident, family, pathed

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

    from tricklecast.analytics.store.place import Place

KEPT_S: Final = 400 * 86_400
"""How long an incident is remembered after it was told last."""

MAX_ROWS: Final = 100_000
"""Rows that are remembered, the newest ones."""

MAX_FILES: Final = 100
"""Files of rows from which on they are made one, where files can be removed."""

MAX_NAMES: Final = 100
"""Clients and channels that are written of one incident."""

APART_US: Final = 3_600_000_000
"""An incident that begins this long after the end of the former one is another occurrence."""


@dataclass(frozen=True, slots=True)
class Mute:
    """A fingerprint that is muted until a time, microseconds since the epoch; when that was said.

    In a watch's state it is the id of an incident that the watch did not know then. id: the one by which it was muted.
    """

    fingerprint: str
    until_us: int
    at_us: int
    id: str = ""


class Memory:
    """The memory of one place."""

    def __init__(self, place: Place) -> None:
        """Args: place: where it is; nothing has to be there."""
        self.place = place
        # What is remembered, the oldest first, each once; and how many files are damaged.
        self.rows, self.damaged = self._read()

    def _read(self) -> tuple[list[dict[str, Any]], int]:
        first = datetime.fromtimestamp(time.time() - KEPT_S, UTC)
        tables, damaged = self.place.tables("incidents")
        found = [row for table in tables for row in table.to_pylist() if row["found"] >= first]
        unique = {_same(row): row for row in sorted(found, key=lambda row: (row["found"], row["until"]))}
        return list(unique.values())[-MAX_ROWS:], damaged

    def history(self, every: Sequence[Incident]) -> dict[str, History]:
        """The known incidents by id."""
        seen: dict[str, list[tuple[int, int, str | None]]] = {}
        for row in self.rows:
            times = (_us(row["since"]), _us(row["until"]))
            seen.setdefault(row["kind"], []).append((*times, row["release"]))
        for one in every:
            seen.setdefault(kind_of(one), []).append((one.since_us, one.until_us, one.release))
        return {one.id: _history(one, seen[kind_of(one)]) for one in every}

    def remember(self, every: Sequence[Incident], now_us: int) -> None:
        """Adds what is new of some incidents.

        Raises:
            CannotWrite: the place cannot be written to.
        """
        with self.place.locked("memory"):
            self.rows, _ = self._read()
            known = {_same(row) for row in self.rows}
            table = table_of(every, now_us)
            new = [row for row in table.to_pylist() if _same(row) not in known]
            if new:
                self.rows = [*self.rows, *new][-MAX_ROWS:]
                rows, together = (table.from_pylist(some, table.schema) for some in (new, self.rows))
                self.place.add("incidents", rows, MAX_FILES, together)

    def muted(self, every: Iterable[Incident], now_us: int) -> dict[str, str]:
        """Why incidents are muted, by id."""
        until = mutes(self.place, now_us)
        return {
            one.id: f"muted until {date_and_time(until[one.fingerprint])} UTC"
            for one in every
            if one.fingerprint in until
        }

    def mute(self, name: str, until_us: int, now_us: int, known: Mapping[str, str] | None = None) -> str:
        """Mutes a fingerprint, or no longer if the time is over; returns it.

        Args:
            name: the fingerprint or an incident's id, or the beginning of one.
            known: of a watch's state: the fingerprints of its incidents by their ids. There, others may be muted
                before they come.

        Raises:
            BadInput: there is no such incident, or several. CannotWrite: the place cannot be written to.
        """
        said = _read(self.place)
        ids = [(one.id, one.fingerprint) for _, one in said if one.until_us > 0]
        ids += [(row["id"], row["fingerprint"]) for row in self.rows] + list((known or {}).items())
        of_id = dict(ids)
        # What was muted by its id before it came has a fingerprint by now.
        found = {of_id.get(one, one) for id, one in ids if one.startswith(name) or id.startswith(name)}
        if not found and known is not None and until_us > now_us and re.fullmatch(r"[0-9a-f]{12}(-\d+)?", name):
            found = {name}
        if len(found) != 1:
            where = f"{name!r} in {str(self.place.root)!r}"
            if found:
                raise BadInput(f"{len(found):,} kinds of incidents begin with {where}: pass more of it")
            raise BadInput(f"there is no incident {where}: a report on it, or an alert, has the fingerprint")
        (fingerprint,) = found
        names = {fingerprint, *(id for id, one in ids if one == fingerprint)}
        former = [file for file, one in said if one.fingerprint in names or one.until_us <= now_us]
        by_id = next((id for id, _ in reversed(ids) if id.startswith(name)), "")
        body = msgspec.json.encode(Mute(fingerprint, until_us, now_us, by_id)).decode()
        self.place.put("mutes", uuid.uuid4().hex, body)
        self.place.remove("mutes", former)
        return fingerprint


def mutes(place: Place, now_us: int = 0) -> dict[str, int]:
    """Until when each fingerprint is muted that is so at a time, microseconds since the epoch."""
    found = {one.fingerprint: one.until_us for _, one in sorted(_read(place), key=lambda each: each[1].at_us)}
    return {fingerprint: until_us for fingerprint, until_us in found.items() if until_us > now_us}


def _read(place: Place) -> list[tuple[str, Mute]]:
    found = []
    for name, text in place.texts("mutes").items():
        with suppress(msgspec.MsgspecError):
            found.append((name, msgspec.json.decode(text, type=Mute)))
    return found


def kind_of(one: Incident) -> str:
    """The kind of an incident."""
    return f"{one.storm} by {family(one.clients)} on {family([pathed(channel) for channel in one.channels])}"


def table_of(every: Sequence[Incident], found_us: int | None = None) -> pa.Table:
    """Incidents as rows.

    Args: found_us: when they were found, microseconds since the epoch: with it, they are rows to be remembered.
    """
    import pyarrow as pa

    moment, texts = pa.timestamp("us", tz="UTC"), pa.list_(pa.string())
    most = None if found_us is None else MAX_NAMES
    columns = {
        "id": (pa.string(), [one.id for one in every]),
        "fingerprint": (pa.string(), [one.fingerprint for one in every]),
        "storm": (pa.string(), [str(one.storm) for one in every]),
        "severity": (pa.string(), [str(one.severity) for one in every]),
        "confidence": (pa.string(), [str(one.confidence) for one in every]),
        "side": (pa.string(), [str(one.side) for one in every]),
        "since": (moment, [one.since_us for one in every]),
        "until": (moment, [one.until_us for one in every]),
        "requests": (pa.int64(), [one.n for one in every]),
        "peak_rps": (pa.float64(), [one.peak_rps for one in every]),
        "mean_rps": (pa.float64(), [one.mean_rps for one in every]),
        "clients": (texts, [list(one.clients[:most]) for one in every]),
        "channels": (texts, [list(one.channels[:most]) for one in every]),
        "nodes": (texts, [list(one.nodes) for one in every]),
        "release": (pa.string(), [one.release for one in every]),
        "trigger": (pa.string(), [one.trigger for one in every]),
        "cause": (pa.string(), [one.cause for one in every]),
        "fix": (pa.string(), [one.fix for one in every]),
    }
    if found_us is not None:
        columns["kind"] = (pa.string(), [kind_of(one) for one in every])
        columns["found"] = (moment, [found_us] * len(every))
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})


def _history(one: Incident, seen: Iterable[tuple[int, int, str | None]]) -> History:
    """Of the times and releases of all incidents of its kind, its own too."""
    # By time alone: releases, of which some are unknown, have no order.
    earlier = sorted((each for each in seen if each[0] <= one.until_us), key=lambda each: each[:2])
    times, reached, others = 0, -APART_US, set[str | None]()
    for since, until, release in earlier:
        times += since >= reached + APART_US
        reached = max(reached, until)
        if until + APART_US <= one.since_us:
            others.add(release)
    if times == 1:
        return history("new", earlier[0][0], 1)
    # None of the earlier ones was of its release: that they were over before it is all that is known.
    if one.release is not None and others and one.release not in others and others != {None}:
        return history("regressed", earlier[0][0], times, one.release)
    return history("again", earlier[0][0], times)


def _same(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("id", "fingerprint", "severity", "since", "until", "requests"))


def _us(moment: datetime) -> int:
    return round(moment.timestamp() * 1e6)
