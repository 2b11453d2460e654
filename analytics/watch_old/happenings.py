"""Lifecycle events as they come, and which of them set a storm off: :mod:`analytics.triggers`, for a few
at a time."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

from tricklecast.analytics.answers import Answer
from tricklecast.analytics.durations import micros
from tricklecast.analytics.fleet import Fleet
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.triggers import CHANNEL_EVENTS, OTHERWISE, PLAUSIBLE, UNTIL_THE_END
from tricklecast.analytics.watch_old.figures import Figures
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.signals import Signal
from tricklecast.trickle.records import Event

Place = tuple[str | None, str | None]
"""A node, and a channel of it or ``None`` for the server itself."""


@dataclass(frozen=True, slots=True)
class Context:
    """What happened around a storm's beginning; see :func:`analytics.triggers.with_context`."""

    trigger: str | None = None
    trigger_us: int | None = None
    ended_us: int | None = None
    born_us: int | None = None
    lives: int = 1


class Happenings:
    """The latest events of every server and channel."""

    def __init__(self, params: StormParams, limits: WatchLimits) -> None:
        """
        Args:
            params: how near an event must be; limits: how many are remembered.
        """
        self._params = params
        self._limits = limits
        self._events: OrderedDict[Place, deque[tuple[int, str]]] = OrderedDict()

    def put(self, row: Signal) -> None:
        """Remembers an event."""
        if row.event is None:
            return
        place = (row.node, row.channel if row.event in CHANNEL_EVENTS else None)
        events = self._events.setdefault(place, deque(maxlen=self._limits.events))
        if (row.first_us, row.event) not in events:
            events.append((row.first_us, row.event))
        self._events.move_to_end(place)
        while len(self._events) > self._limits.names:
            self._events.popitem(last=False)

    def around(self, answer: Answer | Fleet, figures: Figures, channel: str | None) -> Context:
        """What happened around the beginning of a stretch.

        Args:
            answer: the commonest, or the kind of fleet.
        """
        params, first_us = self._params, figures.first_us
        since, soon = first_us - micros(params.trigger_before_s), first_us + micros(params.trigger_after_s)
        until = figures.last_us + micros(params.gap_s) if answer in UNTIL_THE_END else soon
        own = [event for node in figures.nodes for event in self._events.get((node, channel), ())]
        server = [event for node in figures.nodes for event in self._events.get((node, None), ())]
        ends = [at for at, event in own if event == Event.CHANNEL_END and since <= at <= soon]
        ended_us = max(ends, default=None)
        lives = 1 + sum(event == Event.CHANNEL_CREATE and first_us < at <= figures.last_us for at, event in own)
        births = [at for at, event in own if event == Event.CHANNEL_CREATE and at >= (ended_us or first_us)]
        # What ended before the channel began again was another life's end.
        reborn_us = max((at for at, event in own if event == Event.CHANNEL_CREATE and at <= first_us), default=0)
        ranked = [
            (rank, at <= first_us, at, event)
            for at, event in own + server
            if self._oldest(first_us, event) <= at <= (until if event == Event.CHANNEL_END else soon)
            if not (event == Event.CHANNEL_END and at < reborn_us)
            if (rank := _rank(answer, event)) is not None
        ]
        if not ranked:
            return Context(None, None, ended_us, max(births, default=None), lives)
        _, _, at, event = max(ranked)
        return Context(event, at, ended_us, max(births, default=None), lives)

    def _oldest(self, first_us: int, event: str) -> int:
        """How long before a storm an event can have been its trigger."""
        match event:
            case Event.CHANNEL_END:
                return first_us - micros(self._params.trigger_before_s)
            case Event.CHANNEL_CREATE:
                return first_us - micros(self._params.birth_before_s)
        return first_us - micros(self._params.restart_before_s)

    def as_json(self) -> list[Any]:
        """For the ledger."""
        return [[node, channel, list(events)] for (node, channel), events in self._events.items()]

    def load(self, values: list[Any]) -> None:
        """What :meth:`as_json` gave."""
        for node, channel, events in values:
            known = ((int(at), str(event)) for at, event in events)
            self._events[node, channel] = deque(known, maxlen=self._limits.events)


def _rank(answer: Answer | Fleet, event: str) -> int | None:
    """How plausible an event is as the trigger of these answers: the higher, the likelier; ``None`` if it is not."""
    ranked = next((events for answers, events in PLAUSIBLE.items() if answer in answers), OTHERWISE)
    return next((-place for place, events in enumerate(ranked) if event in events), None)
