"""The facts of all workers, in the front's log: whoever follows the server's changes follows one log.

**The problem.** Each worker has a log of its own (:class:`~tricklecast.app.changes.Changes`), with its own indexes, and
a client follows the server by one index, which must mean the same after any process has died. Each segment is a fact,
and mostly nobody asks for it.

**The idea.** The front follows the log of each other worker by its index. What it hears it appends to its own log, with
the next indexes of that: the facts of a channel stay in their order, and those of several workers are in the order in
which the front has heard of them.

- *Facts that listeners hear* come at once, and all before them: channels that come and go, segments that break off. So
  the changefeed, the dashboard and the table of live channels are those of now.
- *Whole segments* wait at their worker. A request for changes asks all workers first, so that it finds what happened
  before it; for :data:`LIVE_S` after each question all facts come at once.
- *Of more than are kept* the front takes none, and followers begin with a snapshot, as in a server of one process.

**Positions.** With a data directory the front stores these facts together with its *position*, the place in the
worker's log behind them, so a front that dies goes on where its log ends, without a loss or a double. A worker tells a
fact only when its own directory has it, so no position is beyond the end of its log, unless a disk has lost something.

**Which channels live.** When the front is up to date, the worker says which of its channels live: a front that has just
started has the earlier facts, but not that table. Before it knows it of all workers, it shows nobody a snapshot.

**Where the front cannot go on** from its position, it takes that table instead, and appends the difference to what it
has told:

- Without a data directory the worker has died, and all of its channels with it, also those that have been created again
  since. The removals are told (:data:`LOST`), then the facts of its successor from the beginning. Followers that were
  there go on; for others segments of the time since then may be missing, so they begin with a snapshot.
- Otherwise facts are missing, of channels that live on: the front was further behind than facts are kept, or the
  directory was damaged. Then no follower may go on, and each begins with a snapshot.

**A worker that hangs** keeps the connection, and its facts come when it goes on. Requests wait for it once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import orjson

from tricklecast.app.changes import Change, Changes, IndexGone, LiveChannel, Snapshot
from tricklecast.app.storage.database import FactRow, Position
from tricklecast.app.workers.questions import SOON_S, Answer, NoAnswer, Questions, Stream

_LOGGER = logging.getLogger(__name__)

LOST: Final = "worker_lost"
"""The reason why a channel was removed whose worker has died. Nobody knows its head then."""

PART: Final = 1_000
"""Facts, or live channels, in one frame, which takes about 5 ms to make and is shorter than 0.5 MB."""

LIVE_S: Final = 10.0
"""For so long after a question all facts come as they happen: a client that asks again and again has each at once, and
goes on when a worker dies."""

LOOK_S: Final = 1.0
"""How often a worker looks whether more facts wait than are kept."""

AGAIN_S: Final = 0.25
"""Pause before a worker is asked again that has died, since it is being started."""


def answer_facts(changes: Changes) -> Answer:
    """Answers the question ``facts``: the facts behind an index, the live channels, and then facts as they are told."""

    async def facts(to: Stream, after: int, instance: str | None) -> None:
        await _Telling(changes, to, after, instance).run()

    return facts


class _Telling:
    """A worker's answer to the front, which asks for all facts by a byte in between.

    Args:
        changes: this worker's log. to: the front. after, instance: its position.
    """

    def __init__(self, changes: Changes, to: Stream, after: int, instance: str | None) -> None:
        self._changes, self._to, self._after, self._instance = changes, to, after, instance
        self._knows_live = False  # whether the front has been up to date, and knows which channels live
        self._gap = False  # facts that waited were left out
        self._asked = self._answered = 0  # the front's questions
        self._live_until = 0.0  # facts are told as they happen, by the loop's clock
        self._news = asyncio.Event()  # there may be something to do

    async def run(self) -> None:
        """Tell, until the front is gone."""
        hearing = asyncio.create_task(self._hear())
        self._changes.listeners.append(self._heard)
        try:
            while not hearing.done():
                self._news.clear()
                await self._next()
        finally:
            self._changes.listeners.remove(self._heard)
            hearing.cancel()

    def _heard(self, facts: Sequence[Change]) -> None:
        self._news.set()

    async def _hear(self) -> None:
        with suppress(OSError):
            while questions := await self._to.reader.read(64):
                self._asked += len(questions)
                self._live_until = asyncio.get_running_loop().time() + LIVE_S
                self._news.set()
        self._news.set()

    async def _next(self) -> None:
        """Tell a part of what is due, or wait."""
        changes = self._changes
        if self._knows_live and changes.newest_heard <= self._after < changes.floor:
            self._after, self._gap = changes.index, True  # whole segments only
        try:
            changes.check(self._after, self._instance)
            gone = False
        except IndexGone:
            gone = True
        # Nothing lived at the beginning of a successor without a data directory, and it has all facts since then.
        successor = gone and self._instance not in (None, changes.instance) and changes.is_whole
        self._instance = None
        is_live = asyncio.get_running_loop().time() < self._live_until
        is_behind = self._gap or self._after < changes.index
        at_once = is_live or changes.newest_heard > self._after
        if gone or (self._after == changes.index and not self._knows_live):
            if (snapshot := Snapshot(0, []) if successor else changes.snapshot()) is None:  # storage fails
                await changes.more(changes.index, LOOK_S)
            else:
                await self._tell_live(snapshot, gone=gone)
        elif self._asked > self._answered or (is_behind and (at_once or not self._knows_live)):
            part = changes.facts_after(self._after, PART)
            self._after = part[-1].index if len(part) == PART else changes.index
            if self._after == changes.index:
                self._answered = self._asked
            gap, self._gap = self._gap, False
            await self._send(facts=list(map(_row, part)), gap=gap, answered=self._answered)
        else:
            watchers = changes.watchers if at_once else []
            watchers.append(self._news.set)
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._news.wait()
            finally:
                watchers.remove(self._news.set)

    async def _tell_live(self, snapshot: Snapshot, *, gone: bool) -> None:
        self._after, self._knows_live = snapshot.index, True
        live = snapshot.channels
        for first in range(0, max(1, len(live)), PART):
            rest = len(live) > first + PART
            await self._send(live=list(map(tuple, live[first : first + PART])), gone=gone, rest=rest)

    async def _send(self, **frame: Any) -> None:
        await self._to.send(orjson.dumps({"instance": self._changes.instance, "index": self._after, **frame}))


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
        self._to: asyncio.StreamWriter | None = None  # the worker; None: it does not answer
        self._open: deque[tuple[float, asyncio.Future[None]]] = deque()  # unanswered questions: when, and their answers
        self._asked = 0  # questions on this connection
        self._live_until = 0.0  # facts come as they happen, by the loop's clock
        self._followed = False  # they came so when it died
        self._hangs = False  # it has let a question wait
        changes.expect(worker, self)

    async def run(self) -> None:
        """Follow, until cancelled."""
        while True:
            self._said = []
            after, instance = -1, None  # nothing goes on from there
            if self._position is not None:
                after, instance = self._position.number, self._position.instance or None
            try:
                about = {"after": after, "instance": instance}
                async for frame in self._questions.follow(self._worker, "facts", begun=self._begin, **about):
                    await self.take(orjson.loads(frame))
            except NoAnswer as error:
                _LOGGER.warning("%s", error)
            finally:
                self._end()
            await asyncio.sleep(AGAIN_S)

    def _begin(self, to: asyncio.StreamWriter) -> None:
        self._to, self._asked = to, 0
        if self._followed:
            self._ask()  # and still are

    def _end(self) -> None:
        self._followed = asyncio.get_running_loop().time() < self._live_until
        self._to, self._hangs = None, False
        while self._open:
            self._open.pop()[1].cancel()

    async def catch_up(self) -> None:
        """Have all facts that the worker can tell now, or wait no longer; and :meth:`follow`."""
        if self._to is not None and not self._hangs:
            answered, _ = await asyncio.wait([self._ask()], timeout=SOON_S)
            self._hangs = not answered

    def follow(self) -> None:
        """Have the next facts as they happen, for a time."""
        now = asyncio.get_running_loop().time()
        if self._to is not None and not self._open and now > self._live_until - LIVE_S / 2:
            self._ask()

    def _ask(self) -> asyncio.Future[None]:
        assert self._to is not None, "it answers"
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._open.append((loop.time(), answer))
        self._asked += 1
        self._to.write(b"?")
        return answer

    def _hear(self, answered: int) -> None:
        while self._asked - len(self._open) < answered:
            at, answer = self._open.popleft()
            self._live_until, self._hangs = at + LIVE_S, False
            answer.set_result(None)

    async def take(self, frame: dict[str, Any]) -> None:
        """Take a frame of the worker's answer."""
        here = Position(frame["instance"], frame["index"])
        if "facts" in frame:
            self._add([FactRow(*row) for row in frame["facts"]], here, gap=frame["gap"])
            self._hear(frame["answered"])
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
        if self._stored or (self._position is not None and here.instance == self._position.instance):
            text = "worker %d has lost facts which the front has not heard of: followers begin with a snapshot"
            _LOGGER.warning(text, self._worker)
            self._add(self._difference(live), here, gap=True)
        else:
            gap = self._position is not None and not self._followed
            self._add([*self._difference([]), *_added(live)], here, gap=gap)

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
