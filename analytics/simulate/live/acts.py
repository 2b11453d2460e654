"""The misbehaviours: what a client of each class of storm does, and what it takes to make a server answer it so.

Each act is a coroutine that plays on a :class:`~analytics.simulate.live.stage.Stage` and returns the
loops of its clients. It raises :class:`~analytics.simulate.live.stage.ActImpossible` where the server
does not give the answer.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import anyio

from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.simulate.live.stage import MAX_CROWD, ActImpossible, Loop, Stage
from tricklecast.trickle.records import Event
from tricklecast.trickle.wire import CLOSED, SEQ_NEXT

OK, NOT_FOUND, CONFLICT, SEQ_MISSING, BUSY, REJECTED = (200,), (404,), (409,), (470,), (429, 503), (401, 403)
NO_ANSWER: Final = 0

DRIP_RATE: Final = 1.8
DRIP_REQUESTS: Final = 34
"""Slower than a loop (``StormParams.not_found_rps``) and longer than a start-up (``warn_hits_alone``)."""

SLOWLY: Final = 10.0
"""Requests per second over many connections: so that it lasts for longer than a crowd (``StormParams.crowd_s``)."""

MAX_DRAIN_S: Final = 60
"""Longest wait for an ended channel to be forgotten, seconds."""

MAX_WINDOW: Final = 3000
"""Segments published to push the first one out of the window, at most."""

CROWD: Final = 12
HERD, HERD_CHANNELS, HERD_WAVES_S = 40, 5, (0.0, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Act:
    """A misbehaviour.

    Attributes:
        storm: the class of storm that it makes. play: does it.
        about: what the client gets wrong, in a few words.
        alone: it changes how the server answers others, so that nothing else may go on meanwhile.
        as_one: its clients are one episode (a fleet's).
        trigger: the event that it follows; ``None`` if it begins by itself.
    """

    storm: StormClass
    play: Callable[[Stage], Awaitable[list[Loop]]]
    about: str
    alone: bool = False
    as_one: bool = False
    trigger: Event | None = None


async def _zero_byte(stage: Stage) -> list[Loop]:
    loop = Loop(stage.client(), stage.channel())
    async with stage.published(1) as publisher, stage.connected(loop.client) as session:
        await stage.ask(publisher, "POST", f"{loop.channel}/1", b"")
        await stage.loop(session, loop, [1] * stage.requests, OK)
    return [loop]


async def _historic_fault(stage: Stage) -> list[Loop]:
    loop = Loop(stage.client(), stage.channel())
    async with stage.published(1) as publisher, stage.connected(loop.client) as session:
        await stage.ask(publisher, "POST", f"{loop.channel}/1", b"")
        await stage.loop(session, loop, [SEQ_NEXT] * stage.requests, OK)
    return [loop]


async def _same_segment(stage: Stage) -> list[Loop]:
    loop = Loop(stage.client(), stage.channel())
    async with stage.published(5), stage.connected(loop.client) as session:
        await stage.loop(session, loop, [2] * stage.requests, OK)
    return [loop]


async def _head_backwards(stage: Stage) -> list[Loop]:
    loop = Loop(stage.client(), stage.channel())
    async with stage.published(10) as publisher, stage.connected(loop.client) as session:
        for seq in range(3, 6):
            answer = await stage.ask(publisher, "POST", f"{loop.channel}/{seq}", b"again")
            if answer.status != OK[0]:
                raise ActImpossible(f"the server refuses a lower seq ({answer.status}): its head cannot go back")
        rounds = [seq for _ in range(stage.requests) for seq in (3, 4, 5)]
        await stage.loop(session, loop, rounds[: stage.requests], OK)
    return [loop]


async def _ended(stage: Stage) -> list[Loop]:
    loop = Loop(stage.client(), stage.channel())
    async with stage.published(1) as publisher:
        await stage.ask(publisher, "DELETE", loop.channel)
        answer = await stage.ask(publisher, "GET", f"{loop.channel}/1")
    async with stage.connected(loop.client) as session:
        if answer.status != OK[0] or CLOSED not in answer.headers:
            raise ActImpossible(f"an ended channel is answered {answer.status} at once: it does not drain")
        await stage.loop(session, loop, [1] * stage.requests, OK)
    return [loop]


async def _not_found(stage: Stage) -> list[Loop]:
    loop = Loop(stage.client(), stage.channel())
    async with stage.connected(loop.client) as session:
        return [await stage.loop(session, loop, [0] * stage.requests, NOT_FOUND)]


async def _drip(stage: Stage) -> list[Loop]:
    loop = Loop(stage.client(), stage.channel())
    async with stage.published(1) as publisher:
        await stage.ask(publisher, "DELETE", loop.channel)
        # Only what comes after the drain is the drip: the closed answers before it are another class.
        for _ in range(MAX_DRAIN_S):
            if (await stage.ask(publisher, "GET", f"{loop.channel}/1")).status == NOT_FOUND[0]:
                break
            await anyio.sleep(1)
    async with stage.connected(loop.client) as session:
        return [await stage.loop(session, loop, [1] * DRIP_REQUESTS, NOT_FOUND, rate=DRIP_RATE)]


async def _behind(stage: Stage) -> list[Loop]:
    loop = Loop(stage.client(), stage.channel())
    async with stage.published(2) as publisher, stage.connected(loop.client) as session:
        for seq in range(2, MAX_WINDOW):
            await stage.ask(publisher, "POST", f"{loop.channel}/{seq}", b"next")
            if seq % 64 == 0 and (await stage.ask(publisher, "GET", f"{loop.channel}/0")).status == SEQ_MISSING[0]:
                break
        else:
            raise ActImpossible(f"segment 0 is still there after {MAX_WINDOW} more: give the server a shorter window")
        await stage.loop(session, loop, [0] * stage.requests, SEQ_MISSING)
    return [loop]


async def _ahead(stage: Stage) -> list[Loop]:
    loop = Loop(stage.client(), stage.channel())
    async with stage.published(1), stage.connected(loop.client) as session:
        await stage.loop(session, loop, list(range(10, 10 + stage.requests)), SEQ_MISSING)
    return [loop]


async def _repost(stage: Stage) -> list[Loop]:
    loop = Loop(stage.client(), stage.channel())
    async with stage.published(3), stage.connected(loop.client) as session:
        await stage.loop(session, loop, [1] * stage.requests, OK + CONFLICT, method="POST")
    return [loop]


async def _server_error(stage: Stage) -> list[Loop]:
    loop = Loop(stage.client(), stage.channel())
    async with stage.connected(loop.client) as session:
        return [await stage.loop(session, loop, [0] * stage.requests, (500, 501, 502, 504, 507))]


async def _rejected(stage: Stage) -> list[Loop]:
    # Nobody may write to these names, token or not (protocol, section 2).
    loop = Loop(stage.client(), f"_{stage.channel()}")
    async with stage.published(0, loop.channel), stage.connected(loop.client) as session:
        # A refused body may cost its connection, and many connections that were soon over could be a crowd's.
        rate = min(stage.rate, SLOWLY)
        return [await stage.loop(session, loop, [0] * stage.requests, REJECTED, method="POST", rate=rate)]


async def _abandoned(stage: Stage) -> list[Loop]:
    loop, after_s = Loop(stage.client(), stage.channel()), 1 / min(stage.rate, SLOWLY)
    # What would be next never comes.
    async with stage.published(1), stage.connected(loop.client) as session:
        for _ in range(stage.requests):
            asked_us = time.time_ns() // 1000
            await stage.give_up(session, f"{loop.channel}/1", after_s)
            loop.note(1, NO_ANSWER, asked_us)
    return [loop]


async def _overload(stage: Stage, clients: int, rate: float) -> list[Loop]:
    async with stage.published(1), AsyncExitStack() as crowd, anyio.create_task_group() as waiting:
        await _fill(stage, crowd, waiting)
        loops = [Loop(stage.client(number), stage.channel()) for number in range(clients)]

        async def rude(loop: Loop) -> None:
            async with stage.connected(loop.client) as session:
                await stage.loop(session, loop, [1] * stage.requests, BUSY, rate=rate)

        async with anyio.create_task_group() as group:
            for loop in loops:
                group.start_soon(rude, loop)
        waiting.cancel_scope.cancel()
    return loops


async def _fill(stage: Stage, crowd: AsyncExitStack, waiting: anyio.abc.TaskGroup) -> None:
    """Let readers wait at the head until the server refuses one."""
    import httpx

    session = await crowd.enter_async_context(stage.connected(f"{stage.prefix}-crowd"))
    refused = anyio.Event()

    async def wait() -> None:
        try:
            # Bounded by the cancellation of its group.
            async with session.stream("GET", f"{stage.base}/{stage.channel()}/1", timeout=None) as response:
                if response.status_code in BUSY:
                    refused.set()
        except httpx.HTTPError:
            refused.set()

    for _ in range(MAX_CROWD):
        waiting.start_soon(wait)
        with anyio.move_on_after(0.02):
            await refused.wait()
        if refused.is_set():
            return
    raise ActImpossible(f"{MAX_CROWD} readers are welcome: start the server with --max-readers 50")


async def _overload_client(stage: Stage) -> list[Loop]:
    return await _overload(stage, 1, stage.rate)


async def _overload_amplification(stage: Stage) -> list[Loop]:
    return await _overload(stage, CROWD, min(stage.rate, 6.0))


async def _herd(stage: Stage) -> list[Loop]:
    loops = [Loop(stage.client(number), stage.channel(1 + number % HERD_CHANNELS)) for number in range(HERD)]

    async def member(loop: Loop) -> None:
        started = anyio.current_time()
        async with stage.connected(loop.client) as session:
            for wave in HERD_WAVES_S:
                await anyio.sleep_until(started + wave)
                await stage.loop(session, loop, [0], NOT_FOUND)

    async with anyio.create_task_group() as group:
        for loop in loops:
            group.start_soon(member, loop)
    return loops


ACTS: Final[dict[str, Act]] = {
    "zero_byte_loop": Act(StormClass.ZERO_BYTE_LOOP, _zero_byte, "asks for an empty segment again"),
    "historic_fault": Act(StormClass.ZERO_BYTE_LOOP, _historic_fault, "follows a head that stands at an empty segment"),
    "same_segment_loop": Act(StormClass.SAME_SEGMENT_LOOP, _same_segment, "does not count on after a segment"),
    "head_backwards": Act(StormClass.SAME_SEGMENT_LOOP, _head_backwards, "follows a head that went backwards"),
    "ended_loop": Act(StormClass.ENDED_LOOP, _ended, "ignores Lp-Trickle-Closed", trigger=Event.CHANNEL_END),
    "not_found_loop": Act(StormClass.NOT_FOUND_LOOP, _not_found, "retries 404 without a pause"),
    "not_found_drip": Act(
        StormClass.NOT_FOUND_DRIP, _drip, "polls a channel that has ended", trigger=Event.CHANNEL_END
    ),
    "seq_behind_loop": Act(StormClass.SEQ_BEHIND_LOOP, _behind, "repeats a seq that has left the window"),
    "seq_ahead_sweep": Act(StormClass.SEQ_AHEAD_SWEEP, _ahead, "counts errors as segments"),
    "repost_loop": Act(StormClass.REPOST_LOOP, _repost, "publishes a segment again and again"),
    "server_error_loop": Act(StormClass.SERVER_ERROR_LOOP, _server_error, "repeats what makes the server fail"),
    "rejected_loop": Act(StormClass.REJECTED_LOOP, _rejected, "publishes where nobody may"),
    "abandoned_loop": Act(
        StormClass.ABANDONED_LOOP,
        _abandoned,
        "gives up each GET before it is answered",
        trigger=Event.CHANNEL_CREATE,
    ),
    "thundering_herd": Act(StormClass.THUNDERING_HERD, _herd, "come again together", alone=True, as_one=True),
    "overload_client": Act(StormClass.OVERLOAD_CLIENT, _overload_client, "ignores Retry-After", alone=True),
    "overload_amplification": Act(
        StormClass.OVERLOAD_AMPLIFICATION,
        _overload_amplification,
        "ignore Retry-After together",
        alone=True,
        as_one=True,
    ),
}
"""What can be played, by name."""
