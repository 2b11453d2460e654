"""The benchmarks run and report: their structure, never their speed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.fanout import Plan, run, to_report
from benchmarks.report import Series, verdicts, warnings
from benchmarks.scenarios import SCENARIOS, Exchanges, Idle, Scenario, Stream, from_json, quick, to_json
from benchmarks.servers import FASTAPI, FLOOR, BenchmarkError, Contender, Cores, measure, tricklecast

TINY: dict[str, Scenario] = {
    "fan-out": Stream(readers=3, chunk_bytes=512, chunks_per_segment=4, rate=40, warm_up_s=0.1, measure_s=0.3),
    "small": Exchanges(channels=3, chunk_bytes=200, warm_up_s=0.1, measure_s=0.2),
    "bulk": Stream(readers=2, chunk_bytes=4096, chunks_per_segment=8, lead=16, warm_up_s=0.1, measure_s=0.2),
    "idle": Idle(readers=20, warm_up=5),
}
UNBOUND = Cores(None, None)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the clocks of other processes: Linux")
@pytest.mark.parametrize(
    ("contender", "names"),
    [(FLOOR, ("fan-out", "small")), (tricklecast(), tuple(TINY)), (FASTAPI, ("fan-out",))],
    ids=["floor", "tricklecast", "fastapi"],
)
def test_runs_scenarios(contender: Contender, names: tuple[str, ...]) -> None:
    """A server delivers every chunk of a scenario, and the report holds a sample of it."""
    plan = Plan({name: TINY[name] for name in names}, (contender,), 1, UNBOUND)
    text = io.StringIO()
    found = run(plan, Console(file=text, width=140))
    report = json.loads(json.dumps(to_report(plan, found)))
    assert set(report["scenarios"]) == set(names)
    for name in names:
        (sample,) = report["scenarios"][name]["samples"][contender.name]
        assert sample["share"] == 1.0, name
        assert name in text.getvalue()


def test_a_server_that_does_not_start_is_an_error() -> None:
    """A contender that ends at once makes no figures."""
    with pytest.raises(BenchmarkError, match="did not start"):
        measure(Contender("broken", "benchmarks.scenarios"), TINY["idle"], UNBOUND)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_pass_between_processes(name: str) -> None:
    """A scenario survives its way through JSON, the quick form too."""
    for scenario in (SCENARIOS[name], quick(SCENARIOS[name])):
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
