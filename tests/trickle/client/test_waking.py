"""A task of asyncio that waits is run in the turn in which it may go on."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from tricklecast.trickle.client.waking import Waiter

NAME: ContextVar[str] = ContextVar("NAME")


def test_the_task_runs_before_the_callback_goes_on() -> None:
    """It runs in its own context, and is the present task."""
    seen: list[object] = []

    async def main() -> None:
        waiter = Waiter(loop=asyncio.get_running_loop())

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
        waiter = Waiter(loop=asyncio.get_running_loop())

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
            waiter.set_exception(KeyError())
        else:
            waiter.set_result(None)
        waiter.wake_now()  # too late: it is over
        return await task

    assert asyncio.run(main()) == end


def test_it_may_be_woken_before_a_task_waits() -> None:
    """Then the task does not wait."""

    async def main() -> None:
        waiter = Waiter(loop=asyncio.get_running_loop())
        waiter.wake_now()
        await waiter

    asyncio.run(main())


def test_a_task_that_is_cancelled_in_the_same_turn_is_cancelled() -> None:
    """The cancellation came first."""

    async def main() -> None:
        waiter = Waiter(loop=asyncio.get_running_loop())

        async def wait() -> None:
            await waiter

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        asyncio.get_running_loop().call_soon(waiter.wake_now)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
