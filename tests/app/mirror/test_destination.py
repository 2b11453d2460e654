"""A server that holds copies: what its readers see, what it stores, restarts of both sides, history, and promotion."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.app.data_plane.support import pattern
from tests.app.mirror.pair import Pair, destination_of, durable, settled
from tests.support.local import LocalServer
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.storage.archive import Archive
from tricklecast.app.tools.conformance.target import RemoteChannel, Target


def body(seq: int, size: int = 1000) -> bytes:
    """Bytes that no other segment has."""
    return pattern(size, seq * 7919)


_CLIENTS: dict[int, Target] = {}


@pytest.fixture(autouse=True)
def _clients() -> Iterator[None]:
    yield
    while _CLIENTS:
        _CLIENTS.popitem()[1].close()


def client(server: LocalServer) -> Target:
    """A client of a server, whose connections are closed at the end of the test."""
    return _CLIENTS.setdefault(server.port, server.target())


def film(server: LocalServer, name: str = "film") -> RemoteChannel:
    """The channel, as a client of this server sees it."""
    return client(server).channel(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The destination's data directory, which does not exist yet."""
    return tmp_path / "data"


class Site:
    """A source and a destination, each of which can be started again.

    Attributes:
        source, target: the servers. pair: the feeds between them.
    """

    def __init__(self, source: Path | None, target: Path | None, **settings: Any) -> None:
        self._folders, self._settings = (source, target), settings
        self._stacks = [ExitStack(), ExitStack()]
        self.source, self.target = self._start(0), self._start(1)
        self.pair = Pair(self.source, self.target)

    def _start(self, which: int) -> LocalServer:
        return self._stacks[which].enter_context(durable(self._folders[which], **self._settings))

    def restart_source(self) -> None:
        """All feeds end with it."""
        self.pair.stop_all()
        self._stacks[0].close()
        self.source = self.pair.source = self._start(0)

    def stop_source(self) -> None:
        """It is away."""
        self.pair.stop_all()
        self._stacks[0].close()

    def restart_target(self) -> None:
        """All feeds end with it."""
        self.pair.stop_all()
        self._stacks[1].close()
        self.target = self.pair.target = self._start(1)

    def close(self) -> None:
        """Stop both."""
        self.pair.stop_all()
        for stack in self._stacks:
            stack.close()


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


def run(server: LocalServer, work: Any) -> Any:
    """Await something in the server's loop."""
    return asyncio.run_coroutine_threadsafe(work, server.loop).result(WITHIN_S)
