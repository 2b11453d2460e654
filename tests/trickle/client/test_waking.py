"""A task of asyncio that waits is run in the turn in which it may go on."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from time import monotonic

import pytest

from tricklecast.trickle.client.waking import MAX_STEPS, Waiter, clock_of

NAME: ContextVar[str] = ContextVar("NAME")


def test_the_task_runs_before_the_callback_goes_on() -> None:
    """It runs in its own context, and is the present task."""
    seen: list[object] = []

    async def main() -> None:
        waiter = Waiter()

        async def wait() -> None:
            NAME.set("the task's")
            await waiter
            seen.append((NAME.get(), asyncio.current_task()))

        def wake() -> None:
            waiter.wake_now()
            seen.append(NAME.get("none"))

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(wake)
        await task
        assert seen == [("the task's", task), "none"]

    asyncio.run(main())


@pytest.mark.parametrize("end", ["result", "error", "cancel"])
def test_all_others_complete_it_as_any_future(end: str) -> None:
    """The task runs in the next turn, also where a task completes what another one waits for."""

    async def main() -> str:
        waiter = Waiter()

        async def wait() -> str:
            try:
                await waiter
            except KeyError:
                return "error"
            except asyncio.CancelledError:
                return "cancel"
            return "result"

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        if end == "cancel":
            task.cancel()
        elif end == "error":
            waiter.fail(KeyError())
        else:
            waiter.wake_soon()
        waiter.wake_now()  # too late: it is over
        assert waiter.done()
        assert not waiter.cancel()
        return await task

    assert asyncio.run(main()) == end


def test_a_task_waits_as_often_as_it_likes() -> None:
    """Each wake ends one wait; one that comes between two waits ends none."""

    async def main() -> None:
        waiter = Waiter()
        waiter.wake_now()
        loop = asyncio.get_running_loop()
        for wake in (waiter.wake_now, waiter.wake_soon, waiter.wake_now):
            loop.call_soon(wake)
            await waiter
            loop.call_soon(waiter.fail, KeyError())
            with pytest.raises(KeyError):
                await waiter

    asyncio.run(main())


def test_it_is_of_one_loop() -> None:
    """A task of another one may not wait for it."""

    async def main(waiters: list[Waiter]) -> None:
        waiters.append(Waiter())
        assert asyncio.isfuture(waiters[0])
        if len(waiters) > 1:
            with pytest.raises(RuntimeError, match="different loop"):
                await waiters[0]

    waiters: list[Waiter] = []
    for _ in range(2):
        asyncio.run(main(waiters))


def test_a_task_that_is_cancelled_in_the_same_turn_is_cancelled() -> None:
    """The cancellation came first."""

    async def main() -> None:
        waiter = Waiter()

        async def wait() -> None:
            await waiter

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        asyncio.get_running_loop().call_soon(waiter.wake_now)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_task_that_another_one_wakes_follows_it_in_the_same_turn() -> None:
    """So does a third one, up to a limit; the others run in the next turn, and nothing is lost."""
    woken: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        count = MAX_STEPS + 3
        waiters = [Waiter() for _ in range(count)]

        async def wait(number: int) -> None:
            await waiters[number]
            woken.append(number)
            if number + 1 < count:
                waiters[number + 1].wake_soon()

        tasks = [asyncio.create_task(wait(number)) for number in range(count)]
        await asyncio.sleep(0)
        loop.call_soon(waiters[0].wake_now)
        loop.call_soon(lambda: woken.append(-1))
        await asyncio.gather(*tasks)
        assert woken == [*range(MAX_STEPS), -1, *range(MAX_STEPS, count)]
        waiters[0].wake_soon()  # too late: it is over

    asyncio.run(main())


def test_a_task_that_ends_the_program_holds_up_no_other() -> None:
    """What it has woken is completed."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        first, second = Waiter(), Waiter()

        async def wait() -> None:
            await first
            second.wake_soon()
            raise SystemExit

        ended: list[bool] = []

        def wake() -> None:
            with pytest.raises(SystemExit):
                first.wake_now()
            ended.append(True)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        loop.call_soon(wake)
        await second
        assert ended
        assert isinstance(task.exception(), SystemExit)

    asyncio.run(main())


def test_a_loop_of_another_kind_keeps_its_clock() -> None:
    """The clock of asyncio's own loops is asked without them."""

    class Other(asyncio.SelectorEventLoop):
        def time(self) -> float:
            return 7.0

    own, other = asyncio.SelectorEventLoop(), Other()
    assert (clock_of(own), clock_of(other)()) == (monotonic, 7.0)
    own.close()
    other.close()
