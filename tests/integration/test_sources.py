"""Sources of a server in a process of its own: its end, its sudden death, its workers, SIGHUP."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.workers.placement import owner_of

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes in /proc")

TABLE = '[source.{name}]\nurl = "testsrc:size=160x120,rate=10"\n'
CHANNELS = ("d", "a")
"""A channel of each of two workers."""

assert [owner_of(name, 2) for name in CHANNELS] == [0, 1]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "tricklecast.toml"
    file.write_text("".join(TABLE.format(name=name) for name in CHANNELS))
    return file


@pytest.fixture(params=["1", "2"], ids=["alone", "workers"])
def server(request: pytest.FixtureRequest, config: Path, tmp_path: Path) -> Iterator[RunningServer]:
    options = "--config", str(config), "--workers", request.param
    with (tmp_path / "stderr.txt").open("w") as errors, serve(*options, stderr=errors) as running:
        yield running


def states(server: RunningServer) -> dict[str, dict[str, Any]]:
    """How the sources stand, by their names."""
    answer = httpx.get(f"{server.url}/api/v1/sources", timeout=WITHIN_S).json()
    assert answer["unreachable"] == []
    names = [row["name"] for row in answer["sources"]]
    assert names == sorted(set(names)), "one process runs a source"
    return {row["name"]: row for row in answer["sources"]}


def all_run(server: RunningServer) -> dict[str, dict[str, Any]]:
    """Wait until all sources are published."""

    def running() -> dict[str, dict[str, Any]] | None:
        rows = states(server)
        return rows if rows and all(row["state"] == "running" for row in rows.values()) else None

    return eventually(running) or {}


def parent_of(pid: int) -> int:
    """The process that has started this one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    return not Path(f"/proc/{pid}").exists()


def socket_of(pid: int) -> Path:
    """The socket over which the process of a source reaches its server."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    folders = [Path(line.split()[-1]) for line in lines if line.endswith("/sources.sock")]
    held = set()
    for descriptor in Path(f"/proc/{parent_of(pid)}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            held.add(os.readlink(descriptor))
    inodes = {f"socket:[{line.split()[6]}]": Path(line.split()[-1]) for line in lines if line.endswith("/sources.sock")}
    return next(path for inode, path in inodes.items() if inode in held and path in folders and path.exists())


def test_each_source_runs_once_and_ends_with_the_server(server: RunningServer) -> None:
    """Each in the worker that owns its channel; after SIGTERM nothing of them is left."""
    rows = all_run(server)
    assert set(rows) == set(CHANNELS)
    parents = {parent_of(row["pid"]) for row in rows.values()}
    sockets = {socket_of(row["pid"]) for row in rows.values()}
    assert len(parents) == len(sockets)
    assert all(socket.parent.stat().st_mode & 0o777 == 0o700 for socket in sockets)
    metrics = httpx.get(f"{server.url}/metrics").text
    assert len(re.findall(r'^tricklecast_source_state\{.*state="running".*\} 1\.0$', metrics, re.MULTILINE)) == 2
    assert server.stop() == 0
    assert all(is_gone(row["pid"]) for row in rows.values())
    assert not [socket for socket in sockets if socket.parent.exists()]


@pytest.mark.parametrize("server", ["2"], indirect=True)
def test_sighup_reads_the_sources_anew(server: RunningServer, config: Path, tmp_path: Path) -> None:
    """All workers do: the difference is started and stopped. A mistake changes nothing, and the log tells it."""
    before = all_run(server)
    config.write_text(TABLE.format(name="d") + TABLE.format(name="b"))
    os.kill(server.pid, signal.SIGHUP)
    eventually(lambda: set(states(server)) == {"d", "b"})
    rows = all_run(server)
    assert rows["d"]["pid"] == before["d"]["pid"]
    eventually(lambda: is_gone(before["a"]["pid"]))
    config.write_text(TABLE.format(name="d") + "loop = 0\n")
    os.kill(server.pid, signal.SIGHUP)
    said = f"reload failed, and what could not be read stays as it was: source.d.loop in {config}: must be a number"
    eventually(lambda: said in (tmp_path / "stderr.txt").read_text())
    assert {name: row["pid"] for name, row in states(server).items()} == {
        name: row["pid"] for name, row in rows.items()
    }


@pytest.mark.parametrize("server", ["1"], indirect=True)
def test_when_the_server_is_killed_its_sources_end(server: RunningServer) -> None:
    """They stop, and remove the socket that it has left behind."""
    rows = all_run(server)
    socket = socket_of(rows["d"]["pid"])
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: all(is_gone(row["pid"]) for row in rows.values()))
    assert not socket.parent.exists()


@pytest.mark.parametrize("server", ["2"], indirect=True)
def test_when_a_worker_is_killed_its_successor_goes_on(server: RunningServer) -> None:
    """With processes of its own; those of the other worker are not concerned."""
    before = all_run(server)
    os.kill(parent_of(before["a"]["pid"]), signal.SIGKILL)
    eventually(lambda: is_gone(before["a"]["pid"]))

    def again() -> bool:
        answer = httpx.get(f"{server.url}/api/v1/sources", timeout=WITHIN_S).json()["sources"]
        return [row["state"] for row in answer] == ["running"] * 2

    eventually(again)
    after = states(server)
    assert after["d"]["pid"] == before["d"]["pid"]
    assert after["a"]["pid"] != before["a"]["pid"]


def test_a_ladder_of_a_source_is_one_stream_in_several_sizes(tmp_path: Path) -> None:
    """On demand: whoever reads one of them starts all, and they go on as long as one of them has a reader."""
    table = (
        '[source.{}]\nurl = "testsrc:size=426x240,rate=10"\nladder = "240p,144p"\nwhen = "demand"\nstop_after_s = 1\n'
    )
    config = tmp_path / "tricklecast.toml"
    config.write_text("".join(map(table.format, CHANNELS)))
    with (
        serve("--config", str(config), "--workers", "2") as server,
        httpx.Client(base_url=server.url, timeout=WITHIN_S) as client,
    ):
        eventually(lambda: [row["state"] for row in states(server).values()] == ["waiting"] * 2)
        for name in CHANNELS:
            with client.stream("GET", f"/trickle/{name}_144p/-1") as low:
                assert (low.status_code, next(low.iter_bytes())[:1]) == (200, b"G")
                seq = int(low.headers["Lp-Trickle-Seq"])
                high = client.get(f"/trickle/{name}/{seq}")
                assert high.status_code == 200
            master = client.get(f"/trickle/{name}/index.m3u8?ladder=240p,144p").text
            assert re.findall(r"#EXT-X-STREAM-INF:.*RESOLUTION=(\d+x\d+)", master) == ["426x240", "256x144"]
            assert states(server)[name]["state"] == "running"
        eventually(lambda: all(row["state"] == "waiting" for row in states(server).values()))


def test_a_mistake_in_a_source_is_one_line_at_the_start(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The server does not start."""
    config.write_text('[source.cam]\nurl = "a.mp4"\nwhen = "never"\n')
    with pytest.raises(AssertionError, match="the server did not start"), serve("--config", str(config)):
        pass
    assert capfd.readouterr().err == f"tricklecast: source.cam.when in {config}: must be 'always' or 'demand'\n"
