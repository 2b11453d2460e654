"""The command as it is run: it tells while the log grows, and being killed loses no alert and tells none twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.analytics.support.writer import LogWriter
from tests.analytics.watch_old.hook import Hook, listening
from tests.support.waiting import eventually

WITHIN_S = 180.0
"""Spark takes its time where several test runs share two cores."""


@contextmanager
def watching(logs: Path, state: Path, hook: Hook, said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command, in a process of its own, until it is killed or the context is left."""
    command = [sys.executable, "-m", "tricklecast", "storms", "watch", str(logs), "--state", str(state)]
    options = ["--json", "--webhook", hook.url, "--fail-on", "critical"]
    with said.open("wb") as out, (said.with_suffix(".err")).open("wb") as err:
        process = subprocess.Popen([*command, *options], stdout=out, stderr=err, start_new_session=True)
    try:
        eventually(
            lambda: b"Ctrl-C" in said.with_suffix(".err").read_bytes() or process.poll() is not None,
            within_s=WITHIN_S,
        )
        assert process.poll() is None, said.with_suffix(".err").read_text()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def storm(log: Path, client: str) -> None:
    """Twenty refusals in a fifth of a second, on a channel of its own."""
    writer = LogWriter("edge-1", random.Random(1))
    for turn in range(20):
        writer.not_found(turn * 0.01, client, f"film-{client}")
    with log.open("a", encoding="ascii") as file:
        file.writelines(line + "\n" for line in writer.lines())


def firing(said: Path) -> list[str]:
    """Whose storms the command told the beginning of, on its standard output."""
    news = [json.loads(line) for line in said.read_text(encoding="ascii").splitlines()]
    return [each["episode"]["clients"][0] for each in news if each["status"] == "firing"]


@pytest.mark.long
def test_killed_and_started_again(tmp_path: Path) -> None:
    """Killed while a webhook is being told; a storm while nobody watches; started again; ended with SIGTERM to
    it and its Java, as a service manager sends it.

    Each of the two storms is told once on standard output. The webhook gets the first one again, since it had not
    answered, with the same key.
    """
    logs, state = tmp_path / "logs", tmp_path / "state"
    logs.mkdir()
    log = logs / "access.jsonl"
    log.touch()
    with listening() as hook:
        with watching(logs, state, hook, tmp_path / "first") as process:

            def kill() -> tuple[int, dict[str, str]]:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                return 503, {}

            hook.answer = kill
            storm(log, "a")
            eventually(lambda: process.poll() is not None, within_s=WITHIN_S)
        assert firing(tmp_path / "first") == ["a"]
        hook.answer = lambda: (200, {})
        storm(log, "b")
        log.rename(logs / "access-20251009T085320-0001.jsonl")
        with watching(logs, state, hook, tmp_path / "second") as process:
            eventually(lambda: firing(tmp_path / "second") == ["b"], within_s=WITHIN_S)
            began = [f"{each['episode']['id']}-firing" for _, _, each in hook.requests if each["status"] == "firing"]
            eventually(lambda: len(set(hook.keys)) >= 2, within_s=WITHIN_S)
            os.killpg(process.pid, signal.SIGTERM)
            assert process.wait(WITHIN_S) == 1
        assert firing(tmp_path / "second") == ["b"]
    first, again, *others = [key for key in hook.keys if key.endswith("-firing")]
    assert first == again == began[0]
    assert len(others) == 1
    assert others[0] != first
    summary = (tmp_path / "second.err").read_text(encoding="utf-8").splitlines()[-1]
    assert summary.endswith("lines read, 1 storm")
