"""Compares a report's incidents with the truth: what was found, made up, told twice, and called right.

An incident *belongs* to a planted storm if both were at the same time (with a second's slack), on a server, a channel
and a client in common; names that are not known cannot differ.

- A storm is *found* if the incidents that belong to it tell half of its time, or half of its requests.
- It is *told twice* if two incidents each tell a fifth of it.
- An incident that belongs to no storm is a *false alarm*; it names the look-alike that it took for one.
- An incident is *mixed* if it tells of storms that have no client and channel in common, none of them a fleet's.
- Its *root* is right if it has the class of the first storm that it tells of, or says that it may be that one as well.

An incident tells of the storms of which it tells a fifth; if there are none, of all to which it belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.rules.classes import StormClass
from tricklecast.analytics.simulate.lines import micros
from tricklecast.analytics.simulate.truth import Planted, Set, Truth, log_name
from tricklecast.trickle.records import Event

SLACK_US: Final = micros(1)
FOUND: Final = 0.5
TOLD: Final = 0.2
COUNTED: Final = 0.1

FLEETS: Final = frozenset({StormClass.OVERLOAD_AMPLIFICATION, StormClass.THUNDERING_HERD})
RESTART: Final = frozenset(
    {Event.DRAIN, Event.SERVER_STOP, Event.SERVER_START, Event.SERVER_READY, Event.WORKER_RESTART}
)
"""Events of one restart: which of them is named does not matter."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a report has to reach, as shares from 0 to 1."""

    recall: float
    precision: float
    root: float


LIMITS: Final = {
    Set.STANDARD: Limits(0.99, 0.99, 0.97),
    Set.GREY: Limits(0.95, 0.95, 0.95),
    Set.HEALTHY: Limits(1.0, 1.0, 1.0),
}


class Told(msgspec.Struct, frozen=True):
    """One of ``incidents`` in report.json, as far as it is judged; see ``ReportedIncident`` of the report's model.

    An :class:`~analytics.rules.incidents.Incident` has all names, and so no numbers of them.
    """

    storm: str
    instead: str | None
    since_us: int
    until_us: int
    n: int
    clients: tuple[str, ...]
    named: bool
    channels: tuple[str, ...]
    nodes: tuple[str, ...]
    trigger: str | None
    ended_us: int | None
    n_clients: int = 0
    n_channels: int = 0

    def __str__(self) -> str:
        clients = max(self.n_clients, len(self.clients))
        return _shown(self.storm, self.n, clients, self.since_us, self.until_us, ", ".join(self.nodes), self.trigger)


class _Report(msgspec.Struct):
    incidents: tuple[Told, ...]


class Fault(StrEnum):
    """What may be wrong: with a storm the first two, with an incident the others."""

    MISSED = "missed"
    TWICE = "told twice"
    ALARM = "false alarm"
    MIXED = "mixed"
    CLASS = "wrong class"
    TRIGGER = "wrong trigger"
    COUNT = "wrong count"
    """Its requests are not those of its storms, by 10 %."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is true of a planted storm, or of an incident.

    Attributes:
        storms: the storm, or those of which the incident tells, the first one first.
        told: incidents that belong to the storm, or the incident.
        faults: what is wrong.
        trap: what was taken for a storm.
    """

    storms: tuple[Planted, ...]
    told: tuple[Told, ...]
    faults: tuple[Fault, ...]
    trap: str | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """How good a report is, or several; traps: how many look-alikes were planted."""

    storms: tuple[Verdict, ...]
    incidents: tuple[Verdict, ...]
    traps: int

    @property
    def recall(self) -> float:
        """Found storms among the planted ones, 0 to 1."""
        return _without(self.storms, Fault.MISSED)

    @property
    def precision(self) -> float:
        """Incidents that are storms, each told once, 0 to 1."""
        wrong = sum(Fault.ALARM in one.faults or Fault.MIXED in one.faults for one in self.incidents)
        wrong += sum(Fault.TWICE in one.faults for one in self.storms)
        return 1 - wrong / max(1, len(self.incidents))

    @property
    def root(self) -> float:
        """Incidents whose root has the right class, of those that are storms, 0 to 1."""
        return _without(self.real, Fault.CLASS)

    @property
    def real(self) -> list[Verdict]:
        """Incidents that are storms."""
        return [one for one in self.incidents if one.storms]

    def meets(self, limits: Limits) -> bool:
        """Whether every share reaches its limit."""
        return self.recall >= limits.recall and self.precision >= limits.precision and self.root >= limits.root

    def __add__(self, other: Score) -> Score:
        return Score(self.storms + other.storms, self.incidents + other.incidents, self.traps + other.traps)

    def __str__(self) -> str:
        return "\n".join(self.details()) or "nothing went wrong"

    def table(self, limits: Limits) -> Iterator[str]:
        """How many storms of each class were found, and whether all of it is enough, line by line."""
        yield f"{'class':24}{'planted':>9}{'found':>8}{'twice':>8}"
        for name in (*sorted({one.storms[0].storm or "" for one in self.storms}), "all"):
            faults = [one.faults for one in self.storms if name in (one.storms[0].storm, "all")]
            missed, twice = (sum(fault in each for each in faults) for fault in (Fault.MISSED, Fault.TWICE))
            yield f"{name:24}{len(faults):>9,}{len(faults) - missed:>8,}{twice:>8,}"
        real, fooled = self.real, {one.trap for one in self.incidents if one.trap}
        alarms = len(self.incidents) - len(real)
        yield f"incidents {len(self.incidents):,}: {alarms:,} false alarms, {len(real):,} storms"
        yield f"look-alikes {self.traps:,}: {len(fooled):,} taken for a storm"
        trigger, count = _without(real, Fault.TRIGGER), _without(real, Fault.COUNT)
        yield f"trigger right {trigger:.1%}, count within {COUNTED:.0%} {count:.1%}"
        yield f"recall {self.recall:.2%} (at least {limits.recall:.0%})"
        yield f"precision {self.precision:.2%} (at least {limits.precision:.0%})"
        yield f"root class {self.root:.2%} (at least {limits.root:.0%})"
        yield "good enough" if self.meets(limits) else "NOT good enough"

    def details(self) -> Iterator[str]:
        """What went wrong, line by line."""
        for one in (*self.storms, *self.incidents):
            planted = "; ".join(_brief(storm) for storm in one.storms[:3])
            planted = planted or (f"the look-alike {one.trap}" if one.trap else "nothing was there")
            told = "; ".join(str(told) for told in one.told[:3]) or "nothing"
            yield from (f"{fault}: {planted}: told {told}" for fault in one.faults)


def score(report: Any, truth: Truth) -> Score:
    """Judges a report.

    Args:
        report: the document of report.json; only ``incidents`` is read.
        truth: of the log that it is about.

    Raises:
        BadInput: it is no report.
    """
    try:
        incidents = msgspec.convert(report, _Report).incidents
    except msgspec.ValidationError as error:
        raise BadInput(f"this is not a report.json of `tricklecast storms --json-file`: {error}") from error
    storms = tuple(_storm(storm, [one for one in incidents if _belongs(one, storm)]) for storm in truth.storms)
    return Score(storms, tuple(_incident(one, truth) for one in incidents), len(truth.traps))


def _storm(storm: Planted, told: Sequence[Told]) -> Verdict:
    shares = [_share_told(one, storm) for one in told]
    found = sum(shares) >= FOUND
    twice = found and sum(share >= TOLD for share in shares) > 1
    return Verdict((storm,), tuple(told), (Fault.TWICE,) if twice else () if found else (Fault.MISSED,))


def _incident(told: Told, truth: Truth) -> Verdict:
    # The truth is in the order of time.
    storms = tuple(storm for storm in truth.storms if _belongs(told, storm))
    if not storms:
        trap = next((trap.name for trap in truth.traps if _belongs(told, trap)), None)
        return Verdict((), (told,), (Fault.ALARM,), trap)
    storms = tuple(storm for storm in storms if _share_told(told, storm) >= TOLD) or storms
    first, planted = storms[0], sum(storm.n for storm in storms)
    wrong = {
        Fault.MIXED: not all(_related(first, storm) for storm in storms),
        Fault.CLASS: {told.storm, told.instead}.isdisjoint((first.storm, *first.also)),
        Fault.TRIGGER: not _same_trigger(told, first),
        Fault.COUNT: abs(told.n - planted) > COUNTED * planted + 1,
    }
    return Verdict(storms, (told,), tuple(fault for fault, is_so in wrong.items() if is_so))


def _belongs(told: Told, planted: Planted) -> bool:
    return (
        told.since_us <= planted.end_us + SLACK_US
        and planted.start_us <= told.until_us + SLACK_US
        and (not told.nodes or any(_is_server(node, planted.node) for node in told.nodes))
        and _common(told.channels, told.n_channels, planted.channels)
        and (not told.named or _common(told.clients, told.n_clients, planted.clients))
    )


def _is_server(told: str, planted: str) -> bool:
    """Whether a report means a server by a name; where lines have none, that is the folder and name of its log."""
    return told == planted or told.rpartition("/")[2] == log_name(planted)


def _common(told: Sequence[str], count: int, planted: Sequence[str]) -> bool:
    """Whether two lists of names have one in common; a report lists the busiest hundred of all that it counts."""
    return not planted or not told or count > len(told) or not set(told).isdisjoint(planted)


def _share_told(told: Told, storm: Planted) -> float:
    """The share of a storm's time, or of a short one's requests, that an incident tells."""
    inside = min(told.until_us, storm.end_us) - max(told.since_us, storm.start_us)
    of_time = max(0, inside) / max(1, storm.end_us - storm.start_us)
    of_lines = told.n / storm.n if told.until_us - told.since_us <= 2 * SLACK_US else 0.0
    return min(1.0, max(of_time, of_lines))


def _related(one: Planted, other: Planted) -> bool:
    if not FLEETS.isdisjoint((one.storm, other.storm)):
        return True
    clients = not one.clients or not other.clients or not set(one.clients).isdisjoint(other.clients)
    return clients and not set(one.channels).isdisjoint(other.channels)


def _same_trigger(told: Told, storm: Planted) -> bool:
    if told.trigger == storm.trigger or {told.trigger, storm.trigger} <= RESTART:
        return True
    # What comes after a storm's beginning did not set it off: it is told as the channel's end.
    return storm.trigger == Event.CHANNEL_END and told.trigger is None and told.ended_us is not None


def _brief(storm: Planted) -> str:
    clients = len(storm.clients)
    return _shown(storm.name, storm.n, clients, storm.start_us, storm.end_us, storm.node, storm.trigger)


def _shown(name: str, n: int, clients: int, since_us: int, until_us: int, nodes: str, trigger: str | None) -> str:
    # Names of a simulation are our own, but those of a report come from a log: nothing is shown as it is.
    begun = datetime.fromtimestamp(since_us / 1e6, UTC).strftime("%H:%M:%S.%f")[:-3]
    seconds = (until_us - since_us) / 1e6
    return f"{name} ({n:,} of {clients:,} clients in {seconds:.1f} s from {begun} on {nodes!a}, trigger {trigger!a})"


def _without(verdicts: Iterable[Verdict], fault: Fault) -> float:
    """The share of verdicts without a fault, 0 to 1."""
    found = [fault not in one.faults for one in verdicts]
    return sum(found) / len(found) if found else 1.0
