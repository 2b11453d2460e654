"""Formats are told by what is in a line, field maps are checked, and lines come in chunks as well."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.analytics.lines.test_formats import FOREIGN
from tests.analytics.lines.traffic import (
    HOSTILE,
    HOSTILE_COMBINED,
    HOSTILE_NGINX,
    NATIVE,
    START_US,
    as_line,
    plain_combined,
    read_files,
    write,
    written,
)
from tricklecast.analytics.lines import BadFormat, UnknownFormat, recognise
from tricklecast.analytics.lines.embedded import ChunkReader
from tricklecast.analytics.lines.files import node_of
from tricklecast.analytics.lines.mapped import built_in, parse_map
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.simulate.formats import FormatName

LINES = {"tricklecast": written(FormatName.JSONL)} | {name: log for name, (log, _) in FOREIGN.items()}


@pytest.mark.parametrize("name", LINES)
def test_every_format_is_recognised(name: str) -> None:
    """From its first lines, some of them broken."""
    found = recognise("some.log", [b"{", *LINES[name].splitlines(), b"\xff"])
    assert found.name == name.removeprefix("plain ")
    assert found.coarse is (name == "plain combined")


@pytest.mark.parametrize("share", [1, 2, 5])
def test_a_log_of_events_has_no_wrapping(share: int) -> None:
    """A server that began a moment ago has as many events as requests; an event's name is no line in an envelope."""
    about = {"ts_us": START_US, "kind": "event", "worker": 1}
    events = [as_line(about | {"event": name}) for name in ("server_start", "drain")] * share
    found = recognise("some.log", [*events, NATIVE, NATIVE])
    assert (found.name, found.wrapping) == ("tricklecast", ())


def test_what_is_asked_for_is_believed() -> None:
    """A format that is asked for by name is not looked for; one that does not exist is refused."""
    assert recognise("some.log", [b"words"], "caddy").name == "caddy"
    assert recognise("some.log", [b"words"], "tricklecast").fields is None
    with pytest.raises(UnknownFormat, match=r"some\.log"):
        recognise("some.log", [b"words"], "nginx")
    for asked in ("lighttpd", "none.toml"):
        with pytest.raises(BadFormat, match=asked):
            recognise("some.log", [NATIVE], asked)


EDGE = """
layout = "json"
prefix = "/live"
[only]
type = "access"
[gone]
flags = "DC"
[fields]
ts_us = { from = "time_ns", unit = "ns" }
dur_us = { from = "took", unit = "ms" }
method = "req.method"
path = "req.uri"
status = "status"
client = { from = ["req.headers", "X-User", 0] }
request_id = "id"
retry_after_ms = { from = "wait_ns", unit = "ns" }
"""


def test_a_field_map_of_ones_own(tmp_path: Path) -> None:
    """Nested keys, keys with dots, units, lines of something else."""
    (tmp_path / "edge.toml").write_text(EDGE)
    line = {
        "type": "access",
        "time_ns": START_US * 1000,
        "took": 20,
        "req": {"method": "GET", "uri": "/live/film/7?token=x"},
        "req.headers": {"X-User": ["o'brien"]},
        "status": 200,
        "flags": "UC,DC",
        "id": "a",
        "wait_ns": 1_500_000_000,
    }
    log = write(tmp_path / "edge.log", [as_line(line), as_line(line | {"type": "debug"})])
    (row,), _ = read_files(log, format=str(tmp_path / "edge.toml"))
    assert (row["ts_us"], row["dur_us"], row["retry_after_ms"]) == (START_US - 20_000, 20_000, 1500)
    assert (row["op"], row["channel"], row["seq"], row["path"]) == ("read", "film", 7, "/live/film/7")
    assert (row["client"], row["request"], row["status"], row["reason"]) == ("o'brien", "a", None, "client_gone")
    with pytest.raises(BadFormat, match="empty part"):
        read_files(log, format=str(tmp_path / "edge.toml"), client_key="ip+")


DOCS = Path(__file__).parents[3] / "docs"


def test_the_documents_examples() -> None:
    """The field map of the reference is one; the how-to logs every variable of nginx that decides."""
    page = (DOCS / "reference" / "log-formats.md").read_text()
    parse_map(page.partition("```toml\n")[2].partition("```")[0], "the reference")
    page = (DOCS / "how-to" / "read-nginx-envoy-caddy-logs.md").read_text()
    logged = set(re.findall(r'"(\w+)":', page.partition("```nginx")[2].partition("```")[0]))
    (line,) = [json.dumps(dict.fromkeys(logged, "1") | {"msec": "1760000000.000"}).encode()]
    found = recognise("some.log", [line])
    assert found.name == "nginx"
    assert built_in("nginx").fields.keys() - found.present == {"request", "grpc"}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("[fields", "field map"),
        ("x = 1\n[fields]", "the map has no 'x'"),
        ("[fields]\ncolour = 'a'", "no field 'colour'"),
        ("[fields]\nmethod = 'a'\npath = 'b'", "ts_us, the time, has no source"),
        ("[fields]\nts_us = {from = 'a', unit = 's'}", "there is no source for method"),
        ("[fields]\nts_us = 'a'\nrequest = 'b'", "needs a unit"),
        ("[fields]\nts_us = {from = 'a', unit = 'h'}\nrequest = 'b'", "not a valid Unit"),
        ("[fields]\nts_us = {from = 'a', unit = 's'}\nrequest = 'a.b'", "both as a value and as an object"),
        ("[fields]\nts_us = {from = 'a', unit = 's'}\nrequest = 'a\"b'", "has a quote"),
        ("layout = 'words'\ncolumns = ['a']\n[fields]\nts_us = {from='a', unit='s'}\nrequest = 'b'", "no column"),
        ("prefix = \"/a'b\"\n[fields]\nts_us = {from = 'a', unit = 's'}\nrequest = 'b'", "prefix must"),
    ],
)
def test_wrong_field_maps_are_refused(wrong: str, told: str) -> None:
    """A map that cannot be right is refused with the reason."""
    with pytest.raises(BadFormat, match=told):
        parse_map(wrong, "some.toml")


INJECTED: list[tuple[bytes, str | None]] = [
    (NATIVE + b"],[" + NATIVE, "unreadable"),
    (NATIVE[:-1] + b"}],[{" + NATIVE[1:], "unreadable"),
    (NATIVE.replace(b'"film"', b'"}],[{"'), None),
    (NATIVE.replace(b":200", b":nan"), "status"),
    (NATIVE.replace(b":200", b':"nan"'), "status"),
    (NATIVE.replace(b":200", b":-Infinity"), "status"),
    # Of two values the first one counts, everywhere.
    (NATIVE[:-1] + b',"status":"x"}', None),
    (b'{"status":"x",' + NATIVE[1:], "status"),
]


@pytest.mark.parametrize(
    ("first", "lines"),
    [
        (NATIVE, HOSTILE),
        (NATIVE, INJECTED),
        (FOREIGN["nginx"][0].splitlines()[0], HOSTILE_NGINX),
        (plain_combined(), HOSTILE_COMBINED),
    ],
)
def test_hostile_lines(first: bytes, lines: list[tuple[bytes, str | None]]) -> None:
    """Each line is read for itself: what is wrong with one is said, and never an error."""
    form = recognise("some.log", first.splitlines())
    with embedded.connect(0) as con:
        reader = ChunkReader(con, form)
        table = reader.read([line for line, _ in lines], no=1)
        found = dict(zip(table["no"].to_pylist(), table["bad"].to_pylist(), strict=True))
        assert [(line[:80], found[no]) for no, (line, _) in enumerate(lines, 1)] == [
            (line[:80], why) for line, why in lines
        ]
        assert reader.read([]).num_rows == 0


def test_chunks_are_like_files(tmp_path: Path) -> None:
    """Lines that are read as they come in give the rows that the whole file gives."""
    with embedded.connect(0) as con:
        # Each of these is taken apart in another way.
        for name in ("tricklecast", "nginx", "combined"):
            log = LINES[name]
            path = write(tmp_path / f"{name}.log", log)
            rows, _ = read_files(path)
            lines = log.splitlines()
            reader = ChunkReader(con, recognise(name, lines), node=node_of(path))
            parts = (lines[:7], lines[7:])
            chunks = [row for part in parts for row in reader.read(part).to_pylist()]
            columns = list(rows[0])
            assert sorted(repr([row[name] for name in columns]) for row in chunks) == sorted(
                repr(list(row.values())) for row in rows
            )
