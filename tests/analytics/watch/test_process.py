"""The command as a process: alerts, exit codes, and kills at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.analytics.watch.made import append, line, loop
from tests.support.forked import command_of, forked
from tests.support.waiting import WITHIN_S
from tricklecast.analytics.watch.alerts import is_first
from tricklecast.app.cli import cli


class Process:
    """The watch of a log, with a state, whose alerts go to a file.

    Attributes:
        wait_s: how long anything may take, seconds.
    """

    wait_s = WITHIN_S

    def __init__(self, folder: Path, *options: str) -> None:
        self.log, self._out, self._err = (folder / name for name in ("access.jsonl", "out", "err"))
        self.log.touch()
        self._command = forked("storms", "watch", self.log, "--json", *options)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it."""
        with self._out.open("ab") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=err)

    def said(self) -> str:
        """What it said on stderr."""
        return self._err.read_text()

    def ready(self) -> None:
        """Waits until it watches."""
        self.wait(lambda: "watching" in self.said())

    def wait(self, come: Callable[[], bool]) -> None:
        """Waits for something."""
        until = time.monotonic() + self.wait_s
        while not come():
            assert self._process is not None
            assert self._process.poll() is None, self.said()
            assert time.monotonic() < until, (self.said(), self.news())
            time.sleep(0.01)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ends it."""
        assert self._process is not None
        if number == signal.SIGKILL:
            self.kill(self._process)
        else:
            self._process.send_signal(number)
        return self._process.wait(self.wait_s)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kills the fork, and not only its relay."""
        os.kill(command_of(process.pid), signal.SIGKILL)

    def news(self) -> list[dict[str, Any]]:
        """What it told, the whole lines."""
        return [json.loads(each) for each in self._out.read_bytes().split(b"\n")[:-1]] if self._out.exists() else []

    def firing(self) -> dict[str, str]:
        """The client of each storm that was told, by the key of its first news."""
        first = [each for each in self.news() if is_first(each)]
        return {each["key"]: each["incident"]["clients"][0] for each in first}


def test_a_storm_is_told_while_it_happens_and_sigterm_ends_the_watch(tmp_path: Path) -> None:
    """The alert comes on standard output, and the exit code is 0."""
    process = Process(tmp_path)
    process.start()
    process.ready()
    append(process.log, loop(10))
    process.wait(lambda: bool(process.firing()))
    assert process.end() == 0
    assert "10 lines read, 1 incident" in process.said()


@pytest.mark.parametrize(
    ("arguments", "given", "expected", "said"),
    [
        (["-"], "\n".join(loop(20)), 0, "20 lines read, 1 incident"),
        (["-"], "", 0, "0 lines read"),
        (["-"], "no log at all\n", 3, "cannot tell the format of 'standard input'"),
    ],
)
def test_exit_codes(arguments: list[str], given: str, expected: int, said: str) -> None:
    """Standard input is a log like any other, and what is wrong with it is said in one line."""
    command = forked("storms", "watch", *arguments)
    ended = subprocess.run(command, input=given, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert ended.returncode == expected, ended.stderr
    assert said in " ".join(ended.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "expected", "said"),
    [
        (["nowhere/"], 3, "no such log"),
        (["-", "--set", "fast_hit=3"], 2, "did you mean 'fast_hits'"),
        (["-", "--webhook", "hook"], 2, "needs a URL that begins with http"),
        (["-", "--format", "lighttpd"], 2, "unknown format 'lighttpd'"),
    ],
)
def test_wrong_arguments(arguments: list[str], expected: int, said: str) -> None:
    """The command names the wrong argument in one line, before it watches anything."""
    ended = CliRunner().invoke(cli, ["storms", "watch", *arguments])
    assert ended.exit_code == expected, ended.stderr
    assert said in " ".join(ended.stderr.replace("│", " ").split())


def killed_at_random(folder: Path, kills: int, seed: int) -> None:
    """Writes one storm after the other while the watch is killed, again and again, and compares what was told."""
    rng = random.Random(seed)
    process = Process(folder, "--state", str(folder / "state"), "--start", "earliest")
    for number in range(kills):
        process.start()
        began = time.monotonic()
        # A storm in two parts, so that some kills come between them.
        append(process.log, loop(6, 10.0 * number, client=f"client-{number}", channel=f"channel-{number}"))
        until = began + rng.uniform(0.1, 1.2)
        while time.monotonic() < until:
            time.sleep(0.005)
        append(process.log, loop(6, 10.0 * number + 0.3, client=f"client-{number}", channel=f"channel-{number}"))
        until = time.monotonic() + rng.uniform(0.0, 0.6)
        while time.monotonic() < until:
            time.sleep(0.005)
        process.end(signal.SIGKILL)
    process.start()
    process.wait(lambda: set(process.firing().values()) >= {f"client-{number}" for number in range(kills)})
    process.wait(lambda: sum(each["status"] == "resolved" for each in process.news()) >= kills)
    assert process.end() == 0
    assert len(process.firing()) == kills, "the same storm was told under another key"
    totals = {each["incident"]["clients"][0]: each["incident"]["n"] for each in process.news()}
    assert set(totals.values()) == {12}, "a line was lost or counted twice"


def test_kills_at_random_moments_lose_and_double_nothing(tmp_path: Path) -> None:
    """Every storm is told, under one key, and with all of its lines."""
    killed_at_random(tmp_path, kills=5, seed=14)


@pytest.mark.long
def test_a_hundred_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    """The same, for as long as it takes."""
    killed_at_random(tmp_path, kills=100, seed=41)


@pytest.mark.long
def test_catching_up_can_be_ended_and_killed_at_any_moment(tmp_path: Path) -> None:
    """It ends in the middle, also while a receiver hangs; the next run goes on, and tells each storm with all lines."""
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        url = f"http://127.0.0.1:{hangs.getsockname()[1]}/"
        process = Process(tmp_path, "--state", str(tmp_path / "state"), "--start", "earliest", "--webhook", url)
        for number in range(50):
            viewers = [(100.0 * number + turn / 50, f"viewer-{turn % 40}") for turn in range(4_000)]
            append(
                process.log, [line(at_s, client=name, status=200, bytes_out=9, ua="x" * 200) for at_s, name in viewers]
            )
            if number % 5 == 0:
                append(
                    process.log, loop(40, 100.0 * number + 80, client=f"client-{number}", channel=f"channel-{number}")
                )
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGKILL):
            process.start()
            process.wait(lambda: "catching up" in process.said())
            assert process.end(number) == (-signal.SIGKILL if number == signal.SIGKILL else 0)
            assert "caught up" not in process.said()
        process.start()
        process.wait(lambda: "caught up" in process.said())
        process.wait(lambda: len(process.firing()) == 10)
        assert process.end() == 0
        totals = {each["incident"]["clients"][0]: each["incident"]["n"] for each in process.news()}
        assert set(totals.values()) == {40}
