"""`tricklecast conformance`: what it prints, and how it exits."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.conformance.conftest import RunnerFor
from tests.conformance.fakes import scripted, unused_address
from tests.support.forked import forked
from tests.support.local import local_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.tools.conformance.cases import CASES
from tricklecast.app.tools.conformance.cli import conformance
from tricklecast.app.tools.conformance.target import Address
from tricklecast.trickle.errors import InvalidURL
from tricklecast.trickle.records import Op

_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 17\r\n\r\nStream not found\n"


def _invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(conformance)
    return CliRunner().invoke(app, arguments)


def _url(address: Address) -> str:
    return f"http://{address.authority}{address.base_path}"


def test_the_list_has_every_rule() -> None:
    """`--list` prints the name and rule of every case, and needs no server."""
    result = _invoke("--list")
    assert result.exit_code == 0
    assert all(f"{case.name} — {case.rule}" in result.stdout for case in CASES)


def test_the_list_can_be_narrowed() -> None:
    """`--list --only` prints the rules whose names match, and no others."""
    result = _invoke("--list", "--only", "drain/*")
    assert "drain/then-the-name-is-forgotten" in result.stdout
    assert "publish/" not in result.stdout


def test_a_server_that_keeps_the_rules(runner_for: RunnerFor, tmp_path: Path) -> None:
    """All passed is exit code 0, a line for each rule, the sums, and the same as JSON."""
    path = tmp_path / "results.json"
    result = _invoke(_url(runner_for("default").address), "--only", "head/*", "--json-file", str(path))
    assert result.exit_code == 0, result.output
    assert "PASS head/starts-at-zero — " in result.stdout
    assert result.stdout.splitlines()[-1].endswith(" 0 failed, 0 skipped")
    assert json.loads(path.read_text())["failed"] == 0


def test_a_server_that_breaks_a_rule() -> None:
    """A failure is exit code 1, and explained."""
    with scripted(_NOT_FOUND) as address:
        result = _invoke(_url(address), "--only", "head/starts-at-zero")
    assert result.exit_code == 1
    assert "FAIL head/starts-at-zero" in result.stdout
    assert "expected: status 200" in result.stdout


def test_cases_for_other_configurations_are_skipped() -> None:
    """A case that the server cannot show is skipped with what it needs, and does not count as a failure."""
    with scripted(_NOT_FOUND) as address:
        result = _invoke(_url(address), "--only", "too-large/*", "--verbose")
    assert result.exit_code == 0
    assert "needs a server started with --max-segment-bytes 65536 (--profile small-segments)" in result.stdout


def test_a_server_that_is_not_there() -> None:
    """A server that cannot be reached is exit code 3 and one line on stderr."""
    result = _invoke(_url(unused_address()))
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "cannot be reached" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--list"),
        (["http://host/trickle", "--only", "no-such-case"], "--list"),
        (["http://host/trickle", "--profile", "no-such-profile"], "no-autocreate"),
        (["http://host/trickle", "--jobs", "0"], "--jobs"),
        (["https://host/trickle", "--ca-file", "/does/not/exist"], "--ca-file"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str) -> None:
    """A wrong argument is exit code 2, and the message names the right ones."""
    result = _invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/trickle", "http"),
        ("unix:/run/x", "http+unix://%2Frun%2Fx/trickle"),
        ("/run/x", "http+unix://%2Frun%2Fx/trickle"),
        ("http+unix:///run/x/trickle", "http+unix://%2Frun%2Fx/trickle"),
        ("http://host:99999/trickle", "port"),
        ("http://host/a b", "plain URL path"),
    ],
)
def test_a_url_that_cannot_be_used(url: str, words: str) -> None:
    """The message says how it is written."""
    error = _invoke(url).exception
    assert isinstance(error, InvalidURL)
    assert words in str(error)


def test_deadlines_follow_the_options() -> None:
    """The graces of a server can be said one by one; the case that waits for one is told."""
    with scripted(_NOT_FOUND) as address:
        result = _invoke(_url(address), "--only", "drain/then*", "--drain-s", "0.1", "--skip-grace-s", "0")
    assert result.exit_code == 1


def _started(url: str, case: str) -> subprocess.Popen[str]:
    started = forked("conformance", url, "--only", case)
    return subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _interrupted(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> None:
    """A signal ends the process before its one case has a result: its exit code, the sums, and no traceback."""
    process.send_signal(number)
    out, err = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, out, err) == (128 + number, "0 passed, 0 failed, 0 skipped\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_channels_of_running_cases(number: signal.Signals) -> None:
    """A signal during a case that waits 11 s ends the command at once, and the server hears of the channel's end."""
    with local_server() as server, _started(f"http://127.0.0.1:{server.port}", "clients/idle*") as process:
        channel = eventually(lambda: [record.channel for record in list(server.records) if record.op == Op.PUBLISH])[0]
        _interrupted(process, number)
        assert server.record(op=Op.DELETE, channel=channel).status == 200


def test_ctrl_c_does_not_wait_for_a_silent_server() -> None:
    """Ctrl-C ends the command also while a case waits for a server that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WITHIN_S)
        with _started(f"http://127.0.0.1:{listener.getsockname()[1]}", "head/starts*") as process:
            reached, _ = listener.accept()
            used, _ = listener.accept()
            with reached, used:
                assert used.recv(9) == b"POST /tri"
                _interrupted(process)
