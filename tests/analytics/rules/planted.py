"""Compares incidents with what the simulator planted: recall, precision, class of the root, and no storm told twice.

An incident *belongs* to a planted storm if both were at the same time (with a second's slack), on a server, a channel
and a client in common. A storm is *found* if the incidents that belong to it tell half of its requests. It is *told
twice* if two incidents each tell a fifth of it. An incident that belongs to none is a *false alarm*; one
that mixes storms that have no client and channel in common, and of which none is a fleet's, is *mixed*. Its root is
right if it is the class of the first of its storms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tricklecast.analytics.rules.incidents import Incident
from tricklecast.analytics.simulate.truth import Storm, Trap, Truth

SLACK_US: Final = 1_000_000


@dataclass(slots=True)
class Score:
    """How good the incidents of some logs are; each list names what went wrong."""

    storms: int = 0
    incidents: int = 0
    missed: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    misnamed: list[str] = field(default_factory=list)
    miscounted: list[str] = field(default_factory=list)
    mistriggered: list[str] = field(default_factory=list)

    @property
    def recall(self) -> float:
        """Found storms among the planted ones, 0 to 1."""
        return 1 - len(self.missed) / max(1, self.storms)

    @property
    def precision(self) -> float:
        """Incidents that are storms, each told once, 0 to 1."""
        return 1 - (len(self.alarms) + len(self.twice) + len(self.mixed)) / max(1, self.incidents)

    @property
    def root_class(self) -> float:
        """Incidents whose root has the right class, 0 to 1."""
        return 1 - len(self.misnamed) / max(1, self.incidents - len(self.alarms))

    def __str__(self) -> str:
        lines = [f"{self.storms} storms, {self.incidents} incidents"]
        for name in ("missed", "alarms", "twice", "mixed", "misnamed", "miscounted", "mistriggered"):
            lines += [f"  {name}: {text}" for text in getattr(self, name)]
        return "\n".join(lines)


def score(incidents: Sequence[Incident], truth: Truth, into: Score | None = None) -> Score:
    """Judges the incidents found in a simulated log."""
    total = into or Score()
    total.storms += len(truth.storms)
    total.incidents += len(incidents)
    of_storm: dict[int, list[Incident]] = {number: [] for number in range(len(truth.storms))}
    for incident in incidents:
        mine = [number for number, storm in enumerate(truth.storms) if belongs(incident, storm)]
        for number in mine:
            of_storm[number].append(incident)
        if not mine:
            trap = next((trap.name for trap in truth.traps if belongs(incident, trap)), "no trap")
            total.alarms.append(f"{_brief(incident)} ({trap})")
            continue
        first = truth.storms[min(mine, key=lambda number: truth.storms[number].start_us)]
        if incident.storm not in (first.storm, *first.also):
            total.misnamed.append(f"{first.name} as {_brief(incident)}")
        if not _same_cue(incident, first):
            total.mistriggered.append(f"{first.name}: {first.trigger} as {incident.trigger}")
        if not all(_related(first, truth.storms[number]) for number in mine):
            total.mixed.append(f"{[truth.storms[number].name for number in mine]} as {_brief(incident)}")
        planted = sum(truth.storms[number].n for number in mine)
        if abs(incident.n - planted) > 0.1 * planted + 1:
            total.miscounted.append(f"{[truth.storms[number].name for number in mine]} {planted} as {_brief(incident)}")
    for number, found in of_storm.items():
        storm = truth.storms[number]
        told = [_told(incident, storm) for incident in found]
        if sum(told) < 0.5:
            total.missed.append(f"{storm.name} n={storm.n} {storm.clients[:1]} {[_brief(one) for one in found]}")
        elif sum(share >= 0.2 for share in told) > 1:
            total.twice.append(f"{storm.name} n={storm.n}: {[_brief(one) for one in found]}")
    return total


def belongs(incident: Incident, storm: Storm | Trap) -> bool:
    """Whether an incident tells of a storm."""
    return (
        incident.since_us <= storm.end_us + SLACK_US
        and storm.start_us <= incident.until_us + SLACK_US
        and (not storm.node or not incident.nodes or storm.node in incident.nodes)
        and _common(incident.channels, storm.channels)
        and (not incident.named or _common(incident.clients, storm.clients))
    )


def _common(told: Iterable[str], planted: Sequence[str]) -> bool:
    return not planted or not set(told).isdisjoint(planted)


def _told(incident: Incident, storm: Storm) -> float:
    """Which share of a storm's time, or of its requests, an incident tells."""
    inside = min(incident.until_us, storm.end_us) - max(incident.since_us, storm.start_us)
    of_time = max(0, inside) / max(1, storm.end_us - storm.start_us)
    of_lines = incident.n / storm.n if incident.until_us - incident.since_us <= 2 * SLACK_US else 0.0
    return min(1.0, max(of_time, of_lines))


def _related(one: Storm, other: Storm) -> bool:
    if {one.storm, other.storm} & {"overload_amplification", "thundering_herd"}:
        return True
    return _common(one.clients, other.clients) and _common(one.channels, other.channels)


def _same_cue(incident: Incident, storm: Storm) -> bool:
    restart = {"drain", "server_stop", "server_start", "server_ready"}
    if storm.trigger == incident.trigger or {storm.trigger, incident.trigger} <= restart:
        return True
    # What comes after a storm's beginning did not set it off: it is told as the channel's end.
    return storm.trigger == "channel_end" and incident.trigger is None and incident.ended_us is not None


def _brief(incident: Incident) -> str:
    spent = (incident.until_us - incident.since_us) / 1e6
    return (
        f"{incident.storm} n={incident.n} {spent:.0f}s {[f'{one.storm}:{one.n}' for one in incident.phases]}"
        f" {incident.clients[:2]} of {len(incident.clients)}"
    )
