"""Questions: one worker asks another one something, and reads the answer from a stream of its own.

The front needs what all workers know: their channels, figures, facts. It asks each of them; a question is a message of
the mesh with one end of a pair of sockets, and the answer comes from the other end, at once (:meth:`Questions.ask`) or
for as long as both want (:meth:`Questions.follow`). So back-pressure is the stream's, an answer has no largest size,
and the end of either side shows on the other.

Most answers are frames: four bytes for the length, then the bytes. The feed of a channel has records of its own
(:mod:`~tricklecast.app.cluster.records`), so its question takes the bare stream (:meth:`Questions.connect`). A worker
also asks itself this way, so that there is one way only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from struct import Struct
from typing import Any, Final

import orjson

from tricklecast.app.cluster.transport import put
from tricklecast.app.workers.mesh import Kind, Mesh, MeshFull, Message
from tricklecast.trickle.errors import TrickleError

_LOGGER = logging.getLogger(__name__)

ANSWER_S: Final = 5.0
"""A worker that has not answered a question after this time is taken to be dead or stuck."""

SOON_S: Final = 0.8
"""The same for what has to be answered soon, with that worker or without: health checks, metrics, the dashboard."""

MAX_FRAME: Final = 64 << 20
"""Of an answer: a list of 100,000 channels has 40 MB."""

BUFFER_BYTES: Final = 256 << 10

_LENGTH: Final = Struct("!I")


class Stream:
    """Where an answer goes.

    Args:
        reader, writer: the connection to the worker that asks.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, frame: bytes) -> None:
        """Send a frame, and wait until the other side takes it.

        Raises:
            OSError: it has gone.
        """
        put(self.writer, [_LENGTH.pack(len(frame)), frame])
        await self.writer.drain()


Answer = Callable[..., Awaitable[None]]
"""Answers a question: gets the :class:`Stream`, and what the question is about, as keywords."""


class NoAnswer(TrickleError):
    """A worker does not answer: it is being started, or hangs.

    Attributes:
        worker: its number.
    """

    def __init__(self, worker: int, why: str) -> None:
        super().__init__(f"worker {worker} does not answer: {why}")
        self.worker = worker


class Questions:
    """A worker's questions to others, and its answers to theirs.

    Args:
        mesh: the way to them.

    Attributes:
        unanswered: how many of this worker's questions got no answer.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._answers: Mapping[str, Answer] = {}  # of this worker, by the name of the question
        self._answering: set[asyncio.Task[None]] = set()
        self.unanswered = 0

    async def ask(self, worker: int, question: str, *, within_s: float = ANSWER_S, **about: Any) -> bytes:
        """The answer of a worker, its first frame.

        Raises:
            NoAnswer: it does not come in time.
        """
        try:
            async with asyncio.timeout(within_s):
                async with aclosing(self.follow(worker, question, **about)) as frames:
                    async for frame in frames:
                        return frame
            raise NoAnswer(worker, "it has closed the connection")
        except TimeoutError:
            self.unanswered += 1
            raise NoAnswer(worker, f"not within {within_s:g} s") from None
        except NoAnswer:
            self.unanswered += 1
            raise

    async def ask_all(self, question: str, within_s: float) -> list[bytes | NoAnswer]:
        """The answers of all workers, this one included, in the order of their numbers."""

        async def ask(worker: int) -> bytes | NoAnswer:
            try:
                return await self.ask(worker, question, within_s=within_s)
            except NoAnswer as error:
                return error

        return await asyncio.gather(*map(ask, range(self._mesh.workers)))

    async def follow(
        self, worker: int, question: str, *, begun: Callable[[asyncio.StreamWriter], None] | None = None, **about: Any
    ) -> AsyncGenerator[bytes]:
        """The frames of an answer, as they come, until the worker ends it or is gone.

        Args:
            begun: gets the way to the worker, which hears more about the question on it.

        Raises:
            NoAnswer: the question could not be sent, or what comes is no answer.
        """
        reader, writer = await self.connect(worker, question, **about)
        try:
            if begun is not None:
                begun(writer)
            while True:
                length = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]
                if length > MAX_FRAME:
                    raise NoAnswer(worker, f"a frame of {length} bytes")
                yield await reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            writer.transport.abort()

    async def connect(
        self, worker: int, question: str, **about: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask, and return the connection on which the answer comes; the caller aborts it.

        Raises:
            NoAnswer: the question could not be sent.
        """
        try:
            mine, theirs = socket.socketpair()
        except OSError as error:
            raise NoAnswer(worker, str(error)) from error
        try:
            self._mesh.send(worker, Kind.QUESTION, orjson.dumps([question, about]), theirs.fileno())
        except (MeshFull, OSError) as error:
            mine.close()
            raise NoAnswer(worker, str(error)) from error
        finally:
            theirs.close()
        return await asyncio.open_connection(sock=mine, limit=BUFFER_BYTES)

    def start(self, answers: Mapping[str, Answer]) -> None:
        """Answer the questions of others from now on.

        Args:
            answers: by the name of the question.
        """
        self._answers = answers

    def receive(self, message: Message) -> None:
        """Answer a question of another worker."""
        task = asyncio.get_running_loop().create_task(self._answer(message))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, message: Message) -> None:
        question, about = orjson.loads(message.payload)
        sock = socket.socket(fileno=message.descriptor)
        reader, writer = await asyncio.open_connection(sock=sock, limit=BUFFER_BYTES)
        try:
            await self._answers[question](Stream(reader, writer), **about)
        except OSError:
            pass  # whoever asked has gone
        except Exception:
            _LOGGER.exception("the question %r of worker %d could not be answered", question, message.sender)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def end(self) -> None:
        """Answer no more."""
        for task in list(self._answering):
            task.cancel()
