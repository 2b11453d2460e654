"""``tricklecast clip`` against a real server: which segments it takes, what it says, and what is left of a failure."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.publisher.media.clips import Decoded, decode, make_clip
from tests.subscriber.fake import run as in_loop
from tests.support.forked import command_of, forked
from tests.support.local import LocalServer, local_server
from tests.support.segments import cut
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.subscriber.command import clip as clips
from tricklecast.subscriber.command.clip import Clip, run
from tricklecast.subscriber.command.moments import Moment, Timetable
from tricklecast.subscriber.command.recording import Piece, Recording
from tricklecast.subscriber.media.joiner import JoinedFile
from tricklecast.trickle.errors import ChannelNotFound, InvalidInput, TrickleError
from tricklecast.trickle.terminal import Screen

GOP = 25
LONG_AGO, NOW = Moment(3600.0), Moment()


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """One server for all; each test has a channel of its own. It keeps three segments."""
    with local_server(channel_drain_s=3600, window_segments=3) as running:
        yield running


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four groups of pictures, and a tone."""
    return make_clip(tmp_path_factory.mktemp("clips") / "clip.mp4", seconds=4)


@pytest.fixture(scope="module")
def wanted(film: Path) -> Decoded:
    """What is in it."""
    return decode(film)


def clipped(server: LocalServer, channel: str, path: Path, since: Moment, until: Moment = NOW) -> tuple[bool, str]:
    """Make a clip: whether it is whole, and what was said."""
    said = io.StringIO()

    async def main() -> bool:
        url = f"http://127.0.0.1:{server.port}/trickle/{channel}"
        return await run(Clip(url, path, since, until), Screen(said))

    return in_loop(main), said.getvalue()


def published(server: LocalServer, name: str, *segments: bytes) -> list[dict[str, Any]]:
    """A channel with these segments: how the server lists those that it still has."""
    with server.client() as target:
        channel = target.channel(name)
        channel.create("video/mp2t")
        channel.publish(0, *segments)
        return listed(server, name)


def listed(server: LocalServer, name: str) -> list[dict[str, Any]]:
    """The server's list."""
    answer = httpx.get(f"http://127.0.0.1:{server.port}/api/v1/channels/{name}/segments")
    found: list[dict[str, Any]] = answer.json()["segments"]
    return found


def at(text: str) -> Moment:
    """The moment that a list names."""
    return Moment(at=datetime.fromisoformat(text).timestamp())


def test_a_clip_has_the_segments_of_its_time(server: LocalServer, film: Path, wanted: Decoded, tmp_path: Path) -> None:
    """Whole, from that of the begin to that of the end; the file is complete, and alone in its folder."""
    _, second, third = published(server, "some", *cut(film)[:3])
    path = tmp_path / "some.mp4"
    is_whole, said = clipped(server, "some", path, at(second["closed_at"]), at(third["opened_at"]))
    assert is_whole
    assert decode(path).hashes["video"] == wanted.hashes["video"][GOP : 3 * GOP]
    begin, end = said.splitlines()
    assert "before --since, with a key picture, and ends" in begin
    assert end.startswith(f"{path}: 2 segments (")
    assert os.listdir(tmp_path) == ["some.mp4"]


def test_a_clip_of_everything_ends_now(server: LocalServer, film: Path, wanted: Decoded, tmp_path: Path) -> None:
    """A channel that began after --since is told of, and nothing is missing."""
    published(server, "all", *cut(film)[:3])
    is_whole, said = clipped(server, "all", tmp_path / "all.mkv", LONG_AGO)
    assert is_whole
    assert "after --since, when the channel goes on, and ends with the newest segment" in said
    assert decode(tmp_path / "all.mkv").hashes["video"] == wanted.hashes["video"][: 3 * GOP]


def test_what_the_server_no_longer_has_is_missing(
    server: LocalServer, film: Path, wanted: Decoded, tmp_path: Path
) -> None:
    """The file has the rest, and the command says so."""
    published(server, "old", *cut(film))
    is_whole, said = clipped(server, "old", tmp_path / "old.mp4", LONG_AGO)
    assert not is_whole
    assert said.startswith("warning: the server has nothing older: the clip begins 3")
    assert decode(tmp_path / "old.mp4").hashes["video"] == wanted.hashes["video"][GOP:]


@pytest.mark.parametrize("container", ["mpegts", "mp4"])
def test_a_channel_that_is_over_is_clipped_from_its_recording(
    container: str, film: Path, wanted: Decoded, tmp_path: Path
) -> None:
    """As long as the data directory has it: all of it, or a part; with a token in the URL, too."""
    with local_server(data_dir=tmp_path / "data", channel_drain_s=0.5) as server:
        with server.client() as target:
            channel = target.channel("over")
            channel.create("video/mp2t" if container == "mpegts" else "video/mp4")
            for seq, segment in enumerate(cut(film, container)):
                channel.publish(seq, segment)
            channel.end()
        playlist = f"http://127.0.0.1:{server.port}/trickle/over/media.m3u8"
        eventually(lambda: "TYPE:VOD" in httpx.get(playlist).text, what="the channel has ended, and is stored")
        (tmp_path / "clips").mkdir()
        is_whole, said = clipped(server, "over?token=a%20b", tmp_path / "clips" / "all.mp4", LONG_AGO)
        assert is_whole
        assert f"{tmp_path}/clips/all.mp4: 4 segments (" in said
        assert decode(tmp_path / "clips" / "all.mp4").hashes["video"] == wanted.hashes["video"]
        with pytest.raises(TrickleError, match="over has nothing of that time: it is over, and was there from 20"):
            clipped(server, "over", tmp_path / "clips" / "none.mp4", Moment(7200.0), LONG_AGO)
        with pytest.raises(ChannelNotFound):
            clipped(server, "other", tmp_path / "clips" / "none.mp4", LONG_AGO)
    assert os.listdir(tmp_path / "clips") == ["all.mp4"]


def over(server: LocalServer, name: str, *segments: bytes) -> str:
    """A channel of these segments that is over, and stored: the URL of its playlist."""
    with server.client() as target:
        channel = target.channel(name)
        channel.create("video/mp2t")
        for seq, segment in enumerate(segments):
            channel.publish(seq, segment)
        channel.end()
    playlist = f"http://127.0.0.1:{server.port}/trickle/{name}/media.m3u8"
    eventually(lambda: "TYPE:VOD" in httpx.get(playlist).text, what="the channel has ended, and is stored")
    return playlist


def test_a_recording_of_both_containers_is_clipped(film: Path, wanted: Decoded, tmp_path: Path) -> None:
    """Into a file of each; a segment that was removed meanwhile is missed, and the others are there."""
    (tmp_path / "clips").mkdir()
    with local_server(data_dir=tmp_path / "data", channel_drain_s=0.5) as server:
        over(server, "both", *cut(film, "mp4")[:2], *cut(film)[2:])
        is_whole, said = clipped(server, "both", tmp_path / "clips" / "x.mp4", LONG_AGO)
        assert is_whole, said
        pictures = [decode(tmp_path / "clips" / name).hashes["video"] for name in ("x.mp4", "x-2.mp4")]
        assert pictures == [wanted.hashes["video"][: 2 * GOP], wanted.hashes["video"][2 * GOP :]]


def test_what_a_clip_leaves_out_is_missing_in_it(server: LocalServer, film: Path, tmp_path: Path) -> None:
    """The last line counts it."""
    first, second = cut(film)[:2]
    published(server, "garbage", first, b"no media" * 100, second)
    is_whole, said = clipped(server, "garbage", tmp_path / "x.mp4", LONG_AGO)
    assert not is_whole
    assert "warning: segment 1 is left out: " in said
    assert f"{tmp_path}/x.mp4: 2 segments (" in said
    assert said.endswith("; 1 left out\n")


def test_a_clip_says_the_same_of_a_channel_that_is_over(film: Path, tmp_path: Path) -> None:
    """A segment that its publisher did not finish, and one that is no media: the file lacks something."""
    (tmp_path / "clips").mkdir()
    first, second, third, fourth = cut(film)
    told: list[list[str]] = []
    ends: list[str] = []
    with local_server(data_dir=tmp_path / "data", channel_drain_s=0.5) as server, server.client() as target:
        channel: RemoteChannel = target.channel("faults")
        channel.create("video/mp2t")
        channel.publish(0, first)
        upload, reader = channel.started(1, second[: len(second) // 2])
        upload.connection.close()
        reader.close()
        channel.close(1, {"Lp-Trickle-Truncated": "1"}).expect(200)
        channel.publish(2, b"no media" * 100, third, fourth)
        for name in ("live", "over"):
            is_whole, said = clipped(server, "faults", tmp_path / "clips" / f"{name}.mp4", LONG_AGO)
            assert not is_whole
            ends.append(said[said.rindex(";") :].strip())
            told.append([line.partition(": it has")[0] for line in said.splitlines() if "segment " in line])
            if name == "live":
                channel.end()
                eventually(lambda: "TYPE:VOD" in channel.get("media.m3u8").body.decode())
    assert told[1] == [
        "warning: segment 1 is truncated: its publisher did not finish it",
        "warning: segment 2 is left out",
    ]
    assert told[0][0] == told[1][0]
    assert ends[0] == ends[1] == "; 1 left out"
    assert told[0][1].startswith(told[1][1])
    videos = [decode(tmp_path / "clips" / name).hashes["video"] for name in ("live.mp4", "over.mp4")]
    assert videos[0] == videos[1]


def test_what_is_removed_from_a_recording_meanwhile_is_missed(
    film: Path, wanted: Decoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are in the file."""
    (tmp_path / "clips").mkdir()
    fetch = Timetable.fetch

    async def removed(self: Timetable, root: str, route: str, within_s: float = 60.0) -> httpx.Response:
        is_gone = route.partition("?")[0].endswith(("-1.ts", "-3.ts"))
        return httpx.Response(404) if is_gone else await fetch(self, root, route, within_s)

    monkeypatch.setattr(Timetable, "fetch", removed)
    with local_server(data_dir=tmp_path / "data", channel_drain_s=0.5) as server:
        over(server, "removed", *cut(film))
        is_whole, said = clipped(server, "removed", tmp_path / "clips" / "x.mp4", LONG_AGO)
    assert not is_whole
    assert "warning: missed segment 1\n" in said
    assert "warning: missed segment 3\n" in said
    pictures = wanted.hashes["video"]
    assert decode(tmp_path / "clips" / "x.mp4").hashes["video"] == pictures[:GOP] + pictures[2 * GOP : 3 * GOP]


def test_a_channel_that_drains_while_it_is_clipped(
    film: Path, wanted: Decoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest comes from its recording; what is behind the clip is not missed."""
    (tmp_path / "clips").mkdir()
    with local_server(data_dir=tmp_path / "data", channel_drain_s=0.5) as server, server.client() as target:
        channel = target.channel("drains")
        channel.create("video/mp2t")
        channel.publish(0, *cut(film))
        playlist = f"http://127.0.0.1:{server.port}/trickle/drains/media.m3u8"
        last = at(listed(server, "drains")[2]["closed_at"])

        ended: list[object] = []

        class Slow(JoinedFile):
            """The channel ends, and drains, behind the first segment."""

            async def end(self) -> None:
                await super().end()
                if not ended:
                    ended.append(channel.end())
                    eventually(lambda: "TYPE:VOD" in httpx.get(playlist).text)

        monkeypatch.setattr(clips, "JoinedFile", Slow)
        is_whole, said = clipped(server, "drains", tmp_path / "clips" / "x.mp4", LONG_AGO, last)
    assert is_whole, said
    assert "missed" not in said
    assert decode(tmp_path / "clips" / "x.mp4").hashes["video"] == wanted.hashes["video"][: 3 * GOP]


def test_the_query_of_the_url_is_sent_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """An access token in the URL goes with the question when segments were published, too."""
    asked: list[str] = []

    async def fetch(_: Timetable, root: str, route: str) -> httpx.Response:
        asked.append(root + route)
        return httpx.Response(200, json={"epoch": 1, "next_seq": 0, "segments": []})

    monkeypatch.setattr(Timetable, "fetch", fetch)
    for query in ("?token=t", ""):
        in_loop(partial(Timetable(f"http://host/trickle/cam{query}").since, LONG_AGO))
    route = "http://host/api/v1/channels/cam/segments?"
    assert asked == [f"{route}{query}since=3600000ms&from=0&limit=1" for query in ("token=t&", "")]


def test_the_segments_of_a_recording_that_were_on_their_way() -> None:
    """At two moments, and between them."""
    pieces = tuple(Piece(seq, 100.0 + 2 * seq, 102.0 + 2 * seq, "", "") for seq in range(5))
    recording = Recording(Timetable("http://host/trickle/cam"), pieces, 200.0)
    assert [one.seq for one in recording.between(Moment(at=103.0), Moment(at=107.0))] == [1, 2, 3]
    assert [one.seq for one in recording.between(Moment(93.0), NOW)] == [3, 4]
    assert not recording.between(Moment(50.0), NOW)


def test_a_segment_under_way_is_waited_for(
    server: LocalServer, film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a while; then the clip ends in it."""
    monkeypatch.setattr(clips, "UNDER_WAY_S", 0.2)
    first, second = cut(film)[:2]
    with server.client() as target:
        channel: RemoteChannel = target.channel("open")
        channel.create("video/mp2t")
        channel.publish(0, first)
        channel.started(1, second[: len(second) // 2])
        is_whole, said = clipped(server, "open", tmp_path / "open.mp4", LONG_AGO)
    assert is_whole
    assert "segment 1 is still being written: the clip ends in it" in said
    assert GOP < len(decode(tmp_path / "open.mp4").hashes["video"]) < 2 * GOP


@pytest.mark.parametrize(
    ("since", "until", "why"),
    [
        (Moment(at=time.time() + 3600), Moment(at=time.time() + 7200), "its newest segment is older"),
        (Moment(7200.0), LONG_AGO, "has nothing of that time: it goes on"),
    ],
)
def test_a_time_of_which_there_is_nothing_makes_no_file(
    server: LocalServer, film: Path, tmp_path: Path, since: Moment, until: Moment, why: str
) -> None:
    """Neither a new one, nor in place of the old one."""
    published(server, f"nothing-{until.at is None}", cut(film)[0])
    path = tmp_path / "film.mp4"
    path.write_bytes(b"old")
    with pytest.raises(TrickleError, match=why):
        clipped(server, f"nothing-{until.at is None}", path, since, until)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["film.mp4"]


def test_what_cannot_be_clipped_is_said(server: LocalServer, tmp_path: Path) -> None:
    """A channel that does not exist, one without media, and a file that is no media."""
    with pytest.raises(ChannelNotFound):
        clipped(server, "missing", tmp_path / "film.mp4", LONG_AGO)
    with pytest.raises(InvalidInput, match=r"it ends with \.mp4"):
        clipped(server, "missing", tmp_path / "film.ts", LONG_AGO)
    published(server, "text", b"no media")
    with pytest.raises(TrickleError, match=r"no media .* into a \.mp4 file: it is neither MPEG-TS nor MP4$"):
        clipped(server, "text", tmp_path / "film.mp4", LONG_AGO)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("since", "until", "code"), [("1h", "0s", 0), ("10m", "1h", 2), ("soon", "0s", 2)])
def test_the_command_ends_with_a_code(
    server: LocalServer, film: Path, tmp_path: Path, since: str, until: str, code: int
) -> None:
    """Its options are times before now, or moments; a clip ends behind its begin."""
    published(server, f"code-{since}", cut(film)[0])
    url = f"http://127.0.0.1:{server.port}/trickle/code-{since}"
    command = forked("clip", url, "-o", tmp_path / "x.mp4", "--since", since, "--until", until)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "x.mp4").exists() is (code == 0)


def test_a_clip_that_is_stopped_leaves_nothing(server: LocalServer, film: Path, tmp_path: Path) -> None:
    """Ctrl-C while a segment is waited for: no file, and none under another name."""
    first, second = cut(film)[:2]
    with server.client() as target:
        channel: RemoteChannel = target.channel("stopped")
        channel.create("video/mp2t")
        channel.publish(0, first)
        channel.started(1, second[: len(second) // 2])
        url = f"http://127.0.0.1:{server.port}/trickle/stopped"
        with subprocess.Popen(
            forked("clip", url, "-o", tmp_path / "x.mp4", "--since", "1h"), stderr=subprocess.PIPE
        ) as process:
            eventually(lambda: os.listdir(tmp_path))
            os.kill(command_of(process.pid), signal.SIGINT)
            assert process.wait(WITHIN_S) == 130
    assert os.listdir(tmp_path) == []


def test_moments_are_read() -> None:
    """A time before now, or a date with a time, of this place or of the zone that it names."""
    assert Moment.parse("90s") == Moment(90.0)
    assert Moment.parse("2026-11-23T18:00:00Z").at == datetime(2026, 11, 23, 18, tzinfo=UTC).timestamp()
    assert Moment.parse("2026-11-23T18:00:00").at == datetime(2026, 11, 23, 18).timestamp()
    assert Moment(at=0.25).query == "1970-01-01T00:00:00.250000Z"
    with pytest.raises(ValueError, match="use a time before now"):
        Moment.parse("soon")
