"""A server as go-livepeer's with ``Autocreate``: any POST creates the channel, and no answer tells an epoch."""

from __future__ import annotations

import asyncio

import pytest

from tests.publisher.fakes import Trickle, publisher
from tests.support.peers import Head, Peer, fake_server, run
from tricklecast.publisher import client
from tricklecast.trickle import wire


class Autocreating(Trickle):
    """It knows a channel until its end, and keeps nothing of it then.

    Attributes:
        channel: set at its end; ``None`` while there is no channel.
        late: seqs whose requests come to the server after the channel's first end.
    """

    def __init__(self, *late: int) -> None:
        super().__init__()
        self.channel: asyncio.Event | None = None
        self.late = late

    async def _serve(self, peer: Peer, head: Head) -> bool:
        if head.method == "GET":
            await peer.answer(404)
        elif head.method == "DELETE":
            channel, self.channel = self.channel, None
            await peer.answer(200 if channel is not None else 400)
            if channel is not None:
                channel.set()
                self.ended.set()
        else:
            return await self._post(peer, int(head.path.rsplit("/", 1)[1]))
        return True

    async def _post(self, peer: Peer, seq: int) -> bool:
        if seq in self.late:
            await self.ended.wait()
        channel = self.channel = self.channel or asyncio.Event()
        first, end = asyncio.ensure_future(peer.chunk()), asyncio.ensure_future(channel.wait())
        await asyncio.wait([first, end], return_when=asyncio.FIRST_COMPLETED)
        end.cancel()
        if not first.done():
            first.cancel()
            await peer.answer(200, {wire.SEQ: seq, wire.CLOSED: wire.TERMINATED, "Connection": "close"})
            return False
        if first.result() is None:
            await peer.answer(200, {wire.SEQ: seq, "Connection": "close"})
            return False
        await peer.body()
        await peer.answer(200, {wire.SEQ: seq})
        return True


@pytest.mark.parametrize(("preconnect", "late"), [(1, [1]), (2, [1, 2]), (2, [2])], ids=str)
def test_a_preconnect_that_comes_after_the_end_leaves_no_channel(preconnect: int, late: list[int]) -> None:
    """It has a connection of its own, so it may come behind the DELETE: then the channel is ended again."""

    async def main() -> None:
        trickle = Autocreating(*late)
        async with fake_server(trickle) as server:
            async with publisher(server, start=0, preconnect=preconnect) as pub:
                await pub.publish(b"x")
                for seq in late:
                    await trickle.seen(f"POST {seq}")
            assert trickle.channel is None
            assert trickle.log.count("DELETE") == 2

    run(main())


def test_a_preconnect_that_was_told_of_the_end_needs_no_other_one() -> None:
    """The usual case costs one request."""

    async def main() -> None:
        trickle = Autocreating()
        async with fake_server(trickle) as server:
            async with publisher(server, start=0) as pub:
                await pub.publish(b"x")
                await trickle.seen("POST 1")
            assert trickle.log == ["POST 0", "POST 1", "DELETE"]

    run(main())


def test_a_preconnect_without_an_answer_may_have_come_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut off after a while, and the channel ended again."""
    monkeypatch.setattr(client, "LINGER_S", 0.05)

    async def silent(peer: Peer, head: Head) -> None:
        await peer.closed()

    async def main() -> None:
        trickle = Autocreating()
        trickle.instead = {"POST 1": [silent]}
        async with fake_server(trickle) as server:
            async with publisher(server, start=0) as pub:
                await pub.publish(b"x")
                await trickle.seen("POST 1")
            assert trickle.log == ["POST 0", "POST 1", "DELETE", "DELETE"]

    run(main())


def test_a_server_that_tells_epochs_is_asked_once() -> None:
    """There a request for the former epoch begins no other one, whatever its answer says."""

    async def after_the_end(peer: Peer, head: Head) -> None:
        await peer.body()
        await peer.answer(200, {wire.SEQ: 1, wire.SIZE: 0, "Connection": "close"})

    async def main() -> None:
        trickle = Trickle(head=0, epoch=7)
        trickle.instead = {"POST 1": [after_the_end]}
        async with fake_server(trickle) as server:
            async with publisher(server) as pub:
                await pub.publish(b"x")
                await trickle.seen("POST 1")
            assert trickle.log == ["GET next", "POST 0", "POST 1", "DELETE"]

    run(main())
