"""A blocking source in a thread: order, bounds, errors, and a prompt end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import anyio
import pytest

from tests.support.peers import run
from tests.support.waiting import WITHIN_S
from tricklecast.publisher.steps import Chunk, Step
from tricklecast.publisher.worker import AHEAD, IsStopped, Steps, stepping


async def collect(steps: Steps, into: list[Step] | None = None) -> list[Step]:
    """All steps, to the end."""
    seen: list[Step] = [] if into is None else into
    with suppress(anyio.EndOfStream):
        while True:
            seen.append(await steps.receive())
    return seen


def test_steps_arrive_in_order() -> None:
    """All of them, to the end."""

    async def main() -> list[Step]:
        async with stepping(lambda _: iter([Chunk(b"%d" % number) for number in range(300)])) as steps:
            return await collect(steps)

    assert run(main()) == [Chunk(b"%d" % number) for number in range(300)]


def test_a_source_is_only_so_far_ahead() -> None:
    """It waits while nobody takes its steps, and is told to stop when the block is left."""
    made: list[int] = []
    full, over = threading.Event(), threading.Event()

    def source(is_stopped: IsStopped) -> Iterator[Step]:
        try:
            for number in range(10 * AHEAD):
                made.append(number)
                if number > AHEAD:
                    full.set()
                yield Chunk(b"x")
        finally:
            assert is_stopped()
            over.set()

    async def main() -> None:
        async with stepping(source) as steps:
            await steps.receive()
            await anyio.to_thread.run_sync(full.wait, 10)
        await anyio.to_thread.run_sync(over.wait, 10)

    run(main())
    assert over.is_set()
    assert len(made) <= AHEAD + 3


def test_a_source_that_cannot_be_opened_raises_before_the_block() -> None:
    """What depends on the source is not even begun."""

    def source(is_stopped: IsStopped) -> Iterator[Step]:
        raise LookupError("no such source")

    async def main() -> None:
        async with stepping(source):
            raise AssertionError("not reached")

    # The generator behind the context manager ends without a value; the source's error must be what is seen.
    with pytest.raises(LookupError, match="no such source"):
        run(main())


def test_a_source_that_breaks_raises_after_its_steps() -> None:
    """Nothing that was made is lost."""
    seen: list[Step] = []

    def source(is_stopped: IsStopped) -> Iterator[Step]:
        yield Chunk(b"a")
        yield Chunk(b"b")
        raise LookupError("half-way")

    async def main() -> None:
        async with stepping(source) as steps:
            await collect(steps, seen)

    with pytest.raises(LookupError, match="half-way"):
        run(main())
    assert seen == [Chunk(b"a"), Chunk(b"b")]


def test_the_blocks_own_error_is_raised_as_it_is() -> None:
    """Not wrapped into a group, nor replaced by what the source says once it is stopped."""

    def source(is_stopped: IsStopped) -> Iterator[Step]:
        while not is_stopped():
            yield Chunk(b"x")
        raise AssertionError("of no interest")

    async def main() -> None:
        async with stepping(source):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(main())


@pytest.mark.parametrize("opened", [False, True])
def test_cancelling_does_not_wait_for_a_read_that_blocks(opened: bool) -> None:
    """The event loop goes on although the thread hangs, in opening or in reading."""
    hanging, release = threading.Event(), threading.Event()

    def hang() -> Iterator[Step]:
        hanging.set()
        release.wait(WITHIN_S)
        yield Chunk(b"late")

    def source(is_stopped: IsStopped) -> Iterator[Step]:
        return hang() if opened else iter(list(hang()))

    async def consume() -> None:
        async with stepping(source) as steps:
            await steps.receive()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            await anyio.to_thread.run_sync(hanging.wait, 10)
            tasks.cancel_scope.cancel()
        assert not release.is_set()
        release.set()

    run(main())


def test_a_loop_that_is_gone_does_not_matter() -> None:
    """The thread ends by itself after its loop was closed."""
    hanging, release, ended = threading.Event(), threading.Event(), threading.Event()

    def source(is_stopped: IsStopped) -> Iterator[Step]:
        hanging.set()
        release.wait(WITHIN_S)
        yield Chunk(b"late")
        ended.set()

    async def main() -> None:
        async with stepping(source):
            await anyio.to_thread.run_sync(hanging.wait, 10)

    run(main())
    release.set()
    for thread in threading.enumerate():
        if thread.name == "tricklecast source":
            thread.join(10)
            assert not thread.is_alive()
    assert not ended.is_set()
