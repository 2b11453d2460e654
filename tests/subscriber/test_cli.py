"""The commands as a user types them: exit codes, and one clear line for each mistake."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from app.cli import main
from app.running import runnable
from subscriber.cli import channels, subscribe
from tests.subscriber.test_transport import unused_port

NOWHERE = f"http://127.0.0.1:{unused_port()}/trickle/cam"


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
def test_a_mistake_is_one_clear_line(
    arguments: list[str],
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """On standard error, with an exit code, and never a stack trace."""
    monkeypatch.setattr("sys.argv", ["tricklecast", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    said = capfd.readouterr()
    assert left.value.code == code
    assert says in " ".join(said.err.replace("│", " ").split())
    assert "Traceback" not in said.err
    assert said.out == ""
    if code == 1:
        assert said.err.startswith("tricklecast: ")
        assert len(said.err.splitlines()) == 1


def test_media_is_not_poured_onto_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without -o on a terminal, the command says what to type instead."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(typer.BadParameter, match="-o FILE"):
        runnable(subscribe)(NOWHERE)


def test_a_pipe_needs_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, standard output is the default."""
    seen: list[object] = []

    async def record(request: object) -> None:
        seen.append(request)

    monkeypatch.setattr("subscriber.recording.record", record)
    app = typer.Typer()
    app.command()(runnable(subscribe))
    result = CliRunner().invoke(app, [NOWHERE, "--start", "-3", "--for", "5", "--wait", "2", "--on-lag", "earliest"])
    assert result.exit_code == 0
    assert repr(seen[0]) == (
        f"Request(url={NOWHERE!r}, output='-', start='-3', for_s=5.0, wait_s=2.0, on_lag=<OnLag.EARLIEST: 'earliest'>)"
    )


def test_channels_are_fetched_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the URL and the format that were asked for."""
    said: list[object] = []

    async def fetch_channels(url: str) -> dict[str, object]:
        return {"url": url}

    monkeypatch.setattr("subscriber.listing.fetch_channels", fetch_channels)
    monkeypatch.setattr("subscriber.listing.print_channels", lambda answer, as_json: said.append((answer, as_json)))
    runnable(channels)(NOWHERE, as_json=True)
    assert said == [({"url": NOWHERE}, True)]


def test_help_names_every_option() -> None:
    """Each with a sentence."""
    app = typer.Typer()
    app.command("subscribe")(runnable(subscribe))
    app.command("channels")(runnable(channels))
    text = CliRunner().invoke(app, ["subscribe", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    for option in ("--output", "--start", "--for", "--wait", "--on-lag"):
        assert option in text
