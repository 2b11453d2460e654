"""Messages between workers: order, descriptors, and the bounds of what waits."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.waiting import WITHIN_S, until
from tricklecast.app.workers import mesh as module
from tricklecast.app.workers.mesh import PAYLOAD_BYTES, Kind, Mesh, MeshFull, Message, socket_pairs

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextmanager
def two() -> Iterator[tuple[Mesh, list[tuple[socket.socket, socket.socket]]]]:
    """The sockets of two workers, and the first one's place among them, which has started."""
    sockets = socket_pairs(2)
    first = Mesh(sockets, 0)
    first.start(lambda message: None)
    try:
        yield first, sockets
    finally:
        first.stop()
        for each in sockets:
            for end in each:
                end.close()


async def all_of(sockets: list[tuple[socket.socket, socket.socket]], count: int) -> list[Message]:
    """The messages that the second worker reads when it starts."""
    read: list[Message] = []
    second = Mesh(sockets, 1)
    second.start(read.append)
    async with asyncio.timeout(WITHIN_S):
        await until(lambda: len(read) >= count)
    second.stop()
    return read


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_messages_wait_for_a_worker_that_does_not_read() -> None:
    """They arrive in their order, each with its own descriptor, also at a successor; the sender keeps its own."""
    with two() as (first, sockets):
        ends = [os.pipe() for _ in range(50)]
        for number, (_, write) in enumerate(ends):
            first.send(1, Kind.QUESTION, b"%d" % number, write)
            os.close(write)
        read = await all_of(sockets, 50)
        assert [(each.kind, each.sender, int(each.payload)) for each in read] == [
            (Kind.QUESTION, 0, number) for number in range(50)
        ]
        for number, (message, (end, _)) in enumerate(zip(read, ends, strict=True)):
            os.write(message.descriptor, b"%d" % number)
            os.close(message.descriptor)
            assert os.read(end, 10) == b"%d" % number
            assert os.read(end, 10) == b"", "no other copy is left"
            os.close(end)


async def test_what_is_on_its_way_is_bounded() -> None:
    """Connections fill a part of the way to a worker, and what fills the rest is refused. Nothing is held here; when
    the worker reads, there is room again."""
    with two() as (first, sockets):
        before, sent = open_files(), 0
        while first.has_room(1):
            first.send(1, Kind.CONNECTION, b"x", 0)
            sent += 1
        connections = sent
        with suppress(MeshFull):
            while True:
                first.send(1, Kind.CONNECTION, b"x", 0)
                sent += 1
        assert 100 < connections < 200
        assert sent > 3 * connections
        assert open_files() == before
        for message in await all_of(sockets, sent):
            os.close(message.descriptor)
        assert first.has_room(1)
        first.send(1, Kind.NEWS, b"again")


async def test_the_longest_message() -> None:
    """It arrives whole; one byte more is refused at once."""
    with two() as (first, sockets):
        first.send(1, Kind.NEWS, bytes(PAYLOAD_BYTES))
        with pytest.raises(OSError, match=f"a message of {PAYLOAD_BYTES + 1} bytes"):
            first.send(1, Kind.NEWS, bytes(PAYLOAD_BYTES + 1))
        [message] = await all_of(sockets, 1)
        assert message.payload == bytes(PAYLOAD_BYTES)
        assert message.descriptor == -1


async def test_a_worker_without_descriptors_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves messages where they are until it has one: the kernel would drop the descriptor of a message."""
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    with two() as (first, sockets):
        first.send(1, Kind.CONNECTION, b"x", 0)
        read: list[Message] = []
        second = Mesh(sockets, 1)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken: list[int] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 20, before[1]))
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            second.start(read.append)
            for _ in range(5):
                await asyncio.sleep(0.01)
            assert not read
            os.close(taken.pop())
            async with asyncio.timeout(WITHIN_S):
                await until(lambda: read)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for one in taken:
                os.close(one)
            second.stop()
        os.close(read[0].descriptor)


async def test_a_descriptor_that_the_kernel_drops_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the last one was taken between the look and the message; the next message is read."""
    before, dup = resource.getrlimit(resource.RLIMIT_NOFILE), os.dup

    def last(descriptor: int) -> int:
        found = dup(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (found, before[1]))  # when it is closed, there is none
        return found

    with two() as (first, sockets):
        first.send(1, Kind.CONNECTION, b"lost", 0)
        second = Mesh(sockets, 1)
        read: list[Message] = []
        second.start(read.append)
        monkeypatch.setattr(os, "dup", last)
        try:
            async with asyncio.timeout(WITHIN_S):
                await until(lambda: caplog.messages)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        monkeypatch.undo()
        first.send(1, Kind.NEWS, b"next")
        async with asyncio.timeout(WITHIN_S):
            await until(lambda: read)
        second.stop()
        assert caplog.messages[0] == "a connection of worker 0 is lost: this process has no descriptor left"
        assert [message.payload for message in read] == [b"next"]


@pytest.mark.parametrize("why", [errno.ENOBUFS, errno.ETOOMANYREFS])
async def test_a_kernel_that_says_otherwise_that_it_has_no_room(monkeypatch: pytest.MonkeyPatch, why: int) -> None:
    """As macOS does, and Linux when too many descriptors of the user are on their way."""

    class Full:
        def sendmsg(self, *arguments: object) -> int:
            raise OSError(why, "no room")

    with two() as (first, _):
        monkeypatch.setattr(first, "_out", [Full(), Full()])
        with pytest.raises(MeshFull, match="no room"):
            first.send(1, Kind.NEWS, b"x")
