"""A server as go-livepeer's with ``Autocreate``: any POST creates the channel, and no answer tells an epoch."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.publisher.fakes import Trickle, publisher
from tests.support.peers import Head, Peer, fake_server, run
from tests.support.waiting import until
from tricklecast.publisher import client
from tricklecast.publisher.events import Failed, PublisherEvent, SegmentLost, SegmentPublished
from tricklecast.trickle import errors, wire


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
            await peer.answer(200 if self.channel is not None else 400)
            self.end()
        else:
            return await self._post(peer, int(head.path.rsplit("/", 1)[1]))
        return True

    def end(self) -> None:
        """End the channel, as any client may."""
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.set()
            self.ended.set()

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
        try:
            await peer.body()
        except (ValueError, asyncio.IncompleteReadError, ConnectionError):
            return False  # it was cut off
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


def test_a_segment_under_way_ends_with_its_channel() -> None:
    """The server would confirm it, while its readers got a part only; those that were confirmed stay so."""

    async def main() -> None:
        trickle = Autocreating()
        events: list[PublisherEvent] = []
        async with fake_server(trickle) as server:
            pub = await publisher(server, start=0, on_event=events.append).open()
            before = await pub.publish(b"whole")
            segment = await pub.begin()
            await segment.write(b"the first part")
            overlapping = await pub.begin()
            await overlapping.write(b"of the next one")
            idle = await pub.begin()
            await trickle.seen("POST 3")
            trickle.end()
            await until(lambda: pub.error is not None)
            with pytest.raises(errors.ChannelEnded):
                await segment.write(b"the rest")
            for writer in (segment, overlapping, idle):
                with pytest.raises(errors.ChannelEnded):
                    await writer.end()
            assert (before.seq, before.sent) == (0, 5)
            told = [type(event) for event in events if isinstance(event, Failed | SegmentLost | SegmentPublished)]
            assert told == [SegmentPublished, Failed, SegmentLost, SegmentLost]
            assert (pub.statistics().segments, pub.statistics().lost) == (1, 2)
            await pub.close()
        assert "DELETE" not in trickle.log

    run(main())


def test_a_segment_that_waits_for_its_answer_ends_with_its_channel() -> None:
    """Nobody knows which was first, its last byte or the channel's end: it counts as lost, whatever comes later."""

    async def main() -> None:
        trickle = Autocreating()
        told = asyncio.Event()

        async def late(peer: Peer, head: Head) -> None:
            await peer.body()
            await told.wait()
            with contextlib.suppress(ConnectionError):
                await peer.answer(200, {wire.SEQ: 0, "Connection": "close"})

        trickle.instead = {"POST 0": [late]}
        async with fake_server(trickle) as server:
            pub = await publisher(server, start=0).open()
            async with pub.segment(wait=False) as segment:
                await segment.write(b"whole")
            await until(lambda: trickle.channel is not None)
            trickle.end()
            await until(lambda: pub.error is not None)
            told.set()
            with pytest.raises(errors.ChannelEnded):
                await segment.settled()
            await pub.close()

    run(main())
