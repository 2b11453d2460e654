"""The dashboard of all workers: the front's feed has the frames of the others in its own.

Each worker's feed looks at its own channels. While the front's feed has followers, it follows the others, and puts what
they have told since its last frame into the next one. Nothing has to be renumbered: the numbers of their channels
differ, and milliseconds count from one moment, since all processes of a machine have the same monotonic clock.

A snapshot for a new follower needs everything, which the front asks for then. A worker that does not answer has lost
its channels for the dashboard: they are gone, and come again with the first frame that it sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

import orjson

from tricklecast.app.web.events import DashboardEvent
from tricklecast.app.web.feed import DashboardFeed, OthersFrame
from tricklecast.app.workers.placement import FRONT
from tricklecast.app.workers.questions import SOON_S, Answer, NoAnswer, Questions, Stream

FIRST_S: Final = 0.5
"""The first frame waits for the others at most for this time."""

SILENT_S: Final = 7.0
"""A worker that sends no frame for so long is lost; one that works sends one after 5 s at the latest."""

AGAIN_S: Final = 0.25
"""Pause before a worker that is lost is followed again."""

MAX_FRAMES: Final = 8
"""Frames of a worker that wait for the front's next one; a further one waits at the worker, which makes a snapshot."""

OWN_LIMITS: Final = frozenset({"dashboards", "followers", "subscriptions"})
"""Limits on what the front alone has."""

EACH_LIMITS: Final = frozenset({"access_log_queue"})
"""Limits of each worker; the others hold for the server."""

SUMS: Final = ("cpu", "connections", "readers", "bytes_in", "bytes_out")


def dashboard_answers(feed: DashboardFeed) -> dict[str, Answer]:
    """A worker's answers to the front's questions."""

    async def dashboard(to: Stream, began: float) -> None:
        feed.join(began)
        try:
            async with aclosing(feed.follow(None, lambda: None)) as frames:
                async for frame in frames:
                    await to.send(frame.data)
        finally:
            feed.leave()

    async def snapshot(to: Stream) -> None:
        if feed.frame is not None:
            await to.send((await feed.all_of(feed.frame)).data)

    return {"dashboard": dashboard, "dashboard_snapshot": snapshot}


def _read(data: bytes) -> tuple[bool, dict[str, Any]]:
    """Whether a Server-Sent Event is a snapshot, and its content."""
    kind, _, content = data.partition(b"\ndata: ")
    return kind == b"event: snapshot", orjson.loads(content)


class _Other:
    """Another worker, as the front knows it.

    Attributes:
        frames: that the front has not taken; ``None``: the worker was lost.
        numbers: of its channels, as the front's followers know them.
        server: its figures; empty while it is lost.
        task: follows it. heard: whether it has answered since then.
    """

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_FRAMES)
        self.numbers: set[int] = set()
        self.server: dict[str, Any] = {}
        self.task: asyncio.Task[None] | None = None
        self.heard = asyncio.Event()
        self._instance, self._last_event = "", 0  # of the worker's events, those that the front has

    def take(self, part: OthersFrame) -> None:
        """Add what has come to a part."""
        while not self.frames.empty():
            data = self.frames.get_nowait()
            if data is None:
                part.gone.extend(self.numbers)
                self.numbers, self.server = set(), {}
                continue
            is_snapshot, frame = _read(data)
            there = {one[0] for one in frame["about"]}
            gone = [*(self.numbers - there)] if is_snapshot else frame["gone"]
            self.numbers = (self.numbers | there).difference(gone)
            self.server |= frame["server"]
            if is_snapshot and self._instance != (instance := frame["server"]["instance"]):
                self._instance, self._last_event = instance, 0
            events = [DashboardEvent(**one) for one in frame["events"] if one["number"] > self._last_event]
            if events:
                self._last_event = events[-1].number
            part.about.extend(frame["about"])
            part.rows.extend(frame["rows"])
            part.gone.extend(gone)
            part.events.extend(events)


class OtherDashboards:
    """The feeds of the other workers, for the front's (:class:`~tricklecast.app.web.feed.Others`).

    Args:
        questions: to them. workers: their numbers.
    """

    def __init__(self, questions: Questions, workers: Sequence[int]) -> None:
        self._questions = questions
        self._others = [_Other(worker) for worker in workers]
        self._began = 0.0

    def begin(self, began: float) -> None:
        """Follow them; their milliseconds count from ``began``."""
        self._began = began
        for other in self._others:
            self._begin(other)

    def _begin(self, other: _Other) -> None:
        other.frames = asyncio.Queue(MAX_FRAMES)
        other.task = asyncio.get_running_loop().create_task(self._follow(other, other.frames))

    async def first(self) -> None:
        """Wait until they have told what there is, but not long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                for other in self._others:
                    await other.heard.wait()

    def end(self) -> None:
        """Follow no more, and drop all state."""
        for other in self._others:
            if other.task is not None:
                other.task.cancel()
            other.task, other.numbers, other.server = None, set(), {}
            other.heard.clear()

    async def _follow(self, other: _Other, to: asyncio.Queue[bytes | None]) -> None:
        while True:
            try:
                async with aclosing(self._questions.follow(other.worker, "dashboard", began=self._began)) as frames:
                    while True:
                        async with asyncio.timeout(SILENT_S):
                            frame = await anext(frames)
                        await to.put(frame)
                        other.heard.set()
            except (NoAnswer, TimeoutError, StopAsyncIteration):
                await to.put(None)
            await asyncio.sleep(AGAIN_S)

    def news(self) -> OthersFrame:
        """The changes since the last call."""
        part = OthersFrame([], [], [], [])
        for other in self._others:
            other.take(part)
        return part

    async def whole(self) -> OthersFrame:
        """All that there is now. A worker that does not answer is lost."""
        part = OthersFrame([], [], [], [])
        asked = [(other, other.task) for other in self._others if other.server]
        answers = await self._questions.ask_all(
            "dashboard_snapshot", workers=[other.worker for other, _ in asked], within_s=SOON_S
        )
        for (other, task), answer in zip(asked, answers, strict=True):
            if task is None or other.task is not task:
                continue  # meanwhile it was followed anew, or nobody follows any more
            if isinstance(answer, NoAnswer):
                task.cancel()
                self._begin(other)
                other.frames.put_nowait(None)
                continue
            frame = _read(answer)[1]
            other.numbers.update(one[0] for one in frame["about"])
            part.about.extend(frame["about"])
            part.rows.extend(frame["rows"])
        return part

    def merged(self, own: dict[str, Any], channels: int) -> dict[str, Any]:
        """The server's figures: those of this worker, with its number of ``channels``, and of the others."""
        parts = [own, *(other.server for other in self._others if other.server)]
        server = own | {name: sum(part[name] for part in parts) for name in SUMS}
        server["cpu"] = round(server["cpu"], 4)
        server["memory"] = None if own["memory"] is None else sum(part["memory"] or 0 for part in parts)
        server["loop_lag_ms"] = max(part["loop_lag_ms"] for part in parts)
        server["counters"] = {name: sum(part["counters"].get(name, 0) for part in parts) for name in own["counters"]}
        limits = []
        for name, used, most, joinable in own["limits"]:
            uses = [one for part in parts for one in part["limits"] if one[0] == name]
            if name not in OWN_LIMITS:
                counts = [one[1] for one in uses]
                used = max(counts) if name in EACH_LIMITS else sum(counts)
                joinable = all(one[3] for one in uses)
            limits.append([name, used, most, joinable])
        server["limits"] = limits
        workers = [_load(FRONT, own, channels)]
        workers += [_load(other.worker, other.server, len(other.numbers)) for other in self._others]
        server["workers"] = workers
        return server


def _load(worker: int, server: dict[str, Any], channels: int) -> dict[str, Any]:
    """The row of a worker: its number, whether it answers, and its figures."""
    load = {"worker": worker, "up": bool(server)}
    if server:
        load |= {name: server[name] for name in ("cpu", "memory", "connections", "readers", "loop_lag_ms")}
        load["channels"] = channels
    return load
