"""The dashboard of all workers: what the front takes of which frame, and what it adds up."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.app.core.support import make_registry, publish
from tests.support.waiting import WITHIN_S, until
from tricklecast.app.changes import Change
from tricklecast.app.cluster.asking import SOON_S, NoAnswer
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.app.web import feed as feed_module
from tricklecast.app.web.events import KEPT_EVENTS, DashboardEvent, Events
from tricklecast.app.web.feed import DashboardFeed, Frame
from tricklecast.app.workers.dashboard import OtherDashboards, dashboard_answers


def event(number: int, at: float = 0.0) -> DashboardEvent:
    return DashboardEvent(number, at, "refused", "host", "cam", "", None, 1)


def figures(**own: Any) -> dict[str, Any]:
    """Of one worker."""
    found = {
        "cpu": 0.25, "memory": 100, "loop_lag_ms": 1, "connections": 2, "readers": 3, "dashboards": 1, "bytes_in": 4,
        "bytes_out": 5, "limits": [], "counters": {"requests": 6}, "draining": False,
    }  # fmt: skip
    return found | own


class OtherWorker:
    """A worker with a feed of its own, which may be silent. It is also the front's way to it (``Questions``)."""

    def __init__(self) -> None:
        self.numbers = itertools.count(3, 2)
        self.registry: Registry
        self.feed: DashboardFeed
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.silent = False  # gets no question
        self.mute = False  # its answer is lost
        self.answering = asyncio.Event()  # cleared: answers are late
        self.answering.set()
        self.restart()

    def restart(self) -> None:
        self.registry, _ = make_registry()
        plane = DataPlane(self.registry, Options())
        self.events = Events(plane.clock, plane.wall_us)
        self.feed = DashboardFeed(plane, self.events, lambda dashboards: [], numbers=self.numbers)

    def note(self, why: str) -> None:
        """Something happens here, in a second of its own."""
        self.events.note("refused", why)
        self.events.seal()

    async def ask(self, worker: int, question: str, *, within_s: float, **about: Any) -> bytes:
        assert (worker, within_s) == (1, SOON_S)
        self.asked.append((question, about))
        sent: list[bytes] = []
        if not self.silent:

            async def send(frame: bytes) -> None:
                sent.append(frame)

            await dashboard_answers(self.feed)[question](cast(Any, SimpleNamespace(send=send)), **about)
            await self.answering.wait()
        if self.mute or not sent:
            raise NoAnswer("worker 1", "gone")
        return sent[0]


class Told:
    """The part of the front's frame that is about the other worker."""

    def __init__(self, found: Frame) -> None:
        self.numbers = {name: number for number, name, *_ in found.about}
        self.rows = sorted(row[0] for row in found.rows)
        self.gone = sorted(found.gone)
        self.events = [one.why for one in found.events]


def frame_of(**server: Any) -> Frame:
    """One of the front, without channels."""
    return Frame(1, b"frame", [], [], [], figures(**server), [])


async def news(front: OtherDashboards, began: float = 7.0) -> Told:
    frame = frame_of()
    await front.add_news(frame, 2, began)
    return Told(frame)


async def whole(front: OtherDashboards) -> Told:
    frame = frame_of()
    await front.add_all(frame)
    return Told(frame)


def with_front(test: Callable[[OtherWorker, OtherDashboards], Awaitable[None]]) -> None:
    async def main() -> None:
        other = OtherWorker()
        await test(other, OtherDashboards(cast(Any, other), [1]))

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))


def test_frames_of_another_worker_become_part_of_the_next_one() -> None:
    """New and changed channels, those that are gone, and events, once each."""

    async def test(other: OtherWorker, front: OtherDashboards) -> None:
        publish(other.registry, "a", 0)
        publish(other.registry, "b", 0)
        other.note("one")
        first = await news(front)
        assert (first.numbers, first.rows, first.gone, first.events) == ({"a": 3, "b": 5}, [3, 5], [], ["one"])
        publish(other.registry, "c", 0)
        other.registry.end("a", 0.0)
        other.registry.expire(1e9)
        other.note("two")
        second = await news(front)
        assert (second.numbers, second.gone, second.events) == ({"c": 7}, [3], ["two"])
        assert [(about["seen"], about["began"]) for _, about in other.asked] == [(0, 7.0), (1, 7.0)]
        front.forget()
        again = await news(front, 8.0)
        assert (again.numbers, again.gone, again.events) == ({"b": 9, "c": 11}, [], ["one", "two"])

    with_front(test)


@pytest.mark.parametrize("why", ["restarted", "silent", "mute", "forgotten"])
def test_a_worker_that_did_not_answer_tells_everything_again(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its channels are gone, and come back as other ones. Events that were told are not told twice."""
    monkeypatch.setattr(feed_module, "FRONT_LEFT_S", 0.0 if why == "forgotten" else 100.0)

    async def test(other: OtherWorker, front: OtherDashboards) -> None:
        publish(other.registry, "a", 0)
        other.note("one")
        first = await news(front)
        other.note("two")
        if why == "restarted":
            other.restart()
            publish(other.registry, "a", 0)
            other.note("two")
        elif why == "forgotten":
            await until(lambda: other.feed.frame is None)
        else:
            other.silent, other.mute = why == "silent", why == "mute"
            lost = await news(front)
            assert (lost.rows, lost.gone) == ([], [first.numbers["a"]])
            assert front.merged(figures(), 2)["workers"][1] == {"worker": 1, "up": False}
            other.silent = other.mute = False
        back = await news(front)
        assert list(back.numbers) == ["a"]
        assert back.rows == list(back.numbers.values())
        assert back.events == ["two"]
        assert back.gone == ([first.numbers["a"]] if why in ("restarted", "forgotten") else [])

    with_front(test)


def test_a_snapshot_has_what_the_worker_has_told() -> None:
    """One that does not answer is left out, and tells everything with its next frame, since that follower needs it."""

    async def test(other: OtherWorker, front: OtherDashboards) -> None:
        publish(other.registry, "a", 0)
        assert (await whole(front)).numbers == {}
        assert other.asked == []
        await news(front)
        publish(other.registry, "b", 0)
        assert (await whole(front)).numbers == {"a": 3}
        other.answering.clear()
        late = asyncio.create_task(news(front))
        await until(lambda: other.feed.frame and other.feed.frame.number == 2)
        other.silent = True
        assert (await whole(front)).numbers == {}
        other.silent = False
        other.answering.set()
        assert (await late).numbers == {"b": 5}
        again = await news(front)
        assert (again.numbers, again.gone) == ({"a": 7, "b": 9}, [3, 5])

    with_front(test)


def test_questions_for_frames_are_answered_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that was killed may have asked for one: its successor's has everything all the same."""
    monkeypatch.setattr(feed_module, "TURN_CHANNELS", 1)

    async def test(other: OtherWorker, front: OtherDashboards) -> None:
        for name in "abc":
            publish(other.registry, name, 0)
        frames = await asyncio.gather(*(other.feed.next_frame(0, began) for began in (7.0, 8.0)))
        assert [[about[1] for about in frame.about] for frame in frames] == [["a", "b", "c"]] * 2
        assert [frame.number for frame in frames] == [1, 1]

    with_front(test)


def test_figures_of_the_server_are_sums_but_for_what_each_has_alone() -> None:
    """The lag is the longest; limits are the server's, and each worker's part is added up."""

    def main() -> dict[str, Any]:
        front = OtherDashboards(cast(Any, None), [1])
        limits = [["readers", 30, 100, False], ["dashboards", 1, 200, True], ["access_log_queue", 60, 100, True]]
        parts = figures(loop_lag_ms=9, limits=limits, counters={"requests": 5, "new": 1})
        frame = {"frame": 1, "about": [[3], [5]], "rows": [], "gone": [], "events": [], "server": parts, "cpu_s": 0.0}
        front._others[0].add_to(frame_of(), frame)
        own = [
            ["readers", 20, 100, True], ["dashboards", 4, 200, True], ["access_log_queue", 10, 100, True],
            ["total_bytes", 7, None, True],
        ]  # fmt: skip
        return front.merged(figures(limits=own), 11)

    found = main()
    assert {name: found[name] for name in ("cpu", "memory", "loop_lag_ms", "connections", "dashboards")} == {
        "cpu": 0.5, "memory": 200, "loop_lag_ms": 9, "connections": 4, "dashboards": 1,
    }  # fmt: skip
    assert found["counters"] == {"requests": 11}
    assert found["limits"] == [
        ["readers", 50, 100, False], ["dashboards", 4, 200, True], ["access_log_queue", 60, 100, True],
        ["total_bytes", 7, None, True],
    ]  # fmt: skip
    assert [(one["worker"], one["channels"]) for one in found["workers"]] == [(0, 11), (1, 2)]
    alone = OtherDashboards(cast(Any, None), [1]).merged(figures(memory=None), 0)
    assert (alone["memory"], alone["cpu"]) == (None, 0.25)


def test_events_of_others_are_in_the_order_of_time_among_those_that_nobody_has_heard_of() -> None:
    """All have ascending numbers, and no more are kept than ever."""
    events = Events(lambda: 0.0, lambda: 2_000_000)
    events.note("refused", "host", "own")
    events.seal()
    events.add([event(70, 1.0), event(71, 3.0)], 0)
    assert [(one.number, one.time) for one in events.after(0)] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    events.add([event(72, 2.5), event(73, 0.5)], 2)
    assert [(one.number, one.time) for one in events.after(2)] == [(3, 0.5), (4, 2.5), (5, 3.0)]
    events.add([event(number, float(number)) for number in range(2 * KEPT_EVENTS)], 5)
    assert len(events.after(0)) == KEPT_EVENTS
    assert events.after(0)[-1].number == 5 + 2 * KEPT_EVENTS


def test_facts_from_before_the_front_was_started_are_no_events() -> None:
    """It hears those of other workers from the beginning, and a page would show them as of now."""
    events = Events(lambda: 0.0, lambda: 2_000_000)
    events.hear([Change(number, at, "added", f"cam-{number}", 1) for number, at in ((1, 1.9), (2, 2.0), (3, 2.1))])
    events.seal()
    assert [one.channel for one in events.after(0)] == ["cam-2", "cam-3"]


def test_sources_of_all_workers_are_told_and_what_does_not_work_once() -> None:
    """A worker tells them when they have changed: what it has told holds until then, or until it begins anew."""
    front = OtherDashboards(cast(Any, None), [1])
    frame = {"frame": 1, "about": [], "rows": [], "gone": [], "events": [], "cpu_s": 0.0}
    door, yard = {"name": "door"}, {"name": "yard"}
    full = ["storage", "disk full"]

    def merged(number: int, **server: Any) -> tuple[Any, Any]:
        front._others[0].add_to(frame_of(), {**frame, "frame": number, "server": figures(**server)})
        found = front.merged(figures(sources=[yard], troubles=[full]), 1)
        return found["sources"], found["troubles"]

    assert merged(1, sources=[door], troubles=[full]) == ([door, yard], [full])
    assert merged(2) == ([door, yard], [full])
    assert merged(3, sources=[], troubles=[["memory", "short"]]) == ([yard], [full, ["memory", "short"]])
    assert merged(1) == ([yard], [full])
