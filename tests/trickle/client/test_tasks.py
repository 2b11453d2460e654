"""Background tasks: any task may stop them, and their errors come out where a task asks."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import anyio
import pytest

from tests.subscriber.fake import run
from tricklecast.trickle.client.tasks import BackgroundTask, HomeLoop, Notifier, beside, clock, first_error
from tricklecast.trickle.errors import ClosedHere, LocalProtocolError


class Work:
    """Waits for ever, and needs a moment to end."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = False

    async def __call__(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(3):
                    await asyncio.sleep(0)
            self.ended = True


async def fail() -> None:
    raise KeyError("mine")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_change_wakes_all_that_wait(backend: str) -> None:
    """Tasks that begin to wait later wait for the next change."""
    woken: list[int] = []

    async def wait(changes: Notifier, number: int) -> None:
        await changes.wait()
        woken.append(number)

    async def main() -> None:
        changes = Notifier()
        changes.notify()
        async with anyio.create_task_group() as group:
            for number in range(2):
                group.start_soon(wait, changes, number)
            await anyio.wait_all_tasks_blocked()
            changes.notify()
            await anyio.wait_all_tasks_blocked()
            assert sorted(woken) == [0, 1]
            group.start_soon(wait, changes, 2)
            await anyio.wait_all_tasks_blocked()
            assert len(woken) == 2
            changes.notify()

    anyio.run(main, backend=backend)
    assert sorted(woken) == [0, 1, 2]


@pytest.mark.parametrize("is_told", [False, True])
def test_a_cancelled_wait_leaves_the_others_waiting(*, is_told: bool) -> None:
    """Also one that is cancelled in the turn of the change."""

    async def main() -> None:
        changes = Notifier()
        cancelled, other = (asyncio.create_task(changes.wait()) for _ in range(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        if is_told:
            changes.notify()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert other.done() == is_told
        changes.notify()
        await other

    asyncio.run(main())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_clock_is_that_of_the_event_loop(backend: str) -> None:
    """Deadlines of the event loop are comparable with it."""

    async def main() -> None:
        now = clock()
        before, between, after = anyio.current_time(), now(), anyio.current_time()
        assert before <= between <= after

    anyio.run(main, backend=backend)


def test_stopping_waits_for_the_end() -> None:
    """Any task may stop the work, also twice."""

    async def main() -> None:
        work = Work()
        background = BackgroundTask(work)
        await work.began.wait()
        await asyncio.create_task(background.stop())
        assert work.ended
        await background.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_what_is_stopped_at_once_never_begins() -> None:
    """Work that is stopped before its first step does not run."""

    async def main() -> None:
        work = Work()
        await BackgroundTask(work).stop()
        assert not work.began.is_set()

    run(main)


@pytest.mark.parametrize("native", [False, True], ids=["scope", "task"])
def test_who_stops_can_be_cancelled_and_still_leaves_nothing(native: bool) -> None:
    """A cancellation of stop() takes effect when the work is over."""

    async def main() -> None:
        work = Work()
        background = BackgroundTask(work)
        await work.began.wait()

        async def stop() -> None:
            with anyio.CancelScope() as scope:
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel if native else scope.cancel)
                await background.stop()
                assert work.ended
                assert not native
                await asyncio.sleep(0)
                raise AssertionError("not cancelled")

        task = asyncio.create_task(stop())
        await asyncio.wait([task])
        assert task.cancelled() is native
        assert work.ended
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_who_waits_can_be_cancelled_without_harm() -> None:
    """A cancelled wait leaves the work running, and it can be waited for again."""

    async def main() -> None:
        go = asyncio.Event()

        async def wait() -> None:
            await go.wait()

        background = BackgroundTask(wait)
        with anyio.move_on_after(0.01) as scope:
            await background.over()
        assert scope.cancelled_caught
        go.set()
        await background.over()
        background.check()
        with anyio.CancelScope() as late:
            late.cancel()
            await background.over()
        assert late.cancelled_caught

    run(main)


def test_an_error_comes_out_as_it_is() -> None:
    """check() raises it, and not in a group."""

    async def main() -> None:
        background = BackgroundTask(fail)
        await background.over()
        with pytest.raises(KeyError, match="mine"):
            background.check()

    run(main)


def test_an_error_that_nobody_asks_for_is_no_complaint() -> None:
    """The event loop reports nothing."""

    async def main() -> None:
        said: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        background = BackgroundTask(fail)
        await background.stop()
        del background
        gc.collect()
        assert said == []

    run(main)


def test_a_task_that_somebody_else_cancels_is_closed_here() -> None:
    """Work that the program cancels ends with ClosedHere, and no task waits for ever."""

    async def main() -> None:
        work = Work()
        background = BackgroundTask(work)
        await work.began.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await background.over()
        with pytest.raises(ClosedHere, match="cancelled"):
            background.check()

    run(main)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_both_backends_do_the_same(backend: str) -> None:
    """Results, errors and stopping are the same under asyncio and trio."""

    async def main() -> None:
        did: list[str] = []

        async def work() -> None:
            did.append("work")

        task = BackgroundTask(work)
        await task.over()
        task.check()
        assert did == ["work"]
        task = BackgroundTask(fail)
        await task.over()
        with pytest.raises(KeyError, match="mine"):
            task.check()
        task = BackgroundTask(anyio.sleep_forever)
        await task.stop()

    anyio.run(main, backend=backend)


def test_work_beside_a_wait_ends_with_it() -> None:
    """The wait's result counts; an error of either side comes out as it is, and ends the other side."""

    async def main() -> None:
        async def now() -> str:
            return "result"

        async def fails() -> None:
            raise LookupError("mine") from ValueError("cause")

        work = Work()
        assert await beside(work, now) == "result"
        assert work.ended
        for pair in ((work, fails), (fails, Work())):
            with pytest.raises(LookupError, match="mine") as caught:
                await beside(*pair)
            assert isinstance(caught.value.__cause__, ValueError)

    run(main)


def test_of_many_errors_the_first_of_ours_counts() -> None:
    """In groups of any depth; without one, the first of all."""
    ours, later = ClosedHere("ours"), ClosedHere("later")
    deep = ExceptionGroup("", [ExceptionGroup("", [KeyError("first"), ours]), later])
    assert first_error(deep) is ours
    first = KeyError("first")
    assert first_error(ExceptionGroup("", [first, ValueError("second")])) is first


@pytest.mark.parametrize("other", ["asyncio", "trio"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_each_run_has_a_loop_of_its_own(backend: str, other: str) -> None:
    """All tasks of one run have the same."""
    homes: list[HomeLoop] = []

    async def first() -> None:
        homes.append(HomeLoop("reader"))
        async with anyio.create_task_group() as group:
            group.start_soon(second)

    async def second() -> None:
        homes[0].check()

    async def elsewhere() -> None:
        with pytest.raises(LocalProtocolError, match="this reader was opened in another event loop"):
            homes[0].check()

    anyio.run(first, backend=backend)
    anyio.run(elsewhere, backend=other)
