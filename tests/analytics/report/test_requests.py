"""Back to the lines of an incident: what sets them apart from others, and all of them in a file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from pyarrow import parquet  # type: ignore[import-untyped]  # it ships no types
from typer.testing import CliRunner, Result

from tests.analytics.support.rules import rules
from tests.support.long import mostly_long
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines import find_logs
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.lines.records import PARSED
from tricklecast.analytics.pipeline import again
from tricklecast.analytics.pipeline.run import _chosen
from tricklecast.analytics.report import requests
from tricklecast.analytics.scan import embedded
from tricklecast.app.cli import cli

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_US = 1_760_000_000_000_000
VALUES = {
    "release": ["app/2.2", "app/2.3.0", "app/2.3.1"],
    "network": [f"10.7.{number}" for number in range(8)],
    "node": [f"web-{number}" for number in range(4)],
    "path": [f"/page/{number}" for number in range(9)],
}
"""Of healthy clients, each as common as the others; the last of each is that of a storm that differs in it."""


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["storms", *map(str, arguments)])


def traffic(seed: int, differs: str | None = None) -> list[dict[str, Any]]:
    """Two minutes of a web server: 400 clients, of which 60 repeat a request that is refused for 20 s.

    Args:
        differs: in which kind of value those who repeat differ from the others.
    """
    dice = random.Random(seed)
    lines = []
    for number in range(400):
        own = {kind: dice.choice(values) for kind, values in VALUES.items()}
        storms = number < 60
        if storms and differs is not None and dice.random() < 0.9:
            own[differs] = VALUES[differs][-1]
        client = {
            "v": 1,
            "kind": "exchange",
            "method": "GET",
            "client": f"client-{number}",
            "ip": f"{own['network']}.{number % 250}",
            "release": own["release"],
            "ua": f"{own['release']} (linux)",
        }
        wanted = [(dice.uniform(0, 120), 200) for _ in range(8)]
        begins = dice.uniform(60, 62)
        wanted += [(begins + dice.uniform(0.5, 0.6) * turn, 503) for turn in range(35)] if storms else []
        for at, status in wanted:
            path, node = (dice.choice(VALUES[kind]) for kind in ("path", "node"))
            if status == 503:
                path = own["path"] if differs == "path" else "/token"
                node = own["node"] if differs == "node" else node
            lines.append(client | {"ts_us": START_US + int(at * 1e6), "status": status, "path": path, "node": node})
    return sorted(lines, key=lambda line: line["ts_us"])


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def incidents(log: Path) -> list[dict[str, Any]]:
    document = json.loads(invoke(log, "-q", "--json-file", "-").stdout)
    found: list[dict[str, Any]] = document["incidents"]
    return found


@pytest.mark.parametrize("differs", mostly_long(VALUES, 2))
def test_a_difference_is_told(differs: str, tmp_path: Path) -> None:
    """What 90 % of the clients of a storm have in common, and others have as often as chance has it."""
    report, log = tmp_path / "report.json", write(tmp_path / "a.jsonl", traffic(1, differs))
    shown = " ".join(invoke(log, "--json-file", report).stdout.split())
    found = json.loads(report.read_text())["incidents"]
    worst = found[0]["lifts"]
    assert {one["kind"] for one in worst} == {differs} | ({"user agent"} if differs == "release" else set())
    for one in worst:
        assert one["name"].startswith(VALUES[differs][-1])
        assert 0.8 < one["here"] <= 1
        assert one["others"] < 0.5
        assert one["words"] in shown
    assert not any(one["lifts"] for one in found[1:])


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_no_difference_is_invented(seed: int, tmp_path: Path) -> None:
    """Clients that are like all others have nothing that sets them apart; nor has one client, whatever it is like."""
    lines = traffic(seed)
    alone = {"client": "alone", "ip": "192.0.2.7", "release": "odd/1", "ua": "odd/1 (x)", "node": "web-1"}
    lines += [
        lines[0] | alone | {"path": "/alone", "status": 500, "ts_us": START_US + turn * 100_000} for turn in range(300)
    ]
    found = incidents(write(tmp_path / "a.jsonl", lines))
    assert len(found) >= 2
    assert [one["lifts"] for one in found] == [[] for _ in found]


LOOP = [
    {
        "v": 1,
        "ts_us": START_US + turn * 100_000,
        "node": "n",
        "kind": "exchange",
        "op": "read",
        "method": "GET",
        "path": f"/trickle/film/{turn}",
        "status": 404 if turn % 3 else 200,
        "bytes_out": 0 if turn % 3 else 9,
        "channel": "film",
        "client": "mine" if turn % 5 else "other",
    }
    for turn in range(600)
]
OURS = [number for number, line in enumerate(LOOP, 1) if line["client"] == "mine" and line["status"] == 404]


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A log with a loop, and its incident."""
    log = write(tmp_path_factory.mktemp("looped") / "a.jsonl", LOOP)
    (worst, *_) = incidents(log)
    return log, worst


def test_all_lines_of_an_incident(looped: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """As they stand in their files, with what was understood: the same as JSON lines, as Parquet and on a pipe."""
    log, worst = looped
    result = invoke(log, "--lines", "1")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (0, f"storms: {len(OURS)} lines")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert worst["n"] == len(rows) == len(OURS)
    texts = log.read_text().splitlines()
    assert [(row["text"], row["file"], row["no"]) for row in rows] == [(texts[no - 1], str(log), no) for no in OURS]
    assert {(row["client"], row["channel"], row["status"]) for row in rows} == {("mine", "film", 404)}
    assert (rows[0]["ts_us"], rows[-1]["ts_us"]) == (worst["since_us"], worst["until_us"])
    for name, wanted in (("lines.jsonl", worst["id"]), ("lines.parquet", worst["id"][:9])):
        assert invoke(log, "--lines", wanted, "-o", tmp_path / name, "-q").output == ""
    assert (tmp_path / "lines.jsonl").read_text() == result.stdout
    table = parquet.read_table(tmp_path / "lines.parquet")
    assert [{key: value for key, value in row.items() if value is not None} for row in table.to_pylist()] == rows


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--lines", "x"), 2, "--lines takes an incident's id"),
        (("--lines", "1", "--html", "a.html"), 2, "cannot be combined with --html"),
        (("--lines", "1", "--explain", "1"), 2, "cannot be combined with"),
        (("-o", "a.jsonl"), 2, "-o is where --lines writes to"),
        (("--lines", "1", "-o", "/proc/nowhere/x"), 2, "cannot write"),
    ],
)
def test_lines_that_cannot_be_written(
    options: tuple[str, ...], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2 or 3, what to do instead, and no file."""
    monkeypatch.chdir(tmp_path)
    result = invoke(write(tmp_path / "a.jsonl", LOOP), *options, "-q")
    assert result.exit_code == code
    assert said in " ".join(result.output.replace("│", "").split())
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_an_incident_is_chosen_by_number_id_or_its_beginning(looped: tuple[Path, dict[str, Any]]) -> None:
    """Whoever asks for one that is not there is told the nearest id, as when it was typed, or the worst ones."""
    log, one = looped
    with embedded.connect(0) as con:
        read_lines(con, find_logs([str(log)]))
        (found,) = rules().of(con)
    for wanted in ("1", one["id"], one["id"][:5]):
        assert _chosen([found], wanted).id == one["id"]
    wrong = one["id"][:-1] + ("0" if one["id"][-1] != "0" else "1")
    few = "these logs have 1 incident"
    for wanted, said in ((wrong, f"{few}, the nearest: {one['id']}"), ("x" * 12, f"{few}, the worst:"), ("9", few)):
        with pytest.raises(BadInput, match=f"there is no incident {wanted}: {said}"):
            _chosen([found], wanted)


def members_of(con: duckdb.DuckDBPyConnection, clients: str, named: bool) -> None:
    """Lines of 250 clients that are refused on 30 paths, and those of them that are of the members of an incident."""
    con.execute(f"CREATE TABLE parsed_line ({', '.join(' '.join(column) for column in PARSED)})")
    con.execute("""INSERT INTO parsed_line BY NAME
        SELECT 1000 + c AS ts_us, 'exchange' AS kind, 'GET' AS method, '/' || p AS path, 503 AS status,
            'c' || c AS client, '10.0.0.1' AS ip
        FROM range(250) a(c), range(30) b(p)""")
    member = con.sql(f"""SELECT 1 AS incident, 'overload' AS answer, {clients} AS client, {named} AS named,
            NULL::VARCHAR AS channel, true AS everywhere, NULL::VARCHAR[] AS nodes, NULL::BIGINT AS seq_lo,
            NULL::BIGINT AS seq_hi, 0::BIGINT AS since_us, 2000::BIGINT AS until_us""").to_arrow_table()
    requests.find(con, member, generic=False)


def test_values_and_clients_of_an_incident_are_bounded() -> None:
    """The commonest values of each kind, and a sample of the clients of each; so are those that workers add up."""
    with duckdb.connect() as con:
        members_of(con, "unnest(['c' || c FOR c IN range(250)])", named=True)
        own: list[requests.Row] = con.execute(requests.own_sql()).fetchall()
    total, *_ = (row for row in own if row[1] == "")
    assert (total[3], len(total[4])) == (250 * 30, requests.CLIENTS)
    assert sum(row[1] == "path" for row in own) == requests.MAX_VALUES
    twice = requests.added([*own, (*total[:4], [-1, *total[4]])])
    assert next(row[3:] for row in twice if row[1] == "") == (2 * 250 * 30, [-1, *total[4][:-1]])


def test_clients_that_change_their_names_are_found_by_their_network() -> None:
    """On whichever paths they failed: the member is the network, and each of their lines has another name."""
    with duckdb.connect() as con:
        members_of(con, "'10.0.0.0/24'", named=False)
        assert con.execute("SELECT count(*), count(DISTINCT ref) FROM mine").fetchall() == [(250 * 30, 250 * 30)]


def test_requests_in_two_files_are_written_once(tmp_path: Path) -> None:
    """Those of an overlap are left out, as in the report."""
    log = (
        '{{"time_iso8601":"2025-11-25T12:00:{1:02}+00:00","request_method":"GET","request_uri":"/a","status":503,'
        '"remote_addr":"192.0.2.7","request_id":"{0:032x}"}}\n'
    )
    lines = [log.format(turn, turn // 9) for turn in range(400)]
    (tmp_path / "a.log").write_text("".join(lines[:300]))
    (tmp_path / "b.log").write_text("".join(lines[200:]))
    rows = invoke(tmp_path, "--lines", "1").stdout.splitlines()
    assert sorted(json.loads(row)["text"] + "\n" for row in rows) == sorted(lines)


def test_the_engines_agree(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On what sets incidents apart, and on all lines, where Spark's workers read them again."""

    log = write(tmp_path / "a.jsonl", traffic(1, "network"))
    told, lines = incidents(log), invoke(log, "--lines", "1", "-q").stdout
    assert told[0]["lifts"]
    monkeypatch.setattr(again, "READ_HERE", -1)
    document = json.loads(invoke(log, "--engine", "spark", "-q", "--json-file", "-").stdout)
    assert (document["engine"], document["incidents"]) == ("spark", told)
    assert invoke(log, "--engine", "spark", "--lines", "1", "-q").stdout == lines
