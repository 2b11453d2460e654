"""The server as a program."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.app.metrics.scrape import Samples, scrape
from tricklecast.app.access_log import AccessLog
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.app.metrics.process import ServerCollector
from tricklecast.trickle import __version__
from tricklecast.trickle.records import AccessRecord, Op


def make_plane() -> DataPlane:
    """One without connections."""
    return DataPlane(Registry(Limits(), autocreate=True), Options(), node="n1")


def test_the_access_log_is_counted(tmp_path: Path) -> None:
    """Queued, written and dropped records, where there is a log."""

    async def main() -> tuple[Samples, Samples]:
        log = AccessLog(tmp_path / "a.jsonl", node=None, max_bytes=10_000, max_age_s=60, files=1, queue=1)
        for _ in range(3):
            log.put(AccessRecord(1, op=Op.READ))
        before = scrape(ServerCollector(make_plane(), log))
        log.close()
        await log.run()
        return before, scrape(ServerCollector(make_plane(), log))

    before, after = asyncio.run(main())
    assert before["tricklecast_log_queue_records", ()] == 1
    assert after["tricklecast_log_queue_records", ()] == 0
    assert after["tricklecast_log_records_dropped_total", ()] == 2
    assert after["tricklecast_log_records_written_total", ()] == 2  # the record, and the event about the two others


def test_what_runs_is_named() -> None:
    """Version and node; without a log there is nothing about one."""
    found = scrape(ServerCollector(make_plane(), None))
    (build,) = (dict(labels) for name, labels in found if name == "tricklecast_build_info")
    assert (build["version"], build["node"]) == (__version__, "n1")
    assert not [name for name, _ in found if "_log_" in name]


def test_a_server_that_goes_away_says_so() -> None:
    """From the first signal on."""
    plane = make_plane()
    assert scrape(ServerCollector(plane, None))["tricklecast_draining", ()] == 0
    plane.registry.shutting_down = True
    assert scrape(ServerCollector(plane, None))["tricklecast_draining", ()] == 1


def test_the_loops_lag_is_in_seconds() -> None:
    """It is measured in microseconds; what was slower than all bounds is in the last bucket."""
    plane = make_plane()
    plane.loop_lag.add(3_000)
    plane.loop_lag.add(100_000_000)
    found = scrape(ServerCollector(plane, None))
    name = "tricklecast_loop_lag_seconds"
    buckets = [found[f"{name}_bucket", (("le", le),)] for le in ("0.0025", "0.005", "60.0", "+Inf")]
    assert buckets == [0, 1, 1, 2]
    assert found[f"{name}_sum", ()] == 100.003
