"""Foreign lines become records; what cannot be one is counted, and harms no other line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.analytics.sources.lines import CADDY, COMBINED, ENVOY, NGINX, TS_US, as_line
from tests.analytics.support.writer import write_lines
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.normalise import answer_kind
from tricklecast.analytics.schema import CORRUPT, log_schema
from tricklecast.analytics.sources import Reading, read_logs

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

Read = Callable[..., list["Row"]]

LINES = {
    "nginx": as_line(NGINX),
    "combined": COMBINED + b" 0.500 1760000000.750",
    "envoy": as_line(ENVOY),
    "caddy": as_line(CADDY),
}


GONE = {
    "nginx, left": as_line(NGINX | {"status": 499, "body_bytes_sent": 0}),
    "combined, left": LINES["combined"].replace(b" 404 17 ", b" 499 0 "),
    "envoy, left": as_line(ENVOY | {"response_code": 0, "response_flags": "DC", "bytes_sent": 0}),
    "envoy, left, flags": as_line(ENVOY | {"response_code": 0, "response_flags": "UPE,DC", "bytes_sent": 0}),
    "caddy, left": as_line(CADDY | {"status": 0, "size": 0}),
}


@pytest.fixture
def read(spark: SparkSession, tmp_path: Path) -> Read:
    """Reads lines as a file of their own, in their order."""

    def read_them(*lines: bytes, **reading: Any) -> list[Row]:
        path = write_lines(tmp_path / "some.log", lines)
        frame = read_logs(spark, find_logs([str(path)]), Reading(**reading))
        assert frame.columns == log_schema().names
        return frame.withColumn("answer", answer_kind()).collect()

    return read_them


@pytest.fixture(scope="module")
def mixed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """The same request in files of all formats, answered and not, read at once."""
    folder = tmp_path_factory.mktemp("mixed")
    for name, line in (LINES | GONE).items():
        write_lines(folder / f"{name}.log", [line.replace(b"(Linux)", f"({name})".encode())])
    rows = read_logs(spark, find_logs([str(folder)])).withColumn("answer", answer_kind()).collect()
    return {row["ua"].partition("(")[2].rstrip(")"): row for row in rows}


@pytest.mark.parametrize("name", LINES)
def test_the_same_request_in_every_format(name: str, mixed: dict[str, Row]) -> None:
    """Arrival, op, channel, seq, status, size, duration and client are those of the request."""
    row = mixed[name]
    wanted = {
        "v": 1,
        "kind": "exchange",
        "ts_us": TS_US,
        "op": "read",
        "method": "GET",
        "path": "/trickle/film/12",
        "channel": "film",
        "seq": 12,
        "status": 404,
        "bytes_out": 17,
        "dur_us": 500_000,
        "ip": "192.0.2.7",
        "release": "player/2.1",
        "answer": "not_found",
        CORRUPT: None,
    }
    assert {field: row[field] for field in wanted} == wanted
    assert row["client"].startswith("192.0.2.7#")


def test_what_headers_say(read: Read) -> None:
    """Our headers, where a log has them, give what a proxy cannot know."""
    said = NGINX | {
        "status": 200,
        "body_bytes_sent": 0,
        "http_trickle_client": "studio",
        "http_trickle_attempt": "3",
        "sent_http_lp_trickle_seq": "12",
        "sent_http_lp_trickle_latest": "14",
        "sent_http_lp_trickle_closed": "terminated",
        "sent_http_retry_after": "2.5",
        "hostname": "edge-1",
    }
    row, other = read(as_line(said), as_line(said | {"sent_http_lp_trickle_closed": "", "http_trickle_client": "-"}))
    assert (row["client"], row["attempt"], row["rseq"], row["next_seq"], row["eos"]) == ("studio", 3, 12, 14, True)
    assert (row["retry_after_ms"], row["node"], row["wait_us"], row["answer"]) == (2500, "edge-1", 250_000, "ended")
    assert (other["eos"], other["answer"], other["client"][:10]) == (False, "zero_byte", "192.0.2.7#")


@pytest.mark.parametrize("name", GONE)
def test_clients_that_left_first(name: str, mixed: dict[str, Row]) -> None:
    """A client that left before it was answered is told as such, and has no status."""
    row = mixed[name]
    assert (row["reason"], row["status"], row["answer"]) == ("client_gone", None, "abandoned")


TIMES: dict[str, tuple[dict[str, Any], int | None]] = {
    "zone": ({"time_iso8601": "2025-10-09T10:53:21+02:00"}, 1_760_000_001_000_000),
    "no zone": ({"time_iso8601": "2025-10-09T08:53:21"}, 1_760_000_001_000_000),
    "local": ({"time_local": "09/Oct/2025:10:53:21 +0200"}, 1_760_000_001_000_000),
    "as text": ({"msec": "1760000000.750"}, TS_US + 500_000),
    "exponent": ({"msec": "1.76e9"}, 1_760_000_000_000_000),
    "no number": ({"msec": "soon"}, None),
    "not a number": ({"msec": "NaN"}, None),
    "infinite": ({"msec": "Infinity"}, None),
    "beyond 64 bits": ({"msec": 1e300}, None),
    "list": ({"msec": [1]}, None),
    "object": ({"msec": {"a": 1}}, None),
    "no date": ({"time_iso8601": "2025-13-09T10:53:21+02:00"}, None),
    "nothing": ({}, None),
}


def test_times_in_many_forms(read: Read) -> None:
    """Dates with zones, numbers and texts are times; what is none makes the line unparsable, and only that line."""
    bare = {name: value for name, value in NGINX.items() if name not in ("msec", "request_time")}
    every = [as_line(bare | {"msec": 1, "time_iso8601": "", "time_local": ""})]  # all sources are in use in this file
    rows = read(*every, *(as_line(bare | given) for given, _ in TIMES.values()))[1:]
    assert [row["ts_us"] for row in rows] == [ts_us for _, ts_us in TIMES.values()]
    assert [row["answer"] == "unparsable" for row in rows] == [ts_us is None for _, ts_us in TIMES.values()]


def test_a_duration_of_whole_seconds_moves_a_time_of_whole_seconds(read: Read) -> None:
    """A stamp in whole seconds is moved by the seconds that a request took, and stays whole."""
    coarse = {"time_iso8601": "2025-10-09T08:53:21+00:00", "msec": ""}
    lines = [as_line(NGINX | coarse | {"request_time": took}) for took in ("0.4", "1.6", "")]
    assert [row["ts_us"] // 1_000_000 for row in read(*lines)] == [1_760_000_001, 1_759_999_999, 1_760_000_001]


ODD: dict[str, tuple[dict[str, Any], str, Any]] = {
    "status as text": ({"status": "404"}, "status", 404),
    "status as nonsense": ({"status": "OK"}, "answer", "unparsable"),
    "status as a list": ({"status": [404]}, "answer", "unparsable"),
    "status of nobody": ({"status": 7}, "status", None),
    "no status": ({"status": "-"}, "answer", "ok"),
    "bytes as nonsense": ({"body_bytes_sent": "many"}, "bytes_out", None),
    "bytes beyond 64 bits": ({"body_bytes_sent": 10**30}, "bytes_out", None),
    "negative duration": ({"request_time": -5}, "dur_us", None),
    "duration beyond": ({"request_time": 1e300}, "dur_us", None),
    "path as a number": ({"request_uri": 5}, "op", "api"),
    "path with markup": ({"request_uri": "/trickle/<script>alert(1)</script>/3"}, "op", None),
    "no path": ({"request_uri": None}, "op", "api"),
    "IPv6": ({"remote_addr": "2001:db8::1"}, "ip", "2001:db8::1"),
    "IPv6 and port": ({"remote_addr": "[2001:db8::1]:443"}, "ip", "2001:db8::1"),
    "IPv4 and port": ({"remote_addr": "192.0.2.9:443"}, "ip", "192.0.2.9"),
    "forwarded": ({"remote_addr": "203.0.113.9, 10.0.0.1"}, "ip", "203.0.113.9"),
    "IPv4 in IPv6": ({"remote_addr": "::ffff:192.0.2.9"}, "ip", "::ffff:192.0.2.9"),
    "no address": ({"remote_addr": ""}, "client", None),
    "connection as text": ({"connection": "17"}, "conn", 17),
    "user agent as an object": ({"http_user_agent": {"a": 1}}, "release", '{"a":1}'),
    "long": ({"http_user_agent": "x" * 5_000_000}, "release", "x" * 64),
}


def test_values_of_any_kind(read: Read) -> None:
    """A wrong value is absent, or spoils its line if that were another one without it; no other line is harmed."""
    rows = read(*(as_line(NGINX | given) for given, _, _ in ODD.values()))
    assert {name: row[field] for (name, (_, field, _)), row in zip(ODD.items(), rows, strict=True)} == {
        name: wanted for name, (_, _, wanted) in ODD.items()
    }


def test_lines_about_something_else_are_passed_over(read: Read) -> None:
    """Caddy's other messages are no requests, and no broken lines either; broken lines still are."""
    rows = read(LINES["caddy"], b'{"level":"info","ts":1760000000.5,"msg":"serving"}', b'{"ts":17', b"", LINES["caddy"])
    assert [row["answer"] for row in rows] == ["not_found", "unparsable", "not_found"]


def test_broken_lines_are_kept_if_wanted(read: Read) -> None:
    """A line that is no request is counted; whoever asks for it gets it as it was, or nearly."""
    lines = (LINES["nginx"], b'{"msec":1760000000.5,"status":"x"}', b'{"cut')
    assert [row[CORRUPT] for row in read(*lines)] == [None, "no request", '{"cut']
    kept = [row[CORRUPT] for row in read(*lines, keep=True)][1]
    assert json.loads(kept) == {"msec": "1760000000.5", "status": "x"}


def test_words(read: Read) -> None:
    """Lines of words: too few or too many, quotes, escapes and a handshake that is no request line."""
    rows = read(
        COMBINED,
        COMBINED.replace(b"film", rb"fi\x22lm"),
        COMBINED.replace(b"player/2.1 (Linux)", rb"\"quoted\" player"),
        COMBINED.replace(b"GET /trickle/film/12?x=1 HTTP/1.1", rb"\x16\x03\x01"),
        COMBINED.replace(b" - - ", b" - two words "),
        b"192.0.2.7 - -",
        b'"' * 1000,
        b"\0x\0",
        COMBINED.replace(b"+0000", b"+0200"),
    )
    assert [row["answer"] for row in rows] == [
        *("not_found", "not_found", "not_found", "ok"),
        *("unparsable", "unparsable", "unparsable", "unparsable", "not_found"),
    ]
    assert rows[1]["channel"] == r"fi\x22lm"
    assert rows[-1]["ts_us"] == 1_760_000_000_000_000 - 7200 * 1_000_000


def test_prefix_of_the_paths(read: Read) -> None:
    """The prefix that was asked for takes the place of the map's."""
    lines = [as_line(NGINX | {"request_uri": uri}) for uri in ("/live/film/12", "/trickle/film/12")]
    assert [(row["op"], row["channel"]) for row in read(*lines, path_prefix="/live")] == [
        ("read", "film"),
        ("api", None),
    ]


def test_a_map_of_ones_own(read: Read, tmp_path: Path) -> None:
    """Nested fields, keys with dots, nanoseconds and seqs that the log knows itself."""
    path = tmp_path / "own.toml"
    path.write_text(
        'stamped = "start"\n[fields]\nts_us = { from = ["at.ns"], unit = "ns" }\nmethod = "req.0"\npath = "req.1"\n'
        'status = "res.code"\nseq = "n"\nop = "what"\ndur_us = { from = "took", unit = "us" }\nreason = "why"\n'
    )
    line = {"at.ns": TS_US * 1000, "req": ["GET", "/trickle/film/x"], "res": {"code": 404}, "n": 5, "took": 7.4}
    (row,) = read(as_line(line | {"what": "read", "why": "not_found"}), format=str(path))
    assert (row["ts_us"], row["seq"], row["op"], row["channel"]) == (TS_US, 5, "read", "film")
    assert (row["dur_us"], row["reason"], row["answer"]) == (7, "not_found", "not_found")
