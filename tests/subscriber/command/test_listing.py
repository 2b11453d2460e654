"""``tricklecast channels``: the control plane's answer as JSON, table or columns."""

from __future__ import annotations

import json

import pytest

from tricklecast.subscriber.command.listing import print_channels

CAMERA = {
    "name": "camera",
    "state": "live",
    "epoch": 1,
    "next_seq": 12,
    "content_type": "video/mp2t",
    "window": {"segments": 12, "bytes": 1_500_000, "earliest": 0},
    "readers": 3,
    "bytes_in": 2_000_000,
    "bytes_out": 6_000_000,
    "publisher": {"connected": True, "writing": [11]},
    "something_new": {"that": ["nobody", "knows"]},
}


def test_json_is_what_the_server_said(capsys: pytest.CaptureFixture[str]) -> None:
    """All of it, also what this version does not know."""
    print_channels({"channels": [CAMERA], "readers": 3}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"channels": [CAMERA], "readers": 3}


def test_a_pipe_gets_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Tab-separated, one channel a line; what is missing or odd is a dash, and nothing can add lines or columns."""
    odd = {"name": "tab\there\nthere\x1b[31m", "window": 7, "publisher": None, "bytes_in": "many"}
    print_channels({"channels": [CAMERA, odd]})
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.split("\t")[:3] == ["CHANNEL", "STATE", "NEXT"]
    assert second.split("\t") == [
        "camera", "live", "12", "12", "1.5 MB", "3", "connected", "2.0 MB", "6.0 MB", "video/mp2t",
    ]  # fmt: skip
    assert third.split("\t") == ["tab?here?there?[31m", *["-"] * 9]


def test_nodes_whose_channels_are_missing_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, so that a pipe gets channels alone."""
    print_channels({"channels": [CAMERA], "unreachable": ["b", "c\x1b"]})
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert shown.err.splitlines() == [
        f"node {name} does not answer: channels that it has are missing here" for name in ("b", "c?")
    ]


def test_a_terminal_gets_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are aligned, numbers on the right; no channels are said so."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_channels({"channels": [CAMERA, {"name": "x"}]})
    header, camera, other = capsys.readouterr().out.splitlines()
    assert header.startswith("CHANNEL  STATE  NEXT  SEGMENTS")
    assert camera.startswith("camera   live     12        12  1.5 MB")
    assert other.startswith("x        -         -         -       -")
    print_channels({"channels": [{"name": "_changes"}]})
    assert capsys.readouterr().out == "no channels\n"
