"""Questions between the processes of one server, and between the nodes of a cluster: asking, and answering.

A question has a name and arguments. Its answer comes on a connection that is made for it: one frame
(:meth:`Asking.ask`), or frames until one side closes (:meth:`Asking.follow`). So an answer may be of any length, a slow
reader slows the writer down, and each side sees when the other one dies. A frame is four bytes for the length, then the
bytes.

Workers make this connection by a pair of sockets (:mod:`tricklecast.app.workers.questions`), nodes by a signed request
(:mod:`tricklecast.app.cluster.questions`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from struct import Struct
from typing import Any, Final, Generic, TypeVar

from tricklecast.app.replication.transport import put
from tricklecast.trickle.errors import TrickleError

_LOGGER = logging.getLogger(__name__)

W = TypeVar("W")

ANSWER_S: Final = 5.0
"""A worker or node that has not answered a question after this time is taken to be dead or stuck."""

SOON_S: Final = 0.8
"""The same for health checks, metrics and the dashboard, which are soon answered without it."""

MAX_FRAME: Final = 64 << 20
"""The longest frame of an answer, in bytes: a list of 100,000 channels has 40 MB."""

_LENGTH: Final = Struct("!I")


class Asker:
    """The connection to the worker or node that has asked a question, by which the answer goes.

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
    """A worker or node does not answer: it is being started, or hangs, or is gone.

    Args:
        whom: for example ``worker 1``. why: one line.
    """

    def __init__(self, whom: str, why: str) -> None:
        super().__init__(f"{whom} does not answer: {why}")


class Asking(Generic[W]):
    """The questions of this process to others, and its answers to theirs; ``W`` names those whom it asks.

    Attributes:
        unanswered: how many of its questions got no answer.
    """

    def __init__(self) -> None:
        self._answers: Mapping[str, Answerer] = {}  # by the name of the question; none before start()
        self.unanswered = 0

    def start(self, answers: Mapping[str, Answerer]) -> None:
        """Answer questions from now on.

        Args:
            answers: by the name of the question.
        """
        self._answers = answers

    def named(self, whom: W) -> str:
        """How an error names it."""
        raise NotImplementedError

    async def connect(
        self, whom: W, question: str, /, **about: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask, and return the connection on which the answer comes; the caller aborts it.

        Raises:
            NoAnswer: the question could not be sent.
        """
        raise NotImplementedError

    async def ask(self, whom: W, question: str, /, *, within_s: float = ANSWER_S, **about: Any) -> bytes:
        """Ask for one frame.

        Args:
            about: the question's arguments.

        Raises:
            NoAnswer: the frame does not come in time.
        """
        try:
            async with asyncio.timeout(within_s):
                async with aclosing(self.follow(whom, question, **about)) as frames:
                    async for frame in frames:
                        return frame
            raise NoAnswer(self.named(whom), "it has closed the connection")
        except TimeoutError:
            self.unanswered += 1
            raise NoAnswer(self.named(whom), f"not within {within_s:g} s") from None
        except NoAnswer:
            self.unanswered += 1
            raise

    async def ask_each(
        self, whom: Iterable[W], question: str, /, within_s: float, **about: Any
    ) -> list[bytes | NoAnswer]:
        """Ask all of these for one frame each; the answers in their order."""

        async def ask(one: W) -> bytes | NoAnswer:
            try:
                return await self.ask(one, question, within_s=within_s, **about)
            except NoAnswer as error:
                return error

        return await asyncio.gather(*map(ask, whom))

    async def follow(
        self, whom: W, question: str, /, *, begun: Callable[[asyncio.StreamWriter], None] | None = None, **about: Any
    ) -> AsyncGenerator[bytes]:
        """Ask, and yield the frames of the answer until the other side closes the connection, or dies.

        Args:
            begun: gets the writer to the other side, for bytes that ask for more.
            about: the question's arguments.

        Raises:
            NoAnswer: the question could not be sent, or a frame is too long.
        """
        reader, writer = await self.connect(whom, question, **about)
        try:
            if begun is not None:
                begun(writer)
            while True:
                length = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]
                if length > MAX_FRAME:
                    raise NoAnswer(self.named(whom), f"a frame of {length} bytes")
                yield await reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            writer.transport.abort()

    async def answer(
        self,
        asker: str,
        question: str,
        about: Mapping[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Answer a question on its connection, and close that.

        Args:
            asker: who asks, for the log.
        """
        try:
            await self._answers[question](Asker(reader, writer), **about)
        except OSError:
            pass  # the asker has gone
        except Exception:
            _LOGGER.exception("the question %r of %s could not be answered", question, asker)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
