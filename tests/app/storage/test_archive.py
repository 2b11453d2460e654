"""Segments in the data directory, over real sockets: replay into live, acknowledgements, retention, restart."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from glob import glob
from pathlib import Path
from typing import Any

import pytest

from tests.app.core.support import owned
from tests.app.data_plane.support import connections, pattern
from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.core.facts import BodyBegun, SegmentClosed, SegmentOpened
from tricklecast.app.core.segment import State, encode_frame
from tricklecast.app.core.state import Lives
from tricklecast.app.storage import archive as module
from tricklecast.app.storage.archive import Archive
from tricklecast.app.storage.database import Batch, Database, StorageError, segment_path
from tricklecast.app.tools.conformance.response import ConnectionCut
from tricklecast.app.tools.conformance.target import Target
from tricklecast.trickle import wire

ACKS = ("memory", "journal", "fsync")


@contextmanager
def durable(folder: Path, **settings: Any) -> Iterator[tuple[LocalServer, Target, Archive]]:
    """A server with a data directory and a window of two segments; each publisher waits for storage."""
    known: dict[str, Any] = {"window_segments": 2, "ack": "journal", "channel_drain_s": 0}
    with local_server(data_dir=folder, **(known | settings)) as running:
        assert running.archive is not None
        target = running.target()
        try:
            yield running, target, running.archive
        finally:
            target.close()


def settled(server: LocalServer, archive: Archive) -> None:
    """Wait until everything is written, and what holds nothing is removed."""

    def idle() -> bool:
        return not (archive.dirty or archive._busy or archive._timer or archive._batch.files)

    eventually(lambda: server.inside(idle), what="everything is written")


def body(seq: int, size: int = 1000) -> bytes:
    """Bytes that no other segment has."""
    return pattern(size, seq * 7919)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory that does not exist yet."""
    return tmp_path / "data"


@pytest.mark.parametrize("ack", ACKS)
def test_a_channel_comes_back(folder: Path, ack: str) -> None:
    """Epoch, head, content type, every closed segment, and an ended channel's epoch are what they were."""
    with durable(folder, ack=ack) as (_, target, _):
        channel = target.channel("film").create("video/mp2t").publish(0, *(body(seq) for seq in range(5)))
        assert channel.close(5).status == 400  # there is no such segment
        channel.upload(5).end()  # an empty one
        other = target.channel("other").publish(0, b"one")
        assert other.end().status == 200
        assert other.post(0, b"two").get("Lp-Trickle-Durability") == ack
    with durable(folder, ack=ack) as (_, target, _):
        channel = target.channel("film")
        assert channel.next_seq() == 6
        for seq in range(5):
            channel.has(seq, body(seq), epoch=1, content_type="video/mp2t")
        assert channel.get(5).body == b""
        channel.publish(6, body(6)).has(6, body(6))
        assert channel.post(3).status == 409
        target.channel("other").has(0, b"two", epoch=2)


def lives_of(server: LocalServer, name: str = "film") -> Lives:
    """The numberings of a channel that are known."""
    return server.inside(lambda: server.plane.registry.channels[name].lives)


def test_numberings_come_back(folder: Path) -> None:
    """All of a channel, and of each epoch its own. Versions before knew none."""
    with durable(folder) as (server, target, _):
        target.channel("film").post(0, b"a", {wire.LIFE: "a:0"}).expect(200)
        target.channel("film").post(1, headers={wire.LIFE: "other:1"}).expect(200, life="a:0")
    with durable(folder) as (server, target, _):
        assert lives_of(server) == (("a", 0),)
        target.channel("film").get("next").expect(200, life="a")
        target.channel("film").get(1).expect(200, life="a:0")
    with durable(folder) as (server, target, _):
        target.channel("film").post(2, b"", {wire.LIFE: "b:2"}).expect(200)
    with durable(folder) as (server, target, _):
        assert lives_of(server) == (("a", 0), ("b", 2))
        target.channel("film").end()
        target.channel("film").post(0, b"c", {wire.LIFE: "c:0"}).expect(200)
    with closing(sqlite3.connect(folder / "journal.sqlite")) as sql, sql:
        sql.execute("UPDATE numbering SET lives = 'nonsense:7' WHERE channel = 1")
    with durable(folder) as (server, _, archive):
        assert lives_of(server) == (("c", 0),)
        assert [stored.lives for stored in archive.ended.values()] == [()], "a damaged row is none"
    with closing(sqlite3.connect(folder / "journal.sqlite")) as sql, sql:
        sql.execute("DROP TABLE numbering")
    with durable(folder) as (server, target, _):
        assert lives_of(server) == ()
        target.channel("film").post(1, b"c", {wire.LIFE: "c:0"}).expect(200)
    with durable(folder) as (server, _, _):
        assert lives_of(server) == (("c", 0),)


def test_an_epoch_is_never_given_twice(folder: Path) -> None:
    """The name of a channel that was forgotten long ago begins a later life, also after a restart."""
    for life in (1, 2, 3):
        with durable(folder, ack="journal") as (server, target, _):
            channel = target.channel("film").publish(0, b"x")
            assert channel.get(0).number("Lp-Trickle-Epoch") == life
            channel.end()
            server.inside(lambda: server.plane.registry._tombstones.clear())


def test_a_segment_that_was_open_comes_back_truncated(folder: Path) -> None:
    """A crash in the middle of a segment leaves what was written of it, marked as a part; the head is past it."""
    crashed = folder.parent / "crashed"
    with durable(folder) as (server, target, archive):
        channel = target.channel("film").publish(0, body(0))
        upload, _ = channel.started(1, b"begun")
        settled(server, archive)
        copy(folder, crashed)
        upload.end()
    with durable(crashed) as (_, target, _):
        channel = target.channel("film")
        assert channel.next_seq() == 2
        response = channel.get(1)
        assert (response.body, response.get("Lp-Trickle-Truncated")) == (b"begun", "truncated")


def adopt(server: LocalServer, name: str, epoch: int, *bodies: bytes) -> None:
    """Adopt a channel of another server, which had these segments, an empty one, and one that has begun."""
    plane = server.plane
    channel, now = plane.registry.replicate(name, epoch, plane.clock()), plane.clock()
    for seq, data in enumerate([*bodies, b"", b"begun"]):
        channel.apply(BodyBegun(0, 0, now, name, epoch, seq, "k", 0))
        if data:
            channel.apply(SegmentOpened(0, 0, now, name, epoch, seq))
            segment, frame = channel.segments[seq], encode_frame([data])
            assert channel.bytes_stored(segment, frame, len(data), segment.price(frame))
        if seq <= len(bodies):
            state = State.COMPLETE if data else State.EMPTY
            channel.apply(SegmentClosed(0, 0, now, name, epoch, seq, state, len(data), "k"))
    plane.registry.adopt(channel, now)


@pytest.mark.parametrize("had", [False, True])
def test_what_is_adopted_is_stored(folder: Path, had: bool) -> None:
    """Its window, and what is written from then on; also if the directory has a part of the epoch already."""
    with durable(folder) as (server, target, archive):
        channel = target.channel("film")
        if had:
            channel.publish(0, body(0))
            settled(server, archive)
            registry = server.plane.registry
            server.inside(lambda: registry.give_up(owned(registry, "film"), 0.0))  # another server goes on with it
        server.inside(lambda: adopt(server, "film", 1, body(0), body(1)))
        channel.upload(3, b"begun", b" and ended", headers={"Idempotency-Key": "k", "Trickle-Attempt": "2"}).end()
        channel.publish(4, body(4))
        settled(server, archive)
        assert len(archive.order) == 5, "each of them once"
    with durable(folder) as (_, target, _):
        channel = target.channel("film")
        for seq, data in enumerate([body(0), body(1), b"", b"begun and ended", body(4)]):
            channel.has(seq, data, epoch=1)


def test_what_is_adopted_while_the_disk_is_full_is_stored_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As all that happens meanwhile; what has left the window by then is counted as lost."""
    with durable(folder) as (server, target, archive):
        commit = archive.database.commit
        monkeypatch.setattr(archive.database, "commit", full)
        target.channel("other").publish(0, b"x")
        eventually(lambda: archive.failed)
        server.inside(lambda: adopt(server, "film", 1, body(0), body(1)))
        monkeypatch.setattr(archive.database, "commit", commit)
        server.inside(archive._retry)
        eventually(lambda: server.inside(lambda: archive.failed) is None)
        settled(server, archive)
        assert archive.counters.lost == 1
    with durable(folder) as (_, target, _):
        target.channel("film").has(1, body(1), epoch=1).has(3, b"begun")


def copy(folder: Path, to: Path) -> None:
    """A copy of the directory, as a crash of the process at this moment would leave it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "journal.sqlite-shm":
            (to / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            (to / path.relative_to(folder)).write_bytes(path.read_bytes())


def test_replay_leads_into_live(folder: Path) -> None:
    """From the oldest segment on disk over the window to the one that is being written: no gap, nothing twice."""
    with durable(folder) as (_, target, _):
        channel = target.channel("film").publish(0, *(body(seq, 300_000) for seq in range(6)))
        upload, _ = channel.started(6, b"live")
        reader = target.open()
        for seq in range(6):
            reader.request("GET", channel.at(seq))
            assert reader.response().body == body(seq, 300_000)
        reader.request("GET", channel.at(6))
        reader.head()
        reader.gets(b"live")
        upload.chunk(b" on").end()
        reader.ends(b" on")
        assert channel.get(0).number("Lp-Trickle-Size") == 300_000
        assert channel.get(99).number("Lp-Trickle-Earliest") == 0
        assert channel.get(-5).number("Lp-Trickle-Seq") == 3


def test_a_segment_on_disk_is_told_as_one_in_memory(folder: Path) -> None:
    """HEAD and GET say its size and how it closed, in one part or many."""
    for size in (96, 200_000):
        with durable(folder / str(size)) as (_, target, _):
            channel = target.channel("film").publish(0, body(0, size))
            upload, _ = channel.started(1, body(1, size))
            channel.close(1, (("Lp-Trickle-Truncated", "1"),))
            upload.connection.close()
            live = [_facts(channel, seq) for seq in (0, 1)]
            channel.publish(2, body(2), body(3), body(4))
            assert [_facts(channel, seq) for seq in (0, 1)] == live
            assert live[0][0] == str(size)
            assert live[1][1] == "truncated"


def _facts(channel: Any, seq: int) -> list[str | None]:
    """The headers of a HEAD of a segment; a GET has the same."""
    names = ("Lp-Trickle-Size", "Lp-Trickle-Truncated", "Content-Type", "Lp-Trickle-Epoch")
    said = [
        [answer.get(name) for name in names]
        for answer in (channel.target.ask("HEAD", channel.at(seq)), channel.get(seq))
    ]
    assert said[0] == said[1]
    return said[0]


def test_the_storm_guard_sees_a_loop_on_disk(folder: Path) -> None:
    """A client that reads one stored segment again and again is held, as if the segment were in the window."""
    with durable(folder, window_segments=1) as (server, target, _):
        channel = target.channel("film").publish(0, body(0), body(1), body(2))
        for _ in range(12):
            assert channel.get(0, (("Trickle-Client", "loop"),)).body == body(0)
        assert server.inside(lambda: server.plane.holds) > 0
        assert server.inside(lambda: server.plane.latencies.delivery.counts) == [0] * 19


def test_what_was_evicted_and_is_not_written_yet_is_served_from_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk makes no hole between the window and the directory."""
    with durable(folder, ack="memory") as (server, target, archive):
        with held(archive, monkeypatch):
            channel = target.channel("film").publish(0, *(body(seq) for seq in range(6)))
            assert server.inside(lambda: sorted(server.plane.registry.channels["film"].segments)) == [4, 5]
            for seq in range(6):
                channel.has(seq, body(seq))
        settled(server, archive)
        assert server.inside(lambda: archive.budget.lingering) == {}
        channel.has(0, body(0))


@contextmanager
def held(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Storage writes nothing until the block ends; the event is set when it wants to."""
    go, wants = threading.Event(), threading.Event()
    commit = archive.database.commit

    def wait(batch: Batch) -> None:
        wants.set()
        assert go.wait(WITHIN_S)
        commit(batch)

    monkeypatch.setattr(archive.database, "commit", wait)
    try:
        yield wants
    finally:
        go.set()


@pytest.mark.parametrize("ack", ACKS)
def test_a_publisher_is_answered_when_storage_has_it(folder: Path, monkeypatch: pytest.MonkeyPatch, ack: str) -> None:
    """With `journal` and `fsync` nobody is told 200 before the batch is written; readers have the bytes at once."""
    with durable(folder, ack=ack) as (_, target, archive), held(archive, monkeypatch) as wants:
        channel = target.channel("film")
        requests = {
            "create": lambda: channel.ask("POST"),
            "publish": lambda: channel.post(0, b"x"),
            "close": lambda: channel.close(0),
            "end": channel.end,
        }
        if ack == "memory":
            assert [ask().get("Lp-Trickle-Durability") for ask in requests.values()] == ["memory"] * 4
            return
        upload = channel.upload(0, b"x")
        upload.end()
        assert wants.wait(WITHIN_S)
        channel.has(0, b"x")
        upload.connection.silent()


def test_an_empty_body_that_awaits_storage_is_no_preconnect(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shutdown lets its publisher wait for the answer to what it has done, as one with bytes."""
    with durable(folder) as (server, target, archive), held(archive, monkeypatch) as wants:
        upload = target.channel("film").upload(0)
        target.settle()
        upload.end()
        assert wants.wait(WITHIN_S)
        (busy,) = eventually(
            lambda: [found for found in [[one for one in connections(server) if one.unfinished]] if len(found) == 1],
            what="only the upload is unfinished",
        )[0]
        assert not server.inside(lambda: busy.waiting)


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"retain_channel_segments": 3}, [7, 8, 9]),
        ({"retain_channel_bytes": 3500}, [7, 8, 9]),
        ({"retain_total_bytes": 2500}, [8, 9]),
    ],
)
def test_retention_removes_the_oldest(folder: Path, limits: dict[str, int], left: list[int]) -> None:
    """A segment beyond a limit gets 404 with the seq at which to go on, before and after a restart."""
    with durable(folder, **limits) as (server, target, archive):
        target.channel("film").publish(0, *(body(seq) for seq in range(10)))
        settled(server, archive)
        assert server.inside(lambda: archive.latest["film"].seqs) == left
    with durable(folder, **limits) as (_, target, _):
        response = target.channel("film").get(1)
        assert (response.status, response.number("Lp-Trickle-Next")) == (470, left[0])
        target.channel("film").has(left[0], body(left[0]))


def test_old_segments_go_while_nothing_is_published(folder: Path) -> None:
    """Age alone removes segments, and then their file."""
    with durable(folder, retain_age_s=3600) as (server, target, archive):
        target.channel("film").publish(0, *(body(seq) for seq in range(4)))
        settled(server, archive)
        now_us = archive.wall_us()
        archive.wall_us = lambda: now_us + 3_601_000_000
        eventually(lambda: not glob(f"{folder}/**/*.seg", recursive=True), what="the file is removed")
        assert target.channel("film").get(0).status == 470
        target.channel("film").has(3, body(3))  # it is in the window


def test_a_file_that_is_read_from_is_not_removed(folder: Path) -> None:
    """Retention goes on behind a slow reader of a segment, and the reader gets all of it."""
    big = body(0, 8 << 20)
    with durable(folder, retain_channel_segments=3) as (server, target, archive):
        channel = target.channel("film").publish(0, big, body(1), body(2))
        settled(server, archive)
        reader = channel.read(0)
        assert reader.head().status == 200
        channel.publish(3, *(body(seq) for seq in range(3, 9)))
        settled(server, archive)
        assert channel.get(0).status == 470
        assert reader.rest() == big
        eventually(lambda: server.inside(lambda: archive.files) == {(1, 1): 3}, what="it is let go")
        assert server.inside(lambda: archive.budget.used) < 1 << 20


def test_a_replay_takes_little_memory(folder: Path) -> None:
    """A reader that takes nothing holds one part of a segment, however large that is."""
    with durable(folder) as (server, target, archive):
        channel = target.channel("film").publish(0, body(0, 8 << 20), body(1), body(2))
        settled(server, archive)
        before = server.inside(lambda: archive.budget.used)
        readers = [channel.read(0) for _ in range(4)]
        for reader in readers:
            assert reader.head().status == 200
        assert server.inside(lambda: archive.budget.used) - before <= 4 * (64 << 10)
        for reader in readers:
            reader.abort()
        eventually(lambda: server.inside(lambda: archive.budget.used) == before, what="nothing is held")


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_damaged_bytes_are_never_handed_out_as_whole(folder: Path, size: int) -> None:
    """A flipped bit is noticed: the reader's response breaks off, the segment is gone, the others are there."""
    with durable(folder) as (server, target, archive):
        channel = target.channel("film").publish(0, *(body(seq, size) for seq in range(4)))
        settled(server, archive)
        with open(segment_path(folder, 1, 1), "r+b") as file:
            file.seek(size // 2)
            file.write(b"!")
        with pytest.raises(ConnectionCut):
            channel.get(0)
        response = channel.get(0)
        assert (response.status, response.number("Lp-Trickle-Next")) == (470, 1)
        channel.has(1, body(1, size))
        assert server.inside(lambda: archive.counters.damaged) == 1
        server.record(rseq=0, reason="evicted")


@pytest.mark.parametrize("on_disk_full", ["memory", "refuse"])
def test_a_disk_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch, on_disk_full: str) -> None:
    """Channels go on in memory, or publishers are refused; when it can be written again, storage catches up."""
    with durable(folder, on_disk_full=on_disk_full) as (server, target, archive):
        channel = target.channel("film").publish(0, body(0))
        commit = archive.database.commit
        monkeypatch.setattr(archive.database, "commit", full)
        answer = channel.post(1, body(1))
        if on_disk_full == "refuse":
            assert (answer.status, answer.number("Retry-After") > 0) == (503, True)
            assert channel.post(2, body(2)).status == 503
            assert target.channel("new").ask("POST").status == 503
        else:
            assert (answer.status, answer.get("Lp-Trickle-Durability")) == (200, "memory")
            channel.publish(2, body(2))
        assert server.inside(lambda: archive.failed) == "[Errno 28] No space left on device"
        monkeypatch.setattr(archive.database, "commit", commit)
        server.inside(archive._retry)
        eventually(lambda: server.inside(lambda: archive.failed) is None, what="it can be written again")
        channel.publish(channel.next_seq(), body(9))
        settled(server, archive)
        head = channel.next_seq()
    with durable(folder) as (_, target, _):
        channel = target.channel("film")
        assert channel.next_seq() == head
        for seq in range(head - 1):
            channel.has(seq, body(seq))


def full(batch: Batch) -> None:
    """A disk without room."""
    raise OSError(28, "No space left on device")


def test_two_servers_do_not_share_a_directory(folder: Path) -> None:
    """The second one says so and does not start."""
    with durable(folder), pytest.raises(StorageError, match="another server uses the data directory"):
        Database(folder)


def test_all_segments_together_have_a_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are: the index of them is in memory."""
    monkeypatch.setattr(module, "MAX_SEGMENTS", 5)
    with durable(folder) as (server, target, archive):
        target.channel("a").publish(0, b"1", b"2", b"3", b"4")
        target.channel("b").publish(0, b"1", b"2", b"3", b"4")
        settled(server, archive)
        assert server.inside(lambda: (archive.latest["a"].seqs, archive.latest["b"].seqs)) == ([3], [0, 1, 2, 3])
