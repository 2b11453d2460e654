"""Logs that a hostile client has a hand in: counted, shown and escaped; never executed, never a stack trace."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from tests.analytics.support.scenarios import not_found_loop
from tests.analytics.support.writer import BASE_US, LogWriter, write_lines
from tricklecast.app.cli import cli

EVIL = "<script>alert(1)</script>\x1b[31m\"'&\u202e{{7*7}}%s\\"
"""Markup, a terminal's escape, quotes of every kind, a direction override and templates, in one name."""

BIG = 10_000_000

_OPTIONS = {"json": "--json-file", "html": "--html", "prom": "--prom"}

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """What a run of the command left: exit code, both streams, the JSON report, the page, the Prometheus file."""

    code: int
    said: str
    shown: str
    told: Record
    page: str
    gauges: str


Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the command on some logs, with all its outputs; whatever it reads, there is no stack trace."""

    def run_on(*logs: Path) -> Done:
        files = {name: tmp_path / f"report.{name}" for name in ("json", "html", "prom")}
        outputs = [text for name, file in files.items() for text in (_OPTIONS[name], str(file))]
        result = CliRunner().invoke(cli, ["storms", *map(str, logs), *outputs])
        assert isinstance(result.exception, SystemExit | None), result.exc_info
        assert "Traceback" not in result.stderr
        written = {name: file.read_text() if file.exists() else "" for name, file in files.items()}
        told = json.loads(written["json"] or "{}")
        return Done(result.exit_code, result.stderr, result.stdout, told, written["html"], written["prom"])

    return run_on


def looping(node: str = "n1", client: str = "loop", channel: str = "nothing") -> list[Record]:
    """The records of one storm of a hundred 404s, among a thousand good lines."""
    log = LogWriter(node, random.Random(3))
    not_found_loop(log)
    for record in log.records:
        record.client, record.channel = client, channel
    for seq in range(1000):
        log.served(seq * 0.1, f"viewer-{seq % 10}", "film", seq // 10)
    return [json.loads(line) for line in log.lines()]


def text(records: list[Record]) -> list[str]:
    """Records as lines."""
    return [json.dumps(record) for record in records]


def the_storm(done: Done) -> Record:
    """The one incident that must be found, unharmed by what is around it."""
    (incident,) = done.told["incidents"]
    assert (incident["storm"], incident["n"]) == ("not_found_loop", 100)
    found: Record = incident
    return found


def test_broken_lines_are_counted(run: Run, tmp_path: Path) -> None:
    """Lines of garbage, of wrong types and of ten megabytes are counted; the storm among them is found."""
    good = looping()
    first = good[0]
    broken: list[str | bytes] = [
        b"\xff\xfe\x00\x01 no text at all",
        "{" + "x" * BIG,
        json.dumps(first | {"ts_us": "yesterday"}),
        json.dumps(first | {"status": ["404"]}),
        json.dumps(first | {"ts_us": -5}),
        json.dumps(first | {"ts_us": 10**30}),
        json.dumps(first | {"v": 99}),
        json.dumps(first | {"client": "big", "channel": "big", "ua": "x" * BIG}),
        '{"a":' * 500 + "1" + "}" * 500,
    ]
    odd: list[str | bytes] = [
        b'{"ts_us":%d,"kind":"exchange","op":"read","status":404,"channel":"\xff\xfe","client":"\xc3\x28"}' % BASE_US,
        json.dumps(first | {"client": "odd", "channel": "odd", "conn": "seven", "unknown": {"deep": [1, 2]}}),
        json.dumps(first | {"client": "nul\x00", "channel": "nul\x00"}),
    ]
    done = run(write_lines(tmp_path / "access.jsonl", [*text(good), *broken, *odd]))
    assert done.code == 1
    the_storm(done)
    assert done.told["quality"]["unreadable"] == len(broken)
    assert done.told["quality"]["lines"] == len(good) + len(broken) + len(odd)
    assert f"{len(broken)} unreadable" in done.shown


def test_names_are_shown_and_not_obeyed(run: Run, tmp_path: Path) -> None:
    """Markup and escapes in names reach neither the page nor the terminal nor the gauges as what they are; names of
    a megabyte, files with odd names and a file that was cut do no harm."""
    records = [record | {"ua": EVIL, "release": EVIL} for record in looping(EVIL, EVIL, EVIL)]
    records.append(records[-1] | {"channel": "y" * 1_000_000})
    cut = tmp_path / "cut.jsonl.gz"
    others = text([record for record in looping("n2") if record["client"] != "loop"])
    cut.write_bytes(gzip.compress("".join(f"{line}\n" for line in others).encode())[:-2000])
    done = run(write_lines(tmp_path / "a:b [1].jsonl", text(records)), cut)
    assert done.code == 1
    assert any("cut.jsonl.gz" in caveat for caveat in done.told["quality"]["caveats"])
    assert the_storm(done)["clients"] == the_storm(done)["channels"] == [EVIL]
    assert "<script>alert" not in done.page
    assert "\x1b" not in done.shown
    assert "\u202e" not in done.shown + done.page
    assert {family.type for family in text_string_to_metric_families(done.gauges)} == {"gauge"}


def test_servers_that_do_not_agree(run: Run, tmp_path: Path) -> None:
    """One clock jumps and was not set at first, one server is old and lacks half of the fields, one file is cut: each
    is read as far as it goes, and the storm is found once."""
    good = looping()
    never_set = [record | {"ts_us": 1_000_000 + number} for number, record in enumerate(good[:2])]
    ahead = [record | {"ts_us": record["ts_us"] + 3_600_000_000} for record in good[-200:]]
    kept = ("v", "ts_us", "kind", "op", "status", "channel", "client")
    others = [record for record in looping("n2") if record["client"] != "loop"]
    old = [{name: record[name] for name in kept if name in record} for record in others]
    clocks = write_lines(tmp_path / "clocks.jsonl", text([*good[:-200], *ahead, *never_set]))
    versions = write_lines(tmp_path / "versions.jsonl", text(old))
    cut = tmp_path / "cut.jsonl.gz"
    whole = "".join(f"{line}\n" for line in text([record | {"node": "n3"} for record in others])).encode()
    cut.write_bytes(gzip.compress(whole)[:-2000])
    done = run(clocks, versions, cut)
    assert done.code == 1
    the_storm(done)
    quality = done.told["quality"]
    assert "cut.jsonl.gz" in "".join(done.shown.split())  # a long path is folded
    assert quality["unreadable"] <= 1  # the line in which the file was cut
    assert len(good) + 2 + len(old) < quality["lines"] < len(good) + 2 + len(old) + len(others)


@pytest.mark.parametrize(
    "content",
    [b"\x00\x01\x02\xff" * 5000, b"plain words\n" * 50, b'{"ts_us":1}\n' * 3 + b"{}\n" * 50, b"\x1f\x8b junk"],
    ids=["binary", "words", "other JSON", "half a gzip"],
)
def test_what_is_no_log(content: bytes, run: Run, tmp_path: Path) -> None:
    """A file that is no access log ends with 3 and one line that says so."""
    log = tmp_path / "access.jsonl"
    log.write_bytes(content)
    done = run(log)
    assert done.code == 3
    assert [line for line in done.said.splitlines() if line.startswith("tricklecast: ")]
    assert done.told == {}
