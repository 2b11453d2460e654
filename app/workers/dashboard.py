"""The dashboard of all workers: the front adds the frames of the other workers to its own.

For each of its frames the front asks every other worker for one. The question names the last frame that the front has
of this worker, and the answer has the changes since then. If that frame is not the worker's newest one, since an answer
was lost or the worker was started again, the answer has everything, as a first frame has.

The front copies the numbers of channels and the times, since they mean the same in all workers: each worker gives other
numbers (:meth:`Worker.numbers`), and all processes of a machine have the same monotonic clock. The front shows the
channels of a worker that does not answer as gone; they come back with its next frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import orjson

from tricklecast.app.cluster.asking import SOON_S, Answerer, Asker, NoAnswer
from tricklecast.app.encoding import encode
from tricklecast.app.web.events import DashboardEvent
from tricklecast.app.web.feed import CHANGING, DashboardFeed, Frame
from tricklecast.app.workers.placement import FRONT
from tricklecast.app.workers.questions import Questions

OWN_LIMITS: Final = frozenset({"dashboards", "followers", "subscriptions"})
"""Limits of which only the front uses anything."""

EACH_LIMITS: Final = frozenset({"access_log_queue"})
"""Limits that each worker has for itself: the dashboard shows the worker with the highest use."""

SUMS: Final = ("cpu", "connections", "readers", "bytes_in", "bytes_out")
"""Figures that are added up."""


def dashboard_answers(feed: DashboardFeed) -> dict[str, Answerer]:
    """A worker's answers to the front's questions."""

    async def dashboard(asker: Asker, seen: int, began: float) -> None:
        frame = await feed.next_frame(seen, began)
        await asker.send(encode(frame.content() | {"cpu_s": frame.cpu_s}))

    async def dashboard_snapshot(asker: Asker) -> None:
        if feed.frame is not None:
            await asker.send(encode((await feed.all_of(feed.frame)).content()))

    return {"dashboard": dashboard, "dashboard_snapshot": dashboard_snapshot}


class _Other:
    """The state that the front has of another worker."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.frame = 0  # the number of its last frame that the front has; 0: the next one is to have everything
        self.numbers: set[int] = set()  # of its channels that the front shows
        self.server: dict[str, Any] = {}  # its figures; empty while it does not answer
        self._event_s = 0.0  # when its last event happened that the front has

    def add_to(self, frame: Frame, answer: dict[str, Any] | None) -> None:
        """Add the worker's frame to one of the front; ``None``: the worker does not answer."""
        if answer is None:
            frame.gone += self.numbers
            self.frame, self.numbers, self.server = 0, set(), {}
            return
        about, is_first = answer["about"], answer["frame"] == 1
        described = {number for number, *_ in about}
        gone = [*self.numbers - described] if is_first else answer["gone"]
        self.numbers = (self.numbers | described).difference(gone)
        unchanged = {} if is_first else {name: self.server[name] for name in CHANGING if name in self.server}
        self.server = unchanged | answer["server"]
        # A first frame has events again that the front may have.
        events = [DashboardEvent(**each) for each in answer["events"] if not is_first or each["time"] > self._event_s]
        if events:
            self._event_s = events[-1].time
        frame.about += about
        frame.rows += answer["rows"]
        frame.gone += gone
        frame.events += events
        frame.cpu_s = max(frame.cpu_s, answer["cpu_s"])


class OtherDashboards:
    """The feeds of the other workers, for the front's (:class:`~tricklecast.app.web.feed.Others`).

    Args:
        questions: the front's. workers: the numbers of the others.
    """

    def __init__(self, questions: Questions, workers: Iterable[int]) -> None:
        self._questions = questions
        self._others = [_Other(worker) for worker in workers]

    def forget(self) -> None:
        """Drop all state, since nobody follows the dashboard any more."""
        self._others = [_Other(other.worker) for other in self._others]

    async def add_news(self, frame: Frame, channels: int, began: float) -> None:
        """Add their changes since the last call to a frame of the front."""
        others = self._others
        last = [other.frame for other in others]
        asked = (self._ask(other, "dashboard", seen=other.frame, began=began) for other in others)
        for other, before, answer in zip(others, last, await asyncio.gather(*asked), strict=True):
            if answer is not None and other.frame == before:  # else add_all() wants everything in the next frame
                other.frame = answer["frame"]
            other.add_to(frame, answer)
        frame.server = self.merged(frame.server, channels)

    async def add_all(self, snapshot: Frame) -> None:
        """Add all of their channels to a new follower's snapshot.

        If a worker does not answer, its next frame has everything.
        """
        others = [other for other in self._others if other.frame]
        answers = await asyncio.gather(*(self._ask(other, "dashboard_snapshot") for other in others))
        for other, answer in zip(others, answers, strict=True):
            if answer is None:
                other.frame = 0
                continue
            other.numbers.update(number for number, *_ in answer["about"])
            snapshot.about += answer["about"]
            snapshot.rows += answer["rows"]

    async def _ask(self, other: _Other, question: str, **about: Any) -> dict[str, Any] | None:
        try:
            answer: dict[str, Any] = orjson.loads(
                await self._questions.ask(other.worker, question, within_s=SOON_S, **about)
            )
        except NoAnswer:
            return None
        return answer

    def merged(self, own: dict[str, Any], channels: int) -> dict[str, Any]:
        """The figures of the server.

        Args:
            own: those of the front. channels: how many the front has.
        """
        servers = [own, *(other.server for other in self._others if other.server)]
        server = own | {name: sum(each[name] for each in servers) for name in SUMS}
        server["cpu"] = round(server["cpu"], 4)
        server["memory"] = None if own["memory"] is None else sum(each["memory"] or 0 for each in servers)
        server["loop_lag_ms"] = max(each["loop_lag_ms"] for each in servers)
        server["counters"] = {name: sum(each["counters"].get(name, 0) for each in servers) for name in own["counters"]}
        server["limits"] = [_limit(servers, *limit) for limit in own["limits"]]
        sources = [source for each in servers for source in each.get("sources", [])]
        server["sources"] = sorted(sources, key=lambda source: str(source["name"]))
        troubles = [tuple(trouble) for each in servers for trouble in each.get("troubles", [])]
        server["troubles"] = [list(trouble) for trouble in dict.fromkeys(troubles)]
        workers = [_worker_row(FRONT, own, channels)]
        workers += [_worker_row(other.worker, other.server, len(other.numbers)) for other in self._others]
        server["workers"] = workers
        return server


def _limit(servers: list[dict[str, Any]], name: str, used: int, most: int | None, joinable: bool) -> list[Any]:
    """A limit of the server: its name, its use, the limit, and whether a newcomer may come; given are the front's."""
    if name not in OWN_LIMITS:
        limits = [limit for server in servers for limit in server["limits"] if limit[0] == name]
        uses = [limit[1] for limit in limits]
        used = max(uses) if name in EACH_LIMITS else sum(uses)
        joinable = all(limit[3] for limit in limits)
    return [name, used, most, joinable]


def _worker_row(worker: int, server: dict[str, Any], channels: int) -> dict[str, Any]:
    """The dashboard's row of a worker; one that does not answer has no figures."""
    row = {"worker": worker, "up": bool(server)}
    if server:
        row |= {name: server[name] for name in ("cpu", "memory", "connections", "readers", "loop_lag_ms")}
        row["channels"] = channels
    return row
