"""The command, on simulated logs: formats, engines, options, exit codes, interruption."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner, Result

from tests.support.waiting import WITHIN_S
from tricklecast.analytics.cli import storms
from tricklecast.analytics.cli.storms import EngineName, choose_engine
from tricklecast.analytics.lines import LogFiles
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.simulate.plan import sizes
from tricklecast.analytics.simulate.run import simulate_logs
from tricklecast.analytics.simulate.truth import Set
from tricklecast.app.cli import cli

LINES = 2_000
LOOP = '203.0.113.7 - - [25/Nov/2025:12:00:{0:02} +0000] "GET /api/v1/token HTTP/1.1" 401 0 "-" "bad/1"\n'
LOOPING = "".join(LOOP.format(number // 4) for number in range(200))
"""A log of a proxy, with one incident."""


def invoke(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, ["storms", *map(str, arguments)], input=stdin)


def simulated(folder: Path, kind: Set = Set.STANDARD) -> Path:
    simulate_logs(folder / "log", 5, kind, sizes(lines=LINES, kind=kind))
    return folder / "log"


def told(*arguments: object) -> dict[str, Any]:
    """The JSON report of a run that found something."""
    result = invoke(*arguments, "-q", "--json-file", "-")
    assert result.exit_code == 1, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few storms, as the server writes it."""
    return simulated(tmp_path_factory.mktemp("standard"))


@pytest.fixture(scope="module")
def report(logs: Path) -> dict[str, Any]:
    """The report on these logs."""
    return told(logs)


def test_all_files_at_once(logs: Path, tmp_path: Path, report: dict[str, Any]) -> None:
    """Page, JSON and Prometheus from one run, besides the terminal, which leads with the verdict; nothing else is left
    behind. It fails from a severity on. A line on stderr says which engine was chosen, and how to choose otherwise."""
    names = {"--html": "a.html", "--json-file": "a.json", "--prom": "a.prom"}
    options = [part for option, name in names.items() for part in (option, tmp_path / name)]
    assert "critical" not in {one["severity"] for one in report["incidents"]}
    result = invoke(logs, *options, "--fail-on", "critical")
    assert result.exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names.values())
    assert json.loads((tmp_path / "a.json").read_text())["incidents"] == report["incidents"]
    assert result.stdout.startswith(f"{len(report['incidents'])} incidents: ")
    assert "INCIDENT 1 · " in result.stdout
    assert "embedded engine; --engine spark" in result.stderr
    assert len([line for line in result.stderr.splitlines() if "engine" in line]) == 1


def test_lines_stand_as_in_the_file(report: dict[str, Any]) -> None:
    """Each incident has its first and its last line, with file and number."""
    for one in report["incidents"]:
        assert one["lines"]
        for line in one["lines"]:
            text = Path(line["file"]).read_text().split("\n")[line["no"] - 1]
            assert line["text"] == text
        times = [json.loads(line["text"])["ts_us"] for line in one["lines"]]
        assert (times[0], times[-1]) == (one["since_us"], one["until_us"])


def test_standard_input() -> None:
    """It is read like a file, and called by its name; of a proxy's log the report says that it has no events."""
    result = invoke("-", "-q", "--json-file", "-", "--fail-on", "minor", stdin=LOOPING.encode())
    document = json.loads(result.stdout)
    assert (result.exit_code, document["inputs"], document["quality"]["lines"]) == (1, ["standard input"], 200)
    (one,) = document["incidents"]
    assert {line["file"] for line in one["lines"]} == {"standard input"}
    assert any("no lifecycle events" in caveat for caveat in document["quality"]["caveats"])


def test_a_healthy_log(tmp_path: Path) -> None:
    """No incident, exit code 0, and what was examined."""
    result = invoke(simulated(tmp_path, kind=Set.HEALTHY))
    assert result.exit_code == 0
    assert result.stdout.startswith("No incidents.\nExamined: ")


def test_an_empty_log(tmp_path: Path) -> None:
    """Of nothing nobody can say that it has no incidents, compressed or not."""
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b""))
    for name in ("a.jsonl", "b.jsonl.gz", "."):
        result = invoke(tmp_path / name)
        assert (result.exit_code, result.stdout.splitlines()[0]) == (3, "No requests to judge."), name
        assert "nothing to judge" in result.stderr
    assert invoke("-", stdin=b"").exit_code == 3


def test_an_archive_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    """It is no log without incidents; what can be read of one that ends early is."""
    whole = gzip.compress(b'{"v":1,"ts_us":1760000000000000,"kind":"event","event":"server_start","node":"a"}\n' * 999)
    for name, content, code in (("no.jsonl.gz", b"no archive", 3), ("short.jsonl.gz", whole[:-9], 0)):
        (tmp_path / name).write_bytes(content)
        for options in ((), ("--table", tmp_path / "table")):
            result = invoke(tmp_path / name, *options)
            said = "damaged" if code == 0 else "cannot tell the format"
            assert (result.exit_code, said in result.output) == (code, True), (name, options)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "no logs were given"),
        (("LOG", "--set", "gap=3"), 2, "did you mean 'gap_s'?"),
        (("LOG", "--set", "gap_s=none"), 2, "gap_s is a number"),
        (("LOG", "--set", "fast_hits=2.5"), 2, "a whole number"),
        (("LOG", "--set", "share=2"), 2, "share is a number above 0, 1 at most, not 2"),
        (("LOG", "--since", "soon"), 2, "not a time"),
        (("LOG", "--since", "2025-10-10", "--until", "2025-10-09"), 2, "not before"),
        (("LOG", "--conf", "ui=false"), 2, "spark.KEY=VALUE"),
        (("LOG", "--engine", "embedded", "--master", "local[1]"), 2, "--master is for Spark"),
        (("LOG", "--engine", "embedded", "--conf", "spark.ui.enabled=false"), 2, "--conf is for Spark"),
        (("LOG", "--engine", "embedded", "--scratch", "x"), 2, "--scratch is for Spark"),
        (("LOG", "--keep", "30d"), 2, "--keep is for a table"),
        (("LOG", "--maintenance", "nightly"), 2, "no window of maintenance"),
        (("EMPTY",), 3, "no file is called like one (access.log,"),
        (("LOG", "--json-file", "same", "--html", "same"), 2, "both write to"),
        (("LOG", "--json-file", "/proc/nowhere/x"), 2, "cannot write"),
        (("LOG", "--explain", "../x"), 2, "--explain takes"),
        (("LOG", "-q", "-v"), 2, "contradict"),
        (("LOG", "--engine", "embedded", "s3a://bucket/logs"), 2, "only Spark reads"),
        (("LOG", "--set", "frobnicate=1"), 2, "there are gap_s, slow_gap_s, fast_hits,"),
        (("nowhere.jsonl",), 3, "no such log"),
        (("RUBBISH",), 3, "format"),
        (("LOOP", "--explain", "ffffffffffff"), 3, "no incident ffffffffffff: these logs have"),
    ],
)
def test_errors_are_one_line(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, said: str
) -> None:
    """Usage is 2 and input is 3; the message says what to do."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rubbish.log").write_text("once upon a time\n" * 20)
    (tmp_path / "loop.log").write_text(LOOPING)
    known = {"LOG": str(logs), "LOOP": "loop.log", "RUBBISH": "rubbish.log", "EMPTY": "empty"}
    (tmp_path / "empty").mkdir()
    result = invoke(*(known.get(one, one) for one in arguments))
    assert result.exit_code == code, result.output
    assert said in " ".join(result.stderr.split())
    assert code == 3 or "embedded engine" not in result.stderr


def test_since_and_until(tmp_path: Path) -> None:
    """Only requests of that time, whose bounds may be typed in several ways."""
    (tmp_path / "web.log").write_text(LOOPING)
    usual = (tmp_path, "-q", "--json-file", "-", "--fail-on", "never")
    half = json.loads(invoke(*usual, "--until", "2025-11-25T12:00:20Z").stdout)
    rest = json.loads(invoke(*usual, "--since", "2025-11-25 12:00:20").stdout)
    assert (half["figures"]["requests"], rest["figures"]["requests"]) == (80, 120)
    assert half["quality"]["caveats"][0] == "Only requests before 2025-11-25 12:00:20 UTC were looked at."
    none = invoke(tmp_path, "--since", "2025-12-01", "--until", "2025-12-02").stdout
    assert none.startswith("No requests to judge.\nExamined: no requests.\n")
    assert "Only requests from 2025-12-01 00:00:00 UTC on and before 2025-12-02 00:00:00" in none


def test_a_path_prefix_of_our_own_log(logs: Path, report: dict[str, Any]) -> None:
    """It changes nothing there, and the report says so: whoever gives it expects that it does something."""
    said = "--path-prefix /live changes nothing in tricklecast logs: their lines name the channel."
    other = told(logs, "--path-prefix", "/live")
    assert [one["id"] for one in other["incidents"]] == [one["id"] for one in report["incidents"]]
    assert said in other["quality"]["caveats"]
    assert said not in report["quality"]["caveats"]
    result = invoke("check", logs, "--path-prefix", "/live")
    assert (result.exit_code, said in result.stdout) == (0, True), result.output


def test_thresholds(logs: Path, tmp_path: Path, report: dict[str, Any]) -> None:
    """From a file and from the command line, which wins; the report says which applied."""
    (tmp_path / "p.toml").write_text("[storms]\nfast_hits = 112\nslow_hits = 9\n")
    document = told(logs, "--params", tmp_path / "p.toml", "--set", "slow_hits=112")
    assert (document["params"]["fast_hits"], document["params"]["slow_hits"]) == (112, 112)
    assert 0 < len(document["incidents"]) < len(report["incidents"])


def test_the_baseline_gives_rates_and_their_ratio(tmp_path: Path) -> None:
    """Against itself, each ratio is 1."""
    (tmp_path / "web.log").write_text(LOOPING)
    document = told(tmp_path, "--baseline", tmp_path, "--fail-on", "minor")
    assert len(document["baseline"]) == 3
    for rate in document["baseline"]:
        assert (rate["ratio"], rate["here"]) == (1.0, rate["before"])


def test_explain_shows_lines_and_steps(logs: Path, tmp_path: Path, report: dict[str, Any]) -> None:
    """By the number, as by the beginning of the id (report/test_requests.py): the paragraph, lines of the log, the rows
    of each step."""
    one = report["incidents"][2]
    result = invoke(logs, "--explain", "3", "--json-file", tmp_path / "a.json")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"INCIDENT 3 · {one['words']['fault']} · {one['words']['happened']}")
    assert f"\nWhy it is {one['storm']}:\n  - " in result.stdout.partition("\nIts lines:\n")[0]
    for table in ("candidate", "stretches", "classed", "episodes", "incidents"):
        assert f"\n{table}: " in result.stdout
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["incident"]["id"] == one["id"]
    assert {"Why it is a storm", f"Why it is {one['severity']}"} <= set(document["reasons"])
    assert document["steps"][-1]["rows"][0]["n"] == one["n"]


def test_any_web_server_s_log(tmp_path: Path) -> None:
    """One client's 900 answers of 401 are an incident though no path is a channel's; --generic judges all lines so."""
    line = '192.0.2.7 - - [09/Oct/2025:08:{:02d}:{:02d} +0000] "GET /api/token HTTP/1.1" 401 12 "-" "app/2"\n'
    (tmp_path / "access.log").write_text("".join(line.format(n // 600, n // 10 % 60) for n in range(900)))
    report = tmp_path / "report.json"
    options = ("--set", "peak_rps=5", "--maintenance", "09:00-10:00", "--json-file", report)
    other = invoke(tmp_path / "access.log", *options)
    for document in (json.loads(report.read_text()), told(tmp_path / "access.log", "--generic")):
        (one,) = document["incidents"]
        assert (one["storm"], one["n"]) == ("web_loop", 900)
        assert one["words"]["happened"].startswith("192.0.2.7 (app/2) sent GET /api/token 900 times")
        assert (one["impact"]["handler_us"], one["impact"]["handler_share"]) == (None, None)  # it has no durations
        assert document["figures"]["wasted_handler_s"] is None
    said = other.stdout
    assert other.exit_code == 1
    assert "  Wasted: 899 requests (10.5 KiB, the log has no durations)\n" in said
    assert "  Impact: 100 % of the requests" in said
    muted = invoke(tmp_path / "access.log", "--maintenance", "08:00-09:00")
    assert (muted.exit_code, muted.stdout.partition("\n")[0]) == (0, "No incidents; 1 muted.")
    assert "(in maintenance (08:00-09:00))" in muted.stdout
    assert "channel" not in said


def test_other_paths_beside_channels(tmp_path: Path) -> None:
    """The report says what counts of them: refusals by the server alone, unless --generic."""
    known = {"v": 1, "node": "n", "kind": "exchange", "client": "c", "method": "GET"}
    page = [known | {"ts_us": 1_760_000_000_000_000 + turn, "path": "/login", "status": 401} for turn in range(9)]
    read = known | {"ts_us": 1_760_000_000_000_000, "op": "read", "channel": "film", "status": 200, "bytes_out": 1}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*page, read]))
    said = "9 requests to paths that are not channels: only 429 and 5xx count there, unless --generic."
    for options, expected in (((), True), (("--set", "generic=1"), False)):
        usual = ("-q", "--json-file", "-", "--fail-on", "never")
        report = json.loads(invoke(tmp_path / "a.jsonl", *usual, *options).stdout)
        assert (said in report["quality"]["caveats"]) == expected


def test_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 4 and what to install for those who asked for Spark; else the embedded engine does it, with a word."""
    monkeypatch.setattr("tricklecast.analytics.spark.java.find_java", lambda: None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", classmethod(lambda cls: None))
    monkeypatch.setattr(embedded, "HELD", 1 << 40)
    (tmp_path / "web.log").write_text(LOOPING)
    result = invoke(tmp_path, "--engine", "spark")
    assert result.exit_code == 4
    assert "install" in result.stderr
    result = invoke(tmp_path)
    assert result.exit_code in (0, 1)
    assert "may not fit into /tmp, but Spark needs Java 17: embedded engine" in result.stderr


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which 1,000 bytes of logs fit, and on which Spark can run."""
    monkeypatch.setattr(embedded, "MEMORY", 0)
    monkeypatch.setattr(storms, "_spark_is_missing", str)
    free = SimpleNamespace(free=1000 * embedded.HELD)
    monkeypatch.setattr("tricklecast.analytics.scan.embedded.shutil.disk_usage", lambda _: free)


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize(
    ("name", "content", "master", "expected"),
    [
        ("a.log", bytes(1000), None, EngineName.EMBEDDED),
        ("a.log", bytes(1001), None, EngineName.SPARK),
        ("a.log.gz", b"\x1f\x8b" + bytes(123), None, EngineName.EMBEDDED),
        ("a.log.gz", b"\x1f\x8b" + bytes(124), None, EngineName.SPARK),  # its lines are 8 times as large
        ("a.log", b"", "spark://host:7077", EngineName.SPARK),
        ("s3a://bucket/a", b"", None, EngineName.SPARK),
        ("hdfs://host/a", b"", None, EngineName.SPARK),
        ("-", b"", None, EngineName.EMBEDDED),
    ],
)
def test_the_choice_of_engine(
    name: str, content: bytes, master: str | None, expected: EngineName, tmp_path: Path
) -> None:
    """DuckDB for what is here and fits into memory and on the disk; Spark for the rest, if it can run."""
    if content:
        name = str(tmp_path / name)
        Path(name).write_bytes(content)
    assert choose_engine(EngineName.AUTO, LogFiles((name,), len(content)), None, master)[0] is expected


@pytest.mark.usefixtures("room")
def test_logs_that_do_not_fit(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to do, whether that is known before or found when the disk is full; nothing is left."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(embedded, "SMALL", 0)

    def said() -> str:
        result = invoke(logs, "--engine", "embedded")
        assert (result.exit_code, result.stdout, list(tmp_path.iterdir())) == (2, "", [])
        assert "Set TMPDIR" in result.stderr
        assert result.stderr.count("\n") == 1
        return result.stderr

    assert "lacks at least" in said()
    monkeypatch.undo()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(embedded, "SMALL", 0)
    full = f"{os.strerror(errno.ENOSPC)}: a file of DuckDB"

    def roll_up(connection: duckdb.DuckDBPyConnection, *_: object, **__: object) -> None:
        connection.execute("SELECT error(?)", [full]).fetchall()

    monkeypatch.setattr(embedded, "roll_up", roll_up)
    assert "is full" in said()


def test_ctrl_c_ends_cleanly(tmp_path: Path) -> None:
    """130, no trace, no file left, also while standard input gives nothing."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tricklecast", "storms", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path), "PATH": ""},
    )
    assert child.stdin is not None
    assert child.stderr is not None
    guard = threading.Timer(WITHIN_S, child.kill)
    guard.start()
    try:
        child.stderr.readline()
        while not list(tmp_path.iterdir()):  # that may be the file with which Python tries the folder
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate()
    finally:
        guard.cancel()
        child.kill()
    assert (child.returncode, out, errors, list(tmp_path.iterdir())) == (130, b"", b"", [])


INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupts:
    starts = False

    def find_spec(self, name, path, target=None):
        if name == "_duckdb":
            self.starts = True
            sys.modules.pop("atexit", None)  # it is imported in the middle of the start
        elif name == "atexit" and self.starts:
            self.starts = False
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from tricklecast.__main__ import main
main()
"""


def test_ctrl_c_while_duckdb_starts_is_ctrl_c(tmp_path: Path) -> None:
    """130, and not the ImportError that DuckDB would make of it."""
    (tmp_path / "web.log").write_text(LOOPING)
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, "storms", str(tmp_path / "web.log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_folder_s_logs_are_found_whatever_they_are_called(tmp_path: Path) -> None:
    """A file is a log if its lines are, and what is none is named."""
    names = ["access_log", "access.log-20251124", "0.log.20251125-120000", "web.txt"]
    for number, name in enumerate(names):
        (tmp_path / name).write_text(LOOPING.replace("203.0.113.7", f"203.0.113.{number}"))
    (tmp_path / "notes.md").write_text("# Notes\n")
    result = invoke(tmp_path, "-q", "--json-file", "-")
    document = json.loads(result.stdout)
    assert sorted(document["inputs"]) == sorted(str(tmp_path / name) for name in names)
    assert document["quality"]["lines"] == 4 * 200
    assert "notes.md" in " ".join(document["quality"]["caveats"])


def test_pipes_are_read_once(tmp_path: Path) -> None:
    """A named pipe, or a shell's <(zcat …), is read like the file that it is of, and called by its name."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(LOOPING,))
    writer.start()
    result = invoke(tmp_path / "pipe", "-q", "--json-file", "-", "--fail-on", "minor")
    writer.join()
    report = json.loads(result.stdout)
    assert (result.exit_code, report["inputs"]) == (1, [str(tmp_path / "pipe")])
    assert (report["quality"]["lines"], len(report["incidents"])) == (200, 1)


NO_STATUS = '[fields]\nts_us={from="t",unit="time"}\nmethod="m"\npath="p"\nip="ip"\n'
NO_CLIENT = NO_STATUS.replace("ip=", "status=").replace('"ip"', '"s"')


@pytest.mark.parametrize(("fields", "code", "said"), [(NO_STATUS, 3, "has a status"), (NO_CLIENT, 0, "name no client")])
def test_what_a_log_lacks_stands_first(tmp_path: Path, fields: str, code: int, said: str) -> None:
    """Without statuses or clients a report of no incidents would be a lie."""
    (tmp_path / "map.toml").write_text(fields)
    line = {"t": "2025-11-25T12:00:00Z", "m": "GET", "p": "/", "ip": "203.0.113.7", "s": 200}
    (tmp_path / "a.log").write_text(f"{json.dumps(line)}\n" * 50)
    result = invoke(tmp_path / "a.log", "--format", tmp_path / "map.toml")
    assert result.exit_code == code
    assert said in result.stdout.partition("Figures")[0]


def test_an_hour_s_requests_may_stand_in_the_next(tmp_path: Path) -> None:
    """A request of before --until that ended after the hour is in the next hour's folder."""
    (tmp_path / "dt=2025-11-25" / "hr=12").mkdir(parents=True)
    log = "".join(line[:-1] + " 30.000\n" for line in LOOPING.splitlines(keepends=True))
    (tmp_path / "dt=2025-11-25" / "hr=12" / "access.log").write_text(log)
    result = invoke(tmp_path, "--until", "2025-11-25T12:00:00Z", "-q", "--json-file", "-", "--fail-on", "never")
    report = json.loads(result.stdout)
    assert (report["figures"]["requests"], result.exit_code) == (120, 0)
    assert report["incidents"]
