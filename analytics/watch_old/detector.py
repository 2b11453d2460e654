"""Changed rows in, news out: which storms began, got worse, or are over. No Spark, no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from tricklecast.analytics.answers import Answer
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.durations import micros
from tricklecast.analytics.episodes import Severity
from tricklecast.analytics.fleet import Fleet
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.triggers import SERVER_EVENTS
from tricklecast.analytics.watch_old.fleets import Fleets, Gathering, NodeFleet
from tricklecast.analytics.watch_old.happenings import Happenings
from tricklecast.analytics.watch_old.islands import Island, Islands
from tricklecast.analytics.watch_old.judging import (
    class_of,
    is_browsing,
    is_crowd,
    is_of_several_lives,
    is_quick,
    is_sparse,
    may_be_patient,
    may_be_slow,
    severity,
)
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.open_storms import Change, OpenStorm, OpenStorms
from tricklecast.analytics.watch_old.parts import Part
from tricklecast.analytics.watch_old.signals import FAILURE, Signal
from tricklecast.trickle.records import Event

LATE_S: Final = 2.0
"""Lines of one moment are not written in order: a storm is over only if its node has gone on for so much longer."""

KEEP_S: Final = 30.0
"""A stretch is remembered for so much longer than its gap, by our own clock: its next lines may be read late."""

_OF_FLEET: Final = {Fleet.OVERLOAD: StormClass.OVERLOAD_AMPLIFICATION, Fleet.HERD: StormClass.THUNDERING_HERD}
_TOLD_BY_FLEET: Final = (StormClass.OVERLOAD_CLIENT, StormClass.THUNDERING_HERD)


class Detector:
    """Finds storms in a stream of changed rows.

    Attributes:
        storms: those that are not over.
    """

    def __init__(self, params: StormParams, limits: WatchLimits) -> None:
        """
        Args:
            params: what a storm is; limits: what is remembered.
        """
        self._params = params
        self._limits = limits
        self._fine = Islands(params.gap_s, params.gap_s, limits)
        self._coarse = Islands(params.slow_gap_s, params.gap_s, limits)
        self._fleets = Fleets(params, limits)
        self._happenings = Happenings(params, limits)
        self._node_us: dict[str | None, int] = {}
        self._held: dict[str, float] = {}
        self.storms = OpenStorms(params, limits.storms)
        self._known_s = 0.0
        self._folded_s: float | None = None
        self._bad: dict[int, int] = {}
        self._bad_before = 0

    def fold(self, rows: Iterable[Signal], now_s: float) -> list[Change]:
        """Takes in what a batch changed.

        Args:
            rows: of one batch, in any order; now_s: our own clock, which only has to go on.
        """
        changes: list[Change] = []
        self._known_s += 0.0 if self._folded_s is None else now_s - self._folded_s
        self._folded_s = now_s
        ordered = sorted(self._records(rows), key=lambda row: row.first_us)
        for row in ordered:
            self._node_us[row.node] = max(self._node_us.get(row.node, 0), row.last_us)
            if row.answer is Answer.EVENT:
                self._happenings.put(row)
        asked = [row for row in ordered if row.answer is not Answer.EVENT]
        for fleet in self._fleets.put(asked):
            changes += self._judge_fleet(fleet, now_s)
        changes += self._judge_islands(asked, now_s)
        changes += self._over_by_their_nodes_clock()
        self._fine.forget(before_s=now_s - self._params.gap_s - KEEP_S)
        self._coarse.forget(before_s=now_s - self._params.slow_gap_s - KEEP_S)
        return changes

    def _records(self, rows: Iterable[Signal]) -> Iterator[Signal]:
        for row in rows:
            if row.answer is not Answer.UNPARSABLE:
                yield row
            else:
                self._bad[row.window_us] = row.n
                while len(self._bad) > 2:
                    self._bad_before += self._bad.pop(next(iter(self._bad)))

    @property
    def unparsable(self) -> int:
        """Lines that were no records."""
        return self._bad_before + sum(self._bad.values())

    @property
    def forgotten(self) -> int:
        """Stretches given up because there were too many."""
        return self._fine.forgotten + self._coarse.forgotten

    def tick(self, now_s: float) -> list[Change]:
        """Ends the storms that nothing has been added to for long; to be called while there is nothing left to read."""
        over = [storm for storm in self.storms if now_s - storm.touched_s >= self._gap_s(storm) + self._limits.idle_s]
        return [self._end(storm) for storm in over]

    def _judge_fleet(self, fleet: NodeFleet, now_s: float) -> list[Change]:
        changes: list[Change] = []
        overload = fleet.overload()
        if overload is not None and self._goes_on(overload):
            changes += self._gathered(overload, now_s)
            whole = self.storms.of_part(_fleet_name(overload))
            for storm in self.storms:
                if whole is not None and storm.storm in _TOLD_BY_FLEET and storm.node == overload.node:
                    changes.append(self.storms.end(storm, into=whole.id))
        herd = fleet.herd(self._known_s)
        if herd is not None and self._goes_on(herd) and not self._fleet_comes_first(herd.node, now_s):
            changes += self._gathered(herd, now_s)
        return changes

    def _goes_on(self, found: Gathering) -> bool:
        """Whether a gathering belongs to this moment; one that is over has been told."""
        gap_s = self._params.herd_gap_s if found.kind is Fleet.HERD else self._params.gap_s
        return self._node_us.get(found.node, 0) - found.to_us <= micros(gap_s + 1.0)

    def _gathered(self, found: Gathering, now_s: float) -> list[Change]:
        channel = next(iter(found.channels)) if len(found.channels) == 1 else None
        context = self._happenings.around(found.kind, found.figures, channel)
        # Nor is the end of one, of which each may learn by asking a few times: unless they insist.
        over = context.trigger == Event.CHANNEL_END and found.insistent
        cued = context.trigger in SERVER_EVENTS or over
        if found.kind is Fleet.HERD and not cued and not found.at_once:
            return []
        name = _fleet_name(found)
        known = self.storms.of_part(name)
        part = Part.of(found.figures, found.clients, found.channels, self._params)
        if known is not None:  # it was told with its beginning, which the fleet may have forgotten since
            part.first_us = min(part.first_us, known.parts[name].first_us)
            part.n, part.hits = max(part.n, known.parts[name].n), max(part.hits, known.parts[name].hits)
        change = self.storms.add(
            name,
            part,
            _OF_FLEET[found.kind],
            Severity.CRITICAL,
            node=found.node,
            context=known.context if known is not None else context,
            slow=False,
            now_s=now_s,
        )
        return [change] if change is not None else []

    def _judge_islands(self, rows: Iterable[Signal], now_s: float) -> list[Change]:
        changes: list[Change] = []
        fine: dict[int, Island] = {}
        coarse: dict[int, Island] = {}
        for row in rows:
            island, ended = self._fine.put(row, now_s)
            if ended is not None:
                # A later stretch is judged by itself; this one now, for the last time.
                changes += self._judge(fine.pop(ended.number, ended), slow=False, now_s=now_s)
            fine[island.number] = island
            if row.key[-1] == FAILURE:
                island, ended = self._coarse.put(row, now_s)
                if ended is not None:
                    changes += self._judge(coarse.pop(ended.number, ended), slow=True, now_s=now_s)
                coarse[island.number] = island
        for island in fine.values():
            changes += self._judge(island, slow=False, now_s=now_s)
        for island in coarse.values():
            changes += self._judge(island, slow=True, now_s=now_s)
        return changes

    def _judge(self, island: Island, *, slow: bool, now_s: float) -> list[Change]:
        """What is to be told about a stretch, if anything is."""
        figures = island.figures()
        bad = severity(figures, self._params)
        if slow and (not may_be_slow(figures) or self.storms.of_part(_name(self._fine.get(island.key)))):
            return []
        who, named, channel, *_ = island.key
        if bad is None or not (slow or is_quick(figures, self._params)):
            return []
        if is_crowd(figures, self._params, named=named) or any(
            innocent(figures, self._params) for innocent in (is_sparse, is_browsing, may_be_patient)
        ):
            return []
        context = self._happenings.around(figures.answer, figures, channel)
        if is_of_several_lives(figures, context, self._params):
            return []
        storm = class_of(figures, context, self._params, slow=slow)
        known = self.storms.of_part(_name(island, slow=slow))
        storm = known.storm if known is not None else storm
        if storm is None or (storm is StormClass.OVERLOAD_CLIENT and self._fleet_comes_first(figures.node, now_s)):
            return []
        if not slow:
            # What has been told as a quick storm is no part of a slow one.
            self._coarse.drop(island.key)
        part = Part.of(figures, {who: figures.n}, {channel: figures.n}, self._params)
        node = known.node if known is not None else figures.node
        change = self.storms.add(
            _name(island, slow=slow), part, storm, bad, node=node, context=context, slow=slow, now_s=now_s
        )
        return [change] if change is not None else []

    def _fleet_comes_first(self, node: str | None, now_s: float) -> bool:
        """Whether what is seen is part of a fleet's overload, or may turn out to be within a moment."""
        if self._overloaded(node):
            return True
        if not self._fleets.is_hot(node):
            self._held.pop(node or "", None)
            return False
        return now_s - self._held.setdefault(node or "", now_s) < self._limits.hold_s

    def _overloaded(self, node: str | None) -> bool:
        return any(storm.storm is StormClass.OVERLOAD_AMPLIFICATION and storm.node == node for storm in self.storms)

    def _over_by_their_nodes_clock(self) -> list[Change]:
        changes = []
        for storm in self.storms:
            now_us = self._node_us.get(storm.node)
            if now_us is not None and now_us - storm.last_us > micros(self._gap_s(storm) + LATE_S):
                changes.append(self._end(storm))
        return changes

    def _end(self, storm: OpenStorm) -> Change:
        # What set it off may have been written after its beginning was told.
        islands = self._coarse if storm.slow else self._fine
        for island in list(islands):
            if self.storms.of_part(_name(island, slow=storm.slow)) is storm:
                figures = island.figures()
                storm.context = self._happenings.around(figures.answer, figures, island.key[2])
                islands.drop(island.key)
        return self.storms.end(storm)

    def _gap_s(self, storm: OpenStorm) -> float:
        if storm.storm is StormClass.THUNDERING_HERD:
            return self._params.herd_gap_s
        return self._params.slow_gap_s if storm.slow else self._params.gap_s

    def as_json(self) -> orjson.Fragment:
        """For the ledger: all that the next process needs to go on, as it is now."""
        known = {
            "fine": self._fine.as_json(),
            "coarse": self._coarse.as_json(),
            "fleets": self._fleets.as_json(),
            "happenings": self._happenings.as_json(),
            "node_us": [[node, at] for node, at in self._node_us.items()],
            "storms": self.storms.as_json(),
            "known_s": self._known_s,
        }
        return orjson.Fragment(orjson.dumps(known))

    def load(self, values: Mapping[str, Any], now_s: float) -> None:
        """What :meth:`as_json` gave, read again."""
        self._fine.load(values["fine"], now_s)
        self._coarse.load(values["coarse"], now_s)
        self._fleets.load(values["fleets"])
        self._happenings.load(values["happenings"])
        self._node_us = {node: at for node, at in values["node_us"]}
        self.storms.load(values["storms"], now_s)
        # What was written meanwhile is read all the same.
        self._known_s = values.get("known_s", 0.0)
        self._folded_s = now_s


def _name(island: Island | None, *, slow: bool = False) -> str:
    return "" if island is None else f"{'slow' if slow else 'quick'} {island.number}"


def _fleet_name(found: Gathering) -> str:
    return f"{found.kind} {found.node}"
