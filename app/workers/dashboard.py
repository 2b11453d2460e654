"""The dashboard of all workers: the front adds the frames of the others to its own.

For each of its frames the front asks every other worker for one, and only then its feed looks at its channels. The
question names the last frame that the front has of this worker. If that is not the worker's newest one, since an answer
was lost or the worker was started again, the answer has everything, as a first frame has.

No channel has to be renumbered, since workers give different numbers (:meth:`Worker.numbers`). Milliseconds count from
one moment, since all processes of a machine have the same monotonic clock. The channels of a worker that does not
answer are gone, and come again with its next frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import orjson

from tricklecast.app.encoding import encode
from tricklecast.app.web.events import DashboardEvent
from tricklecast.app.web.feed import DashboardFeed, Frame
from tricklecast.app.workers.placement import FRONT
from tricklecast.app.workers.questions import SOON_S, Answer, NoAnswer, Questions, Stream

OWN_LIMITS: Final = frozenset({"dashboards", "followers", "subscriptions"})
"""Limits on what the front alone has."""

EACH_LIMITS: Final = frozenset({"access_log_queue"})
"""Limits of each worker; the others hold for the server."""

SUMS: Final = ("cpu", "connections", "readers", "bytes_in", "bytes_out")


def dashboard_answers(feed: DashboardFeed) -> dict[str, Answer]:
    """A worker's answers to the front's questions."""

    async def dashboard(to: Stream, seen: int, began: float) -> None:
        frame = await feed.next_frame(seen, began)
        await to.send(encode(frame.content() | {"cpu_s": frame.cpu_s}))

    async def dashboard_snapshot(to: Stream) -> None:
        if feed.frame is not None:
            await to.send(encode((await feed.all_of(feed.frame)).content()))

    return {"dashboard": dashboard, "dashboard_snapshot": dashboard_snapshot}


class _Other:
    """Another worker, as the front knows it."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.seen = 0  # its last frame that the front has; 0: the next one is to have everything
        self.numbers: set[int] = set()  # of its channels, as followers know them
        self.server: dict[str, Any] = {}  # its figures; empty while it does not answer
        self._event_s = 0.0  # the time of its last event that the front has

    def take(self, frame: dict[str, Any] | None, into: Frame) -> None:
        """Add its frame to one of the front; ``None``: it does not answer."""
        if frame is None:
            into.gone += self.numbers
            self.seen, self.numbers, self.server = 0, set(), {}
            return
        about, is_first = frame["about"], frame["frame"] == 1
        there = {number for number, *_ in about}
        gone = [*self.numbers - there] if is_first else frame["gone"]
        self.numbers = (self.numbers | there).difference(gone)
        self.server = frame["server"]
        events = [DashboardEvent(**one) for one in frame["events"] if not is_first or one["time"] > self._event_s]
        if events:
            self._event_s = events[-1].time
        into.about += about
        into.rows += frame["rows"]
        into.gone += gone
        into.events += events
        into.cpu_s = max(into.cpu_s, frame["cpu_s"])


class OtherDashboards:
    """The feeds of the other workers, for the front's (:class:`~tricklecast.app.web.feed.Others`).

    Args:
        questions: to them. workers: their numbers.
    """

    def __init__(self, questions: Questions, workers: Iterable[int]) -> None:
        self._questions = questions
        self._others = [_Other(worker) for worker in workers]

    def forget(self) -> None:
        """Drop all state, since nobody follows any more."""
        self._others = [_Other(other.worker) for other in self._others]

    async def add_news(self, frame: Frame, channels: int, began: float) -> None:
        """Add their changes since the last call to a frame of the front (:class:`~tricklecast.app.web.feed.Others`)."""
        others = self._others
        seen = [other.seen for other in others]
        asked = (self._ask(one, "dashboard", seen=last, began=began) for one, last in zip(others, seen, strict=True))
        for other, last, answer in zip(others, seen, await asyncio.gather(*asked), strict=True):
            if answer is not None and other.seen == last:  # else a follower's snapshot lacks this worker
                other.seen = answer["frame"]
            other.take(answer, frame)
        frame.server = self.merged(frame.server, channels)

    async def add_all(self, snapshot: Frame) -> None:
        """Add all of their channels to a snapshot. Those of a worker that does not answer come with its next frame."""
        others = [other for other in self._others if other.seen]
        answers = await asyncio.gather(*(self._ask(other, "dashboard_snapshot") for other in others))
        for other, answer in zip(others, answers, strict=True):
            if answer is None:
                other.seen = 0
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
