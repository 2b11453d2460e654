"""The report in a few sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.analytics.support.sample_report import at, empty_report, quiet_report, sample_episode, sample_report
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.episodes import Severity
from tricklecast.analytics.report.plain import as_text
from tricklecast.analytics.report_old.first_aid import first_aid
from tricklecast.analytics.report_old.model import Episode
from tricklecast.analytics.report_old.verdict import steps, verdict

WARN = Severity.WARN


def said(*episodes: Episode, more: int = 0) -> tuple[str, str]:
    """What is said about a report with these episodes: how many, and which is the worst."""
    found = verdict(sample_report(episodes=episodes, n_episodes=len(episodes) + more))
    return found.count, as_text(found.what)


def test_the_whole_verdict() -> None:
    """What, where, since when, why, what to do at once, and the first step of the cure."""
    found = verdict(sample_report())
    assert found.count == "8 retry storms, 4 of them critical; 1 still going on when the log ends."
    assert as_text(found.what) == (
        "overload_amplification on relay-2 from 09:05:04 UTC: 341 clients sent 14,310 requests in 3.5 min,"
        " 2.0 s after server_ready."
    )
    assert found.why is not None
    assert "Retry-After is ignored" in found.why
    assert found.first is not None
    assert found.first.startswith("shed load")
    assert found.then == "back off with full jitter and a retry budget in every client"


@pytest.mark.parametrize(
    ("episodes", "more", "count"),
    [
        ((sample_episode(),), 0, "1 retry storm, critical."),
        ((sample_episode(severity=WARN),), 0, "1 retry storm, warn."),
        ((sample_episode(), sample_episode()), 0, "2 retry storms, all critical."),
        ((sample_episode(severity=WARN),) * 2, 0, "2 retry storms, none of them critical."),
        ((sample_episode(),) * 2, 7, "9 retry storms, the worst 2 are listed, 2 of them critical."),
        (
            (sample_episode(outcome="ongoing"),) * 2,
            0,
            "2 retry storms, all critical; 2 still going on when the log ends.",
        ),
    ],
)
def test_how_many(episodes: tuple[Episode, ...], more: int, count: str) -> None:
    """Numbers are said so that they can be believed: of those listed, and of all."""
    assert said(*episodes, more=more)[0] == count


def test_where() -> None:
    """A client's storm is about a channel, a fleet's about a server; what is not known is not said."""
    assert "ended_loop on channel studio-a/film, relay-1 from" in said(sample_episode())[1]
    assert "on channel a and 2 more, n from" in said(sample_episode(channels=("a",), n_channels=3, node="n"))[1]
    assert said(sample_episode(channels=(), node=None))[1].startswith("ended_loop from ")
    assert "thundering_herd on relay-1 from" in said(sample_episode(StormClass.THUNDERING_HERD))[1]


def test_who() -> None:
    """One client is named, more are counted."""
    assert ": viewer-17 sent 190 requests in 9.5 s" in said(sample_episode())[1]
    assert ": 3 clients sent" in said(sample_episode(n_clients=3))[1]
    assert ": 0 clients sent" in said(sample_episode(clients=()))[1]
    assert ": 1 client sent" in said(sample_episode(clients=(), n_clients=1))[1]


def test_when() -> None:
    """Before, during or at the end: the trigger is said as what it was; an ongoing storm is one since its beginning."""
    assert said(sample_episode())[1].endswith(", 100 ms after channel_end.")
    assert said(sample_episode(trigger_us=at(1501)))[1].endswith(", around channel_end.")
    assert said(sample_episode(trigger_us=at(1510)))[1].endswith(", until channel_end.")
    assert said(sample_episode(trigger=None, trigger_us=None))[1].endswith("in 9.5 s.")
    assert " since 09:18:20 UTC" in said(sample_episode(outcome="ongoing"))[1]
    assert " from 2025-10-11 09:18:20 UTC" in said(sample_episode(start_us=at(1500 + 2 * 86_400)))[1]


def test_no_storms() -> None:
    """It is said what was examined, so that silence can be told from an empty log."""
    found = verdict(quiet_report())
    assert found.count == "No retry storms."
    assert as_text(found.what) == (
        "Examined: 90,000 requests to 2 nodes, 2025-10-09 08:53:20 to 2025-10-09 09:33:20 UTC (40.0 min)."
    )
    assert (found.why, found.first, found.then) == (None, None, None)
    assert as_text(verdict(empty_report()).what) == "Nothing was examined: the log has no requests."


def test_an_episode_without_advice() -> None:
    """Advice that says nothing is left out."""
    plain = sample_episode()
    silent = replace(plain, why=replace(plain.why, advice=""))
    assert verdict(sample_report(episodes=(silent,), n_episodes=1)).then is None


def test_steps() -> None:
    """An advice is one thing to do after the other."""
    assert steps("do this; then, that; rest") == ["do this", "then, that", "rest"]
    assert steps("") == []


@pytest.mark.parametrize("storm", StormClass)
def test_every_class_has_first_aid(storm: StormClass) -> None:
    """Somebody who is called at night is told what to do, whatever the storm; as part of a sentence."""
    words = first_aid(storm)
    assert words
    assert not words.endswith(".")
