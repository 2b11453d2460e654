"""What must not matter does not: the order of lines, their files, Spark's settings, the time zone, what things are
called."""

from __future__ import annotations

import gzip
import json
import os
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.analytics.support import scenarios
from tests.analytics.support.writer import LogWriter, write_lines
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.durations import HOUR_US
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.job import make_report
from tricklecast.analytics.logs.cli import compact
from tricklecast.analytics.report_old.json_report import as_dict

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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

TIMES = frozenset(
    {"start_us", "end_us", "trigger_us", "minute_us", "from_us", "to_us", "at_us", "ts_us", "first_us", "last_us"}
)
"""Fields of a report that are moments; all other times in it are lengths."""


@dataclass(frozen=True, slots=True, repr=False)
class Case:
    """A log, and what the report on it says."""

    lines: list[str]
    told: Told


@pytest.fixture(scope="module")
def case(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The log of some servers, told in one file."""
    lines: list[str] = []
    for place, name in enumerate((*STORMS, *LOOK_ALIKES)):
        # The herd has a server of its own: what is usual there decides about it.
        log = LogWriter(f"node-{place % 4}" if name != "thundering_herd" else "node-4", random.Random(name))
        (scenarios.STORMS.get(name) or scenarios.TRAPS[name])(log)
        # Each has channels of its own: they are on the same servers at the same time.
        for record in log.records:
            record.channel = record.channel and f"{record.channel}-{place}"
            record.client = record.client and f"{record.client}-{place}"
        lines += log.lines()
    told = tell(spark, write_lines(tmp_path_factory.mktemp("plain") / "access.jsonl", lines))
    assert {episode["class"] for episode in told["episodes"]} >= set(STORMS) & set(StormClass)
    return Case(lines, told)


def tell(spark: SparkSession, *logs: Path) -> Told:
    """The whole report on some logs, but for their names."""
    told = as_dict(make_report(spark, find_logs([str(log) for log in logs])))
    del told["inputs"]
    # An estimate, of which no more is promised than that it is near.
    for episode in told["episodes"]:
        if episode["blast"]:
            episode["blast"]["healthy_clients"] = About(episode["blast"]["healthy_clients"])
    return told


class About(int):
    """A number that is equal to its neighbours."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and abs(self - other) <= 0.1 * max(self, other)

    __hash__ = int.__hash__


def split(lines: Iterable[str], folder: Path, files: int, rng: random.Random) -> Path:
    """Writes each line to one of many files; returns their folder."""
    parts: list[list[str]] = [[] for _ in range(files)]
    for line in lines:
        rng.choice(parts).append(line)
    folder.mkdir()
    for number, part in enumerate(parts):
        write_lines(folder / f"access-{rng.random()}-{number}.jsonl", part)
    return folder


@contextmanager
def configured(spark: SparkSession, chosen: dict[str, str]) -> Iterator[None]:
    """Settings of the session, for a while."""
    before = {name: spark.conf.get(name, None) for name in chosen}
    for name, value in chosen.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


@contextmanager
def abroad(spark: SparkSession, zone: str, language: str) -> Iterator[None]:
    """Python's time zone, and Java's time zone and language, for a while."""
    java: Any = spark._jvm
    zones, locales = java.java.util.TimeZone, java.java.util.Locale
    was_zone, was_locale, was_env = zones.getDefault(), locales.getDefault(), os.environ.get("TZ")
    os.environ["TZ"] = zone
    time.tzset()
    zones.setDefault(zones.getTimeZone(zone))
    locales.setDefault(locales.forLanguageTag(language))
    try:
        yield
    finally:
        zones.setDefault(was_zone)
        locales.setDefault(was_locale)
        os.environ.pop("TZ")
        if was_env is not None:
            os.environ["TZ"] = was_env
        time.tzset()


def test_order_files_and_formats(spark: SparkSession, case: Case, tmp_path: Path) -> None:
    """Lines in any order, in many files, one of which is there twice; some as gzip and some as Parquet by ``logs
    compact``: the same report word for word, and the copy is named."""
    rng = random.Random(5)
    shuffled = rng.sample(case.lines, len(case.lines))
    third = len(shuffled) // 3
    folder = split(shuffled[:third], tmp_path / "logs", 12, rng)
    copied = min(folder.iterdir())
    (folder / "zz-copy.jsonl").write_bytes(copied.read_bytes())
    zipped = "".join(f"{line}\n" for line in shuffled[third : 2 * third])
    (folder / "zipped.jsonl.gz").write_bytes(gzip.compress(zipped.encode()))
    into_hours(write_lines(tmp_path / "rest.jsonl", shuffled[2 * third :]), tmp_path / "hours")
    told = tell(spark, folder, tmp_path / "hours")
    (named,) = told["quality"].pop("duplicate_files")
    assert Path(named).name in {copied.name, "zz-copy.jsonl"}
    assert told == case.told | {"quality": without(case.told["quality"], "duplicate_files")}


def into_hours(log: Path, out: Path) -> None:
    """Compacts a log into hourly Parquet, by the command."""
    app = typer.Typer()
    app.command()(compact)
    done = CliRunner().invoke(app, [str(log), "--out", str(out)])
    assert done.exit_code == 0, done.output


def test_lines_that_are_there_twice(spark: SparkSession, case: Case, tmp_path: Path) -> None:
    """Lines that were shipped twice count once, and how many there were is said."""
    rng = random.Random(6)
    exchanges = [line for line in case.lines if '"kind":"exchange"' in line]
    again = rng.sample(exchanges, len(exchanges) // 3)
    told = tell(spark, split([*case.lines, *again], tmp_path / "logs", 3, rng))
    assert told["quality"]["duplicates"] == len(again)
    assert told["episodes"] == case.told["episodes"]
    assert told["totals"] == case.told["totals"]


def test_settings_and_places(spark: SparkSession, case: Case, tmp_path: Path) -> None:
    """Neither partitions and planning nor ANSI, time zones and languages change a word."""
    chosen = {
        "spark.sql.files.maxPartitionBytes": "100000",
        "spark.sql.files.openCostInBytes": "1",
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "America/Sao_Paulo",
    }
    log = write_lines(tmp_path / "access.jsonl", case.lines)
    with configured(spark, chosen), abroad(spark, "Asia/Kathmandu", "tr-TR"):
        assert tell(spark, log) == case.told


@given(
    seed=st.integers(0, 1 << 30),
    files=st.integers(1, 9),
    partitions=st.integers(1, 9),
    alphabet=st.sampled_from(["aA", "éE\u0301e", "\u0000\u001b[", "日\U0001f600", "<script>&'\"\\", " \t.%_*"]),
    hours=st.integers(-5000, 5000),
    zone=st.sampled_from(["America/Sao_Paulo", "Asia/Kathmandu", "Australia/Lord_Howe"]),
)
@settings(
    max_examples=2,
    # A report takes seconds: what fails is told as it is.
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_names_and_everything_at_once(
    seed: int,
    files: int,
    partitions: int,
    alphabet: str,
    hours: int,
    zone: str,
    spark: SparkSession,
    case: Case,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Clients and channels by any other names, all of which differ; shuffled, split and moved in time besides."""
    rng = random.Random(seed)
    names = Names(alphabet, rng)
    written = [names.rename(json.loads(line), hours * HOUR_US) for line in case.lines]
    rng.shuffle(written)
    folder = tmp_path_factory.mktemp("renamed") / "logs"
    with configured(spark, {"spark.sql.shuffle.partitions": str(partitions), "spark.sql.session.timeZone": zone}):
        told = tell(spark, split(written, folder, files, rng))
    back = names.undo(shifted(told, -hours * HOUR_US))
    assert told["totals"] == case.told["totals"]
    assert by_content(back) == by_content(case.told)


class Names:
    """Gives each name another one, made of a few letters, that no other name has."""

    def __init__(self, alphabet: str, rng: random.Random) -> None:
        self._alphabet, self._rng = alphabet, rng
        self._new: dict[str, str] = {}
        self._old: dict[str, str] = {}

    def rename(self, record: dict[str, Any], by_us: int) -> str:
        """A line with other names and at another time."""
        for name in ("client", "channel"):
            if name in record:
                record[name] = self._other(record[name])
        return json.dumps(record | {"ts_us": record["ts_us"] + by_us})

    def undo(self, told: Told) -> Told:
        """A report with the old names."""
        return dict(told, episodes=[self._undo(episode) for episode in told["episodes"]])

    def _undo(self, episode: Told) -> Told:
        return episode | {name: [self._old[new] for new in episode[name]] for name in ("clients", "channels")}

    def _other(self, name: str) -> str:
        if name not in self._new:
            while (new := "".join(self._rng.choices(self._alphabet, k=14))) in self._old:
                pass
            self._new[name], self._old[new] = new, name
        return self._new[name]


def shifted(told: Any, by_us: int) -> Any:
    """A report with all its moments moved."""
    match told:
        case dict():
            return {
                name: value + by_us if name in TIMES and value is not None else shifted(value, by_us)
                for name, value in told.items()
            }
        case list() | tuple():
            return [shifted(value, by_us) for value in told]
    return told


def by_content(told: Told) -> list[Told]:
    """What the episodes say, as far as it does not depend on the order of names."""
    return sorted(
        (nameless(episode) for episode in told["episodes"]), key=lambda found: (found["start_us"], found["n"])
    )


def nameless(episode: Told) -> Told:
    """An episode without its id, its names in alphabetical order; of many clients, without the pace of the busiest
    one: several may be equally busy."""
    many = ("rhythm", "backoff", "retry_after", "cause") if episode["n_clients"] > 1 else ()
    return without(episode, "id", *many) | {name: sorted(episode[name]) for name in ("clients", "channels")}


def without(told: Told, *names: str) -> Told:
    """All fields but some."""
    return {name: value for name, value in told.items() if name not in names}
