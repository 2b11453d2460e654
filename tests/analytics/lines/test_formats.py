"""The same traffic in every format gives the same rows, but for what a format cannot know; and so it does in Spark."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from tests.analytics.lines.traffic import (
    EVENT,
    HOSTILE,
    HOSTILE_COMBINED,
    HOSTILE_NGINX,
    NOW_US,
    START_US,
    TRAFFIC,
    Row,
    as_line,
    plain_combined,
    read_files,
    request,
    write,
    written,
)
from tricklecast.analytics.lines import LINE, Reading, find_logs
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.lines.files import node_of
from tricklecast.analytics.simulate.formats import FormatName
from tricklecast.analytics.spark import lines as spark_lines
from tricklecast.analytics.spark import scan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORDS = {"event", "epoch", "reason", "bytes_in", "guard_ms", "conn"}
HEADERS = {"rseq", "next_seq", "eos", "attempt", "retry_after_ms"}

FOREIGN: dict[str, tuple[bytes, set[str]]] = {
    "nginx": (written(FormatName.NGINX_JSON), WORDS - {"conn"}),
    "envoy": (written(FormatName.ENVOY), WORDS - {"bytes_in", "conn"}),
    "caddy": (written(FormatName.CADDY), WORDS - {"bytes_in", "conn"} | {"node", "wait_us"}),
    "combined": (written(FormatName.NGINX), WORDS | HEADERS | {"node", "wait_us"}),
    "plain combined": (plain_combined(), WORDS | HEADERS | {"node", "wait_us", "dur_us", "ts_us"}),
}
"""What each format's traffic looks like, and which columns it is blind for."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """The rows of the server's own log."""
    rows, _ = read_files(write(tmp_path_factory.mktemp("own") / "a.jsonl", written(FormatName.JSONL)))
    return rows


def test_our_own_log_says_what_was_asked(own: list[Row]) -> None:
    """Columns are the record's fields; what is left out of a record stands there as what it means."""
    assert [row["ts_us"] for row in own] == [line["ts_us"] for line in TRAFFIC]
    assert [row["seq"] for row in own] == [line.get("seq") for line in TRAFFIC]
    assert {row["blind"] for row in own} == {""}
    assert [row["eos"] for row in own] == [line.get("eos", False) for line in TRAFFIC]
    assert own[0]["bytes_in"] == 0
    assert (own[18]["op"], own[18]["channel"], own[18]["path"]) == (None, None, "/api/token")


@pytest.mark.parametrize("name", FOREIGN)
def test_every_format_gives_the_same_rows(name: str, own: list[Row], tmp_path: Path) -> None:
    """Only the columns that are named as blind differ."""
    log, blind = FOREIGN[name]
    rows, lines = read_files(write(tmp_path / "a.log", log))
    assert {frozenset(row["blind"].split(",")) for row in rows} == {frozenset(blind)}
    assert lines.counts.bad == 0
    # A client that gives no name has another key in each log; here its name is in a header that "combined" lacks.
    nameless = {"client"} if "combined" in name else set()
    # Where the number of a connection is not known, the client's port tells connections apart.
    ports = {"conn"} if name == "caddy" else set()
    compared = [column for column, _ in LINE if column not in {*blind, *nameless, *ports, "blind", "request"}]

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(repr(row[column]) for column in compared)

    assert sorted(map(key, rows)) == sorted(map(key, own))


def test_arrival_is_not_the_end(own: list[Row], tmp_path: Path) -> None:
    """A proxy writes down the end of a long poll; its arrival was twenty seconds before."""
    rows, _ = read_files(write(tmp_path / "a.log", FOREIGN["nginx"][0]))
    assert [row["ts_us"] for row in rows] == [row["ts_us"] for row in own]


def test_whole_seconds_stay_whole(tmp_path: Path) -> None:
    """A log whose times are whole seconds says so, and a duration makes them no finer."""
    line = as_line({"time_iso8601": "2025-10-09T10:53:21+02:00", "status": 200, "request": "GET / HTTP/1.1"})
    timed = as_line({"time_iso8601": "2025-10-09T08:53:21", "request_time": 0.7, "status": 200, "request": "GET / H"})
    rows, _ = read_files(write(tmp_path / "a.log", [line, timed]))
    assert [row["ts_us"] for row in rows] == [START_US, START_US + 1_000_000]
    assert "ts_us" in rows[0]["blind"]


def test_what_a_refusal_repeats_was_not_resolved(tmp_path: Path) -> None:
    """With 470 a server sends the seq that was asked for; its own log has no resolved one."""
    nginx = {"msec": START_US / 1e6, "request": "GET /trickle/film/9 HTTP/1.1", "sent_http_lp_trickle_seq": "9"}
    log = [as_line(nginx | {"status": status}) for status in (200, 470)]
    rows, _ = read_files(write(tmp_path / "a.log", log))
    assert [row["rseq"] for row in rows] == [9, None]


def test_where_the_head_is(tmp_path: Path) -> None:
    """The server does not say where the head is if the answer is about the newest segment: it is behind that one."""
    nginx = {"msec": START_US / 1e6, "status": 200, "sent_http_lp_trickle_latest": ""}
    asked = [
        ("POST /trickle/film/4 H", "4", ""),
        ("GET /trickle/film/-1 H", "5", ""),
        ("GET /trickle/film/2 H", "2", "6"),
    ]
    log = [
        as_line(nginx | {"request": line, "sent_http_lp_trickle_seq": seq, "sent_http_lp_trickle_latest": latest})
        for line, seq, latest in asked
    ]
    rows, _ = read_files(write(tmp_path / "a.log", log))
    assert sorted(row["next_seq"] for row in rows) == [5, 6, 6]


def test_what_the_guard_held_back_is_no_cost(tmp_path: Path) -> None:
    """An answer that had nothing to wait for and took long was held back; how long the server worked is not known."""
    nginx: Row = {
        "msec": START_US / 1e6,
        "request_time": "0.900",
        "upstream_header_time": "0.900",
        "body_bytes_sent": "0",
    }
    old: Row = {"status": 200, "sent_http_lp_trickle_seq": "2", "sent_http_lp_trickle_latest": "6"}
    newest: Row = {"status": 200, "sent_http_lp_trickle_seq": "5", "sent_http_lp_trickle_latest": "6"}
    asked: list[Row] = [{"status": 404}, {"status": 470}, old, newest, {"status": 404, "request_time": "0.050"}]
    log = [as_line({"request": "GET /trickle/film/2 H"} | nginx | fields) for fields in asked]
    rows, _ = read_files(write(tmp_path / "a.log", log))
    assert [row["dur_us"] for row in rows] == [None, None, None, 900_000, 50_000]
    assert {row["ts_us"] for row in rows} == {START_US - 900_000, START_US - 50_000}


def test_servers_are_told_apart_by_their_files(tmp_path: Path) -> None:
    """Lines without a server are of the one that their file is called after, whatever rotation has made of its name."""
    line = plain_combined().splitlines()[0]
    names = ["a/access.log", "a/access.log.2.gz", "b/access.log", "b/dt=2025-10-09/hr=08/access-20251009T085320-1.log"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        log = line + b"x" * number + b"\n"
        (tmp_path / name).write_bytes(gzip.compress(log) if name.endswith("gz") else log)
    rows, _ = read_files(str(tmp_path))
    assert Counter(row["node"] for row in rows) == {"a/access": 2, "b/access": 2}
    assert node_of("-") is None


COMMON = b'192.0.2.7 - - [09/Oct/2025:08:53:20 +0000] "GET /trickle/film/3?x=1 HTTP/1.1" 404 17'
TRAEFIK = as_line(
    {"ClientHost": "192.0.2.7", "DownstreamContentSize": 17, "DownstreamStatus": 404, "Duration": 1_234_567}
    | {"RequestMethod": "GET", "RequestPath": "/trickle/film/3?x=1", "StartUTC": "2025-10-09T08:53:20.123456789Z"}
    | {"time": "2025-10-09T08:53:20Z", "request_User-Agent": "player/2.1", "level": "info"}
)


def test_other_web_servers(tmp_path: Path) -> None:
    """Apache's "common" format, and Traefik's JSON."""
    for line, ts_us, dur_us, release in (
        (COMMON, START_US, None, None),
        (TRAEFIK, START_US + 123_456, 1235, "player/2.1"),
    ):
        (row,), lines = read_files(write(tmp_path / "a.log", [line]))
        assert (row["ts_us"], row["dur_us"], row["release"], lines.counts.bad) == (ts_us, dur_us, release, 0)
        assert (row["channel"], row["seq"], row["status"], row["bytes_out"]) == ("film", 3, 404, 17)
        assert row["client"].startswith("192.0.2.7")


def test_clients_without_a_name(tmp_path: Path) -> None:
    """Who sends no name is told by address and user agent; or by what is asked for."""
    path = write(tmp_path / "a.log", FOREIGN["nginx"][0].replace(b'"player-1"', b'""'))
    rows, _ = read_files(path)
    assert {row["client"].partition("#")[0] for row in rows} == {"192.0.2.7", "2001:db8::7"}
    rows, _ = read_files(path, client_key="http_x_none,hostname+ip")
    assert {row["client"] for row in rows} == {"edge-1+192.0.2.7", "edge-1+2001:db8::7"}


def test_channels_elsewhere(tmp_path: Path) -> None:
    """Below another prefix the same paths are channels, and the others are not."""
    rows, lines = read_files(write(tmp_path / "a.log", FOREIGN["caddy"][0]), path_prefix="/")
    assert {row["channel"] for row in rows if row["path"].startswith("/trickle/film")} == {"trickle"}
    assert lines.counts.unrouted == 1  # /api/token


MIXED = {"own": as_line(EVENT) + b"\n" + written(FormatName.JSONL)} | {name: log for name, (log, _) in FOREIGN.items()}
ODD = {"own": HOSTILE, "nginx": HOSTILE_NGINX, "combined": HOSTILE_COMBINED}


@pytest.fixture
def everything(tmp_path: Path) -> list[str]:
    """Files of all formats, and hostile lines among good ones."""
    odd = {
        name: MIXED[name if name in MIXED else "plain combined"] + b"\n".join(line for line, _ in lines) + b"\n\n \n"
        for name, lines in ODD.items()
    }
    odd["combined"] = plain_combined() + b"\n".join(line for line, _ in HOSTILE_COMBINED) + b"\n"
    odd["cut"] = written(FormatName.JSONL) + b'{"v":1,"ts_us":'
    files = MIXED | {f"odd {name}": log for name, log in odd.items()}
    names = [write(tmp_path / f"{name}.log", b"\xef\xbb\xbf" + log) for name, log in files.items()]
    with duckdb.connect() as con:
        read_lines(con, find_logs([names[0]]))
        con.execute(f"COPY (SELECT 1::SMALLINT AS v, * FROM line) TO '{tmp_path / 'rows.parquet'}' (FORMAT parquet)")
    return [*names, str(tmp_path / "rows.parquet")]


def test_both_engines_read_the_same(spark: SparkSession, everything: list[str]) -> None:
    """Row by row, in every format, and whatever is in a line."""
    names = [*(name for name, _ in LINE), "bad", "text"]
    with duckdb.connect() as con:
        files = read_lines(con, find_logs(everything), Reading(), NOW_US).recognised.names
        rows = con.execute(f"SELECT {', '.join(names)}, file FROM parsed_line").fetchall()
    theirs = spark_lines.read_lines(spark, find_logs(everything), Reading()).parsed.select(*names, "name").collect()
    mine = sorted(repr((*row, files[file])) for *row, file in rows)
    assert sorted(repr(tuple(row)) for row in theirs) == mine
    assert sum(row.bad is not None for row in theirs) > 40


def test_spark_drops_doubles_of_overlapping_files(spark: SparkSession, tmp_path: Path) -> None:
    """Requests with an id are counted once where one file goes on from the middle of another; others always count. A
    file that is damaged is named."""
    nginx = {"msec": START_US / 1e6, "request_method": "GET", "request_uri": "/trickle/film/1", "status": 404}
    lines = [as_line(nginx | {"request_id": f"{number:032x}"}) for number in range(8)] + [as_line(nginx)] * 4
    names = [write(tmp_path / "a.log", lines[:6]), write(tmp_path / "b.log", lines[3:])]
    names.append(write(tmp_path / "c.log.gz", gzip.compress(b"\n" * 9)[:-4]))
    found = spark_lines.read_lines(spark, find_logs(names), Reading())
    rolled = scan.roll_up(found, now_us=NOW_US)
    assert rolled.rows.selectExpr("sum(n)").collect()[0][0] == 12
    assert rolled.lines.counts.doubled == 3
    assert rolled.lines.damaged == (names[-1],)


def test_a_record_that_is_newer_than_now_is_counted(tmp_path: Path) -> None:
    """It is kept: whose clock is wrong is not for the reader of lines to say."""
    late = as_line(request(7_200_000, "GET", "/trickle/film/1", 200, op="read", channel="film", seq=1))
    rows, lines = read_files(write(tmp_path / "a.log", [late]))
    assert (len(rows), lines.counts.future) == (1, 1)
