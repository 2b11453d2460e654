"""Evidence: which episode is meant, the lines as they stand in the log, pauses in classes."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analytics.support.sample_report import HOSTILE, quiet_report, sample_episode, sample_report
from tricklecast.analytics.command.explaining import find_episode, show
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.explain import GAP_BOUNDS_MS, Evidence, Gaps, Line, histogram
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.verbatim import verbatim

US = 1_760_000_000_000_000


def test_an_id_or_its_beginning() -> None:
    """As much of it as says which one is meant."""
    report = sample_report()
    for episode in report.episodes:
        assert find_episode(report, episode.id) == episode
        assert find_episode(report, episode.id[:8]) == episode


def test_ids_that_are_not_there() -> None:
    """What there is, is told: nothing, others, or two that begin so."""
    report = sample_report()
    twins = tuple(replace(report.episodes[0], id=name) for name in ("abcd1", "abcd2"))
    for given, message in (
        (quiet_report(), "these logs have no storm"),
        (report, f"they have 8; the worst is {report.episodes[0].id}"),
        (replace(report, n_episodes=5000), "they have 5,000, of which the worst 8 have an id"),
        (replace(report, episodes=twins), "2 episodes have an id that begins with abcd: abcd1, abcd2"),
    ):
        with pytest.raises(BadInput, match=message):
            find_episode(given, "abcd")


def line(number: int, file: Path, **fields: object) -> Line:
    """A line as Spark has read it."""
    record = {"ts_us": US + number, "node": "n1", "client": "c", "status": 404} | fields
    return Line(US + number, file.absolute().as_uri(), json.dumps(record))


@pytest.mark.parametrize("name", ["a.jsonl", "a b:c.jsonl.gz"])
def test_lines_as_they_stand_in_the_log(name: str, tmp_path: Path) -> None:
    """Found by their time and told apart by their fields, whatever their spelling; others of that moment are not."""
    texts = [
        "no record",
        json.dumps({"ts_us": US + 1, "node": "n2", "client": "c", "status": 404}),
        '{ "status":404, "node":"n1",  "client":"c", "extra":[1],"ts_us":' + f"{US + 1}" + "}",
        json.dumps({"ts_us": US + 2, "node": "n1", "client": "c", "status": 404}),
        f"[{US + 2}]",
    ]
    data = "".join(f"{text}\n" for text in texts).encode() + b"\xff\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    first, second, third = line(1, path), line(2, path), line(3, path)
    assert verbatim([first, second, third]) == {first: texts[2], second: texts[3]}


def test_lines_that_have_no_text(tmp_path: Path) -> None:
    """Parquet, remote files, files that went away, cut archives: the record has to do."""
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b"x" * 1000)[:20])
    remote = replace(line(1, tmp_path / "a"), file="s3a://bucket/a.jsonl")
    lines = [remote, line(1, tmp_path / "a.parquet"), line(1, tmp_path / "gone.jsonl"), line(1, cut)]
    assert verbatim(lines) == {}


def test_pauses_in_classes() -> None:
    """Each pause once; a bound belongs to the class above it."""
    counts = histogram([0, 500, 1_500, 4_500, 4_500 + 20_000_000])
    assert counts == (1, 1, 1, *[0] * (len(GAP_BOUNDS_MS) - 3), 1)
    assert histogram([0, 1_500, 3_000], [1]) == histogram([0, 500, 2_000])
    assert histogram([0, 1_000, 2_000], [1, 5]) == histogram([0, 0, 0])
    assert sum(histogram([])) == sum(histogram([5])) == 0


def test_hostile_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing in a line is obeyed by a terminal; a giant one is cut, and says so."""
    giant = Line(US, "s3a://bucket/log", "y" * 3000)
    lines = tuple(Line(US + number, "s3a://bucket/log", name) for number, name in enumerate(HOSTILE))
    episode = sample_episode(clients=HOSTILE, channels=HOSTILE, node=HOSTILE[5], release=HOSTILE[5])
    show(Evidence(episode, 100, lines, (giant,), lines[0], Gaps(HOSTILE[5], (5,) * 10)), StormParams(), None)
    shown = capsys.readouterr().out
    assert not [char for char in shown if not char.isprintable() and char != "\n"]
    assert "… (3,000 characters)" in shown
    assert "… 89 more …" in shown
