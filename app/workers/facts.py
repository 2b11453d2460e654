"""The facts of all workers, in the front's log: whoever follows the server's changes follows one log.

**The problem.** Each worker has a log of its own (:class:`~tricklecast.app.changes.Changes`), with its own indexes, and
a client follows the server by one index, which must mean the same after any process has died. Each segment is a fact,
and mostly nobody asks for it.

**The idea.** The front follows the log of each other worker by its index. What it hears it appends to its own log, with
the next indexes of that: the facts of a channel stay in their order, and those of several workers are in the order in
which the front has heard of them.

- *Channels that come and go, and segments that break off* come at once, with all facts before them. So the changefeed,
  the dashboard and the table of live channels are up to date.
- *Whole segments* wait at their worker. A request for changes makes the front ask all workers first, so it finds what
  happened before it. For :data:`LIVE_S` after each question all facts come at once.
- *If more facts wait than are kept*, the front gets none of them, and followers begin with a snapshot, as in a server
  of one process.

**Positions.** With a data directory the front stores these facts together with its *position*, the place in the
worker's log behind them. So a successor of the front goes on where the front's log ends: no fact is lost, none comes
twice. A worker tells a fact when its own directory has it, so no position is beyond the end of the worker's log, unless
a disk has lost something.

**Which channels live.** A front that has just started has the earlier facts in its log, but no table of live channels.
So each worker sends its part of that table once the front is up to date. Until all have, the front shows no snapshot.

**If the front cannot go on** from its position, the worker sends the table at once, and the front appends the
difference to what it has told:

- Without a data directory the worker has died, and so have its channels, also those that clients have created again
  since. The front tells of their removal (:data:`LOST`), and then all facts of the successor. Clients that followed at
  that time go on. Others may have missed segments that only the dead worker knew, so they begin with a snapshot.
- Otherwise channels live on whose facts are missing: the front was further behind than facts are kept, or the directory
  was damaged. Then every follower begins with a snapshot.

**A worker that hangs** keeps the connection, and its facts come when it goes on. One request waits for it; later ones
do not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import orjson

from tricklecast.app.changes import Change, Changes, IndexGone, LiveChannel, Snapshot
from tricklecast.app.cluster.asking import SOON_S, Answerer, Asker, NoAnswer
from tricklecast.app.storage.database import FactRow, Position

_LOGGER = logging.getLogger(__name__)

LOST: Final = "worker_lost"
"""Why a channel was removed: its worker has died. Nobody knows the channel's head then."""

FRAME_FACTS: Final = 1_000
"""Facts, or live channels, in one frame. It takes about 5 ms to make, and is shorter than 0.5 MB."""

LIVE_S: Final = 10.0
"""For this time after a question all facts come as they happen. So a client that asks again and again has each fact at
once, and misses none when a worker dies."""

LOOK_S: Final = 1.0
"""How often a worker checks whether more facts wait than are kept."""

RETRY_S: Final = 0.25
"""Pause before a worker that has died is asked again: its successor is being started."""


def answer_facts(changes: Changes) -> Answerer:
    """Answers the question ``facts``: the facts behind an index, the live channels, and then facts as they are told."""

    async def facts(asker: Asker, after: int, instance: str | None) -> None:
        await _LogTeller(changes, asker, after, instance).run()

    return facts


class _LogTeller:
    """A worker's answer to the front. Each byte that the front sends meanwhile asks for all facts up to now.

    Args:
        changes: this worker's log. asker: the front. after, instance: the front's position.
    """

    def __init__(self, changes: Changes, asker: Asker, after: int, instance: str | None) -> None:
        self._changes, self._asker, self._after, self._instance = changes, asker, after, instance
        self._told_live = False  # the front was up to date once, and has the table of live channels
        self._gap = False  # facts were left out since the last frame
        self._asked = self._answered = 0  # bytes from the front; how many of them have their facts
        self._live_until = 0.0  # until then all facts are told as they happen, by the loop's clock
        self._news = asyncio.Event()  # there may be something to tell

    async def run(self) -> None:
        """Tell facts until the front is gone."""
        reading = asyncio.create_task(self._read_questions())
        self._changes.listeners.append(self._wake)
        try:
            while not reading.done():
                self._news.clear()
                await self._step()
        finally:
            self._changes.listeners.remove(self._wake)
            reading.cancel()

    def _wake(self, facts: Sequence[Change]) -> None:
        self._news.set()

    async def _read_questions(self) -> None:
        with suppress(OSError):
            while questions := await self._asker.reader.read(64):
                self._asked += len(questions)
                self._live_until = asyncio.get_running_loop().time() + LIVE_S
                self._news.set()
        self._news.set()

    async def _step(self) -> None:
        """Tell the next frame that is due, or wait."""
        changes = self._changes
        if self._told_live and changes.newest_heard <= self._after < changes.floor:
            self._after, self._gap = changes.index, True  # more whole segments wait than are kept
        try:
            changes.check(self._after, self._instance)
            gone = False
        except IndexGone:
            gone = True
        # Nothing lived at the beginning of a successor without a data directory, and it has all facts since then.
        is_successor = gone and self._instance not in (None, changes.instance) and changes.is_whole
        self._instance = None  # only the position with which the front came may be of another instance
        is_live = asyncio.get_running_loop().time() < self._live_until
        is_behind = self._gap or self._after < changes.index
        at_once = is_live or changes.newest_heard > self._after  # else only whole segments are due, which may wait
        if gone or (self._after == changes.index and not self._told_live):
            if (snapshot := Snapshot(0, []) if is_successor else changes.snapshot()) is None:  # storage fails
                await changes.more(changes.index, LOOK_S)
            else:
                await self._tell_live(snapshot, gone=gone)
        elif self._asked > self._answered or (is_behind and (at_once or not self._told_live)):
            facts = changes.facts_after(self._after, FRAME_FACTS)
            self._after = facts[-1].index if len(facts) == FRAME_FACTS else changes.index
            if self._after == changes.index:
                self._answered = self._asked
            gap, self._gap = self._gap, False
            await self._send(facts=list(map(_row, facts)), gap=gap, answered=self._answered)
        else:
            # _wake() hears of channels that come and go. A watcher also hears of whole segments.
            watchers = changes.watchers if at_once else []
            watchers.append(self._news.set)
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._news.wait()
            finally:
                watchers.remove(self._news.set)

    async def _tell_live(self, snapshot: Snapshot, *, gone: bool) -> None:
        """Tell which channels live, and go on from there. ``gone``: the front could not go on from its position."""
        self._after, self._told_live = snapshot.index, True
        live = snapshot.channels
        for first in range(0, max(1, len(live)), FRAME_FACTS):
            rest = len(live) > first + FRAME_FACTS
            await self._send(live=list(map(tuple, live[first : first + FRAME_FACTS])), gone=gone, rest=rest)

    async def _send(self, **frame: Any) -> None:
        await self._asker.send(orjson.dumps({"instance": self._changes.instance, "index": self._after, **frame}))


def _row(change: Change) -> tuple[Any, ...]:
    detail = change.state or change.reason or change.content_type
    about = change.kind, change.channel, change.epoch, change.seq, detail, change.bytes
    return change.index, round(change.time * 1e6), *about


class Follows(Protocol):
    """The way to the logs of others (:meth:`Asking.follow`)."""

    def follow(
        self, whom: int, question: str, /, *, begun: Callable[[asyncio.StreamWriter], None] | None = None, **about: Any
    ) -> AsyncGenerator[bytes]:
        """Ask, and yield the frames of the answer."""


class LogFollower:
    """The front's place in the log of another worker.

    Args:
        worker: its number. questions: the front's. changes: the front's log.
        position: behind the worker's facts that the front's log has already; ``None``: it has none.
        stored: there is a data directory, so channels outlive their worker.
    """

    def __init__(
        self, worker: int, questions: Follows, changes: Changes, position: Position | None, *, stored: bool
    ) -> None:
        self._worker, self._questions, self._changes, self._stored = worker, questions, changes, stored
        self._position = position
        # The epochs of the worker's live channels, by name, as the front's log has told of them. None: a front that
        # died has told of some, and the worker has not said yet which of them live.
        self._live: dict[str, int] | None = {} if position is None else None
        self._listed: list[LiveChannel] = []  # the worker's live channels, until all frames of this list are here
        self._known = False  # the front's own table of live channels has those of the worker
        self._writer: asyncio.StreamWriter | None = None  # to the worker; None: it does not answer
        self._unanswered: deque[tuple[float, asyncio.Future[None]]] = deque()  # questions: when asked, and the answer
        self._asked = 0  # questions on this connection
        self._live_until = 0.0  # until then facts come as they happen, by the loop's clock
        self._was_live = False  # so they came when the last connection ended
        self._hangs = False  # it has let a question wait
        changes.expect(worker, self)

    @property
    def hangs(self) -> bool:
        """Whether it has let a question wait, and has not answered since."""
        return self._hangs

    async def run(self) -> None:
        """Follow, until cancelled."""
        while True:
            self._listed = []
            after, instance = -1, None  # nothing goes on from there
            if self._position is not None:
                after, instance = self._position.number, self._position.instance or None
            try:
                about = {"after": after, "instance": instance}
                async for frame in self._questions.follow(self._worker, "facts", begun=self._begin, **about):
                    await self._take(orjson.loads(frame))
            except NoAnswer as error:
                _LOGGER.warning("%s", error)
            finally:
                self._end()
            await asyncio.sleep(RETRY_S)

    def _begin(self, writer: asyncio.StreamWriter) -> None:
        self._writer, self._asked = writer, 0
        if self._was_live:
            self._ask()  # so that facts go on to come as they happen

    def _end(self) -> None:
        self._was_live = asyncio.get_running_loop().time() < self._live_until
        self._writer, self._hangs = None, False
        while self._unanswered:
            self._unanswered.pop()[1].cancel()

    async def catch_up(self) -> None:
        """Wait until the worker has told all of its facts, :data:`SOON_S` at most; and :meth:`follow`."""
        if self._writer is not None and not self._hangs:
            answered, _ = await asyncio.wait([self._ask()], timeout=SOON_S)
            self._hangs = not answered

    def follow(self) -> None:
        """Have the worker tell facts as they happen, for a time."""
        now = asyncio.get_running_loop().time()
        if self._writer is not None and not self._unanswered and now > self._live_until - LIVE_S / 2:
            self._ask()

    def _ask(self) -> asyncio.Future[None]:
        assert self._writer is not None, "it answers"
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._unanswered.append((loop.time(), answer))
        self._asked += 1
        self._writer.write(b"?")
        return answer

    def _note_answered(self, answered: int) -> None:
        """The worker has answered this number of questions on this connection."""
        while self._asked - len(self._unanswered) < answered:
            at, answer = self._unanswered.popleft()
            self._live_until, self._hangs = at + LIVE_S, False
            answer.set_result(None)

    async def _take(self, frame: dict[str, Any]) -> None:
        """Append the facts of a frame to the front's log, or take the worker's table of live channels."""
        here = Position(frame["instance"], frame["index"])
        if "facts" in frame:
            self._add([FactRow(*row) for row in frame["facts"]], here, gap=frame["gap"])
            self._note_answered(frame["answered"])
            return
        self._listed += [LiveChannel(*one) for one in frame["live"]]
        if frame["rest"]:
            return
        live, self._listed = self._listed, []
        if frame["gone"]:
            self._start_over(live, here)
        elif self._live is not None:
            self._add(self._difference(live), here)  # none, unless the directory was damaged
        self._live = {one.channel: one.epoch for one in live}
        if not self._known:
            await self._changes.know(self._worker, live)
            self._known = True

    def _start_over(self, live: list[LiveChannel], here: Position) -> None:
        """The worker lacks facts behind the front's position: append what has changed among the live channels."""
        if self._stored or (self._position is not None and here.instance == self._position.instance):
            text = "worker %d has lost facts which the front has not heard of: followers begin with a snapshot"
            _LOGGER.warning(text, self._worker)
            self._add(self._difference(live), here, gap=True)
        else:
            gap = self._position is not None and not self._was_live
            self._add([*self._difference([]), *_added(live)], here, gap=gap)

    def _difference(self, live: list[LiveChannel]) -> list[FactRow]:
        """The facts that lead from the channels of which the front has told to those that live."""
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
