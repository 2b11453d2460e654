"""Ranges, entity tags and conditions of finished segments (RFC 9110, sections 13 and 14)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.app.data_plane.support import pattern
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.clock import to_time, to_us, wall_us
from tricklecast.app.tools.conformance.response import Response
from tricklecast.app.tools.conformance.target import RemoteChannel, Target

BODY = b"0123456789"
LARGE = 300_000


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server in memory, whose guard does not slow repeated requests down."""
    with local_server(storm_guard="off") as running:
        yield running


def part(answer: Response) -> tuple[int, str | None, bytes]:
    return answer.status, answer.get("Content-Range"), answer.body


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ("bytes=2-5", (2, 6)), ("bytes=2-", (2, 10)), ("bytes=-3", (7, 10)), ("bytes=0-0", (0, 1)),
        ("bytes=9-", (9, 10)), ("bytes=5-99999999999999999999999", (5, 10)), ("bytes=-99", (0, 10)),
        ("Bytes= 2 - 5 ", (2, 6)),
    ],
)  # fmt: skip
def test_a_range_of_a_finished_segment(channel: RemoteChannel, asked: str, place: tuple[int, int]) -> None:
    """206 with these bytes, and where they stand; the answer says what that of the whole segment does."""
    channel.publish(0, BODY)
    answer = channel.get(0, {"Range": asked})
    begin, end = place
    assert part(answer) == (206, f"bytes {begin}-{end - 1}/10", BODY[begin:end])
    assert answer.get("Content-Length") == str(end - begin)
    whole = channel.get(0)
    for name in ("ETag", "Accept-Ranges", "Lp-Trickle-Seq", "Lp-Trickle-Size", "Lp-Trickle-Epoch", "Lp-Trickle-Life"):
        assert answer.get(name) == whole.get(name) != None, name  # noqa: E711
    assert whole.get("Accept-Ranges") == "bytes"


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=10-12", "bytes=-0", "bytes=99999999999999999999999-"])
def test_a_range_that_the_segment_does_not_have(channel: RemoteChannel, asked: str) -> None:
    """416 with the size."""
    channel.publish(0, BODY)
    refused = channel.get(0, {"Range": asked})
    assert part(refused) == (416, "bytes */10", b"The segment has 10 bytes")


@pytest.mark.parametrize(
    "asked", ["bytes=0-1,4-5", "bytes=", "bytes=-", "bytes=5-2", "lines=0-1", "bytes", "bytes=a-b", "bytes=" + "1" * 99]
)
def test_other_ranges_are_ignored(channel: RemoteChannel, asked: str) -> None:
    """Several at once, malformed ones and those of another unit: the whole segment."""
    channel.publish(0, BODY)
    assert part(channel.get(0, {"Range": asked})) == (200, None, BODY)


def test_a_range_only_of_the_segment_that_the_client_knows(channel: RemoteChannel) -> None:
    """`If-Range` with another tag, a weak one or a date: the whole segment."""
    channel.publish(0, BODY)
    tag = channel.get(0).get("ETag")
    assert tag is not None
    for known, status in ((tag, 206), (f"W/{tag}", 200), ('"other"', 200), ("Fri, 27 Nov 2026 01:00:00 GMT", 200)):
        assert channel.get(0, {"Range": "bytes=2-5", "If-Range": known}).status == status


def test_a_client_that_has_the_segment_is_told_so(channel: RemoteChannel) -> None:
    """`If-None-Match`: 304 without a body, for GET and HEAD, also before a range; the connection stays usable."""
    channel.publish(0, BODY)
    tag = str(channel.get(0).get("ETag"))
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        for method in ("GET", "HEAD"):
            fields = {"If-None-Match": known, "Range": "bytes=0-1"}
            connection = channel.target.send(method, channel.at(0), fields)
            answer = connection.response()
            assert (answer.status, answer.body, answer.get("ETag")) == (304, b"", tag)
            connection.request("GET", channel.at(0))
            assert connection.response().body == BODY
    assert channel.get(0, {"If-None-Match": '"other"'}).body == BODY


def test_a_head_tells_the_tag_and_knows_no_range(channel: RemoteChannel) -> None:
    """RFC 9110 defines ranges for GET only."""
    channel.publish(0, BODY)
    answer = channel.target.ask("HEAD", channel.at(0), {"Range": "bytes=0-1"})
    assert (answer.status, answer.get("ETag"), answer.get("Accept-Ranges")) == (
        200,
        channel.get(0).get("ETag"),
        "bytes",
    )


def test_an_open_segment_has_neither(channel: RemoteChannel) -> None:
    """It is sent whole, as it comes, whatever is asked; so is one without bytes."""
    upload, _ = channel.started(0, BODY)
    conditions = {"Range": "bytes=2-5", "If-None-Match": "*"}
    reader = channel.read(0, conditions)
    head = reader.head()
    assert (head.status, head.get("ETag"), head.get("Accept-Ranges")) == (200, None, None)
    upload.end()
    assert reader.rest() == BODY
    channel.post(1, b"")
    empty = channel.get(1, conditions)
    assert (empty.status, empty.get("ETag")) == (200, None)


def test_no_two_segments_have_the_same_tag(target: Target) -> None:
    """Of one URL, over the lives of the channel: the bytes are others, and so is the tag."""
    channel = target.channel()
    tags = set()
    for body in (b"one", b"two"):
        channel.publish(0, body).publish(1, body)
        tags |= {channel.get(seq).get("ETag") for seq in (0, 1)}
        channel.end()
    assert len(tags) == 4


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 70_000), min_size=1, max_size=5),
    begin=st.integers(0, 10**6),
    length=st.integers(1, 400_000),
)
def test_any_range_is_that_of_the_whole(target: Target, sizes: list[int], begin: int, length: int) -> None:
    """However the segment came in chunks."""
    body = pattern(400_000)[: sum(sizes)]
    channel = target.channel()
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
    channel.upload(0, *(body[end - size : end] for size, end in zip(sizes, ends, strict=True))).stored()
    begin %= len(body)
    answer = channel.get(0, {"Range": f"bytes={begin}-{begin + length - 1}"})
    assert (answer.status, answer.body) == (206, body[begin : begin + length])


def test_segments_in_the_data_directory_have_the_same(tmp_path: Path) -> None:
    """Tags and ranges are those that they had in memory, and outlive a restart; other bytes have another tag."""
    body = pattern(LARGE)
    asked = {"Range": f"bytes={LARGE - 100_000}-{LARGE - 10_001}"}
    kept = local_server(data_dir=tmp_path, ack="journal", window_segments=1, storm_guard="off")
    with kept as server, contextlib.closing(server.target()) as target:
        channel = target.channel("film")
        channel.publish(0, body)
        tag = channel.get(0).get("ETag")
        assert tag is not None
        assert part(channel.get(0, asked)) == (206, f"bytes {LARGE - 100_000}-{LARGE - 10_001}/{LARGE}",
                                                   body[-100_000:-10_000])  # fmt: skip
        channel.publish(1, b"next")
        eventually(lambda: 0 not in server.plane.registry.channels["film"].segments)
        assert part(channel.get(0, asked)) == (206, f"bytes {LARGE - 100_000}-{LARGE - 10_001}/{LARGE}",
                                                   body[-100_000:-10_000])  # fmt: skip
        assert channel.get(0).get("ETag") == tag
    with local_server(data_dir=tmp_path, ack="journal", storm_guard="off") as server, server.client() as target:
        channel = target.channel("film")
        assert channel.get(0, {"If-None-Match": tag}).status == 304
        assert channel.get(0, asked | {"If-Range": tag}).body == body[-100_000:-10_000]
        assert channel.get(0, {"Range": "bytes=0-9"}).body == body[:10]
        channel.end()
        channel.publish(0, bytes(LARGE))
        assert channel.get(0).get("ETag") not in (tag, None)


def test_a_tag_names_the_segment(channel: RemoteChannel, server: LocalServer) -> None:
    """The microsecond in which it got its first byte, its epoch, the seq and the size: nothing of the process."""
    before = wall_us()
    channel.publish(0, BODY)
    opened, rest = (channel.get(0).get("ETag") or "").strip('"').split(".", 1)
    assert before - 1000 < int(opened, 16) < wall_us() + 1000
    assert rest == f"{server.plane.registry.channels[channel.name].epoch}.0.a"


@given(at=st.floats(0.0, 1e8))
def test_a_time_is_told_exactly(at: float) -> None:
    """A process that is told a moment in microseconds tells it alike."""
    assert to_us(to_time(to_us(at))) == to_us(at)


def test_a_segment_that_a_crash_has_lost_leaves_its_tag_to_nothing_else(tmp_path: Path) -> None:
    """Other bytes of the same size, under the same seq of the same epoch, have another tag."""
    tags = []
    for body in (b"first", b"lost bytes", b"other byte"):
        with local_server(data_dir=tmp_path / "data") as server, contextlib.closing(server.target()) as target:
            channel = target.channel("cam")
            seq = 0 if body == b"first" else 1
            channel.publish(seq, body)
            tags.append(channel.get(seq).expect(200).get("ETag"))
        if not seq:
            shutil.copytree(tmp_path / "data", tmp_path / "before")
        else:
            shutil.rmtree(tmp_path / "data")
            shutil.copytree(tmp_path / "before", tmp_path / "data")
    assert len(set(tags)) == 3
    assert all(tags)


def test_a_range_held_by_the_storm_guard_stays_a_range() -> None:
    """The same range again and again is delayed, and is answered as it was asked for; other ranges are new."""
    with local_server(storm_guard="on") as server, server.client() as target:
        channel = target.channel()
        channel.publish(0, pattern(800))
        me = {"Trickle-Client": "me"}
        for at in range(40):
            assert channel.get(0, me | {"Range": f"bytes={at}-{at}"}).status == 206
        assert server.plane.holds == 0
        answers = [channel.get(0, me | {"Range": "bytes=1-2"}) for _ in range(20)]
        assert {answer.body for answer in answers} == {pattern(800)[1:3]}
        assert server.plane.holds > 0


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip"])
def test_a_coded_body_is_refused(channel: RemoteChannel, coding: str) -> None:
    """Its coding would not be told to readers: 415 with what to do, and nothing is created."""
    refused = channel.post(0, b"x", {"Content-Encoding": coding})
    assert (refused.status, refused.body) == (
        415,
        f"Content-Encoding {coding!r} is not kept: send the body without one".encode(),
    )
    channel.unknown()
    channel.post(0, b"x", [("Content-Encoding", coding), ("Content-Encoding", "identity")]).expect(415)
    channel.post(0, b"x", {"Content-Encoding": "Identity"}).expect(200)


@pytest.mark.parametrize("what", ["channel", "segment", "api channel", "api segment"])
def test_what_came_before_a_delete_reaches_the_readers(channel: RemoteChannel, what: str) -> None:
    """Half a chunk included; then the end that says that the segment was cut short."""
    upload, reader = channel.started(0, b"begun")
    upload.connection.send(b"64\r\nhalf a chunk")
    channel.target.settle()
    api = f"/api/v1/channels/{channel.name}"
    delete = {
        "channel": channel.path,
        "segment": channel.at(0),
        "api channel": api,
        "api segment": f"{api}/segments/0",
    }[what]
    channel.target.ask("DELETE", delete, {"Lp-Trickle-Truncated": "1"}).expect(200)
    assert reader.rest() == b"half a chunk"
    assert upload.answer().number("Lp-Trickle-Size") == len(b"begunhalf a chunk")
