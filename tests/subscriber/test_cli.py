"""The commands as a user types them, in a process of their own: exit codes, and one clear line for each mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from subscriber.cli import channels, subscribe
from tests.subscriber.test_transport import unused_port

TIMEOUT_S = 60
NOWHERE = f"http://127.0.0.1:{unused_port()}/trickle/cam"


def tricklecast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["subscribe", "cam"], 1, "it must begin with http:// or https://"),
        (["subscribe", "http://host"], 1, "it names no channel"),
        (["subscribe", "http://host/trickle/a%00b"], 1, "not a channel name"),
        (["subscribe", NOWHERE], 1, "Connection refused"),
        (["subscribe", NOWHERE, "-o", "/no/such/folder/out.ts"], 1, "its folder does not exist"),
        (["subscribe", NOWHERE, "--start", "yesterday"], 2, "not a seq"),
        (["subscribe", NOWHERE, "--on-lag", "never"], 2, "live, earliest or fail"),
        (["subscribe", NOWHERE, "--for", "-1"], 2, "--for"),
        (["subscribe"], 2, "URL"),
        (["channels", "host"], 1, "it must begin with http:// or https://"),
        (["channels", NOWHERE], 1, "Connection refused"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: list[str], code: int, says: str) -> None:
    """On standard error, with an exit code, and never a stack trace."""
    result = tricklecast(*arguments)
    assert result.returncode == code
    assert says in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    if code == 1:
        assert result.stderr.splitlines()[-1].startswith("tricklecast: ")


def test_media_is_not_poured_onto_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without -o on a terminal, the command says what to type instead."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(typer.BadParameter, match="-o FILE"):
        subscribe(NOWHERE)


def test_a_pipe_needs_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, standard output is the default."""
    seen: list[object] = []

    async def record(request: object) -> None:
        seen.append(request)

    monkeypatch.setattr("subscriber.recording.record", record)
    app = typer.Typer()
    app.command()(subscribe)
    result = CliRunner().invoke(app, [NOWHERE, "--start", "-3", "--for", "5", "--wait", "2", "--on-lag", "earliest"])
    assert result.exit_code == 0
    assert repr(seen[0]) == (
        f"Request(url={NOWHERE!r}, output='-', start='-3', for_s=5.0, wait_s=2.0, on_lag=<OnLag.EARLIEST: 'earliest'>)"
    )


def test_help_names_every_option() -> None:
    """Each with a sentence."""
    app = typer.Typer()
    app.command("subscribe")(subscribe)
    app.command("channels")(channels)
    text = CliRunner().invoke(app, ["subscribe", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    for option in ("--output", "--start", "--for", "--wait", "--on-lag"):
        assert option in text
