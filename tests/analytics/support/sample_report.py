"""Reports made by hand, with every value filled in: what the forms of a report (HTML, JSON, terminal …) are tested on.

The story of :func:`sample_report`: ``relay-2`` is restarted for a deployment at 09:05; the players of release 2.4.0
come back together and keep it overloaded; later a publisher closes a channel in the wrong order and its readers loop.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any, Final

from tricklecast.analytics.causes import likely_cause
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.episodes import Severity
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.report_old.figures import (
    Blast,
    BudgetBreak,
    ClockStep,
    Comparison,
    LogGap,
    Marker,
    NodeMinute,
    Offender,
    Quality,
    RateRatio,
    Rhythm,
    Share,
    Sparkline,
    Success,
    Timeline,
    Totals,
)
from tricklecast.analytics.report_old.model import Episode, Report

START_US: Final = 1_760_000_000_000_000
"""2025-10-09 08:53:20 UTC: when the sample's log begins. It lasts 40 minutes."""

LENGTH_S: Final = 2400
STEP_S: Final = 10

HOSTILE: Final = (
    "<script>document.title='pwned'</script>",
    '"><img src=x onerror="document.title=\'pwned\'">',
    "javascript:document.title='pwned'",
    "' onmouseover='document.title=1' x='",
    "</title></style></details></svg><svg onload=document.title='pwned'>",
    "\x1b[31m[red]x[/red]\x07\u202e\u009b31m\u2066\ufeff",
    "--><!--&lt;&#60;",
    "a\nb\rc\x00d\ud800e",
    "=cmd|' /C calc'!A0",
    "n" * 5000,
)
"""Names as attackers write them; none of them may ever be obeyed."""


def at(second: float) -> int:
    """Seconds from the sample's beginning as microseconds since the epoch."""
    return START_US + round(second * 1_000_000)


def sample_episode(storm: StormClass = StormClass.ENDED_LOOP, **fields: Any) -> Episode:
    """An episode of a class, with some fields changed; all the others are filled in."""
    known: dict[str, Any] = {
        "severity": Severity.CRITICAL,
        "start_us": at(1500.0),
        "end_us": at(1509.5),
        "n": 190,
        "hits": 188,
        "clients": ("viewer-17",),
        "channels": ("studio-a/film",),
        "node": "relay-1",
        "release": "player/2.4.0",
        "seq_lo": 10,
        "seq_hi": 10,
        "head": 10,
        "trigger": "channel_end",
        "trigger_us": at(1499.9),
        "peak_rps": 20.0,
        "backoff": "hot_loop",
        "retry_after": None,
        "bytes_out": 0,
        "handler_s": 0.095,
        "rhythm": Rhythm(gaps=189, median_ms=50.2, cv=0.04, growth=1.0),
        "outcome": "gave_up",
        "blast": Blast(healthy_clients=212, p95_wait_ms=31.0, p95_before_ms=29.5),
    } | fields
    known.setdefault("n_clients", len(known["clients"]))
    known.setdefault("n_channels", len(known["channels"]))
    known.setdefault("sparkline", _sparkline(known["start_us"], known["end_us"], known["n"]))
    known.setdefault("why", likely_cause(storm, known["trigger"], retry_after=known["retry_after"]))
    parts = (storm, known["node"], known["start_us"], known["clients"][:1], known["channels"][:1])
    known.setdefault("id", hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()[:12])
    return Episode(storm=storm, **known)


def sample_report(**fields: Any) -> Report:
    """The report of a bad morning, with some fields changed."""
    episodes = _episodes()
    known: dict[str, Any] = {
        "inputs": ("logs/relay-1/access.jsonl", "logs/relay-2/access-20251009T090000Z-1.jsonl"),
        "totals": _totals(),
        "quality": _quality(),
        "episodes": episodes,
        "n_episodes": len(episodes),
        "params": StormParams(),
        "success": Success(0.9421, 0.9968, 0.2406, 0.7812, 21_650, 812_345_678, 4321.5),
        "worst_minute": NodeMinute("relay-2", at(700), 8_412, 6_321),
        "by_node": (
            Share("relay-2", 61_204, 20_310, 2_212_345_678, 790_000_000, 411),
            Share("relay-1", 50_436, 1_340, 1_500_000_000, 22_345_678, 260),
        ),
        "by_channel": tuple(
            Share(name, 30_000 // turn, 9_000 // turn**2, 900_000_000 // turn, 300_000_000 // turn**2, 300 // turn)
            for turn, name in enumerate(("studio-b/news", "studio-a/film", "studio-c/match", "studio-d/radio"), 1)
        ),
        "by_release": (
            Share("player/2.4.0", 48_000, 20_900, 1_400_000_000, 800_000_000, 290),
            Share("player/2.3.1", 60_100, 700, 2_300_000_000, 12_000_000, 371),
            Share(None, 3_540, 50, 12_345_678, 345_678, 10),
        ),
        "offending_clients": _pareto("viewer-17", "studio-b-encoder", "viewer-204", "viewer-81", "probe", "viewer-5"),
        "offending_releases": _pareto("player/2.4.0", "player/2.3.1", None),
        "offending_networks": _pareto("192.0.2.0/24", "198.51.100.0/24", "2001:db8:7::/48"),
        "budget_breaks": (
            BudgetBreak("node", "relay-2", at(700), 8_412, 6_321),
            BudgetBreak("client", "viewer-17", at(1480), 190, 188),
            BudgetBreak("client", "studio-b-encoder", at(1900), 120, 61),
        ),
        "n_budget_breaks": 47,
        "timeline": _timeline(),
        "comparison": _comparison(),
    }
    return Report(**known | fields)


def quiet_report(**fields: Any) -> Report:
    """The report of a log without a storm."""
    timeline = _timeline()
    calm = replace(timeline, hits=tuple(0 for _ in timeline.hits), failures=tuple(1 for _ in timeline.failures))
    known: dict[str, Any] = {
        "episodes": (),
        "n_episodes": 0,
        "totals": Totals(90_000, 120, {"served": 89_000, "ok": 1_000}, 10, 3_000_000_000, 812.0, at(0), at(2400), 2),
        "success": Success(0.9991, 1.0, 0.0013, 0.9995, 120, 1_234_567, 1.5),
        "quality": Quality(lines=90_012, unparsable=0, events=12, dropped=0, anonymous=0),
        "worst_minute": NodeMinute("relay-1", at(40), 2_400, 12),
        "offending_clients": (),
        "offending_releases": (),
        "offending_networks": (),
        "budget_breaks": (),
        "n_budget_breaks": 0,
        "timeline": calm,
        "comparison": None,
    }
    return sample_report(**known | fields)


def empty_report() -> Report:
    """The report of a log in which there is nothing at all: every optional value is absent."""
    totals = Totals(0, 0, {}, 0, 0, 0.0, None, None, 0)
    return Report(("empty.jsonl",), totals, Quality(0, 0, 0, 0, 0), (), 0, StormParams())


def hostile_report() -> Report:
    """A report in which every text that can come from a log is a hostile one."""
    episodes = tuple(
        sample_episode(
            clients=(name, *HOSTILE),
            channels=(name, *HOSTILE),
            node=name,
            release=name,
            trigger=name,
            start_us=at(10 * turn),
            end_us=at(10 * turn + 8),
        )
        for turn, name in enumerate(HOSTILE)
    )
    shares = tuple(Share(name, 10, 5, 10, 5, 1) for name in HOSTILE)
    offenders = tuple(Offender(name, 5, 0.1, 0.1 * turn, 1) for turn, name in enumerate(HOSTILE, 1))
    markers = tuple(Marker(at(10 * turn), name, name, name) for turn, name in enumerate(HOSTILE))
    return sample_report(
        inputs=HOSTILE,
        episodes=episodes,
        n_episodes=len(episodes),
        worst_minute=NodeMinute(HOSTILE[0], at(40), 2_000, 1_000),
        by_node=shares,
        by_channel=shares,
        by_release=shares,
        offending_clients=offenders,
        offending_releases=offenders,
        offending_networks=offenders,
        budget_breaks=tuple(BudgetBreak("client", name, at(40), 20, 10) for name in HOSTILE),
        timeline=replace(_timeline(), markers=markers, n_markers=len(markers)),
        comparison=Comparison("release", HOSTILE[0], HOSTILE[1], (RateRatio(HOSTILE[2], 1, 9, 2, 9, 2.0, 0.2, 20.0),)),
        quality=replace(
            _quality(),
            missing_columns=HOSTILE,
            damaged_files=HOSTILE,
            duplicate_files=HOSTILE,
            gaps=tuple(LogGap(name, at(1), at(60)) for name in HOSTILE),
            clock_steps=tuple(ClockStep(name, at(1), 2.5) for name in HOSTILE),
            notes=HOSTILE,
        ),
    )


def large_report(episodes: int = 1000, names: int = 100) -> Report:
    """A report with so many episodes of so many names, of all classes in turn."""
    classes = list(StormClass)
    found = tuple(
        sample_episode(
            classes[turn % len(classes)],
            severity=Severity.CRITICAL if turn % 3 else Severity.WARN,
            clients=tuple(f"viewer-{turn:04d}-{number:03d}-0f3a9c" for number in range(names)),
            channels=tuple(f"studio-{turn:04d}/channel-{number:03d}" for number in range(names)),
            n_clients=names * 12,
            n_channels=names * 3,
            n=100_000 - turn,
            node=f"relay-{turn % 40}",
            start_us=at(2.0 * turn),
            end_us=at(2.0 * turn + 30 + turn % 60),
        )
        for turn in range(episodes)
    )
    return sample_report(episodes=found, n_episodes=episodes + 17)


def _episodes() -> tuple[Episode, ...]:
    herd = tuple(f"viewer-{number}" for number in range(100, 200))
    news, film = "studio-b/news", "studio-a/film"
    restart: dict[str, Any] = {"node": "relay-2", "trigger": "server_ready", "trigger_us": at(702)}
    return (
        sample_episode(
            StormClass.OVERLOAD_AMPLIFICATION, start_us=at(704), end_us=at(912.4), n=14_310, hits=13_950, clients=herd,
            n_clients=341, channels=(news, "studio-c/match"), n_channels=2, seq_lo=None, seq_hi=None, head=None,
            peak_rps=188.0, backoff="fixed", retry_after="ignored", bytes_out=1_144_800, handler_s=2211.0,
            outcome="recovered", rhythm=Rhythm(4_210, 251.0, 0.09, 1.0), blast=Blast(88, 912.0, 31.5), **restart,
        ),
        sample_episode(
            StormClass.ZERO_BYTE_LOOP, start_us=at(1900.0), end_us=at(1903.0), n=300, hits=299, channels=(news,),
            node="relay-2", seq_lo=7, seq_hi=7, head=7, trigger_us=at(1903.1), peak_rps=101.0, handler_s=0.21,
            rhythm=Rhythm(299, 10.0, 0.03, 1.0), outcome="gave_up",
        ),
        sample_episode(
            StormClass.THUNDERING_HERD, start_us=at(702.2), end_us=at(711.0), n=1_364, hits=1_023, clients=herd,
            n_clients=341, channels=tuple(f"studio-{letter}/live" for letter in "abcde"), seq_lo=None, seq_hi=None,
            head=None, peak_rps=402.0, backoff="exponential", retry_after="honoured", outcome="recovered",
            rhythm=Rhythm(1_023, 1_990.0, 0.02, 2.0), blast=Blast(0, None, None), **restart,
        ),
        sample_episode(outcome="gave_up", channels=(film,)),
        sample_episode(
            StormClass.SAME_SEGMENT_LOOP, severity=Severity.WARN, start_us=at(1210), end_us=at(1290), n=410, hits=40,
            clients=("studio-d-mirror",), channels=("studio-d/radio",), release="mirror/0.9", trigger=None,
            trigger_us=None, peak_rps=0.5, backoff="fixed_jitter", bytes_out=33_587_200, seq_lo=812, seq_hi=812,
            head=811, rhythm=Rhythm(39, 2_000.0, 0.2, 1.0), outcome="recovered",
        ),
        sample_episode(
            StormClass.NOT_FOUND_DRIP, severity=Severity.WARN, start_us=at(1512), end_us=at(2399.0), n=887, hits=887,
            channels=(film,), clients=("probe",), release=None, peak_rps=1.0, backoff="fixed", seq_lo=None,
            seq_hi=None, head=None, outcome="ongoing", rhythm=Rhythm(886, 1_000.4, 0.01, 1.0), blast=None,
        ),
        sample_episode(
            StormClass.SEQ_BEHIND_LOOP, severity=Severity.WARN, start_us=at(1620), end_us=at(1624.1), n=36, hits=36,
            clients=("viewer-81",), seq_lo=4, seq_hi=4, head=300, trigger=None, trigger_us=None, peak_rps=9.0,
            backoff=None, rhythm=None, outcome=None, sparkline=None, blast=None,
        ),
        sample_episode(
            StormClass.REPOST_LOOP, severity=Severity.WARN, start_us=at(1931), end_us=at(1939), n=61, hits=60,
            clients=("studio-b-encoder",), channels=(news,), node="relay-2", release="encoder/1.1", seq_lo=10,
            seq_hi=12, head=11, trigger="channel_create", trigger_us=at(1930.0), backoff="exponential_jitter",
            rhythm=Rhythm(59, 120.0, 0.31, 1.8), peak_rps=12.0, outcome="recovered",
        ),
    )  # fmt: skip


def _sparkline(start_us: int, end_us: int, n: int) -> Sparkline:
    seconds = (end_us - start_us) // 1_000_000 + 1
    step_s = max(1, math.ceil(seconds / 600))
    steps = max(1, math.ceil(seconds / step_s))
    weights = [1 + 0.4 * math.sin(step / 3) + 2 * math.exp(-step / 8) for step in range(steps)]
    counts = [round(n * weight / sum(weights)) for weight in weights]
    return Sparkline(start_us - start_us % 1_000_000, step_s * 1_000_000, tuple(counts))


def _timeline() -> Timeline:
    steps = LENGTH_S // STEP_S
    requests = [400 + round(60 * math.sin(step / 9)) for step in range(steps)]
    failures = [3] * steps
    hits = [0] * steps
    for first, last, extra in ((70, 92, 650), (150, 152, 60), (152, 240, 9), (190, 192, 150)):
        for step in range(first, last):
            burst = round(extra * (1 + math.cos((step - first) / (last - first) * 3)) / 2) + 4
            requests[step] += burst
            failures[step] += burst
            hits[step] += burst
    markers = (
        Marker(at(690), "drain", "relay-2", None),
        Marker(at(695), "server_stop", "relay-2", None),
        Marker(at(700), "server_start", "relay-2", None),
        Marker(at(702), "server_ready", "relay-2", None),
        Marker(at(1499.9), "channel_end", "relay-1", "studio-a/film"),
        Marker(at(1903.1), "channel_end", "relay-2", "studio-b/news"),
        Marker(at(1930), "channel_create", "relay-2", "studio-b/news"),
    )
    return Timeline(START_US, STEP_S * 1_000_000, tuple(requests), tuple(failures), tuple(hits), markers, 9)


def _pareto(*names: str | None) -> tuple[Offender, ...]:
    shares = [0.5**turn for turn in range(1, len(names) + 1)]
    return tuple(
        Offender(name, round(21_650 * share), share, sum(shares[: turn + 1]), max(1, 4 - turn))
        for turn, (name, share) in enumerate(zip(names, shares, strict=True))
    )


def _totals() -> Totals:
    by_answer = {"served": 84_000, "post": 5_600, "overload": 15_674, "not_found": 1_300, "ended": 190, "ok": 4_876}
    return Totals(111_640, 21_650, by_answer, 1_900_000_000, 3_712_345_678, 9_123.4, at(0), at(LENGTH_S), 2)


def _quality() -> Quality:
    return Quality(
        lines=111_672,
        unparsable=12,
        events=9,
        dropped=1,
        anonymous=50,
        missing_columns=("trace",),
        damaged_files=("logs/relay-1/access-2.jsonl.gz",),
        duplicates=120,
        duplicate_files=("logs/relay-2/copy-of-access.jsonl",),
        gaps=(LogGap("relay-2", at(696), at(701)),),
        clock_steps=(ClockStep("relay-1", at(2000), -1.5),),
        coarse=False,
        notes=("Lines of two versions of the record are mixed.",),
    )


def _comparison() -> Comparison:
    return Comparison(
        "release",
        "player/2.3.1",
        "player/2.4.0",
        (
            RateRatio("all repeats", 700, 60_100, 20_900, 48_000, 37.4, 34.7, 40.3),
            RateRatio("overload_amplification", 40, 60_100, 13_950, 48_000, 436.7, 320.2, 595.5),
            RateRatio("zero_byte_loop", 0, 60_100, 299, 48_000, None, 84.1, None),
            RateRatio("not_found_loop", 210, 60_100, 150, 48_000, 0.894, 0.725, 1.103),
            RateRatio("repost_loop", 60, 60_100, 4, 48_000, 0.083, 0.03, 0.23),
        ),
    )
