"""The facts of all workers, in the front's log: whoever follows the server's changes follows one log.

Each worker has a log of its own (:class:`~tricklecast.app.changes.Changes`). The front follows those of the others, as
any follower does: from an index on, or, where that is gone, with a snapshot. What it hears it appends to its own log,
with the next indexes of that. So the facts of a channel stay in their order, and those of several workers are in the
order in which the front has heard of them.

**A snapshot** says which channels live. The front knows which ones it was told of before, and appends the difference: a
worker that was killed has lost its channels, and followers hear that they were removed (:data:`LOST`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final

import orjson

from tricklecast.app.changes import Change, Changes, IndexGone, LiveChannel
from tricklecast.app.storage.database import FactRow
from tricklecast.app.workers.questions import Answer, NoAnswer, Questions, Stream

_LOGGER = logging.getLogger(__name__)

LOST: Final = "worker_lost"
"""Why a channel was removed whose worker has died."""

PART: Final = 1_000
"""Facts in one frame, which takes about 5 ms to make."""

BEAT_S: Final = 1.0
"""Without news a frame without facts comes after this time, so that the end of the follower shows."""

AGAIN_S: Final = 0.25
"""Pause before a worker is asked again that does not answer, since it is being started."""


def answer_facts(changes: Changes) -> Answer:
    """Answers the question ``facts``: a snapshot if need be, then facts as they are told."""

    async def facts(to: Stream, after: int, instance: str | None) -> None:
        try:
            changes.check(after, instance)
        except IndexGone:
            while (snapshot := changes.snapshot()) is None:
                await changes.more(changes.index, BEAT_S)
            after = snapshot.index
            await to.send(
                orjson.dumps(
                    {"instance": changes.instance, "index": after, "live": list(map(tuple, snapshot.channels))}
                )
            )
        while True:
            await changes.more(after, BEAT_S)
            part = changes.facts_after(after, PART)
            after = part[-1].index if part else max(after, changes.index)
            await to.send(
                orjson.dumps({"instance": changes.instance, "index": after, "facts": [_row(one) for one in part]})
            )

    return facts


def _row(change: Change) -> tuple[Any, ...]:
    detail = change.state or change.reason or change.content_type
    return (
        change.index,
        round(change.time * 1e6),
        change.kind,
        change.channel,
        change.epoch,
        change.seq,
        detail,
        change.bytes,
    )


class Follower:
    """The front's place in the log of another worker.

    Args:
        worker: which one. questions: to it. changes: the front's log.
    """

    def __init__(self, worker: int, questions: Questions, changes: Changes) -> None:
        self._worker, self._questions, self._changes = worker, questions, changes
        self._index, self._instance = 0, ""  # the worker's, up to which the front has its facts
        self._live: dict[str, int] = {}  # epochs of the worker's channels, as the front's log has told of them

    async def run(self) -> None:
        """Follow, until cancelled."""
        while True:
            about = {"after": self._index, "instance": self._instance or None}
            if not self._instance:
                about["after"] = -1  # with a snapshot
            try:
                async for frame in self._questions.follow(self._worker, "facts", **about):
                    self._take(orjson.loads(frame))
            except NoAnswer as error:
                _LOGGER.warning("%s", error)
            await asyncio.sleep(AGAIN_S)

    def _take(self, frame: dict[str, object]) -> None:
        told = frame.get("live")
        if isinstance(told, list):
            rows = self._difference([LiveChannel(*one) for one in told])
        else:
            rows = [FactRow(*row) for row in frame["facts"]]  # type: ignore[attr-defined]
        for row in rows:
            if row.kind == "added":
                self._live[row.channel] = row.epoch
            elif row.kind == "removed":
                self._live.pop(row.channel, None)
        if rows:
            self._changes.add(rows)
        self._index, self._instance = int(str(frame["index"])), str(frame["instance"])

    def _difference(self, live: list[LiveChannel]) -> list[FactRow]:
        """The facts that lead from what the front has told to what lives."""
        now_us = time.time_ns() // 1000
        there = {one.channel: one for one in live}
        rows = [
            FactRow(0, now_us, "removed", channel, epoch, None, LOST)
            for channel, epoch in self._live.items()
            if channel not in there or there[channel].epoch != epoch
        ]
        rows += [
            FactRow(0, round(one.time * 1e6), "added", one.channel, one.epoch, None, one.content_type)
            for one in live
            if self._live.get(one.channel) != one.epoch
        ]
        return rows
