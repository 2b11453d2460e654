"""The hand-over of chunks from a writer to a transport."""

from __future__ import annotations

import anyio
import pytest

from publisher.body import Body
from tests.publisher.peers import run


def test_put_returns_when_more_is_asked_for() -> None:
    """A transport asks for the next chunk once the last one was written."""

    async def main() -> None:
        body, order = Body(), []

        async def write() -> None:
            assert await body.put(b"one")
            order.append("one was written")
            assert await body.put(b"two")
            body.end()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            order.append((await anext(body)).decode())
            order.append((await anext(body)).decode())
            with pytest.raises(StopAsyncIteration):
                await anext(body)
        assert order == ["one", "one was written", "two"]
        assert (body.sent, body.ended) == (6, True)

    run(main())


def test_a_chunk_that_was_not_taken_is_there_for_the_next_request() -> None:
    """Iterating again goes on, rather than anew."""

    async def main() -> None:
        body = Body()
        with anyio.CancelScope() as first:
            first.cancel()
            await anext(body)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(body.put, b"x")
            assert await anext(body) == b"x"
            body.stop()
        assert not await body.put(b"y")

    run(main())


def test_a_body_that_ends_after_its_last_chunk_was_put() -> None:
    """The end may be declared while a chunk is still waiting."""

    async def main() -> None:
        body = Body()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(body.put, b"x")
            await anyio.wait_all_tasks_blocked()
            body.end()
            assert await anext(body) == b"x"
            with pytest.raises(StopAsyncIteration):
                await anext(body)

    run(main())


def test_a_cancelled_put_takes_back_only_what_was_not_taken() -> None:
    """A chunk under way cannot be recalled."""

    async def main() -> None:
        body = Body()
        with anyio.move_on_after(0):
            await body.put(b"recalled")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(body.put, b"x")
            assert await anext(body) == b"x"
            tasks.cancel_scope.cancel()
        assert body.sent == 1

    run(main())
