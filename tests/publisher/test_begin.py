"""Segments that are begun and ended by calls, without a block."""

from __future__ import annotations

import pytest

from tests.publisher.fakes import Trickle, publisher
from tests.support.peers import fake_server, run
from tricklecast.publisher import Closed, Receipt
from tricklecast.trickle import errors


def test_a_segment_is_begun_and_ended_by_calls() -> None:
    """Its end gives the receipt, each time that it is asked for; nothing can be written behind it."""

    async def main() -> None:
        trickle = Trickle(0)
        async with fake_server(trickle) as server, publisher(server) as pub:
            segment = await pub.begin()
            await segment.write(b"one")
            assert await segment.end() == Receipt(0, 3, 3, Closed.COMPLETE)
            assert await segment.end() == segment.receipt
            with pytest.raises(errors.LocalProtocolError):
                await segment.write(b"late")
            segment.abort()
            assert segment.receipt.seq == 0

    run(main())


def test_a_segment_is_cut_off_by_a_call() -> None:
    """Its result is an error, as if its block had been left by one; the next segment is published."""

    async def main() -> None:
        trickle = Trickle(0)
        async with fake_server(trickle) as server, publisher(server) as pub:
            segment = await pub.begin()
            await segment.write(b"part")
            segment.abort()
            segment.abort()
            with pytest.raises(errors.ClosedHere):
                await segment.end()
            assert (await pub.publish(b"whole")).sent == 5

    run(main())


@pytest.mark.parametrize("ended", [False, True])
def test_a_segment_of_a_closed_publisher_says_so(ended: bool) -> None:
    """Each call raises `ClosedHere`, also once its writer has ended it. Only `settled()` tells what became of
    one that is ended without waiting.
    """

    async def main() -> None:
        async with fake_server(Trickle(0)) as server, publisher(server) as pub:
            segment = await pub.begin()
            await segment.write(b"part")
            await pub.detach()
            if ended:
                segment.end_nowait()
            with pytest.raises(errors.ClosedHere):
                segment.write_nowait(b"late")
            for waiting in (segment.write(b"late"), segment.end(), segment.settled()):
                with pytest.raises(errors.ClosedHere):
                    await waiting
            segment.abort()

    run(main())


def test_a_segment_that_has_not_begun_cannot_be_ended() -> None:
    """``segment()`` is for a block: it begins where the block does."""

    async def main() -> None:
        async with fake_server(Trickle(0)) as server, publisher(server) as pub:
            segment = pub.segment()
            with pytest.raises(errors.LocalProtocolError):
                await segment.end()
            with pytest.raises(errors.LocalProtocolError):
                segment.abort()

    run(main())
