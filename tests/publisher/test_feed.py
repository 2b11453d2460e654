"""From steps to segments: cuts, pacing, joining, and segments that are lost."""

from __future__ import annotations

import pytest

from publisher.feed import JOIN_BYTES, Feed, Totals
from publisher.steps import Chunk, Cut, Step
from publisher.worker import Steps
from tests.publisher.peers import Head, Peer, fake_server, run
from tests.publisher.test_client import Trickle, publisher, reply
from trickle import errors, wire


async def feed(trickle: Trickle, steps: list[Step]) -> tuple[Totals, list[str]]:
    """Publish steps to a fake server; the totals and the warnings."""
    warnings: list[str] = []
    source = Steps()
    for step in steps:
        source.add(step)
    source.end()
    async with fake_server(trickle) as server, publisher(server, start=0) as pub:
        totals = await Feed(pub, source, warn=warnings.append).run()
        return totals, warnings


def test_steps_become_segments() -> None:
    """A cut ends a segment; the tail is one as well; no segment is empty."""

    async def main() -> None:
        trickle = Trickle()
        steps: list[Step] = [Cut(), Chunk(b"a"), Cut(), Cut(), Chunk(b"b"), Chunk(b"c"), Cut(), Chunk(b"d")]
        totals, warnings = await feed(trickle, steps)
        assert totals == Totals(segments=3, bytes=4, lost=0, seq=2)
        assert not warnings
        assert {seq: b"".join(chunks) for seq, chunks in trickle.stored.items() if chunks} == {
            "0": b"a",
            "1": b"bc",
            "2": b"d",
        }

    run(main())


def test_chunks_that_wait_are_written_as_one() -> None:
    """Up to the size that is passed on unsplit, and never beyond a cut."""

    async def main() -> None:
        trickle = Trickle()
        big = Chunk(b"x" * (JOIN_BYTES - 1))
        await feed(trickle, [Chunk(b"a"), Chunk(b"b"), Cut(), big, Chunk(b"y"), Chunk(b"z"), Cut(), big, big])
        assert [len(chunk) for chunk in trickle.stored["0"]] == [2]
        assert [len(chunk) for chunk in trickle.stored["1"]] == [JOIN_BYTES, 1]
        assert [len(chunk) for chunk in trickle.stored["2"]] == [JOIN_BYTES - 1] * 2

    run(main())


def test_a_lost_segment_is_reported_and_skipped() -> None:
    """The rest of it is dropped, wherever it failed; the next one is published."""

    async def main() -> None:
        trickle = Trickle()

        async def too_large(peer: Peer, head: Head) -> None:
            await reply(413, after=1)(peer, head)

        trickle.instead = {"POST 0": [too_large], "POST 1": [reply(200, {wire.SIZE: 0}, after=2)]}
        large = [Chunk(b"x" * JOIN_BYTES) for _ in range(200)]
        totals, warnings = await feed(trickle, [*large, Cut(), Chunk(b"y"), Cut(), Chunk(b"z")])
        assert (totals.segments, totals.lost, totals.seq) == (1, 2, 2)
        assert [warning.split(":")[0] for warning in warnings] == ["segment 0 is lost", "segment 1 is lost"]
        assert trickle.stored["2"] == [b"z"]

    run(main())


@pytest.mark.parametrize(
    ("headers", "error"), [({}, errors.ChannelNotFound), ({wire.CLOSED: "x"}, errors.ChannelEnded)]
)
def test_an_error_of_the_publisher_ends_it(headers: dict[str, object], error: type[Exception]) -> None:
    """Where no further segment can get through, the error is raised."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(404, headers)]}
        with pytest.raises(error):
            await feed(trickle, [Chunk(b"x"), Cut(), Chunk(b"y"), Cut(), Chunk(b"z")])

    run(main())
