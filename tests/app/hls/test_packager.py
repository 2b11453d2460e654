"""Processes that hold the same channel: the owner, a replica that came later, and one that begins when all is there.

Each has looked at other media before. A name of media means the same bytes in all of them, and their playlists are the
same (docs/adr/0029).
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.app.core.support import Told, make_registry, owned
from tests.support.media import init_segment, mp4_pictures, tables, ts_pictures
from tricklecast.app.core.facts import MAX_MARK
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import Writer
from tricklecast.app.hls.packager import Packager, Packagers
from tricklecast.app.hls.playlist import playlist
from tricklecast.app.hls.timeline import Mark, Rule, rule_for
from tricklecast.app.replication.feed import Feed
from tricklecast.app.replication.records import Hello
from tricklecast.app.replication.replica import Replica
from tricklecast.trickle.media.containers import box

PICTURE_S: Final = 0.04
BEGAN_S: Final = 1_800_000_000.0
NAME = re.compile(r"-([0-9]+)(?:-([0-9]+)|\.([0-9]+))?\.(?:ts|m4s)$")


class Sent(NamedTuple):
    """One segment of a channel.

    Attributes:
        pictures: of its media, in runs that each begin with a key picture; empty: it is an empty segment.
        picture_s: how long each lasts. pause: how many pictures are missing before it.
        skipped: seqs before it that nobody writes.
        complete: its publisher ended it. marker: in its init segment. tail: bytes behind its last picture.
        chunk: how many bytes arrive at a time; a packager looks at them at once if it is in step.
    """

    pictures: tuple[int, ...] = (25,)
    picture_s: float = PICTURE_S
    pause: int = 0
    skipped: int = 0
    complete: bool = True
    marker: bytes = b""
    tail: bytes = b""
    chunk: int = 1 << 20
    in_step: bool = True


def to_us(at: float) -> int:
    """The time of the registries here counts from 1970."""
    return round(at * 1e6)


class Holder:
    """A process that holds the channel, and packages it."""

    def __init__(self, registry: Registry, clock: Callable[[], float]) -> None:
        self.registry = registry
        self.turns: deque[Callable[[], None]] = deque()
        self.packagers = Packagers(registry, clock, to_us, self.turns.append)

    @property
    def packager(self) -> Packager:
        """Of the channel."""
        return self.packagers.of(self.registry.channels["c"])

    def run(self) -> None:
        """The event loop, until it has nothing to do."""
        while self.turns:
            self.turns.popleft()()

    def restart(self) -> None:
        """The process begins anew to package what it holds."""
        self.packagers = Packagers(self.registry, self.packagers._clock, to_us, self.turns.append)

    def text(self) -> str:
        """The playlist."""
        packager = self.packager
        self.run()
        return playlist(packager).text("").decode()

    def media(self, name: str) -> tuple[bytes, int, int] | None:
        """The bytes of a segment that a name means, and where they lie; ``None`` if they cannot be had here."""
        found = NAME.search(name)
        if found is None or not name.startswith(f"hls/{self.packager.prefix}-"):
            return None
        seq, cut, part = found.groups()
        there = self.packager.find(int(seq), int(cut or 0), None if part is None else int(part))
        if there is None:
            return None
        segment, begin, end = there
        return b"".join(segment.payload())[begin:end], begin, end


class Holders:
    """The owner of a channel, and other processes that hold it."""

    def __init__(self, pictures: Callable[..., list[bytes]]) -> None:
        self.pictures = pictures
        self.now, self.at_s, self.seq = BEGAN_S, 0.0, 0
        registry, _ = make_registry(window_age_s=1e9)
        registry.create("c", "video/mp2t", self.now)
        self.owner = Holder(registry, self.clock)
        self.all = [self.owner]
        self.feeds: list[tuple[Feed, Replica]] = []
        self.owner.packager.count_players()

    def clock(self) -> float:
        """The time of all of them."""
        return self.now

    def hold(self) -> Holder:
        """A replica begins to hold the channel."""
        channel = self.owner.registry.channels["c"]
        registry, _ = make_registry(window_age_s=1e9)
        replica = Replica("c", registry, self.clock, lambda at_us: at_us / 1e6)
        feed = Feed(channel, Hello("c", "", 0, ()), self.owner.registry.budget, "", to_us, lambda: None)
        self.feeds.append((feed, replica))
        self.feed()
        self.all.append(Holder(registry, self.clock))
        return self.all[-1]

    def begin(self, registry: Registry) -> Holder:
        """Somebody asks a process for a playlist for the first time."""
        holder = Holder(registry, self.clock)
        self.all.append(holder)
        assert not holder.packager.ended
        return holder

    def feed(self) -> None:
        """What has happened reaches the replicas."""
        for feed, replica in self.feeds:
            while records := feed.pull(1 << 20):
                replica.receive(b"".join(records))

    def send(self, sent: Sent) -> None:
        """Publish a segment, in pieces; it ends when its media do."""
        channel = owned(self.owner.registry, "c")
        seq = self.seq + sent.skipped
        self.seq = seq + 1
        self.at_s += sent.pause * sent.picture_s
        self.now = BEGAN_S + self.at_s
        data = self.data(sent)
        writer = channel.reserve(seq, Told(), seq, self.now, reset=True)
        assert isinstance(writer, Writer)
        for at in range(0, len(data), sent.chunk):
            assert channel.append(writer, [data[at : at + sent.chunk]], self.now) is None
            self.settle(sent.in_step)
        if sent.complete:
            channel.finish(writer, [], self.now)
        else:
            channel.abort(writer, self.now)
            channel.close_segment(seq, self.now, truncate=True)
        self.settle(sent.in_step)

    def data(self, sent: Sent) -> bytes:
        """The media of a segment."""
        runs: list[bytes] = []
        for pictures in sent.pictures:
            fields = {"marker": sent.marker} if self.pictures is mp4_pictures else {}
            data = b"".join(self.pictures(self.at_s, pictures, sent.picture_s, **fields))
            runs.append(data.replace(init_segment(marker=sent.marker), b"") if runs else data)
            self.at_s += pictures * sent.picture_s
        return b"".join(runs) + (sent.tail if runs else b"")

    def settle(self, is_run: bool) -> None:
        """What has happened reaches everybody; packagers in step look at it."""
        self.feed()
        if is_run:
            for one in self.all:
                one.run()


TAILS = [b"", b"", b"", box(b"free", b"more"), mp4_pictures(0.0, 1)[0][:-3], b"\x47" * 100]
SHAPES = st.lists(
    st.builds(
        Sent,
        pictures=st.sampled_from(
            [(25,), (25,), (26,), (24,), (50, 50), (100,), (12, 13), (44, 15), (20, 20, 20), (1,), ()]
        ),
        picture_s=st.sampled_from([PICTURE_S, PICTURE_S, PICTURE_S, 0.02, 0.3, 3.0]),
        pause=st.sampled_from([0, 0, 0, 0, 25, 500]),
        skipped=st.sampled_from([0, 0, 0, 0, 1, 3, 40]),
        complete=st.sampled_from([True, True, True, False]),
        marker=st.sampled_from([b"", b"", b"", b"another"]),
        tail=st.sampled_from(TAILS),
        chunk=st.sampled_from([700, 5000, 1 << 20]),
        in_step=st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("pictures", [ts_pictures, mp4_pictures])
@settings(max_examples=10)
@given(shapes=SHAPES, begun=st.integers(0, 8))
def test_a_name_of_media_means_the_same_bytes_everywhere(pictures: Any, shapes: list[Sent], begun: int) -> None:
    """Each process has what the playlists of the others name, or does not know the name."""
    holders = Holders(pictures)
    known: dict[str, object] = {}
    for place, shape in enumerate(shapes):
        if place == begun:
            holders.hold()
        holders.send(shape)
        compare(holders, known)
    late = holders.begin(holders.owner.registry)
    compare(holders, known)
    if late.packager.prefix == holders.owner.packager.prefix and late.packager.ready:
        first = next(int(match[1]) for line in late.text().split() if (match := NAME.search(line)))
        here = [name for name in names(holders.owner.text()) if seq_of(name) >= first and "." not in name[-9:-3]]
        assert all(late.media(name) is not None for name in here), "a process has all whole segments from its first on"


def test_a_segment_is_cut_alike_before_the_first_playlist() -> None:
    """One of 2.36 s whose second key picture comes so late that a third one would be too late: it is cut there."""
    holders = Holders(ts_pictures)
    for shape in (Sent((58,)), Sent((44, 15)), Sent((58,))):
        holders.send(shape)
    late = holders.begin(holders.owner.registry)
    late.run()
    assert late.packager.prefix == holders.owner.packager.prefix
    assert late.text() == holders.owner.text()
    assert [late.media(name) for name in names(late.text())] == [
        holders.owner.media(name) for name in names(late.text())
    ]
    assert len(set(map(seq_of, names(late.text())))) < late.text().count("#EXTINF")


def names(text: str) -> list[str]:
    """The URLs in a playlist of media that can be had."""
    found, is_gap = [], False
    for line in text.splitlines():
        if line.startswith("#EXT-X-PART:"):
            found.append(line.partition('URI="')[2].partition('"')[0])
        elif line == "#EXT-X-GAP":
            is_gap = True
        elif not line.startswith("#"):
            found += [] if is_gap else [line]
            is_gap = False
    return found


def seq_of(name: str) -> int:
    """The segment of the channel that a name means."""
    found = NAME.search(name)
    assert found is not None
    return int(found[1])


def compare(holders: Holders, known: dict[str, object]) -> None:
    """Check that names mean the same bytes in all processes, and the same as before."""
    for one in holders.all:
        one.run()
        if not one.packager.ready:
            continue
        for name in names(one.text()):
            own = one.media(name)
            assert own is not None, f"{name} can be had where it is named"
            assert known.setdefault(name, own) == own, f"{name} means what it meant"
            for other in holders.all:
                assert other.media(name) in (None, own), f"{name} means the same everywhere"


@pytest.mark.parametrize("pictures", [ts_pictures, mp4_pictures])
@settings(max_examples=8)
@given(shapes=SHAPES, more=SHAPES, begun=st.integers(0, 8), restarts=st.sets(st.integers(0, 16)))
def test_playlists_are_the_same_everywhere(
    pictures: Any, shapes: list[Sent], more: list[Sent], begun: int, restarts: set[int]
) -> None:
    """Byte for byte, whatever has been cut, skipped or broken off, of a replica that came late and after a restart."""
    holders = Holders(pictures)
    known: dict[str, int] = {}
    first: tuple[int, ...] = (0, 0, 0)
    for place, shape in enumerate([*shapes, *more]):
        if place == begun:
            holders.hold()
        holders.send(shape)
        holders.owner.run()
        holders.feed()
        if not holders.owner.registry.channels["c"].playlist:
            continue  # a replica forwards all requests
        text = holders.owner.text()
        for one in holders.all:
            if place in restarts:
                one.restart()
            assert one.text() == text
            assert one.packager.in_step, "a replica answers"
        found = re.findall(r"(?:TARGETDURATION|MEDIA-SEQUENCE|DISCONTINUITY-SEQUENCE):(\d+)", text)
        before, first = first, tuple(map(int, found))
        assert all(now >= then for now, then in zip(first, before, strict=True)), "nothing goes back"
        for number, entry in enumerate(text.split("#EXTINF")[1:], first[1]):
            name = entry.splitlines()[1]
            assert "GAP" in text or known.setdefault(name, number) == number, "a segment keeps its number"


@pytest.mark.parametrize("size", [100, MAX_MARK])
def test_an_init_segment_that_comes_once_is_in_the_mark(size: int) -> None:
    """Unless the mark would be too long: then nobody else can make the playlist, and it is not marked."""

    init = init_segment(marker=bytes(size))

    def pictures(at_s: float, number: int, picture_s: float) -> list[bytes]:
        found = b"".join(mp4_pictures(at_s, number, picture_s, marker=bytes(size)))
        return [found.replace(init, b"") if at_s else found]

    holders = Holders(pictures)
    for _ in range(20):
        holders.send(Sent())
        text = holders.owner.text()
    assert "-0.m4s" not in text
    channel = holders.owner.registry.channels["c"]
    if size == MAX_MARK:
        assert not channel.playlist
        return
    assert len(channel.playlist) < MAX_MARK
    replica = holders.hold()
    assert replica.text() == text
    assert [replica.media(name) for name in names(text)] == [holders.owner.media(name) for name in names(text)]
    assert list(replica.packager.inits.values()) == [init]


def test_tables_are_the_init_segment_of_mpegts_behind_mp4() -> None:
    """A playlist cannot take an EXT-X-MAP back: it names another one, also in a replica and after a restart."""
    holders = Holders(mp4_pictures)
    replica = holders.hold()
    for place in range(20):
        holders.pictures = mp4_pictures if place in (0, 1, 2, 19) else ts_pictures
        holders.send(Sent())
        text = holders.owner.text()
        if place == 12:
            holders.owner.restart()
        assert replica.text() == holders.owner.text() == text
        maps = dict.fromkeys(re.findall(r'#EXT-X-MAP:URI="hls/[0-9a-f.]+-init-([0-9a-f]{12})[.](ts|mp4)', text))
        assert len(maps) == text.count("#EXT-X-MAP")
        for name, ending in maps:
            data = replica.packager.inits[name]
            assert holders.owner.packager.inits[name] == data == (tables() if ending == "ts" else init_segment())
        endings = [ending for _, ending in maps]
        assert endings == (["mp4"] if place < 3 else ["ts", "mp4"] if place == 19 else ["mp4", "ts"][-len(maps) :])
    assert text.count("#EXT-X-DISCONTINUITY\n") == 1


SOUND: Final[list[object]] = ["a.1", "", *range(12)]


@pytest.mark.parametrize(
    "value",
    ["", 7, {}, [], SOUND[:-1], [*SOUND, 1], *([*SOUND[:at], wrong, *SOUND[at + 1 :]] for at, wrong in (
        (0, 7), (0, None), (1, "xy"), (1, 7), (2, "2"), (6, -1), (9, 1.5), (10, 1 << 60), (13, [1]),
    ))],
)  # fmt: skip
def test_a_mark_that_cannot_be_read_is_none(value: object) -> None:
    """A packager then begins as the first one."""
    assert Mark.read(json.dumps(SOUND)) == Mark("a.1", "", *range(12))
    assert Mark.read(json.dumps(value)) is Mark.read(json.dumps(value)[:-1]) is None


@pytest.mark.parametrize(
    ("longest_s", "unit_s", "wanted"),
    [
        (1.0, 0.04, Rule(2, 400)), (0.7, 0.04, Rule(1, 400)), (1.6, 1 / 30, Rule(2, 400)), (2.0, 1 / 24, Rule(2, 375)),
        (2.4, 0.25, Rule(3, 250)), (4.0, 0.5, Rule(6, 500)), (6.0, 0.3, Rule(8, 300)), (10.0, 1.0, Rule(12, 1000)),
        (100.0, 1.01, Rule(128, 0)), (1.0, 0.0, Rule(2, 0)),
    ],
)  # fmt: skip
def test_the_rule_follows_from_durations(longest_s: float, unit_s: float, wanted: Rule) -> None:
    """The same for durations that are nearly the same."""
    assert rule_for(longest_s, unit_s) == wanted
    assert rule_for(longest_s * 0.999, unit_s) == wanted


def test_a_channel_that_is_asked_for_again_goes_on_as_before() -> None:
    """With the same playlist; if its first segment has left the window since, behind all numbers that were used."""
    holders = Holders(ts_pictures)
    holders.send(Sent())
    first = holders.owner.text()
    for shape in (Sent((100,)), Sent(complete=False), *[Sent((10,))] * 20):
        holders.send(shape)
    before = holders.owner.text()
    assert "#EXT-X-GAP" not in before

    def asked_again() -> str:
        holders.now += 61
        holders.owner.packagers.expire(holders.now)
        assert len(holders.owner.packagers) == 0
        return holders.owner.text()

    assert asked_again() == before
    holders.owner.packagers.expire(holders.now + 61)
    for _ in range(300):
        holders.send(Sent((10,)))
    after = asked_again()
    assert re.findall("TARGET.*", after) == re.findall("TARGET.*", first) != []
    assert all(holders.owner.media(name) for name in names(after))
    numbers = [[int(number) for number in re.findall("SEQUENCE:(.*)", text)] for text in (before, after)]
    assert numbers[1][0] >= numbers[0][0] + before.count("#EXTINF")
    assert numbers[1][1] == numbers[0][1] + before.count("#EXT-X-DISCONTINUITY\n") + 1
