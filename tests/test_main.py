"""Commands with closed standard streams, or whose reader leaves: silent, with the same exit code."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.support.forked import forked
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.serve_cli import ANNOUNCEMENT
from tricklecast.trickle.records import Event, Op

TIMEOUT_S = 120
"""How long a command may take that needs half a second on an idle machine."""

LIKE_SIGPIPE = {1, 141, -signal.SIGPIPE}
"""Exit codes of a command whose reader has left."""


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server for the commands."""
    with local_server() as running:
        yield running


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which ``$T`` is the command with its arguments."""
    script = line.replace("$T", shlex.join([sys.executable, "-m", "tricklecast", *arguments]))
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_a_list_that_nobody_wants_is_no_error(server: LocalServer) -> None:
    """``channels >&-`` succeeds, also with all three streams closed."""
    for closed, options in {"$T >&-": ["--json"], "$T <&- >&- 2>&-": []}.items():
        done = shell(closed, "channels", f"http://127.0.0.1:{server.port}", *options)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_error_that_nobody_hears_keeps_its_exit_code() -> None:
    """With ``2>&-`` the message is lost, and standard output is the same."""
    done = shell("$T 2>&-", "channels", "http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    schema = subprocess.run(forked("logs", "schema"), capture_output=True, text=True, check=True).stdout
    assert shell("$T 2>&-", "logs", "schema").stdout == schema


def test_media_needs_somewhere_to_go() -> None:
    """``subscribe`` with a closed standard output fails with one line."""
    done = shell("$T >&-", "subscribe", "http://127.0.0.1:1/trickle/c")
    assert (done.returncode, done.stderr) == (1, "tricklecast: stdout is closed\n")


def test_no_socket_gets_the_descriptor_of_a_closed_stream() -> None:
    """Output of a library or child goes to /dev/null, not to a peer."""
    fill = "from tricklecast.__main__ import fill_standard_streams as fill; fill()"
    check = "import os, sys; print(os.path.sameopenfile(1, os.open(os.devnull, os.O_RDWR)), file=sys.stderr)"
    filled = shlex.join([sys.executable, "-c", f"{fill}; {check}; print('nothing')"])
    done = subprocess.run(["bash", "-c", f"{filled} <&- >&-"], capture_output=True, text=True, check=True)
    assert done.stderr == "True\n"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["conformance", "--list"], ["serve", "--show-config"]],
    ids=" ".join,
)
def test_a_reader_who_leaves_is_nobody_to_talk_to(arguments: list[str]) -> None:
    """As in ``| head -0``, when ``head`` has ended: no message, and the exit code of a broken pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tricklecast", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode in LIKE_SIGPIPE


@pytest.mark.parametrize("is_full", [False, True])
def test_a_server_serves_though_nobody_reads_that_it_listens(tmp_path: Path, is_full: bool) -> None:
    """With ``serve | true`` it serves and ends as always."""
    log = tmp_path / "access.jsonl"
    reading, writing = os.pipe()
    if is_full:
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        os.set_blocking(writing, True)
    else:
        os.close(reading)
    started = [sys.executable, "-m", "tricklecast", "serve", "--port", "0", "--access-log", str(log)]
    with subprocess.Popen(started, stdout=writing, stderr=subprocess.PIPE, text=True) as process:
        os.close(writing)
        eventually(lambda: log.exists() and Event.SERVER_READY in log.read_text())
        process.terminate()
        assert process.stderr is not None
        said = process.stderr.read()
    if is_full:
        os.close(reading)
    assert (process.returncode, said) == (0, "")


UNCAUGHT = """
import sys, threading
from tricklecast.app import server
from tricklecast.app.cli import main

def serve(*_, **__):
    class Heavy:
        def __del__(self):
            raise ValueError("two\\nlines")
    Heavy()
    thread = threading.Thread(target=lambda: 1 // 0)
    thread.start()
    thread.join()
    raise ExceptionGroup("several", [KeyError("x")])

server.serve = serve
sys.argv = ["tricklecast", "serve", "--log-format", "json"]
main()
"""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--port", "99999"], ["CRITICAL"]),  # wrong settings
        (["--port", "0", "--access-log", "/dev/full"], ["WARNING", "CRITICAL"]),
        (["-c", UNCAUGHT], ["WARNING", "ERROR", "ERROR", "CRITICAL"]),
    ],
)
def test_each_line_of_a_log_in_json_is_json(arguments: list[str], told: list[str]) -> None:
    """So are a failed start, an unknown variable, and an uncaught exception."""
    command = [sys.executable, *arguments] if arguments[0] == "-c" else forked("serve", *arguments)
    environment = os.environ | {"TRICKLECAST_LOG_FORMAT": "json", "TRICKLECAST_PROT": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert ([line["level"] for line in lines], done.returncode, done.stdout) == (told, 1, "")
    assert not any("Traceback" in line["message"] for line in lines)


def test_the_access_log_on_standard_output() -> None:
    """With ``--access-log -`` standard output has only records; the address is on standard error."""
    started = forked("serve", "--port", "0", "--access-log", "-", "--shutdown-drain-s", "0.1")
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stderr.readline().removeprefix(ANNOUNCEMENT).strip()
        assert httpx.get(f"{address}/missing/0").status_code == 404
        process.terminate()
        records, said = process.stdout.read(), process.stderr.read()
    told = [json.loads(line) for line in records.splitlines()]
    assert [one["status"] for one in told if one.get("op") == Op.READ] == [404]
    assert [told[0]["event"], told[-1]["event"]] == [Event.SERVER_START, Event.SERVER_STOP]
    assert (process.returncode, said) == (0, "")
