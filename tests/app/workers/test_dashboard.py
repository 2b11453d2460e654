"""The feed that has the frames of all workers in its own: what it takes from which frame, and what it adds up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Any

import orjson
import pytest

from tests.support.waiting import WITHIN_S, until
from tricklecast.app.web.events import KEPT_EVENTS, DashboardEvent, Events
from tricklecast.app.web.feed import OthersFrame
from tricklecast.app.workers import dashboard as module
from tricklecast.app.workers.dashboard import MAX_FRAMES, OtherDashboards
from tricklecast.app.workers.questions import SOON_S, NoAnswer


def event(number: int, at: float = 0.0) -> DashboardEvent:
    return DashboardEvent(number, at, "refused", "host", "cam", "", None, 1)


def figures(**own: Any) -> dict[str, Any]:
    """Of one worker."""
    found = {
        "cpu": 0.25, "memory": 100, "loop_lag_ms": 1, "connections": 2, "readers": 3, "dashboards": 1, "bytes_in": 4,
        "bytes_out": 5, "limits": [], "counters": {"requests": 6}, "draining": False,
    }  # fmt: skip
    return found | own


def sent(kind: str, *numbers: int, events: tuple[int, ...] = (), gone: tuple[int, ...] = (), **server: Any) -> bytes:
    """A frame that has these channels."""
    content = {
        "frame": 1, "server": figures(**server), "about": [[number, f"cam-{number}"] for number in numbers],
        "rows": [[number, 1] for number in numbers], "gone": gone, "events": [asdict(event(one)) for one in events],
    }  # fmt: skip
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(content))


class Workers:
    """Other workers, which send what a test says: :class:`~tricklecast.app.workers.questions.Questions`."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()  # None: the connection ends
        self.followed: list[tuple[int, str, float]] = []
        self.snapshot: bytes | NoAnswer = b""
        self.answering = asyncio.Event()  # cleared: snapshots do not come
        self.answering.set()

    async def follow(self, worker: int, question: str, *, began: float) -> AsyncGenerator[bytes]:
        self.followed.append((worker, question, began))
        while (frame := await self.frames.get()) is not None:
            yield frame

    async def ask_all(self, question: str, *, workers: list[int], within_s: float) -> list[bytes | NoAnswer]:
        assert (question, within_s) == ("dashboard_snapshot", SOON_S)
        await self.answering.wait()
        return [self.snapshot for _ in workers]


class Front:
    """The front's side of one other worker."""

    def __init__(self) -> None:
        self.workers = Workers()
        self.others = OtherDashboards(self.workers, [1])  # type: ignore[arg-type]

    async def hears(self, *frames: bytes | None) -> OthersFrame:
        """What the next frame has of these."""
        before = len(self.workers.followed)
        for frame in frames:
            self.workers.frames.put_nowait(frame)
        await until(self.workers.frames.empty)
        if None in frames:
            await until(lambda: len(self.workers.followed) > before)
        for _ in range(5):
            await asyncio.sleep(0)
        return self.others.news()


def test_frames_of_another_worker_become_part_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """New and changed channels, those that are gone, events once; a snapshot, and a lost worker, say what is gone."""
    monkeypatch.setattr(module, "AGAIN_S", 0)

    async def main() -> None:
        front = Front()
        front.others.begin(7.0)
        first = await front.hears(sent("snapshot", 3, 5, events=(1, 2), instance="one"))
        assert front.workers.followed == [(1, "dashboard", 7.0)]
        assert ([one[0] for one in first.about], [one[0] for one in first.rows], first.gone) == ([3, 5], [3, 5], [])
        assert [one.number for one in first.events] == [1, 2]
        later = await front.hears(sent("frame", 7, events=(3,), gone=(3,)), sent("frame", events=(4,)))
        assert ([one[0] for one in later.about], later.gone) == ([7], [3])
        assert [one.number for one in later.events] == [3, 4]
        again = await front.hears(sent("snapshot", 7, 9, events=(2, 3, 4, 5), instance="one"))
        assert (again.gone, [one.number for one in again.events]) == ([5], [5])
        lost = await front.hears(None)
        assert sorted(lost.gone) == [7, 9]
        assert front.others.merged(figures(), 2)["workers"][1] == {"worker": 1, "up": False}
        back = await front.hears(sent("snapshot", 3, events=(1,), instance="two"))
        assert (len(back.about), back.gone, [one.number for one in back.events]) == (1, [], [1])
        front.others.end()
        assert front.others.news() == OthersFrame([], [], [], [])

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))


def test_a_snapshot_asks_and_a_worker_that_does_not_answer_is_lost() -> None:
    """Its channels are gone for all, and come back with the first frame of a new stream."""

    async def main() -> None:
        front = Front()
        front.others.begin(0.0)
        await front.hears(sent("snapshot", 3, instance="one"))
        front.workers.snapshot = sent("snapshot", 3, 5, instance="one")
        whole = await front.others.whole()
        assert ([one[0] for one in whole.about], [one[0] for one in whole.rows]) == ([3, 5], [3, 5])
        front.workers.snapshot = NoAnswer(1, "gone")
        assert await front.others.whole() == OthersFrame([], [], [], [])
        # 5 was in that snapshot only.
        assert sorted(front.others.news().gone) == [3, 5]
        assert await front.others.whole() == OthersFrame([], [], [], [])
        back = await front.hears(sent("snapshot", 3, 5, instance="one"))
        assert len(back.about) == 2
        front.others.end()

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))


def test_a_snapshot_that_comes_when_nobody_follows_any_more_begins_nothing() -> None:
    """Else the workers would be followed for ever."""

    async def main() -> None:
        front = Front()
        front.others.begin(0.0)
        await front.hears(sent("snapshot", 3, instance="one"))
        front.workers.snapshot = NoAnswer(1, "gone")
        front.workers.answering.clear()
        asking = asyncio.create_task(front.others.whole())
        await asyncio.sleep(0)
        front.others.end()
        front.workers.answering.set()
        assert await asking == OthersFrame([], [], [], [])
        assert len(front.workers.followed) == 1
        await until(lambda: not any("OtherDashboards._follow" in str(one.get_coro()) for one in asyncio.all_tasks()))

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))


def test_a_worker_that_sends_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs: its channels would stand still on the page for ever."""
    monkeypatch.setattr(module, "SILENT_S", 0.01)

    async def main() -> None:
        front = Front()
        front.others.begin(0.0)
        front.workers.frames.put_nowait(sent("snapshot", 3, instance="one"))
        await until(lambda: front.others._others[0].frames.qsize() > 1)
        assert front.others.news().gone == [3]
        front.others.end()

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))


def test_the_first_frame_waits_for_the_others_but_not_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers is in it; one that hangs does not hold it up."""

    async def main() -> None:
        front = Front()
        front.others.begin(0.0)
        waiting = asyncio.create_task(front.others.first())
        await asyncio.sleep(0)
        assert not waiting.done()
        front.workers.frames.put_nowait(sent("snapshot", 3, instance="one"))
        await waiting
        assert len(front.others.news().about) == 1
        front.others.end()
        monkeypatch.setattr(module, "FIRST_S", 0.01)
        front.others.begin(0.0)
        await front.others.first()
        front.others.end()

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))


def test_frames_that_the_front_does_not_take_wait_at_the_worker() -> None:
    """A bound: a front that hangs for minutes stores a few frames, and not one for each second."""

    async def main() -> None:
        front = Front()
        front.others.begin(0.0)
        for number in range(3 * MAX_FRAMES):
            front.workers.frames.put_nowait(sent("frame", number))
        for _ in range(100):
            await asyncio.sleep(0)
        assert front.workers.frames.qsize() == 2 * MAX_FRAMES - 1  # one is in the hands of the task
        assert len(front.others.news().about) == MAX_FRAMES
        front.others.end()

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))


def test_figures_of_the_server_are_sums_but_for_what_each_has_alone() -> None:
    """The lag is the longest; limits are the server's, and each worker's part is added up."""

    async def main() -> dict[str, Any]:
        front = Front()
        front.others.begin(0.0)
        limits = [["readers", 30, 100, False], ["dashboards", 1, 200, True], ["access_log_queue", 60, 100, True]]
        await front.hears(
            sent("snapshot", 3, 5, instance="one", loop_lag_ms=9, limits=limits, counters={"requests": 5, "new": 1})
        )
        own = [
            ["readers", 20, 100, True], ["dashboards", 4, 200, True], ["access_log_queue", 10, 100, True],
            ["total_bytes", 7, None, True],
        ]  # fmt: skip
        merged = front.others.merged(figures(limits=own), 11)
        front.others.end()
        return merged

    found = asyncio.run(asyncio.wait_for(main(), WITHIN_S))
    assert {name: found[name] for name in ("cpu", "memory", "loop_lag_ms", "connections", "dashboards")} == {
        "cpu": 0.5, "memory": 200, "loop_lag_ms": 9, "connections": 4, "dashboards": 1,
    }  # fmt: skip
    assert found["counters"] == {"requests": 11}
    assert found["limits"] == [
        ["readers", 50, 100, False], ["dashboards", 4, 200, True], ["access_log_queue", 60, 100, True],
        ["total_bytes", 7, None, True],
    ]  # fmt: skip
    assert [(one["worker"], one["channels"]) for one in found["workers"]] == [(0, 11), (1, 2)]
    alone = OtherDashboards(None, [1]).merged(figures(memory=None), 0)  # type: ignore[arg-type]
    assert (alone["memory"], alone["cpu"]) == (None, 0.25)


def test_events_of_others_are_in_the_order_of_time_while_nobody_has_heard_of_them() -> None:
    """Later ones follow as they come; all have ascending numbers, and no more are kept than ever."""
    events = Events(lambda: 0.0, lambda: 2_000_000)
    events.note("refused", "host", "own")
    events.seal()
    events.add([event(70, 1.0), event(71, 3.0)], in_order=True)
    assert [(one.number, one.time) for one in events.after(0)] == [(2, 1.0), (3, 2.0), (4, 3.0)]
    events.add([event(72, 1.5)], in_order=False)
    assert [(one.number, one.time) for one in events.after(4)] == [(5, 1.5)]
    events.add([event(number, float(number)) for number in range(2 * KEPT_EVENTS)], in_order=True)
    assert len(events.after(0)) == KEPT_EVENTS
