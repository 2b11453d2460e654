"""Progress is a line per stage, or a spinner on a terminal that survives a redirection of stderr."""

from __future__ import annotations

import os
import pty
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkAttributeError

from tricklecast.analytics.progress import Watched, on_stderr, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal each stage is one plain line on stderr."""
    with on_stderr() as stage, stage("[red]reading"):
        pass
    assert capsys.readouterr().err == "storms: [red]reading …\n"


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is said where nobody asked."""
    with silent("reading"):
        pass
    assert capsys.readouterr() == ("", "")


def test_spinner_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a stage is shown while it lasts and timed afterwards, on a descriptor of its own."""
    leader, follower = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(leader, 4096):
                seen.append(data)
        except OSError:  # Linux: the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with open(follower, "w", encoding="utf-8") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            with on_stderr() as stage:
                terminal.flush()
                with Path(os.devnull).open("wb") as nowhere:
                    os.dup2(nowhere.fileno(), follower)
                with stage("[red]reading"):
                    pass
    finally:
        monkeypatch.undo()
        reader.join(timeout=120)
        os.close(leader)
    text = b"".join(seen).decode()
    assert "[red]reading …" in text
    assert re.search(r"\[red\]reading: \d+\.\d s", text)


def test_tasks_of_a_session(spark: SparkSession) -> None:
    """A running job's tasks are counted; when it is over there is nothing to count."""
    watched = Watched()
    assert watched.count is None
    watched.follow(spark)
    assert watched.count is not None
    assert watched.count() == (0, 0)
    seen: list[tuple[int, int]] = []
    slow = spark.range(0, 4, 1, 4).selectExpr("sum(id + length(repeat('x', 1000000)))")
    job = threading.Thread(target=slow.collect)
    job.start()
    while job.is_alive():
        seen.append(watched.count())
    job.join()
    assert all(0 <= done <= total <= 5 for done, total in seen)


def test_a_session_without_tasks_to_show() -> None:
    """Spark Connect does not tell them: there is no bar, and no error."""

    class Connected:
        @property
        def sparkContext(self) -> None:  # Spark's name
            raise PySparkAttributeError("no sparkContext")

    watched = Watched()
    watched.follow(Connected())  # type: ignore[arg-type]  # as far as it is asked
    assert watched.count is None
