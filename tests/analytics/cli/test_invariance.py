"""A report does not depend on the order of lines, on their files and formats, or on names."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.analytics.support import scenarios
from tests.analytics.support.writer import LogWriter, write_lines
from tricklecast.app.cli import cli

Told = dict[str, Any]

STORMS = (
    "zero_byte_loop",
    "same_segment_loop",
    "ended_then_not_found",
    "not_found_loop_by_many",
    "seq_ahead_sweep",
    "repost_loop",
    "overload_amplification",
    "thundering_herd",
    "server_error_loop",
    "abandoned_each_second",
)
LOOK_ALIKES = ("nat_without_names", "polite_backoff", "empty_segments_roll", "two_connections_per_reader")
"""Every kind of answer, from single clients, crowds and fleets."""

HOUR_US = 3_600_000_000


def tell(*arguments: object) -> Told:
    """The JSON report on some logs, without the files' names."""
    options = ("-q", "--json-file", "-", "--fail-on", "never")
    result = CliRunner().invoke(cli, ["storms", *map(str, arguments), *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    told: Told = json.loads(result.stdout)
    del told["inputs"]
    for incident in told["incidents"]:
        del incident["lines"]
    return told


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """The log of five servers."""
    made: list[str] = []
    for place, name in enumerate((*STORMS, *LOOK_ALIKES)):
        # The herd has a server of its own: what is usual there decides about it.
        log = LogWriter(f"node-{place % 4}" if name != "thundering_herd" else "node-4", random.Random(name))
        (scenarios.STORMS.get(name) or scenarios.TRAPS[name])(log)
        # Each has channels of its own: they are on the same servers at the same time.
        for record in log.records:
            record.channel = record.channel and f"{record.channel}-{place}"
            record.client = record.client and f"{record.client}-{place}"
        made += log.lines()
    return made


@pytest.fixture(scope="module")
def told(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Told:
    """The report on that log in one file."""
    report = tell(write_lines(tmp_path_factory.mktemp("plain") / "access.jsonl", lines))
    assert len(report["incidents"]) > 8
    return report


def split(lines: Iterable[str], folder: Path, files: int, rng: random.Random) -> Path:
    """Writes each line to one of some files; returns their folder."""
    parts: list[list[str]] = [[] for _ in range(files)]
    for line in lines:
        rng.choice(parts).append(line)
    folder.mkdir()
    for number, part in enumerate(parts):
        write_lines(folder / f"access-{rng.random()}-{number}.jsonl", part)
    return folder


def test_order_files_and_formats(lines: list[str], told: Told, tmp_path: Path) -> None:
    """Lines in any order, in many files, one of which is there twice, some of them gzip or Parquet: the same report
    word for word, and the copy is named."""
    rng = random.Random(5)
    shuffled = rng.sample(lines, len(lines))
    third = len(shuffled) // 3
    folder = split(shuffled[:third], tmp_path / "logs", 12, rng)
    copied = min(folder.iterdir())
    (folder / "zz-copy.jsonl").write_bytes(copied.read_bytes())
    zipped = "".join(f"{line}\n" for line in shuffled[third : 2 * third])
    (folder / "zipped.jsonl.gz").write_bytes(gzip.compress(zipped.encode()))
    rest = write_lines(tmp_path / "rest.jsonl", shuffled[2 * third :])
    with duckdb.connect() as connection:
        connection.execute(f"COPY (FROM read_json('{rest}', sample_size = -1)) TO '{folder / 'rest.parquet'}'")
    report = tell(folder)
    (named,) = set(report["quality"]["caveats"]) - set(told["quality"]["caveats"])
    assert "zz-copy.jsonl" in named or copied.name in named
    # Nothing but the files themselves is told otherwise.
    report["quality"] |= {name: told["quality"][name] for name in ("caveats", "formats")}
    assert report == told


@given(
    seed=st.integers(0, 1 << 30),
    files=st.integers(1, 9),
    alphabet=st.sampled_from(["aA", "éE\u0301e", "\u0000\u001b[", "日\U0001f600", "<script>&'\"\\", " \t.%_*"]),
    hours=st.integers(-5000, 5000),
)
@settings(max_examples=2, phases=(Phase.generate,), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_names_and_everything_at_once(
    seed: int,
    files: int,
    alphabet: str,
    hours: int,
    lines: list[str],
    told: Told,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Clients and channels by any other names; shuffled, split and moved in time besides."""
    rng = random.Random(seed)
    renamed: dict[str, str] = {}

    def other(name: str) -> str:
        while name not in renamed:
            new = "".join(rng.choices(alphabet, k=14))
            if new not in renamed.values():
                renamed[name] = new
        return renamed[name]

    written = []
    for line in lines:
        record = json.loads(line)
        names = {name: other(record[name]) for name in ("client", "channel") if name in record}
        written.append(json.dumps(record | names | {"ts_us": record["ts_us"] + hours * HOUR_US}))
    rng.shuffle(written)
    report = tell(split(written, tmp_path_factory.mktemp("renamed") / "logs", files, rng))
    assert said(report, {new: old for old, new in renamed.items()}, hours * HOUR_US) == said(told, {}, 0)


def said(told: Told, names: dict[str, str], later_us: int) -> list[Told]:
    """What the incidents say, but for texts and ids, with the names and at the time of the first log."""
    kept = ("storm", "severity", "confidence", "n_clients", "n_channels", "n", "peak_rps", "trigger", "impact", "nodes")
    return sorted(
        (
            {name: one[name] for name in kept}
            | {name: sorted(names.get(it, it) for it in one[name]) for name in ("clients", "channels")}
            | {name: one[name] - later_us for name in ("since_us", "until_us")}
            | {"phases": [(phase["storm"], phase["n"]) for phase in one["phases"]]}
            for one in told["incidents"]
        ),
        key=repr,
    )
