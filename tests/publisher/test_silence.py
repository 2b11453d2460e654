"""A server that accepts and never answers: each segment has a fate, and publishing has an end in a stated time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import anyio
import pytest

from tests.publisher.fakes import Trickle, publisher
from tests.support.peers import Peer, fake_server, run
from tricklecast.publisher import SegmentWriter, client, requests
from tricklecast.publisher.client import SILENCE_S
from tricklecast.trickle import errors
from tricklecast.trickle.client.connection import RequestTimeouts
from tricklecast.trickle.client.exchange import ExchangeOutcome, Lost, exchange

SILENT_S = 0.1
SHORT = RequestTimeouts(connect=5.0, read=SILENT_S, write=SILENT_S)

OUTAGE_S = 1.0
"""Long enough for several questions that nobody answers."""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed soon."""
    monkeypatch.setattr(client, "TIMEOUT", SHORT)

    async def exchanged(*args: Any, **options: Any) -> ExchangeOutcome:
        outcome = await exchange(*args, **options)
        is_silence = isinstance(outcome, Lost) and outcome.waited_s > 0
        return outcome._replace(waited_s=SILENCE_S) if is_silence and isinstance(outcome, Lost) else outcome

    monkeypatch.setattr(requests, "exchange", exchanged)
    monkeypatch.setattr(client, "CONFIRM_S", 0.05)


class Hung(Trickle):
    """A server that at some time goes on to accept and to read, and says nothing any more.

    Attributes:
        hangs: whether that time has come.
    """

    hangs = False

    async def __call__(self, peer: Peer) -> None:
        await super().__call__(Quiet(self, peer))


class Quiet(Peer):
    """Its end of a connection."""

    def __init__(self, trickle: Hung, peer: Peer) -> None:
        super().__init__(peer.number, peer.reader, peer.writer)
        self.trickle = trickle

    async def answer(self, status: int, headers: dict[str, object] | None = None, body: bytes = b"") -> None:
        if not self.trickle.hangs:
            await super().answer(status, headers, body)


async def encode(pub: client.Publisher) -> list[SegmentWriter]:
    """Publish small segments, without waiting for answers, until that is not possible any more."""
    made: list[SegmentWriter] = []
    while pub.error is None:
        with contextlib.suppress(errors.ConnectionLost):
            async with pub.segment(wait=False) as segment:
                made.append(segment)
                await segment.write(b"frame")
            await asyncio.sleep(0.02)
    return made


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_live_encoder_hears_of_a_server_that_hangs(depth: int) -> None:
    """Segments are dropped one by one, and after a stated time the publisher gives up; few requests are made."""

    async def main() -> None:
        trickle = Hung(epoch=1)

        async def publish() -> None:
            async with publisher(server, preconnect=depth, when_full="drop", most=3, outage_s=OUTAGE_S) as pub:
                await pub.publish(b"fine")
                trickle.hangs = True
                before = len(trickle.log)
                made = await encode(pub)
                assert isinstance(pub.error, errors.ConnectionLost)
                log = trickle.log[before:]
                assert 1 < log.count("GET next") <= OUTAGE_S / SILENT_S
                assert len([line for line in log if line.startswith("POST")]) <= 6 + depth
                for segment in made:
                    with pytest.raises((errors.SegmentDropped, errors.ConnectionLost)):
                        await segment.settled()
                assert pub.statistics().dropped > 1
                assert pub.statistics().in_flight == 0

        async with fake_server(trickle) as server:
            with pytest.raises(errors.ConnectionLost, match=r"no answer within 0\.1 s"):
                await publish()

    run(main())


def test_a_file_is_not_waited_for_without_end() -> None:
    """Where nothing is dropped, the segments that wait end with the publisher."""

    async def main() -> None:
        trickle = Hung(epoch=1)

        async def publish() -> None:
            async with publisher(server, outage_s=OUTAGE_S) as pub:
                await pub.publish(b"fine")
                trickle.hangs = True
                try:
                    await pub.publish(b"lost")
                finally:
                    assert (pub.statistics().lost, pub.statistics().dropped) == (1, 0)

        async with fake_server(trickle) as server:
            with pytest.raises(errors.ConnectionLost):
                await publish()

    run(main())


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_of_a_node_that_hangs_only_one_segment_is_late(depth: int) -> None:
    """The next ones do not begin on the preconnects there: these are opened again, at another node."""

    async def main() -> None:
        hung, other = Hung(epoch=1), Trickle(epoch=1)
        async with fake_server(hung) as first, fake_server(other) as second:
            urls = f"{first.base}/c,{second.base}/c"
            async with publisher(urls, preconnect=depth) as pub:
                await pub.publish(b"0")
                if depth:
                    await hung.seen("POST 1")
                hung.hangs = True
                assert (await pub.publish(b"1")).attempts == 2
                for seq in (2, 3, 4):
                    assert (await pub.publish(b"%d" % seq)).seq == seq
                assert other.stored == {str(seq): [b"%d" % seq] for seq in (1, 2, 3, 4)}
                assert not hung.stored.keys() & {"2", "3", "4"}

    run(main())


def test_one_that_has_never_answered_is_not_waited_for() -> None:
    """Somebody has just typed its URL."""

    async def main() -> None:
        trickle = Hung()
        trickle.hangs = True
        async with fake_server(trickle) as server:
            with pytest.raises(errors.ConnectionLost, match="no answer within"):
                async with publisher(server):
                    pytest.fail("there is nothing to publish to")
        assert trickle.log == ["GET next"]

    run(main())


def test_a_server_that_answers_again_gets_what_is_left() -> None:
    """The silence was a pause: the position is asked for, and what is still held is sent again."""

    async def main() -> None:
        trickle = Hung(epoch=1)
        async with fake_server(trickle) as server, publisher(server) as pub:
            await pub.publish(b"fine")
            trickle.hangs = True
            async with pub.segment(wait=False) as late:
                await late.write(b"late")
            await trickle.seen("GET next", 2)
            trickle.hangs = False
            assert (await late.settled()).seq == 1
            assert trickle.stored["1"] == [b"late"]
            with anyio.fail_after(10):
                assert (await pub.publish(b"next")).seq == 2

    run(main())
