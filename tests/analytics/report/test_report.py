"""The report as values, as JSON and in a terminal; names from logs are never obeyed."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from analytics.params import StormParams
from analytics.report.json_report import REPORT_VERSION, as_json
from analytics.report.model import Episode, Report, episode_from
from analytics.report.terminal import MAX_ROWS, plain, print_report
from analytics.totals import Quality, Totals

HOSTILE = "\x1b[31m[red]x[/red]\x07\u202e\u009b31m<script>"

ROW: dict[str, Any] = {
    "class": "ended_loop",
    "severity": "critical",
    "node": "n1",
    "release": "naive/1",
    "first_us": 1_760_000_000_000_000,
    "last_us": 1_760_000_009_500_000,
    "n": 190,
    "hits": 190,
    "n_clients": 1,
    "n_channels": 1,
    "clients": ["naive"],
    "channels": ["film"],
    "seq_lo": 10,
    "seq_hi": 10,
    "head_hi": 10,
    "peak_rps": 20.0,
    "backoff": "hot_loop",
    "retry_after_ms": None,
    "gap_ms": 50.0,
    "bytes_out": None,
    "dur_us": 95_000,
    "trigger": "channel_end",
    "trigger_us": 1_759_999_999_990_000,
}


def episode(**fields: Any) -> Episode:
    """An episode with some fields changed."""
    return episode_from(ROW | fields)


def report(*episodes: Episode, quality: Quality | None = None, **fields: Any) -> Report:
    """A report on a small log."""
    totals = Totals(
        requests=400,
        repeats=200,
        by_answer={"ended": 190, "served": 210},
        bytes_in=1,
        bytes_out=3 * 1024 * 1024,
        handler_s=1.5,
        first_us=1_760_000_000_000_000,
        last_us=1_760_000_060_000_000,
        nodes=1,
    )
    known = quality or Quality(lines=402, unparsable=1, events=1, dropped=0, anonymous=0)
    count = fields.pop("n_episodes", len(episodes))
    return Report(("access.jsonl",), totals, known, episodes, count, StormParams())


def printed(found: Report, width: int = 200) -> str:
    """What a terminal of that width would show, without colours."""
    out = io.StringIO()
    print_report(found, Console(file=out, width=width, markup=False, emoji=False, highlight=False))
    return out.getvalue()


def test_json_has_every_promised_field() -> None:
    """The document is versioned and carries totals, quality and all fields of an episode."""
    document = json.loads(as_json(report(episode())))
    assert document["version"] == REPORT_VERSION == 1
    assert document["totals"]["requests"] == 400
    assert document["totals"]["wanted"] == 200
    assert document["totals"]["amplification"] == 2.0
    assert document["quality"]["lines"] == 402
    assert document["quality"]["unparsable"] == 1
    (found,) = document["episodes"]
    promised = {
        "id", "class", "severity", "start_us", "end_us", "n", "clients", "n_clients", "channels", "n_channels", "node",
        "release", "seq_lo", "seq_hi", "trigger", "peak_rps", "backoff", "cause", "advice",
    }  # fmt: skip
    assert promised <= set(found)
    assert found["class"] == "ended_loop"
    assert found["outlived_trigger_s"] == 9.51
    assert "Lp-Trickle-Closed" in found["cause"]


def test_json_is_ascii() -> None:
    """A terminal that shows the file has nothing to obey."""
    text = as_json(report(episode(clients=[HOSTILE], channels=["\ud800"])))
    assert text.isascii()
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    assert json.loads(text)["episodes"][0]["clients"] == [HOSTILE]


def test_id_is_stable_and_distinct() -> None:
    """An episode keeps its id when it is found again, and differs from others."""
    assert episode().id == episode(n=200, last_us=ROW["last_us"] + 1).id
    others = [episode(clients=["b"]), episode(channels=["b"]), episode(node="b"), episode(first_us=1)]
    assert len({episode().id, *(other.id for other in others)}) == 5


@pytest.mark.parametrize(
    ("told_ms", "gap_ms", "expected"),
    [(None, 50.0, None), (0, 50.0, None), (1000, None, None), (1000, 499.0, "ignored"), (1000, 500.0, "honoured")],
)
def test_retry_after(told_ms: int | None, gap_ms: float | None, expected: str | None) -> None:
    """Coming back in less than half of the time told is ignoring it."""
    assert episode(retry_after_ms=told_ms, gap_ms=gap_ms).retry_after == expected


def test_severities() -> None:
    """A report has a severity if one of its storms is at least so bad."""
    assert report(episode()).has("warn")
    assert report(episode()).has("critical")
    assert not report(episode(severity="warn")).has("critical")
    assert not report().has("warn")


def test_amplification_of_nothing() -> None:
    """An empty log amplifies nothing."""
    assert Totals(0, 0, {}, 0, 0, 0.0, None, None, 0).amplification == 1.0
    assert Quality(0, 0, 0, 0, 0).unparsable_share == 0.0


def test_terminal_tells_the_story() -> None:
    """Class, severity, client, channel, seq, trigger, cause and advice are there; so are the totals."""
    text = printed(report(episode()))
    for part in (
        "1 retry storm. Worst: ended_loop on film, 190 requests in 9.5 s.",
        "400 requests, 200 wanted: amplification 2.00",
        "3.0 MiB sent",
        "2025-10-09 08:53:20",
        "CRITICAL",
        "naive",
        "hot_loop",
        "channel_end 0.0 s before",
        "asks again",
        "stop at Lp-Trickle-Closed",
        "402 lines, 1 unparsable, 1 events",
    ):
        assert part in text


def test_terminal_without_storms() -> None:
    """No storm is said in one line."""
    assert printed(report()).startswith("No retry storms.\n")


def test_terminal_of_sparse_episodes() -> None:
    """What is not known is a dash; more than one name is a count; a trigger may come later; long is in minutes."""
    sparse = {"clients": [], "channels": ["a", "b"], "n_channels": 3000, "trigger": None, "backoff": None}
    late = {"trigger_us": ROW["first_us"] + 2_000_000, "seq_hi": 12, "last_us": ROW["first_us"] + 600_000_000}
    longest = {"last_us": ROW["first_us"] + 4 * 3600 * 1_000_000}
    text = printed(report(episode(**sparse, seq_lo=None), episode(**late), episode(**longest), n_episodes=40))
    for part in ("a +2,999", "channel_end 2.0 s later", "10..12", "10.0 min", "4.0 h", "and 37 more"):
        assert part in text


def test_terminal_shows_the_worst() -> None:
    """The table ends somewhere, and says how much is missing."""
    text = printed(report(*[episode(clients=[f"c{number}"]) for number in range(MAX_ROWS + 5)]))
    assert text.count("CRITICAL") == MAX_ROWS
    assert "and 5 more" in text


def test_terminal_warns_about_the_log() -> None:
    """Lost records, missing fields, requests without a client, damaged files and missing events are said."""
    poor = Quality(10, 0, 0, 2, 7, ("client",), (f"/logs/{HOSTILE}.gz",))
    text = printed(report(quality=poor))
    for part in (
        "no events",
        "2 events that say",
        "7 requests without a client",
        "no line has: client",
        "cut or no gzip",
    ):
        assert part in text
    assert "\x1b" not in text


def test_hostile_names_are_spelled_out() -> None:
    """Escape codes, markup, bells and direction overrides are shown, not obeyed."""
    names = {"clients": [HOSTILE], "channels": [HOSTILE], "trigger": HOSTILE}
    text = printed(report(episode(**names)), width=400)
    assert "\\x1b[31m[red]x[/red]\\x07\\u202e\\x9b3" in text
    assert not [char for char in text if not char.isprintable() and char != "\n"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        ("plain name", "plain name"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\ud800", "\\ud800"),
        ("ärger 漢", "ärger 漢"),
        ("x" * 41, "x" * 39 + "…"),
        ("\x1b" * 40, "\\x1b" * 9 + "\\x1…"),
    ],
)
def test_plain(value: str | None, shown: str) -> None:
    """Printable text stays; everything else is spelled out; long names are cut."""
    assert plain(value) == shown
