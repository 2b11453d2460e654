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
from tricklecast.app.workers.mesh import MAX_WAITING, PAYLOAD_BYTES, Kind, Mesh, MeshFull, Message, pairs

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextmanager
def two() -> Iterator[tuple[Mesh, list[tuple[socket.socket, socket.socket]]]]:
    """The sockets of two workers, and the first one's place among them, which has started."""
    sockets = pairs(2)
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


async def test_what_waits_is_bounded() -> None:
    """One message more is refused, and holds no descriptor; when the worker reads, there is room again."""
    with two() as (first, sockets):
        before, sent = open_files(), 0
        while open_files() < before + MAX_WAITING:
            first.send(1, Kind.CONNECTION, b"x", 0)
            sent += 1
        with pytest.raises(MeshFull, match="wait for worker 1"):
            first.send(1, Kind.CONNECTION, b"x", 0)
        assert first.is_crowded()
        assert open_files() == before + MAX_WAITING
        read = await all_of(sockets, sent)
        for message in read:
            os.close(message.descriptor)
        assert not first.is_crowded()
        assert open_files() == before
        first.send(1, Kind.NEWS, b"again")


async def test_an_end_drops_what_waits() -> None:
    """Its descriptors are closed, so that clients see the end."""
    with two() as (first, _):
        before = open_files()
        while not first.is_crowded():
            first.send(1, Kind.CONNECTION, b"x", 0)
        assert open_files() > before
        first.stop()
        first.stop()
        assert open_files() == before


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
    monkeypatch.setattr(module, "NO_FILE_S", 0.01)
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


@pytest.mark.parametrize("why", [errno.ENOBUFS, errno.ETOOMANYREFS])
async def test_a_kernel_that_does_not_tell_when_it_has_room(monkeypatch: pytest.MonkeyPatch, why: int) -> None:
    """It is asked again after a moment, as macOS wants it, and the order stays."""

    class Full:
        """A socket whose kernel has no room at first."""

        refusals = 2

        def __init__(self, to: socket.socket) -> None:
            self._to = to

        def fileno(self) -> int:
            return self._to.fileno()

        def sendmsg(self, *arguments: object) -> int:
            if self.refusals:
                self.refusals -= 1
                raise OSError(why, "no room")
            return self._to.sendmsg(*arguments)  # type: ignore[arg-type]

    with two() as (first, sockets):
        monkeypatch.setattr(first, "_out", [sockets[0][1], Full(sockets[1][1])])
        for number in range(3):
            first.send(1, Kind.NEWS, b"%d" % number)
        read = await all_of(sockets, 3)
        assert [message.payload for message in read] == [b"0", b"1", b"2"]
        monkeypatch.setattr(first, "_out", [to for _, to in sockets])
