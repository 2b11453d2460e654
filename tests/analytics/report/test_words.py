"""Incidents in sentences: each class, one client and many, costs, confidence, hostile names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.analytics.report.sample import NO_IMPACT, sample_incident
from tricklecast.analytics.report import words
from tricklecast.analytics.report.figures import compare
from tricklecast.analytics.report.model import Figures
from tricklecast.analytics.report.words import client_name, describe, impact, product, who
from tricklecast.analytics.rules.classes import Side, StormClass
from tricklecast.analytics.rules.incidents import Confidence, Impact, Phase

S = StormClass
TIMES = "\N{MULTIPLICATION SIGN}"


def phases(*parts: tuple[StormClass, int]) -> tuple[Phase, ...]:
    return tuple(Phase(storm, n, place, place) for place, (storm, n) in enumerate(parts))


def test_a_cascade_in_one_paragraph() -> None:
    """Who, what, how many, how fast; phases, root, impact, confidence, fix."""
    cascade = phases((S.ZERO_BYTE_LOOP, 96), (S.ENDED_LOOP, 327), (S.NOT_FOUND_LOOP, 157))
    told = describe(
        replace(sample_incident(S.ZERO_BYTE_LOOP), n=580, mean_rps=32.9, phases=cascade, ended_us=3_200_000)
    )
    assert told.happened == ("player-1 (myplayer/1.4) asked for film/17 580 times in 18 s (33/s) and never moved on")
    assert told.phases == f"empty {TIMES} 96 → channel ended {TIMES} 327 → 404 {TIMES} 157"
    assert told.root == "channel closed before its DELETE"
    assert (told.impact, told.confidence) == ("none measurable", "high")


@pytest.mark.parametrize("storm", list(StormClass))
def test_every_class_has_its_words(storm: StormClass) -> None:
    """No class is told in another's words, and each sentence has client, number and rate."""
    told = describe(sample_incident(storm))
    assert told.happened.startswith("player-1 (myplayer/1.4) ")
    assert "90 times in 18 s (5/s)" in told.happened
    assert told.phases == f"{words.PHASES.get(storm, 'an error')} {TIMES} 90"
    assert told.fault in ("client fault", "server fault", "publisher fault", "either side's fault")


@pytest.mark.parametrize("storm", [S.WEB_LOOP, S.OVERLOAD_CLIENT, S.SERVER_ERROR_LOOP, S.OVERLOAD_AMPLIFICATION])
def test_a_web_server_has_paths_and_statuses(storm: StormClass) -> None:
    """And no channels, publishers and segments."""
    paths = ("GET /a 301", "GET /b 302")
    one = replace(
        sample_incident(storm), channels=paths, seq_lo=None, seq_hi=None, phases=phases((storm, 80), (S.WEB_LOOP, 10))
    )
    for told in (describe(one), describe(replace(one, phases=one.phases[:1]))):
        said = " ".join((told.happened, told.when, told.phases, told.root, told.impact))
        assert not any(word in said for word in ("channel", "asked for", "moved on", "publisher", "segment"))
    assert describe(one).phases.endswith(f"301 or 302 {TIMES} 10")
    assert " sent 2 paths" not in describe(one).happened


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "player-1 (myplayer/1.4)"),
        ({"release": None, "ua": None}, "player-1"),
        ({"clients": ("b1bdf81d75958da6",)}, "a client of myplayer/1.4 (b1bdf81d)"),
        ({"clients": ("b1bdf81d75958da6",), "release": None, "ua": None}, "client b1bdf81d"),
        ({"clients": ("192.0.2.7#ab12cd34",)}, "192.0.2.7 (myplayer/1.4)"),
        ({"clients": ("192.0.2.0/24",), "named": False}, "the network 192.0.2.0/24"),
        ({"clients": ("a", "b", "c")}, "3 clients of myplayer/1.4"),
        ({"clients": ("a", "b", "c"), "release": None}, "3 clients"),
        ({"clients": ("192.0.2.0/24", "198.51.100.0/24"), "named": False, "release": None}, "2 networks"),
        ({"clients": ("a\x1b[31mb\u202e",), "release": None, "ua": None}, "a\\x1b[31mb\\u202e"),
    ],
)
def test_clients_are_people_s_names_for_them(changes: dict[str, Any], expected: str) -> None:
    """By the name that a client gives itself, else by its product; a crowd by its number."""
    one = replace(sample_incident(S.ENDED_LOOP), **changes)
    assert who(one.clients, one.release, one.ua, named=one.named) == expected


@pytest.mark.parametrize(
    ("release", "ua", "expected"),
    [
        ("myplayer/1.4", "myplayer/1.4 (linux)", "myplayer/1.4"),
        ("Mozilla/5.0", "Mozilla/5.0 (X11) AppleWebKit/537.36 Chrome/138.0.0.0 Safari/537.36", "Chrome/138"),
        ("Mozilla/5.0", "Mozilla/5.0 (Mac) Version/17.4 Safari/605.1.15", "Safari/17"),
        (None, "curl/8.5 extra", "curl/8.5"),
        (None, None, None),
    ],
)
def test_products(release: str | None, ua: str | None, expected: str | None) -> None:
    """A browser is not called Mozilla."""
    assert product(release, ua) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"channels": ("film",), "seq_lo": 17, "seq_hi": 17}, "film/17"),
        ({"channels": ("film",), "seq_lo": 8, "seq_hi": 39}, "film/8\N{EN DASH}39"),
        ({"channels": ("film",), "seq_lo": None, "seq_hi": None}, "film"),
        ({"channels": ("a", "b")}, "2 channels (a the most)"),
        ({"channels": ("GET /a 401", "GET /a 403")}, "GET /a"),
        ({"channels": ("GET /a 401", "GET /b 401")}, "2 paths (GET /a the most)"),
        ({"channels": ("GET /api/token/ 401",), "seq_lo": None, "seq_hi": None}, "GET /api/token"),
        ({"channels": ()}, "the server"),
    ],
)
def test_what_was_asked_for(changes: dict[str, Any], expected: str) -> None:
    """A segment, a range, channels, or the route of another web server."""
    assert words.target(replace(sample_incident(S.ENDED_LOOP), **changes)) == expected


@pytest.mark.parametrize(
    ("trigger", "lead_us", "expected"),
    [
        ("server_ready", 1_600_000, "the channel had ended, 1.6 s after the server's start (00:00:08)"),
        (
            "worker_restart",
            0,
            "the channel had ended, at the moment of the restart of one of the server's workers (00:00:10)",
        ),
        ("channel_end", 0, "the channel had ended (00:00:10)"),
        ("channel_end", 1_800_000, "the channel had ended 1.8 s before (00:00:08)"),
        (None, 0, "the channel had ended"),
    ],
)
def test_the_root_says_after_what(trigger: str | None, lead_us: int, expected: str) -> None:
    """With the event that set it off, and how long after it."""
    one = sample_incident(S.ENDED_LOOP)
    told = describe(replace(one, trigger=trigger, trigger_us=one.since_us - lead_us if trigger else None))
    assert told.root == expected


@pytest.mark.parametrize(
    ("cost", "peak_rps", "expected"),
    [
        (NO_IMPACT, 5.0, "none measurable"),
        (replace(NO_IMPACT, others_refused=200), 5.0, "none measurable"),
        (
            Impact(0.5, 0.001, 0.0, 2048, 1_300_000, 200, 0, True),
            5.0,
            "200 requests of others refused; 50 % of the requests of its server in these minutes",
        ),
        (
            Impact(0.999, 0.03, 0.94, 2048, 15_000_000, 0, 0, True),
            60.0,
            "> 99 % of the requests, 3.0 % of the handler time (15 s), 94 % of the bytes (2.0 KiB) of its server in"
            " these minutes; a peak of 60/s",
        ),
        (Impact(0.2, 1.0, 1.0, 0, 0, 1, 0, True), 5.0, "20 % of the requests of its server in these minutes"),
        (Impact(0.0, 0.0, 0.0, 10, 20_000, 1, 30, True), 5.0, "30 answers to others slow"),
    ],
)
def test_impact(cost: Impact, peak_rps: float, expected: str) -> None:
    """What it cost; "none measurable" is an answer, a share of nothing is not told, and one refusal is chance."""
    assert impact(replace(sample_incident(S.ENDED_LOOP), impact=cost, peak_rps=peak_rps)) == expected


@pytest.mark.parametrize(
    ("confidence", "named", "expected"),
    [
        (Confidence.HIGH, True, "high"),
        (Confidence.MEDIUM, True, "medium: few requests"),
        (Confidence.MEDIUM, False, "medium: the log does not tell clients apart"),
        (Confidence.LOW, True, "low: this log's format lacks a field that would decide"),
    ],
)
def test_confidence_says_why(confidence: Confidence, named: bool, expected: str) -> None:
    """And what would raise it."""
    assert describe(replace(sample_incident(S.ENDED_LOOP), confidence=confidence, named=named)).confidence == expected


def test_the_fault_is_that_of_a_side() -> None:
    """A format that cannot tell accuses nobody."""
    empty = sample_incident(S.ZERO_BYTE_LOOP)
    assert describe(empty).fault == "server fault"
    assert describe(replace(empty, side=Side.CLIENT)).fault == "client fault"
    assert describe(replace(empty, side=Side.EITHER)).fault == "either side's fault"


def test_an_incident_at_the_end_of_the_log_still_goes_on() -> None:
    """The reader should not take it for over."""
    assert describe(sample_incident(S.ENDED_LOOP), ongoing=True).when.endswith("still going on when the log ends")


def test_what_the_guard_held_is_told() -> None:
    """Else a rate below that of any storm would look like a mistake of the report."""
    held = replace(sample_incident(S.ENDED_LOOP), held_s=12.4)
    assert describe(held).when.endswith("; the storm guard held its requests for 12 s in all")
    assert "guard" not in describe(sample_incident(S.ENDED_LOOP)).when


def test_long_names_are_cut() -> None:
    """A name of megabytes does not fill the terminal."""
    assert len(client_name("x" * 100_000, None)) <= 40


@pytest.mark.parametrize(
    ("before", "here", "expected"),
    [
        ((0, 0), (160, 1), "Requests in incidents: none before and 160 here (160 per 1,000 requests): new"),
        ((80, 1), (160, 1), f"2.00 {TIMES} as many"),
        ((80, 1), (0, 0), ": gone"),
        ((0, 0), (0, 0), "Requests in incidents: none before and none here"),
    ],
)
def test_a_baseline_is_two_rates_and_their_ratio(before: tuple[int, int], here: tuple[int, int], expected: str) -> None:
    """And a word where there is no ratio."""
    now, then = (Figures(1000, 0, n, 0, 0, 0.0, 1.0, 0.0, None, (), (), 0, 3_600_000_000) for n in (here[0], before[0]))
    assert expected in compare(now, here[1], then, before[1])[0].words


@pytest.mark.parametrize(
    ("state", "times", "expected"),
    [
        ("new", 1, "new: not seen before"),
        ("again", 4, "again (first seen 2025-10-09, 4th time)"),
        ("regressed", 22, "regressed: last seen before release v2; first seen 2025-10-09, 22nd time"),
    ],
)
def test_what_earlier_reports_say(state: Any, times: int, expected: str) -> None:
    """New, again, or back after a release."""
    assert words.history(state, 1_760_000_000_000_000, times, "v2").words == expected


def test_a_lift_is_two_shares() -> None:
    """In the storm, and among all others of the same time."""
    assert words.lift("release", "v\x1b2", 0.96, 0.1).words == (
        "release v\\x1b2: 96 % of its requests, 10 % of all others then"
    )
