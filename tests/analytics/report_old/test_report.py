"""The report as values: what identifies an episode, and what follows from its figures."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analytics.support.sample_report import quiet_report, sample_episode, sample_report
from tricklecast.analytics.episodes import Severity
from tricklecast.analytics.report_old.figures import Quality, Totals
from tricklecast.analytics.report_old.model import Episode, episode_from
from tricklecast.analytics.rhythm import Backoff, Tempo

HOT = Tempo(Backoff.HOT_LOOP, gap_ms=50.0)

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
    "retry_after_ms": None,
    "bytes_out": None,
    "dur_us": 95_000,
    "trigger": "channel_end",
    "trigger_us": 1_759_999_999_990_000,
}


def episode(pace: Tempo = HOT, **fields: Any) -> Episode:
    """An episode with some fields changed."""
    return episode_from(ROW | fields, pace)


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
    assert episode(Tempo(gap_ms=gap_ms), retry_after_ms=told_ms).retry_after == expected


def test_severities() -> None:
    """A report has a severity if one of its storms is at least so bad."""
    assert sample_report().has("warn")
    assert sample_report().has("critical")
    assert not sample_report(episodes=(sample_episode(severity=Severity.WARN),)).has("critical")
    assert not quiet_report().has("warn")


def test_amplification_of_nothing() -> None:
    """An empty log amplifies nothing."""
    assert Totals(0, 0, {}, 0, 0, 0.0, None, None, 0).amplification == 1.0
    assert Quality(0, 0, 0, 0, 0).unparsable_share == 0.0
