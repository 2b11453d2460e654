"""``tricklecast subscribe`` as a process, and what its end leaves behind, whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.publisher.media.clips import Decoded, decode, make_clip
from tests.support.forked import command_of, forked
from tests.support.local import LocalServer, local_server
from tests.support.segments import cut
from tests.support.waiting import WITHIN_S
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.subscriber.archive import read_index

GOP = 25


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """One server for all; each test has a channel of its own."""
    with local_server(channel_drain_s=3600) as running:
        yield running


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four GOPs with B-frames, and a tone."""
    return make_clip(tmp_path_factory.mktemp("clips") / "clip.mp4", seconds=4)


@pytest.fixture(scope="module")
def wanted(clip: Path) -> Decoded:
    """What is in it."""
    return decode(clip)


@contextmanager
def live(server: LocalServer, name: str, segments: list[bytes], mime: str = "video/mp2t") -> Iterator[RemoteChannel]:
    """A channel whose last segment has come only half."""
    with server.client() as target:
        channel = target.channel(name)
        channel.create(mime)
        channel.publish(0, *segments[:-1])
        half = segments[-1][: len(segments[-1]) // 2]
        channel.started(len(segments) - 1, half)
        yield channel


@contextmanager
def subscribing(server: LocalServer, channel: RemoteChannel, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command, from segment 0, with its events on standard output."""
    url = f"http://127.0.0.1:{server.port}{channel.path}"
    command = forked("subscribe", url, "--start", "0", "--json", *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], **fields: Any) -> dict[str, Any]:
    """Read events until one has these fields."""
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if fields.items() <= event.items():
            return event
    raise AssertionError(f"no event with {fields}")


def without_times(folder: str) -> list[dict[str, Any]]:
    """What a folder's index says, but for when it was written."""
    return [{**asdict(entry), "began_at": 0.0, "ended_at": 0.0} for entry in read_index(folder)]


@pytest.mark.parametrize(
    ("number", "name", "container"),
    [
        (signal.SIGINT, "out.mp4", "mpegts"),
        (signal.SIGTERM, "out.mp4", "mp4"),
        (signal.SIGINT, "out.mkv", "mpegts"),
        (signal.SIGKILL, "out.mp4", "mpegts"),
        (signal.SIGKILL, "out.mkv", "mp4"),
    ],
)
def test_media_files_are_valid_whatever_ends_them(
    server: LocalServer, clip: Path, wanted: Decoded, tmp_path: Path, number: signal.Signals, name: str, container: str
) -> None:
    """In the middle of a segment: all frames can be decoded, and are those of the clip; a kill may cost a second."""
    mime = "video/mp2t" if container == "mpegts" else "video/mp4"
    path = tmp_path / name
    with (
        live(server, f"{number.name}-{name}-{container}", cut(clip, container), mime) as channel,
        subscribing(server, channel, "-o", str(path)) as process,
    ):
        read_until(process, event="segment", seq=2)
        os.kill(command_of(process.pid), number)
        if number is not signal.SIGKILL:
            end = read_until(process, event="end")
            assert (end["reason"], end["resume"].partition(":")[0]) == ("signal", "3@1")
        code = process.wait(WITHIN_S)
    assert code == (-number if number is signal.SIGKILL else 128 + number)
    got = decode(path).hashes["video"]
    whole = (2 if number is signal.SIGKILL else 3) * GOP
    assert got[:whole] == wanted.hashes["video"][:whole]
    assert set(got) <= set(wanted.hashes["video"])


def test_a_killed_recording_is_completed_by_the_next(server: LocalServer, clip: Path, tmp_path: Path) -> None:
    """Killed in the middle of a segment: in the end the folder is like one whose recording was never interrupted."""
    segments = cut(clip)
    folder, other = f"{tmp_path}/killed/", f"{tmp_path}/whole/"
    with live(server, "recording", segments) as channel:
        with subscribing(server, channel, "-o", folder) as process:
            read_until(process, event="segment", seq=2)
            with subscribing(server, channel, "-o", folder) as second:
                _, said = second.communicate()
                assert "another process is recording" in said
                assert second.returncode == 1
            os.kill(command_of(process.pid), signal.SIGKILL)
            process.wait(WITHIN_S)
        assert [entry.seq for entry in read_index(folder)] == [0, 1, 2]
        channel.publish(3, segments[3][len(segments[3]) // 2 :])
        channel.end()
        for path in (folder, other):
            with subscribing(server, channel, "-o", path) as process:
                assert read_until(process, event="end")["resume"].startswith("4@1:")
                assert process.wait(WITHIN_S) == 0
    assert without_times(folder) == without_times(other)
    assert [Path(folder, entry["file"]).read_bytes() for entry in without_times(folder)] == segments


def test_joined_fragmented_mp4_can_be_played(clip: Path, wanted: Decoded) -> None:
    """What ``-o -`` gives a player of such a channel: readers pass over the repeated init segments."""
    got = decode(b"".join(cut(clip, "mp4")))
    assert got.hashes == wanted.hashes
