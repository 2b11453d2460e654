"""The facts of all workers, in the front's log: whoever follows the server's changes follows one log.

**The problem.** Each worker has a log of its own (:class:`~tricklecast.app.changes.Changes`), with its own indexes, and
a client follows the server by one index, which must mean the same after any process has died.

**The idea.** The front follows the log of each other worker by its index. What it hears it appends to its own log, with
the next indexes of that: the facts of a channel stay in their order, and those of several workers are in the order in
which the front has heard of them. With a data directory the front stores these facts together with its *position*, the
place in the worker's log behind them, so a front that dies goes on where its log ends, without a loss or a double. A
worker tells a fact only when its own directory has it, so no position is beyond the end of its log, unless a disk has
lost something.

**Which channels live.** When the front is up to date, the worker says which of its channels live: a front that has just
started has the earlier facts, but not that table. Before it knows it of all workers, it shows nobody a snapshot.

**Where the front cannot go on** from its position, it takes that table instead, and appends the difference to what it
has told:

- Without a data directory the worker has died, and all of its channels with it, also those that have been created again
  since. Followers hear that they were removed (:data:`LOST`), and then the facts of its successor from the beginning.
- Otherwise facts are missing, of channels that live on: the front was further behind than facts are kept, or the
  directory was damaged. Then no follower may go on, and each begins with a snapshot.

**A worker that hangs** keeps the connection, and its facts come when it goes on. A beat without facts tells a worker
whether its follower is still there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any, Final

import orjson

from tricklecast.app.changes import Change, Changes, IndexGone, LiveChannel, Snapshot
from tricklecast.app.storage.database import FactRow, Position
from tricklecast.app.workers.questions import Answer, NoAnswer, Questions, Stream

_LOGGER = logging.getLogger(__name__)

LOST: Final = "worker_lost"
"""The reason why a channel was removed whose worker has died. Nobody knows its head then."""

PART: Final = 1_000
"""Facts, or live channels, in one frame, which takes about 5 ms to make and is shorter than 0.5 MB."""

BEAT_S: Final = 1.0
"""A frame comes at least this often."""

AGAIN_S: Final = 0.25
"""Pause before a worker is asked again that has died, since it is being started."""


def answer_facts(changes: Changes) -> Answer:
    """Answers the question ``facts``: the facts behind an index, the live channels, and then facts as they are told."""

    async def facts(to: Stream, after: int, instance: str | None) -> None:
        async def send(**frame: Any) -> None:
            await to.send(orjson.dumps({"instance": changes.instance, "index": after, **frame}))

        knows_live = False
        while True:
            try:
                changes.check(after, instance)
                gone = False
            except IndexGone:
                gone = True
            # Nothing lived at the beginning of a successor without a data directory, and it has all facts since then.
            successor = gone and instance not in (None, changes.instance) and changes.is_whole
            instance = None
            if gone or (after == changes.index and not knows_live):
                if (snapshot := Snapshot(0, []) if successor else changes.snapshot()) is None:  # storage fails
                    await changes.more(changes.index, BEAT_S)
                    continue
                after, knows_live = snapshot.index, True
                live = snapshot.channels
                for first in range(0, max(1, len(live)), PART):
                    rest = len(live) > first + PART
                    await send(live=list(map(tuple, live[first : first + PART])), gone=gone, rest=rest)
            elif knows_live and after == changes.index:
                await changes.more(after, BEAT_S)
                if after == changes.index:
                    await send(facts=[])
            else:
                part = changes.facts_after(after, PART)
                after = part[-1].index if len(part) == PART else changes.index
                if part:
                    await send(facts=list(map(_row, part)))

    return facts


def _row(change: Change) -> tuple[Any, ...]:
    detail = change.state or change.reason or change.content_type
    about = change.kind, change.channel, change.epoch, change.seq, detail, change.bytes
    return change.index, round(change.time * 1e6), *about


class Follower:
    """The front's place in the log of another worker.

    Args:
        worker: which one. questions: to it. changes: the front's log.
        position: behind the facts that the front's log has already; ``None``: it has none.
        stored: whether channels outlive their worker, since there is a data directory.
    """

    def __init__(
        self, worker: int, questions: Questions, changes: Changes, position: Position | None, *, stored: bool
    ) -> None:
        self._worker, self._questions, self._changes, self._stored = worker, questions, changes, stored
        self._position = position
        # The worker's channels as the front's log has told of them, by name; None: it has, but they are not known.
        self._live: dict[str, int] | None = {} if position is None else None
        self._said: list[LiveChannel] = []  # by the worker, until the last part of this list is here
        self._known = False  # whether the front's table of live channels has those of the worker
        changes.expect(worker)

    async def run(self) -> None:
        """Follow, until cancelled."""
        while True:
            self._said = []
            after, instance = -1, None  # nothing goes on from there
            if self._position is not None:
                after, instance = self._position.number, self._position.instance or None
            try:
                about = {"after": after, "instance": instance}
                async for frame in self._questions.follow(self._worker, "facts", **about):
                    await self.take(orjson.loads(frame))
            except NoAnswer as error:
                _LOGGER.warning("%s", error)
            await asyncio.sleep(AGAIN_S)

    async def take(self, frame: dict[str, Any]) -> None:
        """Take a frame of the worker's answer."""
        here = Position(frame["instance"], frame["index"])
        if "facts" in frame:
            self._add([FactRow(*row) for row in frame["facts"]], here)
            return
        self._said += [LiveChannel(*one) for one in frame["live"]]
        if frame["rest"]:
            return
        live, self._said = self._said, []
        if frame["gone"]:
            self._begin_again(live, here)
        elif self._live is not None:
            self._add(self._difference(live), here)  # there is one only if the directory was damaged
        self._live = {one.channel: one.epoch for one in live}
        if not self._known:
            await self._changes.know(self._worker, live)
            self._known = True

    def _begin_again(self, live: list[LiveChannel], here: Position) -> None:
        """The worker has not all facts behind the front's position: tell of what lives there instead."""
        gap = self._stored or (self._position is not None and here.instance == self._position.instance)
        if gap:
            text = "worker %d has lost facts which the front has not heard of: followers begin with a snapshot"
            _LOGGER.warning(text, self._worker)
            self._add(self._difference(live), here, gap=True)
        else:
            self._add([*self._difference([]), *_added(live)], here)

    def _difference(self, live: list[LiveChannel]) -> list[FactRow]:
        """The facts that lead from what the front has told to what lives."""
        told, now_us = self._live or {}, time.time_ns() // 1000
        epochs = {one.channel: one.epoch for one in live}
        lost = [(channel, epoch) for channel, epoch in told.items() if epochs.get(channel) != epoch]
        rows = [FactRow(0, now_us, "removed", channel, epoch, None, LOST) for channel, epoch in lost]
        return rows + _added(one for one in live if told.get(one.channel) != one.epoch)

    def _add(self, rows: list[FactRow], here: Position, *, gap: bool = False) -> None:
        if self._live is not None:
            for row in rows:
                if row.kind == "added":
                    self._live[row.channel] = row.epoch
                elif row.kind == "removed":
                    self._live.pop(row.channel, None)
        self._position = here
        self._changes.add(rows, self._worker, here, gap=gap)


def _added(live: Iterable[LiveChannel]) -> list[FactRow]:
    return [FactRow(0, round(one.time * 1e6), "added", one.channel, one.epoch, None, one.content_type) for one in live]
