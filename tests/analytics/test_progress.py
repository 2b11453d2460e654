"""Progress is a line per stage, or a spinner on a terminal that survives a redirection of stderr."""

from __future__ import annotations

import os
import pty
import re
import sys
import threading
from pathlib import Path

import pytest

from analytics.progress import on_stderr, silent


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
        reader.join(timeout=10)
        os.close(leader)
    text = b"".join(seen).decode()
    assert "[red]reading …" in text
    assert re.search(r"\[red\]reading: \d+\.\d s", text)
