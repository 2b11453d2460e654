"""A server that holds copies: what its readers see, what it stores, restarts of both sides, history, and promotion."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.app.mirror.pair import Site, body, client, destination_of, film, run, settled
from tests.support.local import LocalServer
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.clock import wall_us
from tricklecast.app.core.segment import State
from tricklecast.app.mirror.destination import NotACopy
from tricklecast.app.mirror.sides import SourceSegment
from tricklecast.app.storage import archive as archive_module
from tricklecast.app.storage.archive import Archive
from tricklecast.app.storage.database import Batch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The destination's data directory, which does not exist yet."""
    return tmp_path / "data"


@pytest.fixture
def site(tmp_path: Path, folder: Path) -> Iterator[Site]:
    """A source and a destination, both with storage."""
    found = Site(tmp_path / "source", folder)
    yield found
    found.close()


def archive_of(server: LocalServer) -> Archive:
    """Its storage."""
    assert server.archive is not None
    return server.archive


def now(server: LocalServer) -> float:
    """Its time."""
    return server.plane.clock()


def facts_of(server: LocalServer) -> list[tuple[str, int | None]]:
    """What the server has told of its channels: kind and seq."""
    return server.inside(
        lambda: [(one.kind, one.seq) for one in server.bus.changes.facts_after(server.bus.changes.floor, 10_000)]
    )


# A copy is a channel of this server.


def test_a_copy_is_stored_and_listed_as_any_channel(site: Site) -> None:
    """The same epoch, numbers, types, states and times; lists, changes and metrics have it; storage keeps the rest."""
    there = film(site.source).create("video/mp2t").publish(0, body(0), body(1))
    site.pair.follow()
    there.upload(2).end()  # an empty one
    upload, _ = there.started(3, b"half of")
    site.source.inside(lambda: site.source.plane.registry.close_segment("film", 3, now(site.source), truncate=True))
    upload.abort()
    there.publish(4, body(4), body(5))
    site.pair.same()
    settled(site.source)
    settled(site.target)
    for seq in range(6):
        one, other = (film(server).get(seq) for server in (site.source, site.target))
        names = ("Content-Type", "Lp-Trickle-Epoch", "Lp-Trickle-Truncated", "Lp-Trickle-Life", "ETag", "Last-Modified")
        assert (one.body, [one.get(name) for name in names]) == (other.body, [other.get(name) for name in names])
    assert film(site.target).next_seq() == 6
    found = client(site.target).ask("GET", "/api/v1/channels").body
    assert b'"film"' in found
    assert site.target.plane.registry.totals().live == 2, "with that of changes"
    kinds = [("added", None), *(("closed", seq) for seq in range(6))]
    assert facts_of(site.target) == kinds
    assert {one.seq: one.crc for one in site.pair.closed["film"]}[4] == crc32(body(4))
    entries, others = (archive_of(one).latest["film"].entries for one in (site.target, site.source))
    assert [entries[seq][:3] for seq in range(6)] == [others[seq][:3] for seq in range(6)]
    assert [abs(entries[seq].closed_us - others[seq].closed_us) < 100_000 for seq in range(6)] == [True] * 6


def test_readers_of_a_copy_read_at_the_live_edge(site: Site) -> None:
    """Bytes arrive as they do at the source, before the segment has ended."""
    film(site.source).publish(0, b"zero")
    site.pair.follow()
    waiting = film(site.target).waiting(1)
    upload, _ = film(site.source).started(1, b"one, ")
    assert waiting.head().status == 200
    waiting.gets(b"one, ")
    upload.chunk(b"two").end()
    waiting.ends(b"two")


def test_the_end_of_a_channel_comes_by_the_feed(site: Site) -> None:
    """And the next epoch is another copy."""
    film(site.source).publish(0, b"x")
    site.pair.follow()
    film(site.source).end()
    eventually(lambda: site.target.inside(lambda: destination_of(site.target).channels()) == {})
    assert film(site.target).get(1).get("Lp-Trickle-Closed") == "terminated"
    film(site.source).publish(0, b"again")
    site.pair.follow()
    film(site.target).has(0, b"again", epoch=2)
    settled(site.target)
    assert [kind for kind, _ in facts_of(site.target)] == ["added", "closed", "removed", "added", "closed"]


# Restarts.


def test_a_destination_comes_back_with_its_copies(site: Site) -> None:
    """Readers are served from storage at once, while the source is away; nobody may publish. Then the feed goes on."""
    there = film(site.source).create("video/mp2t").publish(0, *map(body, range(6)))
    site.pair.follow()
    settled(site.target)
    have = site.pair.copies()
    assert list(have) == [3, 4, 5], "the window is three segments, and more was not copied"
    site.restart_target()
    assert site.target.inside(lambda: destination_of(site.target).channels()) == {"film": 1}
    here = film(site.target)
    for seq in (3, 4, 5):
        here.has(seq, body(seq), epoch=1, content_type="video/mp2t")
    assert here.post(6).status == 503
    waiting = here.waiting(6)
    there.publish(6, body(6))
    archive = archive_of(site.target)
    written = archive.counters.written
    site.pair.follow()
    assert waiting.response().body == body(6)
    settled(site.target)
    assert archive.counters.written - written == len(body(6)), "nothing is written twice"
    assert (site.pair.copies(), len(archive.order)) == ({seq: 1000 for seq in (3, 4, 5, 6)}, 4)
    assert facts_of(site.target)[-2:] == [("closed", 5), ("closed", 6)]
    site.restart_target()
    for seq in (3, 4, 5, 6):
        film(site.target).has(seq, body(seq))


def test_a_segment_that_was_open_at_a_restart_becomes_whole(site: Site) -> None:
    """A part of it was stored, and is served as truncated while the source is away; then all of it takes its place."""
    there = film(site.source).publish(0, body(0))
    upload, _ = there.started(1, b"begun, ")
    site.pair.follow()
    settled_but_open(site.target)
    site.restart_target()
    part = film(site.target).get(1)
    assert (part.body, part.get("Lp-Trickle-Truncated")) == (b"begun, ", "truncated")
    upload.chunk(b"and ended").end()
    there.publish(2, body(2))
    site.pair.follow()
    settled(site.target)
    film(site.target).has(1, b"begun, and ended")
    site.restart_target()
    film(site.target).has(1, b"begun, and ended").has(0, body(0)).has(2, body(2))
    assert site.pair.copies() == {0: 1000, 1: 16, 2: 1000}


def settled_but_open(server: LocalServer) -> None:
    """Wait until all bytes that are there are written."""
    archive = archive_of(server)
    eventually(lambda: server.inside(lambda: not (archive.dirty or archive._busy or archive._timer)))


def test_a_source_comes_back(site: Site) -> None:
    """Its feed begins anew, in the same epoch: readers stay, and nothing is told or written twice."""
    there = film(site.source).publish(0, *map(body, range(4)))
    upload, _ = there.started(4, b"cut ")
    site.pair.follow()
    settled_but_open(site.target)
    waiting, middle = film(site.target).waiting(5), film(site.target).arrived(4, b"cut ")
    site.restart_source()
    upload.abort()
    film(site.source).publish(5, body(5))
    site.pair.follow()
    assert waiting.response().body == body(5)
    middle.ends(b"")
    settled(site.target)
    have = film(site.target).get(4)
    assert (have.body, have.get("Lp-Trickle-Truncated")) == (b"cut ", "truncated")
    film(site.target).has(3, body(3)).has(5, body(5), epoch=1)
    assert [one for one in facts_of(site.target) if one[0] != "closed"] == [("added", None)]
    assert facts_of(site.target).count(("closed", 3)) == 1


def test_a_source_that_has_forgotten_all_begins_the_same_epoch_anew(folder: Path) -> None:
    """Its memory is gone, so that it counts from 1 again: the copy of the former channel goes, and none of it stays."""
    site = Site(None, folder)
    film(site.source).publish(0, body(0), body(1))
    site.pair.follow()
    settled(site.target)
    site.restart_source()
    film(site.source).publish(0, b"other")
    site.pair.follow(arrives=False)
    eventually(lambda: site.pair.problems)
    assert "another channel" in site.pair.problems[0]
    site.pair.stop()
    site.pair.follow()
    film(site.target).has(0, b"other", epoch=1)
    assert film(site.target).next_seq() == 1
    settled(site.target)
    assert site.pair.copies() == {0: 5}
    site.restart_target()
    film(site.target).has(0, b"other", epoch=1)
    assert site.pair.copies() == {0: 5}
    site.close()


def test_an_epoch_that_another_one_has_followed(site: Site) -> None:
    """A feed of a later epoch than the one that is held does not reach its readers."""
    film(site.source).publish(0, b"x")
    site.pair.follow()
    site.pair.stop()
    film(site.source).end()
    film(site.source).publish(0, b"y")
    there = site.pair.channel(site.source, "film")
    assert there is not None
    there.epoch, now = 1, there.epoch  # what the mirror was told a moment before
    site.pair.follow(arrives=False)
    there.epoch = now
    eventually(lambda: site.pair.problems)
    film(site.target).has(0, b"x", epoch=1)


def test_a_destination_without_storage_has_the_window(tmp_path: Path) -> None:
    """It keeps nothing else, and says so."""
    site = Site(tmp_path / "source", None)
    film(site.source).publish(0, *map(body, range(5)))
    site.pair.follow()
    destination = destination_of(site.target)
    assert not destination.stores
    assert not site.pair.insert("film", 0, body(0))
    assert list(site.pair.copies()) == [2, 3, 4]
    assert facts_of(site.target)[0] == ("added", None)
    assert run(site.target, destination.checksum("film", 1, 3)) == crc32(body(3))
    site.target.inside(lambda: destination.remove("film", 1, 3))
    assert list(site.pair.copies()) == [2, 4]
    site.target.inside(lambda: destination.end("film"))
    site.pair.stop()
    site.pair.follow()
    film(site.target).has(3, body(3), epoch=1)
    site.close()


# History.


def begun(site: Site, count: int = 6) -> None:
    """A channel of the source with a history, of which the window alone has been copied."""
    film(site.source).publish(0, *map(body, range(count)))
    site.pair.follow()


def test_history_is_there_at_once_and_stays(site: Site) -> None:
    """In any order: readers find a segment in the moment in which it comes, and after a restart."""
    begun(site)
    archive, here = archive_of(site.target), film(site.target)
    hold = archive.database.commit

    def slow(batch: Any) -> None:
        assert may_write.wait(WITHIN_S)
        hold(batch)

    may_write = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive.database, "commit", slow)
        for seq in (1, 0):
            assert site.pair.insert("film", seq, body(seq))
            here.has(seq, body(seq), epoch=1)
        assert site.target.plane.registry.budget.lingering, "they are in memory until they are written"
        assert site.pair.insert("film", 2, b"", state=State.SKIPPED)
        assert here.get(2).get("Lp-Trickle-Truncated") == "skipped"
        assert not site.pair.insert("film", 1, body(1)), "it is here"
        may_write.set()
        settled(site.target)
    assert not site.target.plane.registry.budget.lingering
    assert site.pair.copies() == {0: 1000, 1: 1000, 2: 0, 3: 1000, 4: 1000, 5: 1000}
    site.restart_target()
    for seq in (0, 1, 3, 4, 5):
        film(site.target).has(seq, body(seq))
    stream = film(site.target).read("stream?start=0")
    stream.head()
    stream.gets(b"".join(body(seq) for seq in (0, 1, 3, 4, 5)))
    stream.abort()


def test_history_keeps_its_times_and_states(site: Site) -> None:
    """As the source has told them; a truncated one is one."""
    begun(site)
    at_us = wall_us() - 3_600_000_000
    assert site.pair.insert("film", 0, b"half", state=State.TRUNCATED, opened_us=at_us, closed_us=at_us + 5)
    settled(site.target)
    found = film(site.target).get(0)
    assert (found.body, found.get("Lp-Trickle-Truncated")) == (b"half", "truncated")
    entry = archive_of(site.target).latest["film"].entries[0]
    assert (entry.opened_us, entry.closed_us, entry.crc) == (at_us, at_us + 5, crc32(b"half"))
    assert not site.pair.insert("film", 0, b"half", state=State.TRUNCATED, opened_us=at_us, closed_us=at_us + 5)
    assert site.pair.insert("film", 0, b"half, whole"), "another form of it takes its place"
    settled(site.target)
    site.restart_target()
    film(site.target).has(0, b"half, whole")


def test_what_cannot_be_inserted(site: Site) -> None:
    """Nothing at or beyond the head, in the window, of another epoch, or of a channel that is no copy."""
    begun(site)
    film(site.target, "own").publish(0, b"x")
    for name, seq, epoch in (("film", 6, 1), ("film", 5, 1), ("film", 0, 2), ("own", 0, 1), ("nobody", 0, 1)):
        assert not site.pair.insert(name, seq, b"bytes", epoch=epoch)
    site.target.inside(lambda: destination_of(site.target).end("film"))
    assert not site.pair.insert("film", 0, b"bytes")


@pytest.mark.parametrize("order", [range(7), range(6, -1, -1), (3, 0, 6, 1, 5, 2, 4)])
@pytest.mark.parametrize("limit", [{"retain_channel_segments": 6}, {"retain_total_bytes": 6000}])
def test_retention_keeps_the_newest_history(tmp_path: Path, order: Any, limit: dict[str, Any]) -> None:
    """Whatever the order in which it comes, the newest segments stay."""
    site = Site(tmp_path / "source", tmp_path / "target", **limit)
    begun(site, 10)
    settled(site.target)
    start = wall_us() - 1_000_000_000
    for seq in order:
        site.pair.insert("film", seq, body(seq), opened_us=start + seq, closed_us=start + seq)
        settled(site.target)
    assert list(site.pair.copies()) == [4, 5, 6, 7, 8, 9]
    site.close()


def test_a_segment_that_is_another_one_takes_its_own_place(tmp_path: Path) -> None:
    """Also if there is room for no further one: the oldest of those that are kept is one of them."""
    site = Site(tmp_path / "source", tmp_path / "target", retain_channel_segments=6)
    begun(site, 10)
    start = wall_us() - 1_000_000_000
    for seq in (4, 5, 6, 3):
        site.pair.insert("film", seq, body(seq), opened_us=start + seq, closed_us=start + seq)
        settled(site.target)
    other = SourceSegment(4, State.COMPLETE, 7, None, start, start + 4)
    keeps = partial(destination_of(site.target).keeps, "film", 1)
    assert site.target.inside(partial(keeps, other))
    assert not site.target.inside(partial(keeps, other._replace(seq=3)))
    assert site.pair.insert("film", 4, b"another", opened_us=start, closed_us=start + 4)
    settled(site.target)
    assert site.pair.copies() == {4: 7, **dict.fromkeys(range(5, 10), 1000)}
    site.close()


def test_history_that_is_too_old_does_not_come(site: Site) -> None:
    """It would be removed at once."""
    begun(site)
    assert not site.pair.insert("film", 0, body(0), opened_us=1, closed_us=2)


def test_the_index_is_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """History that is older than all that is here finds no room in it."""
    begun(site)
    settled(site.target)
    monkeypatch.setattr(archive_module, "MAX_SEGMENTS", 3)
    assert not site.pair.insert("film", 0, body(0), opened_us=wall_us() - 10**9, closed_us=wall_us() - 10**9)


def test_history_finds_no_memory(tmp_path: Path) -> None:
    """Then it does not come now."""
    site = Site(tmp_path / "source", tmp_path / "target", max_total_bytes=200_000, max_segment_bytes=100_000)
    begun(site)
    assert not site.pair.insert("film", 0, body(0, 300_000))
    assert site.pair.insert("film", 0, body(0, 10_000))
    site.close()


def test_history_and_a_full_disk(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was shown and cannot be written is told, and comes again later; until then nothing more is taken."""
    begun(site)
    settled(site.target)
    archive, lost = archive_of(site.target), []
    destination_of(site.target).lost = lambda *one: lost.append(one)
    commit = archive.database.commit
    monkeypatch.setattr(archive.database, "commit", _full)
    assert site.pair.insert("film", 0, body(0))
    eventually(lambda: lost == [("film", 1, 0)])
    assert "No space left" in site.target.inside(lambda: destination_of(site.target).storage_problem)
    with pytest.raises(OSError, match="No space left"):
        site.pair.insert("film", 1, body(1))
    monkeypatch.setattr(archive.database, "commit", commit)
    site.target.inside(archive._retry)
    eventually(lambda: site.target.inside(lambda: archive.failed) is None)
    assert site.target.inside(lambda: destination_of(site.target).storage_problem) == ""
    assert site.pair.insert("film", 0, body(0))
    settled(site.target)
    assert archive.counters.lost == 0
    site.restart_target()
    film(site.target).has(0, body(0)).has(5, body(5))


def _full(batch: Batch) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_memory_that_others_need_takes_unwritten_history(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, since it has to come again."""
    begun(site)
    settled(site.target)
    archive, lost = archive_of(site.target), []
    destination_of(site.target).lost = lambda *one: lost.append(one)
    monkeypatch.setattr(archive, "_write", lambda: None)
    assert site.pair.insert("film", 0, body(0))
    tap = archive.latest["film"].taps[0]
    site.target.inside(tap.evict)
    assert (lost, list(site.pair.copies())) == ([("film", 1, 0)], [3, 4, 5])


def test_bytes_are_checked_again(site: Site) -> None:
    """From the file; a segment that is wrong is forgotten, and may come again."""
    begun(site)
    site.pair.insert("film", 0, body(0))
    settled(site.target)
    destination, archive = destination_of(site.target), archive_of(site.target)
    site.pair.insert("film", 2, b"")
    sums = {seq: run(site.target, destination.checksum("film", 1, seq)) for seq in (0, 1, 2, 5)}
    assert sums == {0: crc32(body(0)), 1: None, 2: 0, 5: crc32(body(5))}
    assert run(site.target, destination.checksum("film", 7, 0)) is None
    stored = archive.latest["film"]
    path = stored.path_of(stored.entries[0])
    with open(path, "r+b") as file:
        file.seek(stored.entries[0].start)
        file.write(b"XX")
    assert run(site.target, destination.checksum("film", 1, 0)) != crc32(body(0))
    for seq in (0, 5):
        site.target.inside(lambda seq=seq: destination.remove("film", 1, seq))  # type: ignore[misc]
        assert film(site.target).get(seq).status == 470
        assert site.pair.insert("film", seq, body(seq))
        film(site.target).has(seq, body(seq))
    settled(site.target)
    site.restart_target()
    film(site.target).has(0, body(0)).has(5, body(5))


def test_a_segment_that_is_not_written_yet_is_checked_in_memory(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """And can be forgotten, too."""
    begun(site)
    settled(site.target)
    archive, destination = archive_of(site.target), destination_of(site.target)
    monkeypatch.setattr(archive, "_write", lambda: None)
    site.pair.insert("film", 0, body(0))
    assert run(site.target, destination.checksum("film", 1, 0)) == crc32(body(0))
    site.target.inside(lambda: destination.remove("film", 1, 0))
    assert run(site.target, destination.checksum("film", 1, 0)) is None


# Names that are not the source's.


def test_a_channel_of_this_server_is_never_mixed_with_a_copy(site: Site) -> None:
    """One of a lower epoch ends, and the copy follows; otherwise the copy waits until somebody gives the channel up."""
    destination = destination_of(site.target)
    film(site.target).publish(0, b"own")
    film(site.source).publish(0, b"copy")
    assert site.target.inside(destination.own_channels) == {"film": 1}
    with pytest.raises(NotACopy, match="up to epoch 1"):
        site.pair.follow()
    site.target.inside(lambda: destination.give_up("film"))
    site.pair.follow()
    film(site.target).has(0, b"copy", epoch=1)
    film(site.target, "low").publish(0, b"own")
    for _ in range(2):
        film(site.source, "low").publish(0, b"copy")
        film(site.source, "low").end()
    film(site.source, "low").publish(0, b"third")
    waiting = film(site.target, "low").waiting(1)
    site.pair.follow("low")
    assert waiting.response().status == 503, "the channel goes on here: its readers are not told that it is over"
    film(site.target, "low").has(0, b"third", epoch=3)
    settled(site.target)
    site.restart_target()
    assert site.target.inside(lambda: destination_of(site.target).channels()) == {"film": 1, "low": 3}
    film(site.target).has(0, b"copy", epoch=1)
    film(site.target, "low").has(0, b"third", epoch=3)


def test_a_source_that_counts_its_epochs_anew(tmp_path: Path) -> None:
    """Its memory is gone: copies of later epochs go, and what it has now is copied, also over a restart."""
    site = Site(None, tmp_path / "target")
    film(site.source).publish(0, b"x").end()
    film(site.source).publish(0, b"y", b"yy")
    site.pair.follow()
    film(site.target).has(0, b"y", epoch=2)
    settled(site.target)
    site.restart_source()
    film(site.source).publish(0, b"z")
    site.pair.follow()
    film(site.target).has(0, b"z", epoch=1)
    settled(site.target)
    site.restart_target()
    film(site.target).has(0, b"z", epoch=1)
    assert site.pair.copies() == {0: 1}
    site.close()


def test_a_channel_that_is_not_mirrored_any_more_comes_back(site: Site) -> None:
    """With the segments that are still stored; readers were told of an end meanwhile."""
    begun(site)
    settled(site.target)
    site.pair.insert("film", 0, body(0))
    waiting = film(site.target).waiting(6)
    site.pair.stop()
    site.target.inside(lambda: destination_of(site.target).end("film"))
    assert waiting.response().get("Lp-Trickle-Closed") == "terminated"
    site.pair.follow()
    film(site.target).has(0, body(0), epoch=1).has(5, body(5))
    settled(site.target)
    site.restart_target()
    film(site.target).has(0, body(0)).has(5, body(5))
    assert facts_of(site.target).count(("closed", 5)) == 1
