"""One afternoon's traffic, written down in every format; and lines that nobody should have written."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import duckdb

from tricklecast.analytics.lines import Reading, find_logs
from tricklecast.analytics.lines.embedded import Lines, read_lines
from tricklecast.analytics.lines.records import LINE
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.simulate.formats import FormatName

START_US = 1_760_000_000_000_000
"""2025-10-09 08:53:20 UTC."""

NOW_US = START_US + 3_600_000_000

Row = dict[str, Any]


def request(at_ms: int, method: str, path: str, status: int | None, **fields: Any) -> Row:
    """One record of an exchange, as the server would write it."""
    return {
        "v": 1,
        "ts_us": START_US + at_ms * 1000,
        "node": "edge-1",
        "kind": "exchange",
        "method": method,
        "path": path,
        **({} if status is None else {"status": status}),
        "bytes_out": 0,
        "dur_us": 1000,
        "client": "player-1",
        "ip": "192.0.2.7",
        "conn": 17,
        "ua": "player/2.1 (Linux; \u00e9)",
        "release": "player/2.1",
        "attempt": 1,
    } | fields


def _film(op: str, seq: int | None, **fields: Any) -> Row:
    return {"op": op, "channel": "film", **({} if seq is None else {"seq": seq}), **fields}


TRAFFIC: list[Row] = [
    request(0, "POST", "/trickle/film", 200, **_film("create", None, wait_us=1000)),
    request(
        5,
        "POST",
        "/trickle/film/0",
        200,
        **_film("publish", 0, rseq=0, next_seq=1, dur_us=2_000_000, wait_us=1_999_000),
    ),
    # A long poll: it ended twenty seconds after it arrived.
    request(
        10, "GET", "/trickle/film/-1", 200, **_film("read", -1, rseq=1, next_seq=1, dur_us=20_000_000, bytes_out=77)
    ),
    request(40, "GET", "/trickle/film/1", 200, **_film("read", 1, rseq=1, next_seq=2, wait_us=0)),
    request(41, "GET", "/trickle/film/9", 470, **_film("read", 9, next_seq=2, retry_after_ms=2000, bytes_out=15)),
    request(42, "HEAD", "/trickle/film/1", 200, **_film("read", 1, rseq=1, next_seq=2)),
    request(43, "GET", "/trickle/film/next", 200, **_film("next", None, next_seq=2, bytes_out=1)),
    request(44, "GET", "/trickle/_changes/4", 200, op="changes", channel="_changes", seq=4, bytes_out=40, dur_us=7000),
    # Retries within one millisecond, on one connection: as many requests as lines.
    *[request(50, "GET", "/trickle/film/2", 200, **_film("read", 2, attempt=2, eos=True, dur_us=0)) for _ in range(3)],
    request(60, "DELETE", "/trickle/film/1", 200, **_film("close_segment", 1)),
    request(61, "DELETE", "/trickle/film", 200, **_film("delete", None)),
    request(62, "GET", "/trickle/caf%C3%A9+%231/3", 404, op="read", channel="caf\u00e9+#1", seq=3, bytes_out=16),
    request(63, "GET", "/trickle/film/x", 400, op="read", channel="film", bytes_out=12),
    request(64, "GET", "/trickle/film/1/2", 404, channel="film"),
    request(65, "PUT", "/trickle/film/1", 405, channel="film", seq=1),
    request(66, "GET", "/trickle/..%2Fetc/1", 400),
    request(67, "GET", "/api/token", 401, op="api", bytes_out=20),
    request(68, "POST", "/trickle/film/-1", 503, **_film("publish", -1, retry_after_ms=1000, ip="2001:db8::7")),
    # The client left before it was answered.
    request(70, "GET", "/trickle/film/3", None, **_film("read", 3, reason="client_gone", dur_us=250_000)),
]
"""Durations and arrivals are whole milliseconds: finer ones no proxy writes."""

EVENT: Row = {"v": 1, "ts_us": START_US, "node": "edge-1", "kind": "event", "event": "server_ready"}


def written(name: FormatName) -> bytes:
    """The traffic in a format."""
    return name.render(TRAFFIC)


def plain_combined() -> bytes:
    """The traffic in nginx's own "combined" format, with nothing appended."""
    return b"".join(line.rpartition(b'" ')[0] + b'"\n' for line in written(FormatName.NGINX).splitlines())


def as_line(record: Row) -> bytes:
    """A record as a line of JSON."""
    return json.dumps(record, separators=(",", ":")).encode()


def write(path: Path, lines: Sequence[bytes] | bytes) -> str:
    """Writes lines to a file; gives its name."""
    path.write_bytes(lines if isinstance(lines, bytes) else b"".join(line + b"\n" for line in lines))
    return str(path)


def rows_in(con: duckdb.DuckDBPyConnection) -> list[Row]:
    """The rows of ``line``, by arrival and then in the order of the file."""
    names = [name for name, _ in LINE]
    return [dict(zip(names, row, strict=True)) for row in con.execute("SELECT * FROM line ORDER BY ts_us").fetchall()]


Read = Callable[..., tuple[list[Row], Lines]]


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """The one of which each reading has a connection: to make one costs as much as to read a few lines."""
    return embedded.connect(0)


def read_files(*paths: str, **reading: Any) -> tuple[list[Row], Lines]:
    """Reads files with DuckDB."""
    with _database().cursor() as con:
        con.execute("PRAGMA disable_optimizer")
        lines = read_lines(con, find_logs(paths), Reading(**reading), NOW_US)
        return rows_in(con), lines


def read_each(folder: Path) -> tuple[dict[str, list[Row]], Lines]:
    """Reads the files of a folder together, which plans each format once; gives rows by names of files below it."""
    columns = ", ".join(f'"{name}"' for name, _ in LINE)
    found: dict[str, list[Row]] = {}
    with _database().cursor() as con:
        con.execute("PRAGMA disable_optimizer")
        lines = read_lines(con, find_logs([str(folder)]), Reading(), NOW_US)
        rows = con.execute(f"SELECT file, {columns} FROM parsed_line WHERE bad IS NULL ORDER BY file, no").fetchall()
    for file, *row in rows:
        name = str(Path(lines.recognised.names[file]).relative_to(folder))
        found.setdefault(name, []).append(dict(zip((name for name, _ in LINE), row, strict=True)))
    return found, lines


NATIVE = as_line(request(1, "GET", "/trickle/film/1", 200, op="read", channel="film", seq=1))


def _native(**fields: Any) -> bytes:
    return as_line(json.loads(NATIVE) | fields)


HOSTILE: list[tuple[bytes, str | None]] = [
    (b"{", "unreadable"),
    (b"words", "unreadable"),
    (b"\x00" * 40, "unreadable"),
    (b"\x00\x00" + NATIVE, "unreadable"),
    (NATIVE[:-20], "unreadable"),
    (NATIVE + b" x", "unreadable"),
    (NATIVE + NATIVE, "unreadable"),
    (NATIVE[:-1] + b",}", "unreadable"),
    (NATIVE.replace(b'"', b"'"), "unreadable"),
    (b"[" + NATIVE + b"]", "unreadable"),
    (b"5", "unreadable"),
    (b"null", "unreadable"),
    (b"{}", "kind"),
    (b'{"a":' * 5000, "unreadable"),
    (b'{"ts_us":1,"a":' + b"[" * 2000 + b"]" * 2000 + b"}", "unreadable"),
    (_native(ua="x" * (1 << 20)), "unreadable"),
    (NATIVE.replace(b"player-1", b"pla\\ud800yer"), "unreadable"),
    (NATIVE.replace(b"player-1", b"\\ud83d\\ude00 \\\\ud800"), None),
    (NATIVE.replace(b"player-1", b"pla\xff\xfeyer\xc3"), None),
    (NATIVE.replace(b"player-1", b"pla\\u0000yer"), None),
    (NATIVE + b"\r", None),
    (b" " + NATIVE + b" ", None),
    (_native(v=2), "version"),
    (_native(kind="other"), "kind"),
    (_native(ts_us=None), "time"),
    (_native(ts_us="now"), "time"),
    (_native(ts_us=10**30), "time"),
    (_native(ts_us=-5), "time"),
    (_native(ts_us=START_US * 1000), "time"),
    (_native(ts_us=NOW_US + 86_400_000_000), None),
    (_native(status="abc"), "status"),
    (_native(status="200"), None),
    (_native(status=[200]), "status"),
    (_native(status=10**30), "status"),
    (_native(status="1_0"), "status"),
    (_native(status="0x1p9"), "status"),
    (_native(status="200d"), "status"),
    (_native(status=" 200"), "status"),
    (NATIVE.replace(b":200", b":NaN"), "status"),
    (NATIVE.replace(b":200", b":2e2"), None),
    (NATIVE.replace(b":200", b":02e2"), "unreadable"),
    (_native(dur_us=-1), "dur_us"),
    (_native(wait_us=-1), "wait_us"),
    (_native(bytes_out=1 << 64), "bytes_out"),
    (_native(bytes_out=-1), "bytes_out"),
    (_native(seq=10**16), "seq"),
    (_native(eos="perhaps"), "eos"),
    (_native(eos="true"), None),
    (_native(next_seq="x", epoch=-1, attempt=True, guard_ms={"a": 1}), None),
    (_native(channel={"a": [1, 2]}, client=["b"], ua=5, path=None), None),
    (_native(unknown={"a": [{}]}, event=1.50), None),
]
"""Lines of our own log, and what is wrong with each; ``None`` if it is good all the same."""

HOSTILE_NGINX: list[tuple[bytes, str | None]] = [
    (b'{"msec":"x","status":"200","request_uri":"/","request_method":"GET"}', "time"),
    (b'{"msec":1760000000.5,"status":"abc","request_uri":"/","request_method":"GET"}', "status"),
    (b'{"msec":1760000000.5,"request_uri":"/"}', "request"),
    (b'{"msec":1760000000.5,"status":"200","request_uri":"/","request_method":"GET","request_time":"-1"}', "dur_us"),
    (b'{"msec":1760000000.5,"status":"200","request_uri":"/","request_method":"GET","request_time":"1e99"}', None),
    (b'{"msec":1e400,"status":"200","request_uri":"/","request_method":"GET"}', "time"),
    (b'{"msec":1760000000.5,"status":"400","request_uri":"","request_method":"","remote_addr":"[::1]:80"}', None),
    (b'{"msec":1760000000.5,"status":"400","request_uri":"http://h//trickle//a%zz/1?x","request_method":"GET"}', None),
    (b'{"msec":1760000000.5,"status":"000","request_uri":"/trickle/%ff/1","request_method":"GET"}', None),
    (b'{"msec":1760000000.5,"status":"200","request_uri":["/"],"request_method":{"a":1},"remote_addr":7}', None),
]

_HEAD = b"192.0.2.7 - "
_TAIL = b' 404 17 "-" "player/2.1 (Linux)"'
HOSTILE_COMBINED: list[tuple[bytes, str | None]] = [
    (_HEAD + b'me [09/Oct/2025:08:53:20 +0000] "GET /trickle/film/12 HTTP/1.1"' + _TAIL, None),
    (_HEAD + b'a b [c] [09/Oct/2025:08:53:20 +0000] "GET /trickle/film/12 HTTP/1.1"' + _TAIL, None),
    (_HEAD + b'- [09/Oct/2025:08:53:20 +0000] "\\x16\\x03\\x01"' + _TAIL.replace(b"404", b"400"), None),
    (_HEAD + b'- [09/Oct/2025:08:53:20 +0000] "GET /a\\"b HTTP/1.1"' + _TAIL, None),
    (_HEAD + b'- [09/Oct/2025:08:53:20 +0000] "GET /trickle/film/12 HTTP/1.1"' + _TAIL + b" 0.5", None),
    (_HEAD + b'- [32/Oct/2025:08:53:20 +0000] "GET / HTTP/1.1"' + _TAIL, "time"),
    (_HEAD + b'- [09/Oct/2025] "GET / HTTP/1.1"' + _TAIL, "unreadable"),
    (_HEAD + b'- [09/Oct/2025:08:53:20 +0000] "GET /', "unreadable"),
    (b'"' * 1000, "unreadable"),
    (b"\xff\xfe", "unreadable"),
]
