"""A server that sends one request away has spoken for the channel: what is begun, when, and what goes on."""

from __future__ import annotations

import asyncio

import pytest

from tests.publisher.fakes import Trickle, publisher, reply
from tests.support.peers import Head, Peer, fake_server, run
from tests.support.waiting import until
from tricklecast.publisher import client
from tricklecast.trickle import errors


class Watched(Trickle):
    """A fake server that notes when requests arrive.

    Attributes:
        arrived: when, in the order of ``log``.
    """

    def __init__(self, head: int | None = None, epoch: int | None = None) -> None:
        super().__init__(head, epoch)
        self.arrived: list[float] = []

    async def _note(self, head: Head) -> None:
        self.arrived.append(asyncio.get_running_loop().time())
        await super()._note(head)

    def since(self, request: str, *, but: tuple[str, ...] = ()) -> dict[str, float]:
        """Seconds from the first time of a request to whatever came after it, by the last time of that."""
        at = self.log.index(request)
        later = zip(self.log[at + 1 :], self.arrived[at + 1 :], strict=True)
        return {name: time - self.arrived[at] for name, time in later if name not in but}


@pytest.mark.parametrize("status", [429, 503])
def test_one_that_is_sent_away_is_a_pause_for_the_channel(status: int) -> None:
    """Nothing of the channel is asked for before that time, whichever segment; then all of it, in order."""

    async def main() -> None:
        trickle = Watched()
        trickle.instead = {"POST 1": [reply(status, {"Retry-After": 1})]}
        async with fake_server(trickle) as server, publisher(server, preconnect=2) as pub:
            async with pub.segment() as running:
                await running.write(b"a")
                await until(lambda: pub.statistics().retries == 1)
                async with pub.segment(wait=False) as one, pub.segment(wait=False) as two:
                    await one.write(b"1")
                    await two.write(b"2")
                await running.write(b"b")
            assert [(await one.settled()).seq, (await two.settled()).seq] == [1, 2]
            began = trickle.since("POST 1")
            assert min(began.values()) >= 1.0
            assert trickle.stored == {"0": [b"a", b"b"], "1": [b"1"], "2": [b"2"]}
            assert trickle.log.index("POST 2") > trickle.log.index("POST 1", trickle.log.index("POST 1") + 1)
            assert (trickle.log.count("POST 1"), trickle.log.count("POST 2")) == (2, 1)
            assert (pub.statistics().lost, pub.statistics().dropped) == (0, 0)

    run(main())


def test_neither_the_writer_nor_what_is_running_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are kept as long as there is room, and a segment under way is published meanwhile."""
    monkeypatch.setattr(client, "CONFIRM_S", 0.05)

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 1": [reply(503, {"Retry-After": 200})]}
        async with fake_server(trickle) as server, publisher(server) as pub:
            async with pub.segment() as running:
                await running.write(b"a")
                await until(lambda: pub.statistics().retries == 1)
                for text in (b"1", b"2"):
                    async with pub.segment(wait=False) as waiting:
                        await waiting.write(text * 1_000_000)
                await running.write(b"b")
            assert trickle.stored == {"0": [b"a", b"b"]}
            assert trickle.log == ["GET next", "POST 0", "POST 1"]
            assert await pub.detach() == (1, 2)

    run(main())


def test_what_is_dropped_meanwhile_says_why() -> None:
    """Too many were in flight, and the server had said no; once something is published, that is over."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(503, {"Retry-After": 1}, b"Limit reached: publishers\n")]}
        async with fake_server(trickle) as server, publisher(server, most=1, when_full="drop") as pub:
            await until(lambda: pub.statistics().retries == 1)
            assert isinstance(pub.trouble, errors.Refused)
            async with pub.segment(wait=False) as dropped:
                await dropped.write(b"old")
            await pub.publish(b"new")
            with pytest.raises(errors.SegmentDropped) as caught:
                await dropped.settled()
            assert (
                str(caught.value.__cause__) == "refused by the server: Limit reached: publishers (HTTP 503, segment 0)"
            )
            assert pub.trouble is None

    run(main())


def test_the_position_is_not_asked_for_in_the_pause() -> None:
    """What has to be known before a segment is sent again has time until then, too."""

    async def main() -> None:
        trickle = Watched(head=0, epoch=1)
        trickle.instead = {"POST 0": [reply(503, {"Retry-After": 1}, after=1)]}
        async with fake_server(trickle) as server, publisher(server, start=0) as pub:
            assert (await pub.publish(b"x")).attempts == 2
            began = trickle.since("POST 0", but=("POST 1",))
            assert "GET next" in began
            assert min(began.values()) >= 1.0

    run(main())


def test_whoever_waits_hears_of_the_end() -> None:
    """A final no to another segment ends the pause, since there is nothing left to wait for."""

    async def main() -> None:
        refuse = asyncio.Event()

        async def no(peer: Peer, head: Head) -> None:
            await refuse.wait()
            await peer.answer(403, {"Connection": "close"})
            await peer.closed()

        trickle = Trickle()
        trickle.instead = {"POST 0": [no], "POST 1": [reply(503, {"Retry-After": 200})]}
        async with fake_server(trickle) as server, publisher(server) as pub:
            async with pub.segment(wait=False) as running:
                await running.write(b"a")
                await until(lambda: pub.statistics().retries == 1)
                async with pub.segment(wait=False) as waiting:
                    await waiting.write(b"1")
                refuse.set()
            for segment in (running, waiting):
                with pytest.raises(errors.Refused):
                    await segment.settled()
            assert "POST 2" not in trickle.log

    run(main())
