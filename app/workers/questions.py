"""Questions of one worker to another.

The front answers for all workers, so it needs their channels, figures and facts. A list of channels is too long for a
message of the mesh, and facts go on to come. So the worker that asks makes a pair of sockets, and sends one end with
the question; the answer comes from the other end (:mod:`~tricklecast.app.cluster.asking`). A worker also asks itself in
this way, so that there is one way only.

Most answers are frames. The feed of a channel has records of its own (:mod:`~tricklecast.app.replication.records`), so
its question takes the bare connection (:meth:`Questions.connect`).
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

import orjson

from tricklecast.app.cluster.asking import Asking, NoAnswer
from tricklecast.app.workers.mesh import Kind, Mesh, MeshFull, Message

BUFFER_BYTES: Final = 256 << 10
"""The limit of asyncio's stream reader, which stops reading while twice as many bytes wait."""


class Questions(Asking[int]):
    """A worker's questions to others, which it names by their numbers, and its answers to theirs.

    Args:
        mesh: the way to the other workers.
    """

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self._mesh = mesh
        self._answering: set[asyncio.Task[None]] = set()  # questions of others

    def named(self, whom: int) -> str:
        """How an error names a worker."""
        return f"worker {whom}"

    async def ask_all(self, question: str, within_s: float) -> list[bytes | NoAnswer]:
        """Ask all workers, this one included, for one frame each; in the order of their numbers."""
        return await self.ask_each(range(self._mesh.workers), question, within_s)

    async def connect(
        self, whom: int, question: str, /, **about: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask a worker, and return the connection on which its answer comes; the caller aborts it.

        Raises:
            NoAnswer: the question could not be sent.
        """
        try:
            mine, theirs = socket.socketpair()
        except OSError as error:
            raise NoAnswer(self.named(whom), str(error)) from error
        try:
            self._mesh.send(whom, Kind.QUESTION, orjson.dumps([question, about]), theirs.fileno())
        except (MeshFull, OSError) as error:
            mine.close()
            raise NoAnswer(self.named(whom), str(error)) from error
        finally:
            theirs.close()
        return await asyncio.open_connection(sock=mine, limit=BUFFER_BYTES)

    def receive(self, message: Message) -> None:
        """Begin to answer a question."""
        task = asyncio.get_running_loop().create_task(self._answer(message))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, message: Message) -> None:
        question, about = orjson.loads(message.payload)
        sock = socket.socket(fileno=message.descriptor)
        reader, writer = await asyncio.open_connection(sock=sock, limit=BUFFER_BYTES)
        await self.answer(self.named(message.sender), question, about, reader, writer)

    def end(self) -> None:
        """Answer no more."""
        for task in list(self._answering):
            task.cancel()
