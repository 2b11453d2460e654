"""An episode's evidence in words: the arithmetic is there, and right."""

from __future__ import annotations

import pytest

from tests.analytics.support.sample_report import at, sample_episode
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.episodes import Severity
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.report.plain import as_text
from tricklecast.analytics.report_old.evidence import (
    blast_of,
    cost_of,
    evidence,
    rhythm_of,
    seqs_of,
    span_of,
    trigger_of,
)
from tricklecast.analytics.report_old.figures import Blast, Rhythm
from tricklecast.analytics.report_old.model import Episode

PARAMS = StormParams()


def words(episode: Episode, params: StormParams = PARAMS) -> list[str]:
    """The evidence as lines."""
    return [as_text(phrase) for phrase in evidence(episode, params)]


def test_the_fault_of_the_past() -> None:
    """Requests, rate, threshold, seq, head and trigger: a reader can check each of them."""
    loop = sample_episode(
        StormClass.ZERO_BYTE_LOOP, start_us=at(0), end_us=at(3), n=300, hits=299, seq_lo=7, seq_hi=7, head=7,
        peak_rps=101.0, trigger_us=at(3.1),
    )  # fmt: skip
    assert words(loop) == [
        "300 requests, of which 299 were too many for any healthy client (hits)",
        "299 hits in 3.0 s = 100/s, 101/s in the worst second; critical from 10 hits at 10/s, or from 50 at any pace",
        "always seq 7; the head stood at 7",
        "channel_end 100 ms after the last request: it went on until then",
    ]


def test_what_is_not_known_is_not_said() -> None:
    """No seq, no head, no trigger: no phrase about them."""
    bare = sample_episode(n=5, hits=5, seq_lo=None, seq_hi=None, head=None, trigger=None, trigger_us=None)
    assert words(bare)[0] == "5 requests, all of them too many for any healthy client"
    assert len(words(bare)) == 2
    assert words(sample_episode(seq_hi=12, head=None))[2] == "seqs 10 to 12"


def test_a_storm_shorter_than_a_second() -> None:
    """Its rate is per second all the same, as when it was judged."""
    assert "12 hits in 400 ms = 12/s" in words(sample_episode(end_us=at(1500.4), n=12, hits=12))[1]


@pytest.mark.parametrize(
    ("storm", "severity", "threshold"),
    [
        (StormClass.ENDED_LOOP, Severity.CRITICAL, "critical from 11 hits at 12/s, or from 50 at any pace"),
        (StormClass.ENDED_LOOP, Severity.WARN, "a storm from 8 hits at 8/s, or from 30 at any pace"),
        (
            StormClass.OVERLOAD_AMPLIFICATION,
            Severity.CRITICAL,
            "from 6 clients with 2 requests per wanted one, in at least 3 seconds",
        ),
        (
            StormClass.THUNDERING_HERD,
            Severity.CRITICAL,
            "a herd from 16 clients in one second, 4 times the server's usual second",
        ),
    ],
)
def test_thresholds_are_those_of_the_run(storm: StormClass, severity: Severity, threshold: str) -> None:
    """What is quoted are the parameters that judged this kind of storm, not their defaults."""
    params = StormParams(critical_hits=11, critical_rps=12.0, many_clients=6, herd_clients=16)
    assert words(sample_episode(storm, severity=severity), params)[1].endswith(threshold)


@pytest.mark.parametrize(
    ("trigger_us", "said"),
    [
        (at(1498), "channel_end 2.0 s before the first request; the storm outlived it by 11.5 s"),
        (at(1501), "channel_end 1.0 s after the first request"),
        (at(1509.6), "channel_end 100 ms after the last request: it went on until then"),
    ],
)
def test_trigger(trigger_us: int, said: str) -> None:
    """Before, during or after, with how long the storm outlived it."""
    assert as_text(trigger_of(sample_episode(trigger_us=trigger_us))) == said


def test_rhythm() -> None:
    """The label comes with the figures that it was told from; growth only where there is any."""
    growing = sample_episode(backoff="exponential", rhythm=Rhythm(5, 2000.0, 0.031, 2.0))
    assert as_text(rhythm_of(growing)) == (
        "exponential: median pause 2.0 s over 5 pauses, varying by 3 %, each about 2.00 \N{MULTIPLICATION SIGN} the one"
        " before"
    )
    assert as_text(rhythm_of(sample_episode())).endswith("varying by 4 %")
    assert "over 189 pauses of its busiest client, varying" in as_text(rhythm_of(sample_episode(n_clients=2)))
    assert as_text(rhythm_of(sample_episode(rhythm=None))) == "hot_loop"
    assert rhythm_of(sample_episode(backoff=None)) == ()


@pytest.mark.parametrize(
    ("blast", "said"),
    [
        (None, None),
        (Blast(0, None, None), "no healthy client was on the server meanwhile"),
        (Blast(3, None, 4.0), "3 healthy clients; how long they waited is not known"),
        (Blast(1, 250.0, None), "1 healthy client waited 250 ms for the first byte (95th percentile)"),
        (
            Blast(88, 900.0, 30.0),
            "88 healthy clients waited 900 ms for the first byte (95th percentile), 30 ms before: 30.0"
            " \N{MULTIPLICATION SIGN}",
        ),
        (Blast(2, 0.0, 0.0), "2 healthy clients waited 0.0 ms for the first byte (95th percentile), 0.0 ms before"),
    ],
)
def test_blast_radius(blast: Blast | None, said: str | None) -> None:
    """What healthy clients felt, as far as it is known."""
    assert blast_of(sample_episode(blast=blast)) == said


def test_small_words() -> None:
    """Seqs, cost and span."""
    assert seqs_of(sample_episode()) == "10"
    assert seqs_of(sample_episode(seq_hi=12)) == "10 to 12"
    assert seqs_of(sample_episode(seq_lo=None)) is None
    assert cost_of(sample_episode(bytes_out=2048, handler_s=1.5)) == "2.0 KiB sent, 1.5 s of handling, waits included"
    assert span_of(sample_episode()) == "09:18:20 to 09:18:29 UTC"
