"""A writer of JSON lines: what is written is read, line by line, and its segments end in time."""

from __future__ import annotations

import anyio
import pytest

from tests.publisher.fakes import Trickle, publisher
from tests.support.local import LocalServer
from tests.support.peers import fake_server, run
from tests.support.waiting import until
from tricklecast import Publisher
from tricklecast.publisher import JsonLines
from tricklecast.subscriber import Message, json_lines
from tricklecast.trickle import errors

LONG_S = 3600.0


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_line_is_read_at_once(server: LocalServer, backend: str) -> None:
    """While its segment is still being written; integers of any size are exact."""

    async def main() -> None:
        url = f"http://127.0.0.1:{server.port}/trickle/lines-{backend}"
        async with Publisher(url) as pub, pub.json_lines(segment_s=LONG_S) as out:
            await out.write({"n": 0})
            async with json_lines(url, start=0) as lines:
                assert await anext(lines) == Message(0, {"n": 0})
                for value in ("\n", 2**53 + 1, 2**63, 2**70, -(2**64), [1.5, None]):
                    await out.write(value)
                    assert await anext(lines) == Message(0, value)

    anyio.run(main, backend=backend)


def test_segments_end_by_lines_and_bytes() -> None:
    """Each line is one chunk, and no line goes on over the end of a segment, however long it is."""

    async def main() -> None:
        trickle = Trickle(0)
        bounds = {"segment_lines": 3, "segment_bytes": 8, "segment_s": 3600}
        async with (
            fake_server(trickle) as fake,
            publisher(fake) as pub,
            pub.json_lines(**bounds) as out,
        ):
            for value in (1, 2, 3, 4, 55555, "a long line", 6):
                await out.write(value)
        assert [trickle.stored[str(seq)] for seq in range(4)] == [
            [b"1\n", b"2\n", b"3\n"],
            [b"4\n", b"55555\n"],
            [b'"a long line"\n'],
            [b"6\n"],
        ]

    run(main())


def test_a_segment_ends_in_time_without_a_further_line() -> None:
    """And the next line begins another one, with a time of its own."""

    async def main() -> None:
        trickle = Trickle(0)
        async with fake_server(trickle) as fake, publisher(fake) as pub, pub.json_lines(segment_s=0.01) as out:
            for number in range(3):
                await out.write(number)
                await until(lambda: str(number) in trickle.stored)  # noqa: B023
        assert [trickle.stored[str(seq)] for seq in range(3)] == [[b"0\n"], [b"1\n"], [b"2\n"]]

    run(main())


def test_a_newer_segment_has_its_own_time() -> None:
    """It ends by it, also where the one before was full and had a longer time left."""

    async def main() -> None:
        trickle = Trickle(0)
        async with fake_server(trickle) as fake, publisher(fake) as pub:
            out = pub.json_lines(segment_s=0.2, segment_lines=2)
            async with out:
                for number in range(3):
                    await out.write(number)
                await until(lambda: sum(map(len, trickle.stored.values())) == 3)
        assert b"".join(b"".join(chunks) for chunks in trickle.stored.values()) == b"0\n1\n2\n"

    run(main())


def test_many_tasks_may_write() -> None:
    """Lines stay whole, and none is lost; a writer that the end meets is waited for."""

    async def main() -> None:
        trickle = Trickle(0)
        async with fake_server(trickle) as fake, publisher(fake) as pub, anyio.create_task_group() as tasks:
            out = pub.json_lines(segment_lines=7)
            async with out:
                for number in range(50):
                    tasks.start_soon(out.write, number)
                await until(lambda: len(trickle.stored) >= 7)
        lines = [line for chunks in trickle.stored.values() for line in chunks]
        assert sorted(int(line) for line in lines) == list(range(50))

    run(main())


def test_an_exception_cuts_the_segment_off() -> None:
    """As in the block of a segment; nobody takes the part for the whole."""

    async def fail(lines: JsonLines) -> None:
        async with lines as out:
            await out.write(1)
            raise ZeroDivisionError

    async def main() -> None:
        trickle = Trickle(0)
        async with fake_server(trickle) as fake, publisher(fake) as pub:
            with pytest.raises(ZeroDivisionError):
                await fail(pub.json_lines(segment_s=LONG_S))
            assert "0" not in trickle.stored
            assert (await pub.publish_json(2)).sent == 2

    run(main())


def test_a_lost_segment_is_told_and_the_next_line_begins_another_one() -> None:
    """Of the lost one, all lines are lost."""

    async def main() -> None:
        trickle = Trickle(0)
        async with fake_server(trickle) as fake, publisher(fake) as pub:
            out = pub.json_lines(segment_s=LONG_S)
            async with out:
                await out.write(1)
                assert out._segment is not None
                pub._segments.drop(out._segment._entered())
                with pytest.raises(errors.SegmentDropped):
                    await out.write(2)
                await out.write(3)
        assert trickle.stored.popitem()[1] == [b"3\n"]

    run(main())


def test_what_cannot_be_written_changes_nothing() -> None:
    """Wrong arguments, values that are not JSON, long lines, and a use outside of the block."""

    async def main() -> None:
        trickle = Trickle(0)
        async with fake_server(trickle) as fake, publisher(fake) as pub:
            for wrong in ({"segment_s": 0}, {"segment_lines": 0}, {"segment_bytes": 0}, {"limit": 0}):
                with pytest.raises(errors.InvalidInput):
                    pub.json_lines(**wrong)
            out: JsonLines = pub.json_lines(limit=5)
            with pytest.raises(errors.LocalProtocolError):
                await out.write(1)
            async with out:
                for value in (float("nan"), "\ud800", "12345"):
                    with pytest.raises(errors.InvalidInput):
                        await out.write(value)
                with pytest.raises(TypeError):
                    await out.write(object())
            with pytest.raises(errors.LocalProtocolError):
                await out.write(1)
            with pytest.raises(errors.LocalProtocolError):
                async with out:
                    raise AssertionError("it was entered twice")
        assert trickle.stored == {}

    run(main())
