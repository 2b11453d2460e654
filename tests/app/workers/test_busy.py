"""Busy channels: readers at all workers are served as at the owner, whatever ends, dies, lags or begins meanwhile."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.app.workers.test_limits import names, processes, spoken, standing_still
from tests.support.hls import read
from tests.support.logs import matching, so_far
from tests.support.media import ts_pictures
from tests.support.metrics import Samples, samples
from tests.support.server import RunningServer, serve
from tests.support.waiting import eventually
from tricklecast.app.tools.conformance.connection import RawConnection
from tricklecast.app.tools.conformance.response import ConnectionCut, Response
from tricklecast.app.tools.conformance.target import Target
from tricklecast.trickle import wire

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the workers by /proc")

DRAWN = frozenset({b"date", b"retry-after"})
"""Header fields that differ between two responses of one worker, too."""

TOTAL_BYTES = 16 << 20


class Server:
    """Two workers whose channels are busy with four readers."""

    def __init__(self, running: RunningServer, client: Target, log: Path, errors: Path) -> None:
        self.running, self.client, self.url, self._log, self._errors = running, client, running.url, log, errors

    def metric(self, name: str) -> list[int]:
        """Of each worker. A page comes without the figures of one that is late: then another page is asked for."""
        workers = [(("worker", str(worker)),) for worker in range(2)]

        def whole() -> Samples:
            page = samples(self.client.ask("GET", "/metrics").body.decode())
            return page if all(page.get(("tricklecast_worker_up", worker)) for worker in workers) else {}

        page = eventually(whole, what="all workers tell their figures")
        return [int(page.get((name, worker), 0)) for worker in workers]

    @property
    def readers(self) -> list[int]:
        return self.metric("tricklecast_readers")

    def all_read(self, count: int) -> list[int]:
        """Wait until there is this number of readers; at each worker."""
        return eventually(lambda: found if sum(found := self.readers) == count else [], what="all read")

    def answered(self, channel: str, op: str) -> list[int]:
        """How many requests each worker has answered."""
        records = matching(so_far(self._log), channel=channel, op=op)
        return [len(matching(records, worker=worker)) for worker in range(2)]

    def logged(self, text: str) -> bool:
        return text in self._errors.read_text()

    def kill(self, worker: int) -> None:
        """End a worker, and wait for its successor."""
        before = processes(self.running)
        os.kill(before[worker], signal.SIGKILL)
        eventually(lambda: len(now := processes(self.running)) == 2 and before[worker] not in now)


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    log, errors = folder / "access.jsonl", folder / "errors.log"
    fixed = ("--workers", "2", "--storm-guard", "off", "--max-total-bytes", str(TOTAL_BYTES))
    with (
        errors.open("w") as stderr,
        serve(
            *fixed,
            *options,
            access_log=log,
            stderr=stderr,
            nursery="tests.app.workers.few_readers",
        ) as running,
        running.client() as client,
    ):
        yield Server(running, client, log, errors)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests that do not harm it."""
    with serving(tmp_path_factory.mktemp("busy")) as found:
        yield found


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One with a data directory. It outlives two deaths within a minute."""
    folder = tmp_path_factory.mktemp("stored")
    with serving(folder, "--data-dir", str(folder / "data"), "--window-segments", "4") as found:
        yield found


class Crowd:
    """Readers of a busy channel, each on a connection of its own. All wait for the same segment, at both workers.

    Attributes:
        seq: of this segment. bodies: of those before.
    """

    def __init__(self, server: Server, name: str, body: Callable[[int], bytes] = lambda seq: b"%d " % seq * 1000):
        self.server, self.channel, self.body = server, server.client.channel(name).create("video/mp2t"), body
        self.seq = 0
        self.bodies: list[bytes] = []
        self.readers: list[RawConnection] = []
        server.all_read(0)  # those of other crowds have gone
        self.join(8)
        self.spread()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *error: object) -> None:
        self.leave(self.readers)
        self.channel.ask("DELETE")  # ends what reads it for players, too

    def spread(self) -> None:
        """Go on until both workers have readers."""
        while min(self.server.readers) < 2:
            self.next()
            assert self.seq < 500, self.server.readers

    def join(self, count: int) -> None:
        self.readers += [self.channel.read(self.seq) for _ in range(count)]

    def leave(self, readers: list[RawConnection]) -> None:
        """Reset their connections: a client that closes one in order may still wait for its answer."""
        self.readers = [reader for reader in self.readers if reader not in readers]
        for reader in readers:
            reader.abort()

    def all_wait(self) -> None:
        self.server.all_read(len(self.readers))

    def publish(self, body: bytes | None = None, publisher: RawConnection | None = None) -> bytes:
        """Publish the segment that all wait for; on this connection, or on a new one."""
        body = self.body(self.seq) if body is None else body
        publisher = self.server.client.open() if publisher is None else publisher
        publisher.request("POST", self.channel.at(self.seq), body=body)
        publisher.expect(200)
        self.bodies.append(body)
        self.seq += 1
        return body

    def next(self, body: bytes | None = None) -> None:
        """Publish a segment, read it, and wait for the next one."""
        self.all_wait()
        body = self.publish(body)
        for reader in self.readers:
            reader.segment(self.seq - 1, body)
            reader.request("GET", self.channel.at(self.seq))

    def missed(self, reader: RawConnection, seq: int) -> set[int]:
        """Read on from the segment that was asked for, as a client does; those of which the server said that they are
        not to be had, or not whole. All others are as they were published.
        """
        if reader in self.readers:
            self.readers.remove(reader)
        told: set[int] = set()
        while seq < self.seq:
            before = seq
            try:
                answer = reader.response()
            except ConnectionCut:
                reader = self.server.client.open()
            else:
                if answer.status == 470:
                    seq = answer.number(wire.NEXT)
                    told |= set(range(before, seq))
                elif answer.expect(200, 503).status == 200:
                    if answer.marked(wire.TRUNCATED):
                        told.add(seq)
                    else:
                        answer.segment(seq, self.bodies[seq])
                    seq += 1
                reader = self.server.client.open() if answer.closes else reader
            reader.request("GET", self.channel.at(seq))
        reader.abort()
        return told


@pytest.mark.parametrize("owner", [0, 1])
def test_both_workers_serve_the_readers_of_a_busy_channel_until_it_ends(server: Server, owner: int) -> None:
    """Readers that wait when it becomes busy miss nothing; at the end all are told; the name begins again."""
    with Crowd(server, names(owner)[0]) as crowd:
        for _ in range(3):
            crowd.next()
        crowd.all_wait()
        crowd.channel.end()
        ends = [reader.response().ended() for reader in crowd.readers]
        assert all(alike(end) == alike(ends[0]) for end in ends), ends
        crowd.channel.publish(0, b"again")
        for reader in crowd.readers:
            reader.request("GET", crowd.channel.at(0))
            reader.segment(0, b"again", epoch=2)


def alike(answer: Response) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """The part of an answer that is the same at every holder."""
    fields = [(name, value) for name, value in answer.head.headers if name not in DRAWN]
    return answer.status, fields, answer.body


def test_a_channel_is_shown_once_with_the_readers_of_all_workers(server: Server) -> None:
    """In the list, in its description, and on the dashboard, with what all of them have got; the metrics add it up."""
    name = names(1)[1]
    with Crowd(server, name) as crowd:

        def shown() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(server.client.ask("GET", f"/api/v1/channels/{name}").body)
            return found

        count, size = len(crowd.readers), sum(map(len, crowd.bodies))
        eventually(lambda: (shown()["readers"], shown()["bytes_out"]) == (count, size * count))

        def listed() -> list[tuple[int, int]]:
            channels = json.loads(server.client.ask("GET", "/api/v1/channels").body)["channels"]
            return [(one["readers"], one["bytes_out"]) for one in channels if one["name"] == name]

        eventually(lambda: listed() == [(count, size * count)])

        def on_the_dashboard() -> list[int]:
            """A worker that is late is not in the first frame."""
            with urlopen(f"{server.url}/api/v1/dashboard") as stream:
                frame = json.loads(next(line for line in stream if line.startswith(b"data: "))[6:])
            numbers = [about[0] for about in frame["about"] if about[1] == name]
            return [row[3] for row in frame["rows"] if row[0] in numbers]

        eventually(lambda: on_the_dashboard() == [count])
        eventually(lambda: sum(server.metric("tricklecast_audience")) == count)
        crowd.leave(crowd.readers)
        eventually(lambda: shown()["readers"] == 0)


def test_a_channel_that_is_no_longer_busy_is_its_owners_alone(server: Server) -> None:
    """A reader that stays is served on, and is at the owner in the end."""
    with Crowd(server, names(1)[2]) as crowd:
        crowd.leave(crowd.readers[1:])

        def at_the_owner() -> bool:
            crowd.next()
            return server.readers == [0, 1]

        eventually(at_the_owner)
        eventually(lambda: server.metric("tricklecast_replicas")[0] == 0)


def test_a_holder_answers_playlists_and_media_of_hls(server: Server) -> None:
    """A player gets the same bytes from both."""
    with Crowd(server, names(1)[3], lambda seq: b"".join(ts_pictures(float(seq), 25))) as crowd:
        crowd.next()
        name, playlist = crowd.channel.name, read(crowd.channel.get("media.m3u8").expect(200).body.decode())
        whole = playlist.whole[-2:]
        assert [crowd.channel.get(one.uri).body for one in whole] == crowd.bodies[-2:]

        def both_answer() -> bool:
            for uri in ["media.m3u8", *(one.uri for one in whole)] + [part.uri for one in whole for part in one.parts]:
                answers = [alike(crowd.channel.get(uri).expect(200)) for _ in range(4)]
                assert all(answer == answers[0] for answer in answers), uri
            return min(server.answered(name, "hls") + server.answered(name, "playlist")) > 4

        eventually(both_answer)


@pytest.mark.parametrize(("count", "size", "loses"), [(200, 8 << 10, False), (12, 2 << 20, True)])
def test_a_holder_that_lags_leaves_no_gap_untold(server: Server, count: int, size: int, loses: bool) -> None:
    """It is cut off, and begins again: with all that the window has, or its readers are told what the owner lacked
    memory for.
    """
    with Crowd(server, names(0)[4 + loses]) as crowd:
        publisher = server.client.open()
        publisher.request("GET", crowd.channel.at("next"))
        publisher.expect(200)  # it is at the owner from now on
        crowd.all_wait()
        begun = crowd.seq
        with standing_still(server.running, 1):  # new connections may come to it, and wait
            for number in range(count):
                crowd.publish(b"%08d" % number * (size // 8), publisher)
        missed = [crowd.missed(reader, begun) for reader in list(crowd.readers)]
        assert any(missed) == loses, missed
        assert not any(crowd.seq - 1 in seqs for seqs in missed)
        eventually(lambda: server.logged(f"{crowd.channel.name!r} was too far behind"))


def test_no_more_readers_than_the_limit_of_a_channel(tmp_path: Path) -> None:
    """``readers_per_channel`` holds over all workers, and a place that becomes free at one is free at any."""
    with serving(tmp_path, "--max-readers-per-channel", "10") as server, Crowd(server, names(0)[0]) as crowd:

        def fill() -> bool:
            """Ask for more places than there are; whether all are taken, and never more."""
            before = len(crowd.readers)
            crowd.join(12 - before)
            asking = crowd.readers[before:]
            eventually(lambda: len(spoken(asking)) + sum(server.readers) >= len(crowd.readers))
            refused = spoken(asking)
            for one in refused:
                one.expect(429)
            crowd.leave(refused)
            # The workers are asked one after the other, while readers that have left are still noticed.
            eventually(lambda: sum(server.readers) <= 10, what="no more than ten are counted")
            return len(crowd.readers) == 10

        eventually(fill, what="all places are taken")
        crowd.leave(crowd.readers[2:5])
        eventually(fill, what="the free places are taken")
        crowd.next()


def test_every_worker_answers_alike_with_a_data_directory(stored: Server) -> None:
    """Segments that only storage has, large ones, tags, ranges, the head, seqs that are not there, wrong paths."""
    with Crowd(stored, names(0)[0]) as crowd:
        crowd.next(b"large" * 20_000)
        while crowd.seq < 9:
            crowd.next()
        newest = crowd.seq - 1
        tag = crowd.channel.get(newest).get("ETag")
        assert tag is not None
        asked: list[tuple[str, dict[str, str]]] = [
            (str(at), {}) for at in (*range(newest + 1), newest + 9, -2, -4, -9, "next")
        ]
        asked += [("x", {}), ("stream?start=soon", {}), (str(newest), {"If-None-Match": tag})]
        asked += [(str(newest), {"Range": "bytes=2-5"}), ("0", {"Range": "bytes=-3", "If-Range": tag})]
        for path, headers in asked:
            for method in ("GET", "HEAD"):
                answers = [alike(stored.client.ask(method, crowd.channel.at(path), headers)) for _ in range(6)]
                assert all(answer == answers[0] for answer in answers), (path, method, answers)
        eventually(lambda: min(stored.answered(crowd.channel.name, "read")) > 10)


@pytest.mark.parametrize("victim", ["owner", "holder"])  # in this order: a successor is the last of the processes
def test_a_worker_that_dies_ends_no_channel_for_the_readers_of_another(stored: Server, victim: str) -> None:
    """Readers of the owner are served on. All others are broken off, or told to ask again; then they miss nothing but
    the segment that the owner was storing.
    """
    with Crowd(stored, names(1)[victim == "owner"]) as crowd:
        crowd.all_wait()
        upload = crowd.channel.upload(crowd.seq, b"begun,")
        for reader in crowd.readers:
            reader.head().expect(200)
            reader.gets(b"begun,")
        streams = [crowd.channel.read("stream") for _ in range(4)]
        for stream in streams:
            stream.head().expect(200)
        reading = stored.all_read(12)
        waiting = [crowd.channel.read(crowd.seq + 1) for _ in range(8)]
        both = stored.all_read(20)
        stored.kill(1 if victim == "owner" else 0)
        if victim == "holder":
            upload.chunk(b"ended").stored()
        begun, crowd.bodies = crowd.seq, [*crowd.bodies, b"begun,ended", b"next"]
        for seq in range(crowd.channel.next_seq(), begun + 2):  # a publisher goes on, or begins again
            crowd.channel.publish(seq, crowd.bodies[seq])
        crowd.seq = begun + 2
        found = [outcome(reader, RawConnection.rest) for reader in crowd.readers]
        found += [outcome(reader, lambda one: one.response().body) for reader in waiting]
        found += [outcome(stream, lambda one: one.body(len(STREAMED))) for stream in streams]
        if victim == "owner":
            assert Counter(found) == Counter(again=both[0] - reading[0], cut=20 - both[0] + reading[0])
        else:
            assert Counter(found) == Counter(served=both[1], cut=both[0])
        for at, one in zip([begun] * 8 + [begun + 1] * 8, found, strict=False):
            if one != "served":
                assert crowd.missed(crowd.channel.read(at), at) <= ({begun} if victim == "owner" else set())
        crowd.leave(crowd.readers)
        for reader in waiting + streams:
            reader.abort()
        crowd.join(8)
        crowd.spread()


STREAMED = b"begun,endednext"


def outcome(reader: RawConnection, rest: Callable[[RawConnection], bytes]) -> str:
    """How a request has ended whose worker may have died: it was served, told to ask again, or cut off."""
    try:
        return "served" if rest(reader) in (b"ended", b"next", STREAMED) else "again"
    except ConnectionCut:
        return "cut"
