"""Questions: a worker asks another one, and reads the answer from a connection that is made for this question.

**The problem.** The front answers for all workers, so it needs their channels, figures and facts. A list of channels is
too long for a message of the mesh, and facts go on to come.

**The idea.** The worker that asks makes a pair of sockets, and sends one end with the question. The answer comes from
the other end: one frame (:meth:`Questions.ask`), or frames until one side closes (:meth:`Questions.follow`). So an
answer may be of any length, a slow reader slows the writer down, and each side sees when the other one dies.

Most answers are frames: four bytes for the length, then the bytes. The feed of a channel has records of its own
(:mod:`~tricklecast.app.cluster.records`), so its question takes the bare connection (:meth:`Questions.connect`). A
worker also asks itself in this way, so that there is one way only.
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
"""The same for health checks, metrics and the dashboard, which the front soon answers without that worker."""

MAX_FRAME: Final = 64 << 20
"""The longest frame of an answer, in bytes: a list of 100,000 channels has 40 MB."""

BUFFER_BYTES: Final = 256 << 10
"""The limit of asyncio's stream reader, which stops reading while twice as many bytes wait."""

_LENGTH: Final = Struct("!I")


class Asker:
    """The worker that asks, as the one that answers sees it.

    Args:
        reader, writer: the connection on which the answer goes.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, frame: bytes) -> None:
        """Send a frame, and wait while the asker is slow.

        Raises:
            OSError: the asker has gone.
        """
        put(self.writer, [_LENGTH.pack(len(frame)), frame])
        await self.writer.drain()


Answerer = Callable[..., Awaitable[None]]
"""Answers a question. It gets the :class:`Asker`, and the question's arguments as keywords."""


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
        mesh: the way to the other workers.

    Attributes:
        unanswered: how many of this worker's questions got no answer.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._answers: Mapping[str, Answerer] = {}  # by the name of the question; none before start()
        self._answering: set[asyncio.Task[None]] = set()  # questions of others
        self.unanswered = 0

    async def ask(self, worker: int, question: str, *, within_s: float = ANSWER_S, **about: Any) -> bytes:
        """Ask a worker for one frame.

        Args:
            about: the question's arguments.

        Raises:
            NoAnswer: the frame does not come in time.
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
        """Ask all workers, this one included, for one frame each; in the order of their numbers."""

        async def ask(worker: int) -> bytes | NoAnswer:
            try:
                return await self.ask(worker, question, within_s=within_s)
            except NoAnswer as error:
                return error

        return await asyncio.gather(*map(ask, range(self._mesh.workers)))

    async def follow(
        self, worker: int, question: str, *, begun: Callable[[asyncio.StreamWriter], None] | None = None, **about: Any
    ) -> AsyncGenerator[bytes]:
        """Ask a worker, and yield the frames of its answer until it closes the connection, or dies.

        Args:
            begun: gets the writer to the worker, for bytes that ask for more.
            about: the question's arguments.

        Raises:
            NoAnswer: the question could not be sent, or a frame is too long.
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
        """Ask a worker, and return the connection on which its answer comes; the caller aborts it.

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

    def start(self, answers: Mapping[str, Answerer]) -> None:
        """Answer questions from now on.

        Args:
            answers: by the name of the question.
        """
        self._answers = answers

    def receive(self, message: Message) -> None:
        """Begin to answer a question."""
        task = asyncio.get_running_loop().create_task(self._answer(message))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, message: Message) -> None:
        question, about = orjson.loads(message.payload)
        sock = socket.socket(fileno=message.descriptor)
        reader, writer = await asyncio.open_connection(sock=sock, limit=BUFFER_BYTES)
        try:
            await self._answers[question](Asker(reader, writer), **about)
        except OSError:
            pass  # the asker has gone
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
