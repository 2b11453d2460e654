"""Loops without a block around them: what they read, and that nothing stays wherever and however they are left."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import anyio.to_thread
import httpx
import pytest

import tricklecast.testing
from tests.subscriber.fake import Exchange, fake, run, timed
from tests.subscriber.test_client import Slept, channel, collect
from tests.support.fixtures import servers_are_forks
from tests.support.waiting import until
from tricklecast.subscriber import Message, Messages, Position, Subscriber, json_lines, json_messages
from tricklecast.trickle.errors import BrokenByPeer, ChannelNotFound, ClosedHere, ConnectionLost, LocalProtocolError

Open = Callable[..., Any]
FORMS = [pytest.param(form, id=form.__name__) for form in (Subscriber, json_messages, json_lines)]
TWO_FORMS = [FORMS[0], FORMS[2]]  # messages are lines of their own to the class that reads both


@pytest.fixture(scope="module")
def server() -> Iterator[tricklecast.testing.TestServer]:
    """A process of its own, so that all sockets of this one are the clients'."""
    with servers_are_forks(), tricklecast.testing.server() as running:
        yield running


def sockets() -> set[str]:
    """All sockets that this process has open."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue  # that of the listing itself
        if target.startswith("socket:"):
            found.add(target)
    return found


@dataclass
class Live:
    """A channel whose segment 0 is whole, and whose segment 1 is being written."""

    server: tricklecast.testing.TestServer
    name: str
    http: httpx.AsyncClient
    before: set[str] = field(default_factory=set)

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    async def readers(self, count: int) -> None:
        """Wait until so many GETs are at the server."""
        metrics = f"{self.server.base.removesuffix('/trickle')}/metrics"
        wanted = f"\ntricklecast_readers {count}.0\n"
        while wanted not in (await self.http.get(metrics)).text:  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.02)


@asynccontextmanager
async def live(server: tricklecast.testing.TestServer, name: str) -> AsyncIterator[Live]:
    """Publish it; at the end of the block, nothing of what was done in it may be left, here or at the server."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    written = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"b":2}\n{"c"'
        await written.wait()

    async with httpx.AsyncClient() as http, asyncio.TaskGroup() as group:
        url = server.url(name)
        await http.post(f"{url}/0", content=b'{"a":1}\n')
        publishing = group.create_task(http.post(f"{url}/1", content=body()))
        channel = Live(server, name, http)
        api = f"{server.base.removesuffix('/trickle')}/api/v1/channels/{name}"
        await until(lambda: not publishing.done())
        while (await http.get(api)).json()["next_seq"] != 2:  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.005)
        here = asyncio.current_task()
        tasks, channel.before = asyncio.all_tasks(), sockets()
        yield channel
        gc.collect()
        await until(lambda: asyncio.all_tasks() == tasks)
        await until(lambda: sockets() <= channel.before)
        await channel.readers(0)
        assert asyncio.current_task() is here
        written.set()
    gc.collect()
    assert said == []


async def by_break(open_it: Open, channel: Live) -> None:
    """At the first item, with the GET for the next segment answered already."""
    async for _ in open_it(channel.url, start=0):
        await channel.readers(1)
        break


async def by_an_exception(open_it: Open, channel: Live) -> None:
    """Of the loop's body."""

    async def consume() -> None:
        async for _ in open_it(channel.url, start=0):
            await channel.readers(1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await consume()


async def by_return(open_it: Open, channel: Live) -> None:
    """Out of the function that the loop is in."""

    async def first() -> object:
        async for item in open_it(channel.url, start=0):
            await channel.readers(1)
            return item
        return None

    assert await first() is not None


async def by_dropping(open_it: Open, channel: Live) -> None:
    """The iterator, without a loop; asyncio notices that nobody has it any more."""
    iterator = aiter(open_it(channel.url, start=0))
    await anext(iterator)
    await channel.readers(1)


async def by_dropping_a_cycle(open_it: Open, channel: Live) -> None:
    """Only the garbage collector finds that nobody has it."""
    held: list[Any] = [aiter(open_it(channel.url, start=0))]
    held.append(held)
    await anext(held[0])
    await channel.readers(1)


async def by_closing_elsewhere(open_it: Open, channel: Live) -> None:
    """The iterator, in another task than the one that used it."""
    iterator = aiter(open_it(channel.url, start=0))
    await anext(iterator)
    await channel.readers(1)
    await asyncio.create_task(iterator.aclose())
    await channel.readers(0)


async def by_a_closing_block(open_it: Open, channel: Live) -> None:
    """Around the iterator; then it is closed where the block ends."""
    async with aclosing(aiter(open_it(channel.url, start=0))) as items:
        async for _ in items:
            await channel.readers(1)
            break
    assert sockets() <= channel.before


async def by_a_scope(open_it: Open, channel: Live) -> None:
    """Cancelled in the body, and felt where the next item is waited for."""
    with anyio.CancelScope() as scope:
        async for _ in open_it(channel.url, start=0):
            await channel.readers(1)
            scope.cancel()
    assert scope.cancelled_caught


async def by_a_timeout(open_it: Open, channel: Live) -> None:
    """asyncio's, in the body of the loop."""

    async def consume() -> None:
        async with asyncio.timeout(None) as timeout:
            async for _ in open_it(channel.url, start=0):
                await channel.readers(1)
                timeout.reschedule(0)
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await consume()


async def by_cancelling_its_task(open_it: Open, channel: Live) -> None:
    """asyncio's own cancel, while the loop waits for what never comes."""

    async def consume() -> None:
        async for _ in open_it(channel.url, start=2):
            raise AssertionError("nobody has published that")

    task = asyncio.create_task(consume())
    await channel.readers(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def by_never_beginning(open_it: Open, channel: Live) -> None:
    """An iterator that was asked for and not used."""
    aiter(open_it(channel.url, start=0))


WAYS = [
    by_break,
    by_an_exception,
    by_return,
    by_dropping,
    by_dropping_a_cycle,
    by_closing_elsewhere,
    by_a_closing_block,
    by_a_scope,
    by_a_timeout,
    by_cancelling_its_task,
    by_never_beginning,
]


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing may go wrong where nobody can catch it."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    yield
    gc.collect()
    assert seen == []


@pytest.mark.usefixtures("unraisable")
class TestLeaving:
    @pytest.mark.parametrize("open_it", TWO_FORMS)
    @pytest.mark.parametrize("leave", WAYS, ids=lambda way: way.__name__)
    def test_nothing_stays(
        self,
        server: tricklecast.testing.TestServer,
        open_it: Open,
        leave: Callable[[Open, Live], Awaitable[None]],
    ) -> None:
        """No task, no socket, no reader at the server, and no complaint; the GET that was out is told as given up."""
        name = f"{leave.__name__}-{open_it.__name__}"

        async def main() -> None:
            async with live(server, name) as channel:
                await leave(open_it, channel)

        run(main)
        if leave is not by_never_beginning:
            assert len(server.records(1, channel=name, op="read", reason="client_gone")) == 1

    def test_a_segment_that_is_half_read_is_closed_too(self, server: tricklecast.testing.TestServer) -> None:
        """With the GET that waits for the next one; and the segment says that it was left."""

        async def main() -> None:
            async with live(server, "half") as channel:
                async for segment in Subscriber(channel.url, start=1):
                    await anext(segment)
                    await channel.readers(2)
                    break
                await channel.readers(0)
                with pytest.raises(ClosedHere):
                    await anext(segment)

        run(main)
        assert len(server.records(2, channel="half", op="read", reason="client_gone")) == 2

    def test_cancelled_in_the_middle_of_a_segment(self, server: tricklecast.testing.TestServer) -> None:
        """By a scope around the loop, while a chunk is waited for."""

        async def main() -> None:
            async with live(server, "cancelled") as channel, anyio.create_task_group() as group:

                async def consume() -> None:
                    async for segment in Subscriber(channel.url, start=1):
                        await segment.read()

                group.start_soon(consume)
                await channel.readers(2)
                group.cancel_scope.cancel()

        run(main)
        assert len(server.records(2, channel="cancelled", op="read", reason="client_gone")) == 2

    @pytest.mark.parametrize("open_it", FORMS)
    @pytest.mark.parametrize("raising", [False, True], ids=["return", "raise"])
    def test_a_program_may_end_in_the_middle(
        self, server: tricklecast.testing.TestServer, open_it: Open, raising: bool
    ) -> None:
        """The end of the event loop closes all, also of an iterator that is still held."""
        name, before, held = f"ends-{open_it.__name__}-{raising}", sockets(), []
        for seq in range(2):
            httpx.post(f"{server.url(name)}/{seq}", content=b"[1]\n")

        async def main() -> None:
            async with httpx.AsyncClient() as http:
                channel = Live(server, name, http)
                iterator = aiter(open_it(channel.url, start=0))
                held.append(iterator)
                for _ in range(2):
                    await anext(iterator)
                await channel.readers(1)
            if raising:
                raise KeyError("mine")

        if raising:
            with pytest.raises(KeyError, match="mine"):
                run(main)
        else:
            run(main)
        assert sockets() <= before
        held.clear()


async def take_all(items: Messages, got: list[Message]) -> None:
    async for item in items:
        got.append(item)  # noqa: PERF401 - one by one, since the loop may fail


class TestReading:
    def test_all_segments_until_the_end(self) -> None:
        """With the next GET out while a segment is read, and everything closed when the loop ends."""

        async def main() -> None:
            async with fake(channel(s0=b"zero", s1=b"", s2=b"two")) as server:
                got = []
                async for segment in Subscriber(server.url, start=0):
                    await server.asked(segment.seq + 2)
                    got.append((segment.seq, await segment.read()))
                assert got == [(0, b"zero"), (1, b""), (2, b"two")]
                await server.all_closed()

        run(main)

    def test_messages_and_lines(self) -> None:
        """Without a block, too."""

        async def main() -> None:
            async with fake(channel(s0=b"1\n2", s1=b"\n3")) as server:
                got = [message async for message in json_lines(server.url, start=0)]
                assert got == [Message(0, 1), Message(1, 2), Message(1, 3)]
                got = [message async for message in json_messages(server.url, start=0, on_error="skip")]
                assert got == [Message(1, 3, skipped=1)]
                await server.all_closed()

        run(main)

    def test_the_subscriber_can_be_asked_meanwhile(self) -> None:
        """Position, statistics and seek are the object's, which a variable can hold."""

        async def main() -> None:
            async with fake(channel(s0=b"a", s1=b"b", s2=b"c", s7=b"d")) as server:
                reader = Subscriber(server.url, start=0)
                places, got = [], []
                async for segment in reader:
                    places.append(reader.position)
                    got.append(await segment.read())
                    if segment.seq == 1:
                        await reader.seek(7)
                assert got == [b"a", b"b", b"d"]
                assert places == [Position(1), Position(2), Position(8)]
                assert (reader.statistics().segments, reader.statistics().seeks, reader.missed_at_end) == (3, 1, 0)

        run(main)

    def test_errors_come_as_they_are(self) -> None:
        """In no group, and with the place to go on."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.segment(0, b"x", epoch=3)
            else:
                exchange.abort()

        async def missing(exchange: Exchange) -> None:
            await exchange.text(404, "Stream not found\n")

        async def main() -> None:
            async with fake(handler) as server:
                with pytest.raises(ConnectionLost) as caught:
                    await collect(timed(Slept().runtime, Subscriber, server.url, start=0))
                assert caught.value.resume == Position(1, 3)
                await server.all_closed()
            async with fake(missing) as server:
                for open_it in (Subscriber, json_messages, json_lines):
                    with pytest.raises(ChannelNotFound):
                        async for _ in open_it(server.url):
                            pass
                await server.all_closed()

        run(main)

    def test_a_bad_message_ends_the_loop(self) -> None:
        """To go on behind it takes a block, or ``on_error="skip"``."""

        async def main() -> None:
            async with fake(channel(s0=b"1", s1=b"{", s2=b"2")) as server:
                got: list[Message] = []
                with pytest.raises(BrokenByPeer, match="not a JSON message") as caught:
                    await take_all(json_messages(server.url, start=0), got)
                assert got == [Message(0, 1)]
                assert caught.value.resume == Position(2)
                await server.all_closed()

        run(main)


class TestRules:
    def test_a_subscriber_is_used_once(self) -> None:
        """A second loop would not know where the first one stood: that is what ``position`` is for."""

        async def main() -> None:
            async with fake(channel(s0=b"a", s1=b"b", s2=b"c")) as server:
                reader = Subscriber(server.url, start=0)
                async for _ in reader:
                    with pytest.raises(LocalProtocolError, match="once"):
                        async for _ in reader:
                            pass
                    with pytest.raises(LocalProtocolError, match="once"):
                        await reader.__aenter__()
                    break
                with pytest.raises(LocalProtocolError, match="once"):
                    async for _ in reader:
                        pass
                await server.all_closed()
                with pytest.raises(ClosedHere):
                    await anext(reader)
                with pytest.raises(ClosedHere):
                    await reader.seek(0)
                async with Subscriber(server.url, start=cast(Position, reader.position)) as another:
                    assert await collect(another) == [(1, b"b"), (2, b"c")]

        run(main)

    def test_inside_a_block_loops_can_follow_one_another(self) -> None:
        """The block is what closes; leaving a loop closes nothing."""

        async def main() -> None:
            async with (
                fake(channel(s0=b"a", s1=b"b")) as server,
                Subscriber(server.url, start=0) as reader,
                json_messages(server.url, start=0, on_error="skip") as messages,
            ):
                async for segment in reader:
                    assert segment.seq == 0
                    break
                assert await collect(reader) == [(1, b"b")]
                assert [message async for message in messages] == []
                assert messages.skipped == 2

        run(main)

    def test_what_was_closed_while_somebody_waited_says_so(self) -> None:
        """The one who waits for a segment, and the one who reads one."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.begin(0)
                await exchange.chunk(b"x")
            await exchange.closed_by_client()

        async def main() -> None:
            async with fake(handler) as server, asyncio.TaskGroup() as group:

                async def fails(awaitable: Awaitable[object]) -> None:
                    with pytest.raises(ClosedHere):
                        await awaitable

                async with Subscriber(server.url, start=0) as reader:
                    segment = await anext(reader)
                    await anext(segment)
                    group.create_task(fails(segment.read()))
                    await server.asked(2)
                async with Subscriber(server.url, start=5) as reader:
                    group.create_task(fails(anext(reader)))
                    await server.asked(3)
                await server.all_closed()
            assert server.tails == ["0", "1", "5"]

        run(main)

    def test_going_on_ends_who_still_reads(self) -> None:
        """A segment that was given to another task is left with the next step of the loop, and not asked for again."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.begin(0)
                await exchange.chunk(b"x")
                await exchange.closed_by_client()
            else:
                await channel(s1=b"y")(exchange)

        async def main() -> None:
            async with fake(handler) as server, asyncio.TaskGroup() as group:

                async def fails(awaitable: Awaitable[object]) -> None:
                    with pytest.raises(ClosedHere):
                        await awaitable

                reader = Subscriber(server.url, start=0)
                async for segment in reader:
                    if segment.seq == 0:
                        await anext(segment)
                        group.create_task(fails(segment.read()))
                        await server.asked(2)
                assert server.tails == ["0", "1", "2"]
                assert reader.statistics().retries == 0

        run(main)

    def test_an_error_of_the_users_own_transport_comes_as_it_is(self) -> None:
        """Every further call raises it again, and makes no other request."""
        asked = []

        def answer(request: httpx.Request) -> httpx.Response:
            asked.append(request.url.path)
            raise ZeroDivisionError("mine")

        async def main() -> None:
            reader = Subscriber("http://host/trickle/cam", start=0, transport=httpx.MockTransport(answer))
            with pytest.raises(ZeroDivisionError, match="mine"):
                async for _ in reader:
                    pass
            async with Subscriber("http://host/trickle/cam", transport=httpx.MockTransport(answer)) as reader:
                for _ in range(2):
                    with pytest.raises(ZeroDivisionError):
                        await anext(reader)
            assert len(asked) == 2

        run(main)

    def test_cancelling_all_tasks_leaves_nobody_waiting(self) -> None:
        """The subscriber's own among them."""

        async def main() -> None:
            async with fake(lambda exchange: exchange.closed_by_client()) as server:
                async with Subscriber(server.url, start=0) as reader:
                    others = asyncio.all_tasks()
                    waiting = asyncio.create_task(anext(reader))
                    await server.asked()
                    for task in asyncio.all_tasks() - others - {waiting}:
                        if "Background" in repr(task):
                            task.cancel()
                    await asyncio.wait([waiting])
                    assert isinstance(waiting.exception(), ClosedHere)
                await server.all_closed()

        run(main)


def test_a_subscriber_is_opened_and_closed_by_calls() -> None:
    """As by a block: the loop can be left and taken up again; after its end the subscriber is closed."""

    async def main() -> None:
        async with fake(channel(s0=b"a", s1=b"b")) as server:
            subscriber = await Subscriber(server.url, start=0).open()
            assert [await segment.read() async for segment in subscriber] == [b"a", b"b"]
            await subscriber.close()
            await subscriber.close()
            with pytest.raises(ClosedHere):
                await anext(subscriber)
            with pytest.raises(LocalProtocolError):
                await subscriber.open()

    run(main)


def test_another_event_loop_is_refused(server: tricklecast.testing.TestServer) -> None:
    """By a clear error, whatever is called there, and the subscriber goes on in its own."""

    async def main() -> None:
        async with live(server, "two-loops") as channel, Subscriber(channel.url, start=1) as subscriber:
            segment = await anext(subscriber)

            async def next_one() -> object:
                return await anext(subscriber)

            calls: list[Callable[[], Awaitable[object]]] = [
                *(next_one, lambda: subscriber.seek(0), subscriber.close),
                *(segment.read, segment.read_some, lambda: anext(segment)),
            ]
            for call in calls:
                with pytest.raises(LocalProtocolError, match="this subscriber was opened in another event loop"):
                    await anyio.to_thread.run_sync(anyio.run, call)
            assert await segment.read_some() == b'{"b":2}\n{"c"'
            await subscriber.seek(0)
            assert await (await anext(subscriber)).read() == b'{"a":1}\n'

    asyncio.run(main())
