"""Questions of one worker to another: both ends of the stream on which the answer comes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import cast

import pytest
import uvloop

from tests.support.waiting import WITHIN_S, until
from tricklecast.app.cluster.asking import Asker
from tricklecast.app.workers.mesh import Kind, Mesh, Message, socket_pairs
from tricklecast.app.workers.questions import Questions


def test_an_answer_ends_quietly_when_whoever_asked_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """A worker that was killed is no fault of the one that answers it, also in the event loop of the server."""
    ended: list[BaseException] = []

    async def main() -> None:
        sent = asyncio.Event()

        async def endless(asker: Asker) -> None:
            try:
                await asker.send(b"first")
                sent.set()
                with suppress(OSError):
                    await asker.writer.wait_closed()
                await asker.send(b"second")
            except Exception as error:
                ended.append(error)
                raise

        sockets = socket_pairs(2)
        asking, answering = Mesh(sockets, 0), Mesh(sockets, 1)
        answers = Questions(answering)
        answers.start({"endless": endless})

        def receive(message: Message) -> None:
            assert message.kind is Kind.QUESTION
            answers.receive(message)

        asking.start(lambda message: None)
        answering.start(receive)
        _, writer = await Questions(asking).connect(1, "endless")
        # A process that is killed with something unread resets the connection.
        cast(asyncio.Transport, writer.transport).pause_reading()
        async with asyncio.timeout(WITHIN_S):
            await sent.wait()
            writer.transport.abort()
            await until(lambda: ended)
        asking.stop()
        answering.stop()
        for each in sockets:
            for end in each:
                end.close()

    with caplog.at_level(logging.WARNING):
        uvloop.run(main())
    assert isinstance(ended[0], ConnectionResetError)
    assert caplog.records == []
