"""Compares a report with the truth: what was found, what was missed, what was made up, and what was called right.

An episode *belongs* to a storm if both were at the same time (with a second's slack), on the same server and on a
channel in common, and by a client in common, as far as both name them: a report lists the worst hundred names only. A
storm is *found* if the episodes that belong to it cover half of its time or tell of half of its requests. Thus a
fleet's storm may be told as one episode or as one for each release. An episode that belongs to no storm is a *false
alarm*. The *class* and the *trigger* of a found storm are judged by the largest of its episodes, so that a small
companion neither helps nor harms; a restart has one name, whichever of its events is named. *Exact* is a storm that
is told in one episode of the right class (one of another class beside it does not matter), begun and ended within two
seconds of the truth, with its requests within 10 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tricklecast.analytics.durations import micros
from tricklecast.analytics.simulate.catalogue import Set
from tricklecast.analytics.simulate.truth import LIVE, Storm, Trap, Truth
from tricklecast.trickle.records import Event

SLACK_S: Final = 1.0
COVERED: Final = 0.5
EXACT_S: Final = 2.0
EXACT_N: Final = 0.1

RESTART: Final = frozenset({Event.DRAIN, Event.SERVER_STOP, Event.SERVER_START, Event.SERVER_READY})
"""Events of one restart: which of them is named does not matter."""

Episode = Mapping[str, Any]
"""One of ``episodes`` in report.json."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a report has to reach, as shares from 0 to 1."""

    recall: float
    precision: float
    class_accuracy: float = 0.99
    trigger_accuracy: float = 0.95


LIMITS: Final[dict[str, Limits]] = {
    Set.STANDARD: Limits(0.99, 0.99),
    Set.GREY: Limits(0.95, 0.95),
    Set.HEALTHY: Limits(1.0, 1.0),
    # On a real server's log there is more than was played, and a channel is as old as the storm on it.
    LIVE: Limits(0.99, 0.9, trigger_accuracy=0.0),
}
"""By set; or by :data:`analytics.simulate.truth.LIVE`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one planted storm.

    Attributes:
        storm: the truth. episodes: those that belong to it, the largest first.
        found, class_right, trigger_right, exact, backoff_right: as defined at the head of this module;
            ``backoff_right`` is ``None`` where there is nothing to compare.
    """

    storm: Storm
    episodes: tuple[Episode, ...]
    found: bool
    class_right: bool
    trigger_right: bool
    exact: bool
    backoff_right: bool | None


@dataclass(frozen=True, slots=True)
class Score:
    """How good a report is.

    Attributes:
        verdicts: one for each planted storm.
        false_alarms: episodes that belong to none, each with the name of the trap that it fell into, if any.
    """

    verdicts: tuple[Verdict, ...]
    false_alarms: tuple[tuple[Episode, str | None], ...]

    @property
    def recall(self) -> float:
        """Found storms among the planted ones."""
        return _share(verdict.found for verdict in self.verdicts)

    @property
    def precision(self) -> float:
        """Found storms among all that was told; parts of one storm count once."""
        found = sum(verdict.found for verdict in self.verdicts)
        return found / (found + len(self.false_alarms)) if found or self.false_alarms else 1.0

    @property
    def class_accuracy(self) -> float:
        """Found storms with the right class."""
        return _share(verdict.class_right for verdict in self.found)

    @property
    def trigger_accuracy(self) -> float:
        """Found storms with the right trigger, or rightly without one."""
        return _share(verdict.trigger_right for verdict in self.found)

    @property
    def exactness(self) -> float:
        """Found storms told exactly."""
        return _share(verdict.exact for verdict in self.found)

    @property
    def backoff_accuracy(self) -> float:
        """Found storms with the right rhythm, of those that have one."""
        return _share(verdict.backoff_right for verdict in self.found if verdict.backoff_right is not None)

    @property
    def found(self) -> tuple[Verdict, ...]:
        """Verdicts on the storms that were found."""
        return tuple(verdict for verdict in self.verdicts if verdict.found)

    @property
    def missed(self) -> tuple[Verdict, ...]:
        """Verdicts on those that were not."""
        return tuple(verdict for verdict in self.verdicts if not verdict.found)

    def meets(self, limits: Limits) -> bool:
        """Whether every share reaches its limit."""
        return (
            self.recall >= limits.recall
            and self.precision >= limits.precision
            and self.class_accuracy >= limits.class_accuracy
            and self.trigger_accuracy >= limits.trigger_accuracy
        )


def score(report: Mapping[str, Any], truth: Truth) -> Score:
    """Judge a report.

    Args:
        report: the document of report.json.
        truth: of the log that it is about.
    """
    episodes: Sequence[Episode] = report["episodes"]
    belonging = [[episode for episode in episodes if _belongs(episode, storm)] for storm in truth.storms]
    known = {id(episode) for some in belonging for episode in some}
    verdicts = tuple(_verdict(storm, some) for storm, some in zip(truth.storms, belonging, strict=True))
    alarms = tuple((episode, _trap(episode, truth.traps)) for episode in episodes if id(episode) not in known)
    return Score(verdicts, alarms)


def together(scores: Iterable[Score]) -> Score:
    """Several scores as one."""
    everything = list(scores)
    return Score(
        tuple(verdict for one in everything for verdict in one.verdicts),
        tuple(alarm for one in everything for alarm in one.false_alarms),
    )


def _verdict(storm: Storm, episodes: list[Episode]) -> Verdict:
    episodes.sort(key=lambda episode: (-_weight(episode, storm), episode["start_us"], episode["id"]))
    found = _covered(storm, episodes)
    if not found:
        return Verdict(storm, tuple(episodes), False, False, False, False, None)
    main = episodes[0]
    class_right = main["class"] in (storm.storm, *storm.also)
    trigger_right = _cue(main["trigger"]) == _cue(storm.trigger)
    rhythm = None if storm.backoff is None or main["backoff"] is None else main["backoff"] == storm.backoff
    # The storm that one client made just before, or after, is another one.
    parts = [episode for episode in episodes if episode["class"] in (storm.storm, *storm.also)]
    exact = class_right and len(parts) == 1 and _is_exact(main, storm)
    return Verdict(storm, tuple(episodes), True, class_right, trigger_right, exact, rhythm)


def _belongs(episode: Episode, storm: Storm | Trap) -> bool:
    slack = micros(SLACK_S)
    return bool(
        episode["start_us"] <= storm.end_us + slack
        and storm.start_us <= episode["end_us"] + slack
        and (episode["node"] in (None, storm.node) or not storm.node)
        and _in_common(episode["channels"], episode["n_channels"], storm.channels)
        and _in_common(episode["clients"], episode["n_clients"], storm.clients)
    )


def _in_common(told: Sequence[str], count: int, true: Sequence[str]) -> bool:
    """Whether two lists of names can be of the same storm: names that are not known cannot differ."""
    return not told or not true or not set(told).isdisjoint(true) or count > len(told)


def _weight(episode: Episode, storm: Storm) -> float:
    """How much of the storm an episode tells: its requests, as far as they lie in the storm's time."""
    length = max(1, episode["end_us"] - episode["start_us"])
    inside = min(episode["end_us"], storm.end_us) - max(episode["start_us"], storm.start_us)
    return float(episode["n"] * min(1.0, max(0.0, inside / length)) if length > micros(1) else episode["n"])


def _covered(storm: Storm, episodes: Sequence[Episode]) -> bool:
    if not episodes:
        return False
    told = sum(_weight(episode, storm) for episode in episodes)
    return told >= COVERED * storm.n or _time_told(storm, episodes) >= COVERED * (storm.end_us - storm.start_us)


def _time_told(storm: Storm, episodes: Sequence[Episode]) -> int:
    told, until = 0, storm.start_us
    for start, end in sorted((episode["start_us"], episode["end_us"]) for episode in episodes):
        start, end = max(start, until), min(end, storm.end_us)
        if end > start:
            told, until = told + end - start, end
    return told


def _is_exact(episode: Episode, storm: Storm) -> bool:
    near = micros(EXACT_S)
    return bool(
        abs(episode["start_us"] - storm.start_us) <= near
        and abs(episode["end_us"] - storm.end_us) <= near
        and abs(episode["n"] - storm.n) <= EXACT_N * storm.n + 1
    )


def _cue(trigger: str | None) -> str | None:
    return "restart" if trigger in RESTART else trigger


def _trap(episode: Episode, traps: Sequence[Trap]) -> str | None:
    return next((trap.name for trap in traps if _belongs(episode, trap)), None)


def _share(facts: Iterable[bool]) -> float:
    told = list(facts)
    return sum(told) / len(told) if told else 1.0
