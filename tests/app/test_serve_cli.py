"""`tricklecast serve`: an option for every setting, and what `--show-config` says."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tricklecast.app.cli import cli
from tricklecast.app.serve_cli import _show, describe, serve
from tricklecast.app.settings import TABLES, Settings, load


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Runs commands without the machine's settings, wide enough that nothing is wrapped."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERM", "dumb")
    return CliRunner()


def test_every_setting_is_an_option(runner: CliRunner) -> None:
    """None can be forgotten, and each says what it is and what it is by default."""
    text = " ".join(runner.invoke(cli, ["serve", "--help"]).output.split())
    for name, field in Settings.model_fields.items():
        if name in TABLES:
            continue
        flag = "--" + name.replace("_", "-")
        assert flag in text
        assert (f"--no-{flag[2:]}" in text) == (field.annotation is bool)
    assert "Port to listen on; 0 picks a free one. (default: 2939)" in text
    assert "(default: off)" in text
    assert "--config" in text


def test_show_config_tells_values_and_origins(runner: CliRunner, tmp_path: Path) -> None:
    """Every setting with where it came from, as a file that could be loaded again."""
    config = tmp_path / "t.toml"
    config.write_text("max_channels = 7\nautocreate = true\n")
    result = runner.invoke(
        cli,
        ["serve", "--show-config", "--config", str(config), "--window-bytes", "1MiB", "--no-autocreate"],
        env={"TRICKLECAST_HOST": 'a"b\\c'},
    )
    assert result.exit_code == 0
    parts = [line.rpartition("  # ") for line in result.output.splitlines()]
    origins = {text.strip(): origin for text, _, origin in parts}
    assert origins["max_channels = 7"] == "file"
    assert origins["trusted_proxies = []"] == "default"
    assert origins["window_bytes = 1048576"] == "command line"
    assert origins["autocreate = false"] == "command line"
    assert origins['host = "a\\"b\\\\c"'] == "environment"
    assert origins["port = 2939"] == "default"
    assert origins["# access_log is off"] == "default"
    parsed = tomllib.loads(result.output)
    assert (parsed["host"], parsed["max_channels"], parsed["idle_timeout_s"]) == ('a"b\\c', 7, 300.0)
    again = tmp_path / "again.toml"
    again.write_text(result.output)
    assert load({}, again).settings == load({"max_channels": 7, "window_bytes": "1MiB", "autocreate": False,
                                             "host": 'a"b\\c'}).settings  # fmt: skip


def test_the_file_of_settings_may_be_named_in_the_environment(runner: CliRunner, tmp_path: Path) -> None:
    """The option wins; an empty variable counts as none."""
    named, given = tmp_path / "named.toml", tmp_path / "given.toml"
    named.write_text('retain_age_s = "7d"\n')
    given.write_text('retain_age_s = "8d"\n')
    shown = [
        runner.invoke(cli, ["serve", "--show-config", *arguments], env={"TRICKLECAST_CONFIG": value}).output
        for arguments, value in (([], f"{named}"), (["--config", f"{given}"], f"{named}"), ([], ""))
    ]
    assert [tomllib.loads(text)["retain_age_s"] for text in shown] == [604_800, 691_200, 86_400]
    assert "no setting, and ignored" not in "".join(shown)


def test_a_list_is_shown_as_the_file_has_it() -> None:
    """The shown settings can be read again."""
    shown = describe(load({"trusted_proxies": "10.0.0.0/8,::1"}))
    assert tomllib.loads(shown)["trusted_proxies"] == ["10.0.0.0/8", "::1/128"]


def test_describe_has_one_line_a_setting() -> None:
    """Nothing is left out."""
    assert len(describe(load({})).splitlines()) == len(Settings.model_fields) - len(TABLES)


@pytest.mark.parametrize(
    "arguments",
    [["--port"], ["--no-such-option"], ["--autocreate=maybe"], ["extra"]],
)
def test_wrong_usage_is_exit_code_2(runner: CliRunner, arguments: list[str]) -> None:
    """An unknown option is a usage error."""
    assert runner.invoke(cli, ["serve", *arguments]).exit_code == 2


def test_the_help_shows_every_option_whole() -> None:
    """At 80 columns, too."""
    shown = CliRunner().invoke(cli, ["serve", "--help"], env={"COLUMNS": "80"}, terminal_width=80).output
    for name in set(Settings.model_fields) - set(TABLES):
        assert f"--{name.replace('_', '-')}" in shown.split(), name


@pytest.fixture
def handlers() -> Iterator[None]:
    """A server's process is about to exit when its command is over, and ignores signals; this one is not."""
    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


class Screen(io.StringIO):
    """Standard error, which may be a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("terminal", "quiet", "shown"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_clients_are_shown_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, quiet: bool, shown: bool
) -> None:
    """Unless the server is told to be quiet."""
    asked: list[object] = []
    monkeypatch.setattr("tricklecast.app.server.serve", lambda *_, show, reread: asked.append(show))
    monkeypatch.setattr("sys.stderr", Screen(terminal))
    serve(config=None, show_config=False, quiet=quiet)
    assert [show is not None for show in asked] == [terminal and not quiet]


@pytest.mark.parametrize(
    ("settings", "announced", "shown"),
    [
        ({}, ["http://127.0.0.1:2939/trickle"], "http://127.0.0.1:2939/"),
        (
            {"control_port": "81"},
            ["http://127.0.0.1:2939/trickle", "http://127.0.0.1:81 (control plane)"],
            "http://127.0.0.1:81/",
        ),
        ({"web": False}, ["http://127.0.0.1:2939/trickle"], None),
    ],
)
def test_a_terminal_is_told_where_the_web_pages_are(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    handlers: None,
    settings: dict[str, Any],
    announced: list[str],
    shown: str | None,
) -> None:
    """They are on the control plane; standard output has nothing but the listeners' addresses."""
    monkeypatch.setattr(
        "tricklecast.app.server.serve", lambda settings, announce, **_: [announce(line) for line in announced]
    )
    with open(tmp_path / "out", "w") as out, open(tmp_path / "screen", "w") as screen:
        screen.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", screen)
        serve(config=None, show_config=False, quiet=False, **settings)
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines == [f"tricklecast is listening on {line}" for line in announced]
    lines = [f"open {shown} in a browser to see and publish channels"] if shown else []
    assert (tmp_path / "screen").read_text().splitlines() == lines


def test_a_stopped_terminal_does_not_stop_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its user has stopped it (Ctrl-S), or after it has gone, lines are dropped."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(theirs, bytes(4096))
    os.set_blocking(theirs, True)
    with open(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        _show(["dropped"])
        assert not os.read(ours, 1 << 20).strip(b"\0")
        _show(["c: created", "c: ended"])
        shown = os.read(ours, 1 << 20).decode()
        assert [line[8:] for line in shown.splitlines()] == [" c: created", " c: ended"]
        os.close(ours)
        _show(["nobody reads this"])
