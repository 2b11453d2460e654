"""JSON from channels: one document per segment or per line, and what is said about those that cannot be used."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.subscriber.fake import Exchange, Handler, fake, run, timed
from tests.subscriber.test_client import Slept, channel, ended
from tricklecast.subscriber import BadMessage, Message, Messages, Position, Subscriber, json_lines, json_messages
from tricklecast.subscriber.messages import _value
from tricklecast.trickle.errors import ChannelNotFound, InvalidInput, TrickleError

Open = Callable[..., AbstractAsyncContextManager[Messages]]


def received(open_messages: Open, handler: Handler, **options: Any) -> list[Message | BadMessage]:
    """All that a channel brings: messages, and the errors between them."""

    async def main() -> list[Message | BadMessage]:
        got: list[Message | BadMessage] = []
        async with fake(handler) as server:
            async with timed(Slept().runtime, open_messages, server.url, **{"start": 0} | options) as messages:
                while True:
                    try:
                        got.append(await anext(messages))
                    except BadMessage as error:
                        got.append(error)
                    except StopAsyncIteration:
                        break
            await server.all_closed()
        return got

    return run(main)


def values(items: list[Message | BadMessage]) -> list[Any]:
    return [item.value if isinstance(item, Message) else item.detail for item in items]


def with_gap(before: bytes, after: bytes) -> Handler:
    """Segments 0 and 5; those between have left the window."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail == "1":
            await exchange.text(470, "gone", latest=6, earliest=5)
        else:
            await channel(s0=before, s5=after)(exchange)

    return handler


async def cut_or_truncated(exchange: Exchange) -> None:
    """Segment 0 is truncated, 1 is cut for good, 2 is whole."""
    if exchange.tail == "0":
        await exchange.begin(0)
        await exchange.chunk(b'{"a":1}')
        await exchange.end(truncated="publisher_lost")
    elif exchange.tail == "1":
        await exchange.begin(1, epoch=4)
        await exchange.chunk(b'{"b":2}')
        exchange.writer.close()
    else:
        await channel(s2=b'{"c":3}')(exchange)


class TestMessages:
    def test_each_segment_is_a_document(self) -> None:
        """Of any kind; segments without one are passed over."""
        got = received(json_messages, channel(s0=b'{"a":1}', s1=b"", s2=b" \n", s3=b"[2]\n", s4=b"null"))
        assert got == [Message(0, {"a": 1}), Message(3, [2]), Message(4, None)]

    def test_what_is_no_json_is_an_error_and_the_next_one_is_read(self) -> None:
        """With its seq, and where to go on behind it."""
        got = received(json_messages, channel(s0=b"1", s1=b"{", s2=b"2"))
        assert got[0] == Message(0, 1)
        assert isinstance(got[1], BadMessage)
        assert str(got[1]).startswith("not a JSON message: ")
        assert str(got[1]).endswith(" (segment 1)")
        assert got[1].resume == Position(2)
        assert got[2] == Message(2, 2)  # the error has told of it

    def test_what_is_no_json_can_be_left_out(self) -> None:
        """Counted on the next message."""
        got = received(json_messages, channel(s0=b"x", s1=b"{", s2=b"2", s3=b"3"), on_error="skip")
        assert got == [Message(2, 2, skipped=2), Message(3, 3)]

    def test_how_errors_are_met_is_one_of_two_words(self) -> None:
        """Any other is refused, rather than taken for one of them."""
        for on_error in ("ignore", None):
            with pytest.raises(InvalidInput, match="on_error is 'raise' or 'skip', not"):
                json_messages("http://host/trickle/c", on_error=on_error)  # type: ignore[arg-type]

    def test_a_part_is_never_taken_for_a_document(self) -> None:
        """Even if it looks like one: truncated by its publisher, or cut on the way."""
        got = received(json_messages, cut_or_truncated)
        assert values(got)[0] == "truncated: publisher_lost"
        assert values(got)[1].startswith("cut after 7 bytes: ")
        assert [item.resume for item in got if isinstance(item, BadMessage)] == [Position(1), Position(1, 4)]
        assert got[2] == Message(2, {"c": 3})

    def test_documents_have_a_limit(self) -> None:
        """A longer one is an error of its own."""
        got = received(json_messages, channel(s0=b'"12345"', s1=b"1"), limit=6)
        assert values(got) == ["longer than the limit of 6 bytes", 1]

    def test_a_gap_is_told_with_the_next_message(self) -> None:
        """Also if the segment behind it holds none."""
        assert received(json_messages, with_gap(b"1", b"2")) == [Message(0, 1), Message(5, 2, gap=4)]
        got = received(json_messages, with_gap(b"1", b"{"), on_error="skip")
        assert got == [Message(0, 1)]

    def test_a_restart_is_told_with_the_next_message(self) -> None:
        """So that state which was built from messages can be dropped."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.segment(0, b"0", epoch=2)
            else:
                await ended(exchange)

        assert received(json_messages, handler, start="0@1") == [Message(0, 0, restarted=True)]

    def test_errors_of_the_subscriber_come_as_they_are(self) -> None:
        """Nothing is wrapped, neither in another error nor in a group."""

        async def handler(exchange: Exchange) -> None:
            await exchange.text(404, "Stream not found")

        with pytest.raises(ChannelNotFound):
            received(json_messages, handler)

    def test_a_seek_goes_elsewhere(self) -> None:
        """Through the subscriber, also in the middle of a document."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.begin(0)
                await exchange.chunk(b"{")
                await exchange.closed_by_client()
            else:
                await channel(s7=b"7")(exchange)

        async def main() -> None:
            async with (
                fake(handler) as server,
                json_messages(server.url, start=0) as messages,
                anyio.create_task_group() as group,
            ):

                async def seek() -> None:
                    while not messages.subscriber.statistics().bytes:  # noqa: ASYNC110 - no event tells
                        await anyio.sleep(0.001)
                    await messages.subscriber.seek(7, leave=True)

                group.start_soon(seek)
                assert [message async for message in messages] == [Message(7, 7)]

        run(main)


class TestLines:
    def test_lines_are_put_together_over_chunks_and_segments(self) -> None:
        """A message has the seq of the segment in which its line ended."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.segment(0, b'{"a"', b":1}\n[", b"2")
            elif exchange.tail == "1":
                await exchange.segment(1, b"]\n\n3")
            else:
                await ended(exchange)

        assert received(json_lines, handler) == [Message(0, {"a": 1}), Message(1, [2]), Message(1, 3)]

    def test_a_line_comes_before_its_segment_ends(self) -> None:
        """Readers of live logs wait for nothing else."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.begin(0)
                await exchange.chunk(b"1\n2\n")
            await exchange.closed_by_client()

        async def main() -> None:
            async with fake(handler) as server, json_lines(server.url, start=0) as messages:
                assert [(await anext(messages)).value for _ in range(2)] == [1, 2]

        run(main)

    def test_halves_are_not_glued_together(self) -> None:
        """What a gap has torn is dropped, counted with the next message, and is nobody's error."""
        got = received(json_lines, with_gap(b'{"a":1}\n{"b":"', b'x"}\n{"c":3}\n'))
        assert got == [Message(0, {"a": 1}), Message(5, {"c": 3}, gap=4, skipped=2)]

    def test_the_rest_of_an_object_is_no_line(self) -> None:
        """It does not parse where it stands alone, and that is nobody's error either."""
        got = received(json_lines, with_gap(b"[1,[2", b"[3]],[4]]\n5\n"))
        assert got == [Message(5, 5, gap=4, skipped=2)]

    def test_what_was_cut_short_is_dropped(self) -> None:
        """Truncated or cut: the line that was not ended there."""
        got = received(json_lines, cut_or_truncated)
        assert got == [Message(2, {"c": 3}, skipped=2)]
        got = received(json_lines, cut_or_truncated, on_broken="raise")
        assert got == [Message(2, {"c": 3}, skipped=2)]

    def test_lines_that_may_be_missing_behind_a_whole_one_are_counted(self) -> None:
        """A segment that was cut off between two lines."""

        async def cut_between_lines(exchange: Exchange) -> None:
            if exchange.tail != "0":
                return await channel(s1=b"[2]\n")(exchange)
            await exchange.begin(0)
            await exchange.chunk(b"[1]\n")
            await exchange.end(truncated="publisher_lost")

        assert received(json_lines, cut_between_lines) == [Message(0, [1]), Message(1, [2], skipped=1)]

    def test_a_bad_line_is_an_error_and_the_next_one_is_read(self) -> None:
        """To begin again, its end is named: other lines follow in the segment."""
        got = received(json_lines, channel(s0=b"1\n{\n2\n"))
        assert [item.seq for item in got] == [0, 0, 0]
        assert isinstance(got[1], BadMessage)
        assert got[1].resume == Position(0, offset=4)
        assert got[2] == Message(0, 2)

    def test_bad_lines_can_be_left_out(self) -> None:
        """Those that are too long included."""
        got = received(json_lines, channel(s0=b"1\n{\n12345678\n2"), limit=7, on_error="skip")
        assert got == [Message(0, 1), Message(0, 2, skipped=2)]

    def test_an_end_behind_a_gap_ends_no_line(self) -> None:
        """The last line may have gone on in what was missed."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.segment(0, b"1\n2")
            else:
                await exchange.empty(latest=4, closed="terminated")

        async def main() -> None:
            async with fake(handler) as server, json_lines(server.url, start=0) as messages:
                assert [message.value async for message in messages] == [1]
                assert messages.skipped == 1
                assert messages.subscriber.missed_at_end == 3

        run(main)


# Resuming.


def split(data: bytes, cuts: list[int]) -> Handler:
    """A channel whose segments are the parts of the data between the cuts; each in two chunks."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    parts = [data[begin:end] for begin, end in itertools.pairwise(edges)]

    async def handler(exchange: Exchange) -> None:
        seq = int(exchange.tail)
        if seq < len(parts):
            half = len(parts[seq]) // 2
            await exchange.segment(seq, *filter(None, (parts[seq][:half], parts[seq][half:])), life="aa.0")
        else:
            await exchange.empty(latest=len(parts), closed="terminated", life="aa.0")

    return handler


def resumed(
    open_messages: Open, handler: Handler, count: int, **options: Any
) -> tuple[str, list[Message | BadMessage]]:
    """The place of a reader that is killed after some messages, and what a second reader gets that begins there."""

    async def main() -> str:
        async with (
            fake(handler) as server,
            timed(Slept().runtime, open_messages, server.url, start=0) as messages,
        ):
            for _ in range(count):
                await anext(messages)
            return str(messages.position)

    kept = run(main)
    return kept, received(open_messages, handler, start=kept)


LINES = st.lists(st.sampled_from(["7", '"text"', '{"a": 1}', "[2]", "null", "", "12345678901234567890"]), max_size=9)


@given(LINES, st.lists(st.integers(0, 200), max_size=6), st.booleans(), st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_a_reader_of_lines_that_was_killed_goes_on_behind_its_last_line(
    lines: list[str], cuts: list[int], last_ends: bool, count: int
) -> None:
    """Wherever the segments end, also within lines: each line comes once, and nothing was missed."""
    wanted = [json.loads(line) for line in lines if line]
    handler = split("\n".join(lines).encode() + b"\n" * last_ends, cuts)
    count = min(count, len(wanted))
    _, second = resumed(json_lines, handler, count)
    assert values(second) == wanted[count:]
    assert not any(message.gap or message.skipped or message.restarted for message in second)  # type: ignore[union-attr]


class TestPosition:
    def test_it_is_in_the_middle_of_a_segment_of_lines(self) -> None:
        """Its text names the segment, and how much of it was read."""
        kept, second = resumed(json_lines, channel(s0=b"1\n2\n", s1=b"3\n4\n"), 3)
        assert kept == "1+2"
        assert second == [Message(1, 4)]

    def test_a_line_over_two_segments_begins_in_the_first(self) -> None:
        """The reader needs that one once more."""
        kept, second = resumed(json_lines, channel(s0=b"1\n[2,", s1=b"3]\n"), 1)
        assert kept == "0+2"
        assert second == [Message(1, [2, 3])]

    def test_of_documents_it_is_behind_the_last_one(self) -> None:
        """Segments without one are passed over."""
        for count, kept in [(0, "0"), (1, "1"), (2, "3")]:
            assert resumed(json_messages, channel(s0=b"0", s1=b" ", s2=b"2", s3=b"3"), count)[0] == kept

    def test_what_the_next_message_has_to_tell_is_told_again(self) -> None:
        """A gap that nobody has heard of is behind it."""
        for open_messages in (json_lines, json_messages):
            kept, second = resumed(open_messages, with_gap(b"[1]\n", b"[2]\n"), 1)
            assert kept.startswith(("0+4", "1"))
            assert second == [Message(5, [2], gap=4)]

    @pytest.mark.parametrize(("open_messages", "kept"), [(json_lines, "0+2"), (json_messages, "0")])
    def test_it_is_in_front_of_what_was_read_in_part(self, open_messages: Open, kept: str) -> None:
        """A call that gave up has had a part of a document: its segment is read again."""

        async def handler(exchange: Exchange) -> None:
            await exchange.begin(0)
            await exchange.chunk(b"1\n[" if open_messages is json_lines else b"[")
            await exchange.closed_by_client()

        async def main() -> None:
            async with fake(handler) as server, open_messages(server.url, start=0) as messages:
                assert messages.position == Position(0)
                if open_messages is json_lines:
                    await anext(messages)
                while not messages.subscriber.statistics().bytes:
                    with anyio.move_on_after(0.01):
                        await anext(messages)
                assert str(messages.position) == kept

        run(main)

    def test_it_passes_over_segments_in_which_nothing_is_left(self) -> None:
        """It is still in the window when nothing but empty segments came for an hour."""

        async def main() -> None:
            async with (
                fake(channel(s0=b"1\n", s1=b"", s2=b"\n")) as server,
                json_lines(server.url, start=0) as messages,
            ):
                assert [message.value async for message in messages] == [1]
                assert str(messages.position) == "3+0"
            async with fake(channel(s1=b"", s2=b"")) as server, json_lines(server.url, start=1) as messages:
                assert [message.value async for message in messages] == []
                assert str(messages.position) == "3"  # the next line may have begun in front of segment 1

        run(main)

    def test_between_two_lines_none_but_lines_begin(self) -> None:
        """Documents and segments would repeat the lines that were read. Nothing is asked for, and lines can be read."""

        async def main() -> None:
            async with (
                fake(channel(s0=b"1\n2\n")) as server,
                Subscriber(server.url, start=Position(0, offset=2)) as subscriber,
            ):
                for _ in range(2):
                    with pytest.raises(InvalidInput, match=r"^0\+2 is between two lines .* json_lines .* without \+2 "):
                        await anext(subscriber)
                with pytest.raises(InvalidInput, match="between two lines"):
                    Messages(subscriber)
                assert subscriber.statistics().requests == 0
                assert [message.value async for message in Messages(subscriber, lines=True)] == [2]

        run(main)
        with pytest.raises(InvalidInput, match="between two lines"):
            json_messages("http://host/trickle/c", start=Position(0, offset=2))

    def test_a_position_at_the_begin_of_a_segment_is_one_of_segments_too(self) -> None:
        """Nothing of that segment was read, so nothing is repeated."""
        assert received(json_messages, channel(s1=b"1"), start="1+0") == [Message(1, 1)]

    def test_a_seek_moves_it(self) -> None:
        """At once, and with the offset of its target; the line that was begun is not joined to what comes then."""

        async def main() -> None:
            handler = channel(s0=b"1\n2\n3", s1=b"4\n5\n6\n")
            async with fake(handler) as server, json_lines(server.url, start=0) as messages:
                assert [(await anext(messages)).value for _ in range(2)] == [1, 2]
                await messages.subscriber.seek(Position(1, offset=2))
                assert messages.position == Position(1, offset=2)
                assert [(message.value, message.skipped) async for message in messages] == [(5, 1), (6, 0)]

        run(main)

    def test_messages_of_a_subscriber_that_was_used_before_begin_where_it_is(self) -> None:
        """Bytes that the program has read itself are not read again."""

        async def main() -> None:
            async with fake(channel(s0=b"1\n", s1=b"2\n3\n")) as server, Subscriber(server.url, start=0) as subscriber:
                await anext(subscriber)
                messages = Messages(subscriber, lines=True)
                assert messages.position == Position(1)
                assert (await anext(messages)).skipped == 1
                assert messages.position == Position(1, offset=4)

        run(main)

    def test_a_segment_that_is_another_one_is_read_from_its_beginning(self) -> None:
        """Its numbering is not that of the position: the bytes are not those that were read."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "1":
                await exchange.segment(1, b"[1]\n[2]\n", epoch=2)
            else:
                await ended(exchange)

        got = received(json_lines, handler, start="1@1+4")
        assert got == [Message(1, [1], restarted=True), Message(1, [2])]

    def test_a_segment_that_is_shorter_than_what_was_read_is_told(self) -> None:
        """A server without lives has been restarted."""
        assert received(json_lines, channel(s1=b"[1]\n", s2=b"[2]\n"), start="1+9") == [Message(2, [2], skipped=1)]

    def test_an_error_resumes_behind_the_last_line(self) -> None:
        """Also one of the subscriber, which knows segments alone."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.segment(0, b"1\n[2,")
            else:
                await exchange.text(500, "no")

        async def main() -> None:
            async with (
                fake(handler) as server,
                timed(Slept().runtime, json_lines, server.url, start=0, reconnect_s=0) as messages,
            ):
                assert (await anext(messages)).value == 1
                with pytest.raises(TrickleError) as raised:
                    await anext(messages)
                assert raised.value.resume == Position(0, offset=2)

        run(main)

    def test_a_line_that_is_too_long_is_in_front_of_it(self) -> None:
        """Its end may not have come yet."""

        async def main() -> None:
            async with (
                fake(channel(s0=b"1\n12345678\n2\n")) as server,
                json_lines(server.url, start=0, limit=4) as messages,
            ):
                await anext(messages)
                with pytest.raises(BadMessage) as raised:
                    await anext(messages)
                assert raised.value.resume == messages.position == Position(0, offset=2)
                await anext(messages)
                assert messages.position == Position(0, offset=13)

        run(main)


@pytest.mark.parametrize("lines", [False, True], ids=["messages", "lines"])
def test_a_cancelled_wait_loses_nothing(lines: bool) -> None:
    """Neither half a document nor half a line: the next call goes on with the rest."""
    cancelled = anyio.Event()

    async def handler(exchange: Exchange) -> None:
        if exchange.tail != "0":
            return await ended(exchange)
        await exchange.begin(0)
        await exchange.chunk(b'{"a":')
        await cancelled.wait()
        await exchange.chunk(b"1}\n")
        await exchange.end()

    async def main() -> None:
        async with fake(handler) as server, Subscriber(server.url, start=0) as subscriber:
            messages = Messages(subscriber, lines=lines)
            while not subscriber.statistics().bytes:
                with anyio.move_on_after(0.01):
                    await anext(messages)
            cancelled.set()
            assert [message async for message in messages] == [Message(0, {"a": 1})]

    run(main)


@pytest.mark.parametrize("read", [json_messages, json_lines])
@pytest.mark.parametrize("limit", [0, 1.5, float("nan")])
def test_a_wrong_limit_is_refused_at_construction(read: Callable[..., Messages], limit: object) -> None:
    """The limit is a number of bytes."""
    with pytest.raises(InvalidInput, match="limit must be a whole number"):
        read("http://host/trickle/cam", limit=limit)


@pytest.mark.parametrize("open_messages", [json_messages, json_lines])
def test_a_second_task_that_iterates_is_refused(open_messages: Open) -> None:
    """The first goes on, and gets the message."""
    go_on = anyio.Event()

    async def handler(exchange: Exchange) -> None:
        if exchange.tail != "0":
            return await ended(exchange)
        await exchange.begin(0)
        await go_on.wait()
        await exchange.chunk(b'{"a":1}\n')
        await exchange.end()

    async def main() -> None:
        got: list[Message] = []

        async def first(messages: Messages) -> None:
            got.append(await anext(messages))

        async with (
            fake(handler) as server,
            open_messages(server.url, start=0) as messages,
            anyio.create_task_group() as group,
        ):
            group.start_soon(first, messages)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(anyio.BusyResourceError):
                await anext(messages)
            go_on.set()
        assert [message.value for message in got] == [{"a": 1}]

    run(main)


@given(
    st.lists(
        st.binary(max_size=12)
        | st.sampled_from([b"[" * 3000, b'{"a":1}\n', b"\n", b'"\xff"', b'{"a":', b"1e999", b"NaN"]),
        max_size=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_bytes_give_messages_or_one_kind_of_error(parts: list[bytes]) -> None:
    """Documents and lines that are no JSON, nested without end, of any bytes: BadMessage, and the iteration goes on."""
    whole = b"".join(parts)
    for open_messages in (json_messages, json_lines):
        items = received(open_messages, channel(s0=whole, s1=b'\n{"last":1}\n'), limit=4000)
        assert [item.value for item in items if isinstance(item, Message)][-1] == {"last": 1}


DIGITS = b"1234567890123456789"


@pytest.mark.parametrize(
    "value", [2**64 + 1, -(2**63) - 1, 10**40, {"id": [2**64]}, DIGITS.decode(), 1.5, 2**53 + 1, 1234567890123456789.5]
)
def test_numbers_are_exact(value: Any) -> None:
    """An integer of any length comes back as it was."""
    found = _value(json.dumps(value).encode())
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", [b"[" + DIGITS + b", NaN]", DIGITS * 300, b"[" * 5000 + DIGITS, b"\xff" + DIGITS])
def test_what_only_pythons_parser_takes_is_no_message(text: bytes) -> None:
    """Constants that JSON does not have, endless numbers, endless nesting and other encodings are refused."""
    with pytest.raises((ValueError, RecursionError)):
        _value(text)


@pytest.mark.parametrize("function", [json_messages, json_lines])
def test_an_unknown_option_is_one_of_the_called_function(function: Callable[..., Messages]) -> None:
    """Its user knows nothing of the subscriber's constructor."""
    with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) got an unexpected keyword argument 'bogus'"):
        function("http://127.0.0.1:1/trickle/c", bogus=1)
