"""The benchmarks run and report: their structure, never their speed."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import audience, cluster, overload, saturation, workers
from benchmarks.endurance.logs import read_logs
from benchmarks.endurance.run import Outcome, soak
from benchmarks.endurance.run import Plan as Soak
from benchmarks.endurance.slope import growth
from benchmarks.fanout import Plan, run, to_report
from benchmarks.load.saturation import Attack, Load
from benchmarks.pressure.bounds import Bound, Verdict, difference, figure, ratio
from benchmarks.pressure.sections import SECTIONS, Section, Size
from benchmarks.references import go_livepeer, nchan
from benchmarks.report import Series, verdicts, warnings
from benchmarks.scenarios import SCENARIOS, Ask, Exchanges, Idle, Repeat, Scenario, Stream, from_json, quick, to_json
from benchmarks.servers import FASTAPI, FLOOR, NCHAN, BenchmarkError, Contender, Cores, measure, tricklecast
from benchmarks.soak import print_outcome
from tests.support.fixtures import forks
from tests.support.long import mostly_long
from tricklecast.trickle.records import Event

TINY: dict[str, Scenario] = {
    "fan-out": Stream(readers=3, chunk_bytes=512, chunks_per_segment=4, rate=40, warm_up_s=0.1, measure_s=0.3),
    "small": Exchanges(channels=3, chunk_bytes=200, warm_up_s=0.1, measure_s=0.2),
    "flood": Stream(readers=2, chunk_bytes=4096, chunks_per_segment=8, lead=16, warm_up_s=0.1, measure_s=0.2),
    "idle": Idle(readers=20, warm_up=5),
}
__all__ = ["forks"]

UNBOUND = Cores(None, None)
LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the clocks of other processes: Linux")
QUICK_END = ("--shutdown-drain-s", "0.1", "--shutdown-deadline-s", "1")
TINY_SIZE = Size(
    healthy=3,
    stalled=5,
    loopers=3,
    idle=20,
    many=6,
    few=2,
    deliveries=120,
    askers=3,
    neighbours=2,
    warm_up_s=0.1,
    measure_s=0.3,
)


@LINUX
@pytest.mark.parametrize(
    ("contender", "names"),
    [
        (FLOOR, ("fan-out",)),
        (tricklecast(), ("small", "flood", "idle")),
        (FASTAPI, ("fan-out",)),
        pytest.param(
            NCHAN,
            ("fan-out", "flood", "idle"),
            marks=pytest.mark.skipif(nchan.missing() is not None, reason=nchan.missing() or ""),
        ),
    ],
    ids=["floor", "tricklecast", "fastapi", "nchan"],
)
def test_runs_scenarios(request: pytest.FixtureRequest, contender: Contender, names: tuple[str, ...]) -> None:
    """A server delivers every chunk of a scenario, and the report holds a sample of it."""
    if not contender.worker:  # of which the process is looked for that serves
        request.getfixturevalue("forks")
    plan = Plan({name: TINY[name] for name in names}, (contender,), 1, UNBOUND)
    text = io.StringIO()
    found = run(plan, Console(file=text, width=140))
    report = json.loads(json.dumps(to_report(plan, found)))
    assert set(report["scenarios"]) == set(names)
    for name in names:
        (sample,) = report["scenarios"][name]["samples"][contender.name]
        assert sample["share"] == 1.0, name
        assert name in text.getvalue()


LOADS = {
    "slow readers": Load(channels=2, readers=1, chunk_bytes=4096, chunks_per_segment=4, rate=50, stalled=3, drip=2),
    "a publisher of 1-byte chunks": Load(attack=Attack.TINY_PUBLISHER),
}


@LINUX
@pytest.mark.parametrize("name", mostly_long(LOADS, 2))
def test_saturation_measures_a_load_and_its_neighbours(name: str) -> None:
    """Every chunk of a light load arrives in time; what happens beside a load is measured, whatever the load is."""
    sample = saturation.measure(tricklecast(), LOADS[name], UNBOUND, 0.3)
    if LOADS[name].attack is None:
        assert sample["share"] == 1.0
        assert sample["refused"] == sample["cut_off"] == 0
        assert sample["cpu_us"] > 0 or not sample["rate"]  # on a busy machine all of it may arrive after the window
    else:
        assert math.isnan(sample["share"])
    assert sample["neighbour_p99_ms"] >= sample["neighbour_p50_ms"] > 0
    assert sample["probe_p99_ms"] >= sample["probe_p50_ms"] > 0


def test_saturation_says_what_a_server_has_not_kept() -> None:
    """Losses, readers that were cut off, a goodput that falls while more is offered, and failed runs are told."""
    family = saturation.Family(Load(channels=1, readers=1), (10, 20))
    good = dict.fromkeys((figure for _, figure, _ in saturation.COLUMNS), 0.0) | {"share": 1.0, "goodput_mb_s": 100.0}
    bad = {**good, "share": 0.5, "goodput_mb_s": 50.0, "cut_off": 3.0, "load_busy": 0.95}
    points = [point for point, _ in family.points("x")]
    assert points == ["x @10/s", "x @20/s", "x"]
    samples: dict[str, dict[str, dict[str, float] | str]] = {
        points[0]: {"ours": good},
        points[1]: {"ours": bad},
        points[2]: {"ours": "readers: broken"},
    }
    assert list(saturation.complaints("ours", samples)) == [
        "x @20/s: 50.0% delivered (at least 95%)",
        "x @20/s: 3 readers that read were cut off",
        "x @20/s: 50.0 MB/s, 100.0 at a lower rate",
        "x: readers: broken",
    ]
    text = io.StringIO()
    saturation.print_family(Console(file=text, width=200), "x", family, samples)
    assert "ours failed: readers: broken" in text.getvalue()
    assert "bottleneck" in text.getvalue()


@LINUX
@pytest.mark.usefixtures("forks")
def test_a_load_whose_clients_fail_is_an_error() -> None:
    """The error names the clients that failed, and the answer that they got."""
    small = tricklecast(settings=("--max-channels", "1"))
    with pytest.raises(BenchmarkError, match=r"publishers: .*unexpected answer: 'HTTP/1.1 503"):
        saturation.measure(small, Load(channels=3, readers=1), UNBOUND, 0.1)


def test_the_go_reference_is_left_out_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the pinned commit cannot be had, the reason is one line and nothing is left in the cache."""
    checkout, cache = tmp_path / "checkout", tmp_path / "cache"
    subprocess.run(["git", "init", "--quiet", str(checkout)], check=True, env={"PATH": os.environ["PATH"]})
    monkeypatch.setenv(go_livepeer.CHECKOUT, str(checkout))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    go_livepeer.missing.cache_clear()
    reason = go_livepeer.missing()
    go_livepeer.missing.cache_clear()
    assert reason is not None
    assert reason.startswith("git: ")
    assert "\n" not in reason
    assert not list((cache / "tricklecast-bench").iterdir())


@LINUX
@pytest.mark.usefixtures("forks")
def test_a_reference_that_fails_is_noted_and_has_no_figures() -> None:
    """The other servers are still measured; a failed run of tricklecast ends the benchmark."""
    text = io.StringIO()
    plan = Plan({"idle": TINY["idle"]}, (Contender("broken", "benchmarks.scenarios"), FLOOR), 1, UNBOUND)
    (series,) = run(plan, Console(file=text, width=140))
    assert "broken failed in round 1" in text.getvalue()
    assert series.samples["broken"] == [{}]
    assert series.cost("floor")
    with pytest.raises(BenchmarkError):
        run(replace(plan, contenders=(tricklecast(settings=("--no-such-option",)),)), Console(file=text))


def test_only_servers_that_can_take_part_run() -> None:
    """nchan knows no segments, and is left out where they matter."""
    assert NCHAN.takes_part(TINY["flood"])
    assert not NCHAN.takes_part(TINY["small"])
    assert tricklecast().takes_part(TINY["small"])


def _some(section: Section, *cases: str) -> Section:
    """A section with these cases only, and no bounds: they may be about others."""
    return replace(section, cases={name: section.cases[name] for name in cases}, bounds=())


@LINUX
@pytest.mark.long
def test_healthy_readers_are_measured_among_stalled_ones() -> None:
    """Stalled readers are still connected at the end, at other servers, too; their cost is told, and who has failed."""
    text, others = io.StringIO(), (FLOOR, Contender("broken", "benchmarks.scenarios"))
    found = overload.run("stalled", SECTIONS["stalled"](TINY_SIZE), 1, UNBOUND, Console(file=text, width=160), others)
    assert {label: sample["stalled"] for label, sample in found.rounds[0].items()} == {
        "alone": 0,
        "alone, floor": 0,
        "among stalled": 5,
        "among stalled, floor": 5,
    }
    assert "among stalled: broken failed in round 1" in text.getvalue()
    assert all(sample["share"] == 1.0 for sample in found.rounds[0].values())
    assert "kB per stalled reader" in text.getvalue()
    assert json.loads(json.dumps(found.to_json()))["verdicts"]


@LINUX
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("loopers", ("missing, new connections", "ended, keep-alive")),
        pytest.param("refusals", ("kept", "channel full"), marks=pytest.mark.long),
    ],
)
def test_repeated_requests_are_answered_and_counted(name: str, cases: tuple[str, ...]) -> None:
    """Clients in a loop get the answer that they are meant to get, each time, and its cost is told."""
    section = _some(SECTIONS[name](TINY_SIZE), *cases)
    found = overload.run(name, section, 1, UNBOUND, Console(file=io.StringIO()))
    for sample in found.rounds[0].values():
        assert sample["rate"] > 0
        assert sample["cpu_us"] >= 0  # some kernels count in steps of 10 ms


@pytest.mark.parametrize("name", SECTIONS)
def test_bounds_are_about_figures_that_their_cases_have(name: str) -> None:
    """Every section's bounds can be computed from what its scenarios measure."""
    section = SECTIONS[name](TINY_SIZE)
    figures = {"cpu_us": 2.0, "p50_ms": 2.0, "p99_ms": 2.0, "server_busy": 0.1}
    streams = {"pace": 30.0, "blocked": 0.0, "rss_kb": 1000.0, "kb": 3.0}
    samples = {case: {**figures, **streams} for case in section.cases}
    for bound in section.bounds:
        assert str(Verdict(bound, (bound.found(samples),)))


def test_bounds_are_judged_by_the_median() -> None:
    """A bound is met if the median of the rounds does not exceed it, and told if there is none."""
    samples = {"a": {"x": 6.0}, "b": {"x": 2.0}}
    assert figure("x", "a", 10)(samples) == 60
    assert ratio("x", "a", "b")(samples) == 3
    assert difference("x", "a", "b", 4)(samples) == 1
    bound = Bound("x", figure("x", "a"), 2)
    assert Verdict(bound, (1, 2, 9)).met
    assert not Verdict(bound, (1, 2.1, 3)).met
    assert str(Verdict(bound, (3,))) == "MISSED x: 3 (at most 2)"
    assert str(Verdict(Bound("x", figure("x", "a")), (1, 2, 3))) == "told   x: 2 (1-3)"


async def _soak(folder: Path) -> Outcome:
    plan = Soak(seconds=4, busy=0.1, publishers=2, readers=6, life_s=1.0, witnesses=1, every_s=0.02, settings=QUICK_END)
    return await soak(plan, folder, UNBOUND, lambda _: None)


@pytest.mark.long
@LINUX
def test_a_soak_survives_a_restart_and_a_kill(tmp_path: Path) -> None:
    """The server ends and is killed in the middle, the clients go on, and the log can be read afterwards."""
    outcome = asyncio.run(_soak(tmp_path))
    assert [life.ended_by for life in outcome.subject.lives] == ["SIGTERM", "SIGKILL", "SIGTERM at the end"]
    assert [life.code for life in outcome.subject.lives] == [0, -9, 0]
    (account,) = outcome.accounts
    assert account.received
    assert not account.doubled
    assert outcome.log.count(Event.SERVER_START) == 3
    assert outcome.log.exchanges
    assert outcome.crowd["GET 200"]
    text = io.StringIO()
    print_outcome(Console(file=text, width=160), outcome, workers=1)
    assert "witness 0" in text.getvalue()


def test_growth_is_judged_by_a_line() -> None:
    """A line that rises by more than is allowed is a leak; noise is not, and neither is what is too short."""
    seconds = [float(second) for second in range(200)]
    leak = growth("x", seconds, [1000 + second for second in seconds], 0.05, 10)
    assert leak.judged
    assert not leak.met
    assert leak.grown == pytest.approx(199)
    assert leak.per_hour == pytest.approx(3600)
    assert str(leak).startswith("MISSED")
    assert growth("x", seconds, [1000 + second % 2 * 100 for second in seconds], 0.05, 10).met
    assert growth("x", seconds[:20], [second * 1000 for second in seconds[:20]], 0.05, 10).met
    assert not growth("x", [], [], 0.05, 10).judged


def test_torn_lines_of_a_log_are_counted(tmp_path: Path) -> None:
    """What is no record is torn; events are counted by their kind."""
    log = tmp_path / "access.jsonl"
    log.write_bytes(b'{"kind":"exchange"}\n{"kind":"event","event":"drain"}\n{"kind":"exch{"kind":"event"}\n7\n')
    found = read_logs([log])
    assert (found.lines, found.torn, found.exchanges) == (4, 2, 1)
    assert found.count(Event.DRAIN) == 1


def test_a_server_that_does_not_start_is_an_error() -> None:
    """A contender that ends at once makes no figures."""
    with pytest.raises(BenchmarkError, match="did not start"):
        measure(Contender("broken", "benchmarks.scenarios"), TINY["idle"], UNBOUND)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_pass_between_processes(name: str) -> None:
    """A scenario survives its way through JSON, the quick form too."""
    for scenario in (SCENARIOS[name], quick(SCENARIOS[name]), Repeat(ask=Ask.KEPT, clients=1)):
        assert from_json(json.loads(json.dumps(to_json(scenario)))) == scenario


def test_expectations_are_judged_by_the_median_ratio() -> None:
    """An expectation compares the median of the ratios of each round with its bound."""
    series = Series("small", SCENARIOS["small"])
    for ours, theirs in ((10.0, 100.0), (5.0, 100.0), (30.0, 100.0)):
        series.add("tricklecast", {"cpu_us": ours})
        series.add("fastapi", {"cpu_us": theirs})
    (verdict,) = verdicts([series], "tricklecast")
    assert verdict.found == 0.1
    assert verdict.met
    assert str(verdict).startswith("met")


def test_doubtful_figures_are_named() -> None:
    """A load generator at its limit, a saturated server, a late rate and losses are reported."""
    series = Series("fan-out", SCENARIOS["fan-out"])
    series.add("floor", {"cpu_us": 1.0, "share": 0.5, "rate": 9000.0, "server_busy": 0.99, "load_busy": 0.95})
    texts = list(warnings(series))
    assert len(texts) == 4
    assert "bottleneck" in texts[0]


@LINUX
@pytest.mark.long
def test_workers_beside_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU of all processes counts, and a figure of both servers is there in each round, as are latencies."""
    tiny = Stream(
        readers=3, chunk_bytes=512, chunks_per_segment=4, rate=40, by_worker=True, warm_up_s=0.1, measure_s=0.5
    )
    case = workers.Case("tiny", lambda contender, cores, _: measure(contender, tiny, cores), at_most=1e9, moves=1)
    monkeypatch.setitem(workers.CASES, "tiny", case)
    found = workers.run("tiny", 1, UNBOUND, Console(file=io.StringIO()), is_quick=True)
    assert {label: len(samples) for label, samples in found.items()} == {workers.ONE: 1, workers.SEVERAL: 1}
    assert all(0 < sample["owner_first_ms"] < sample["owner_p99_ms"] for (sample,) in found.values())
    what, unit, one, several, ratio, move, verdict = workers.row(case, found)
    assert (what, unit, verdict[-3:]) == ("tiny", "us per chunk", "met")
    assert float(ratio) == pytest.approx(float(several) / float(one), rel=0.05)
    assert float(move) == pytest.approx(float(several) - float(one), abs=0.2)


@LINUX
def test_measures_a_hop_between_two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small segments and first bytes through a node that owns nothing, and chunks from one that holds replicas.

    The table has a row for each load.
    """
    monkeypatch.setattr(cluster, "ASKS", 20)
    monkeypatch.setattr(cluster, "AGES_RATE", 20)
    monkeypatch.setattr(cluster, "BUSY", math.inf)
    with cluster.servers(UNBOUND) as found:
        posted = asyncio.run(cluster.post(found.edge[1], found.edge[0], 0, for_s=0.1))
        first = asyncio.run(cluster.first_byte(found.edge[1], 0))
        aged = asyncio.run(cluster.ages(found.owner[1], found.holder[1], 0, for_s=1.5))
    assert 0 < aged["p50_ms"] <= aged["p99_ms"]
    assert posted["cpu_us"] > 0
    assert 0 < first["p50_ms"] <= first["p99_ms"]
    relays = ("one relay", "holder read", "edge read", "edge write", "one post", "edge post")
    times = ("one first", "edge first", "holder first", "one ages", "holder ages")
    table = cluster.table([{name: posted | first for name in (*relays, *times)}])
    assert table.row_count == 9
    text = io.StringIO()
    Console(file=text, width=200).print(table)
    assert text.getvalue().count("1.00 of 1.3: met") == 3


@pytest.mark.long
@LINUX
def test_audiences_are_compared_with_plain_readers() -> None:
    """Readers of a film, of dashboards and of what is over get bytes, and the table has each kind of them."""
    size = audience.Size(
        readers=2,
        dashboards=2,
        channels=3,
        replaying=2,
        segments=2,
        rate=20,
        window_s=0.0,
        warm_up_s=0.0,
        measure_s=0.1,
    )
    text = io.StringIO()
    console = Console(file=text, width=200)
    samples = audience.run(list(audience.SECTIONS), size, UNBOUND, console)
    assert {name for name, sample in samples.items() if not sample["mb_s"]} == {"film", "0 dashboards"}
    audience.report(size, [samples], console)
    assert all(row.what in text.getvalue() for row in audience.rows(size))
