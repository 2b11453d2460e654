"""Prometheus metrics, taken from the statistics at the moment of the scrape."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.access_log import AccessLog
from app.core.limits import Limits
from app.core.registry import Registry
from app.data_plane.plane import DataPlane, Options
from app.metrics.plane import PlaneCollector
from tests.support.local import local_server
from tests.support.waiting import eventually
from trickle.records import AccessRecord, Op

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """Every sample by its name and labels; the text must parse."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_over_the_wire() -> None:
    """What happened is counted; what is there is shown."""
    with local_server(channel_drain_s=60) as server, server.client() as target:
        live, ended = target.channel("live"), target.channel("ended")
        live.publish(0, b"12345")
        assert live.get(0).body == b"12345"
        ended.publish(0, b"x")
        ended.end()
        live.preconnect(1)
        live.waiting(1)
        eventually(lambda: server.plane.registry.readers == 1)
        response = target.ask("GET", "/metrics")
        assert (response.get("Content-Type") or "").startswith("text/plain")
        found = samples(response.body.decode())
        gauges = {name: value for (name, labels), value in found.items() if not labels}
        expected = {
            "tricklecast_channels": 2, "tricklecast_channels_draining": 1, "tricklecast_readers": 1,
            "tricklecast_preconnects": 1, "tricklecast_stalled_connections": 0, "tricklecast_received_bytes_total": 6,
        }  # fmt: skip
        assert {name: gauges[name] for name in expected} == expected
        assert gauges["tricklecast_sent_bytes_total"] >= 5
        assert gauges["tricklecast_held_bytes"] >= 6
        assert gauges["tricklecast_segments_kept"] >= 2
        assert found["tricklecast_segments_evicted_total", (("reason", "count"),)] == 0
        assert gauges["tricklecast_connections"] >= 3
        assert gauges["tricklecast_journal_facts_total"] > 0
        labels = (("op", "publish"), ("reason", "complete"), ("status", "200"))
        assert found["tricklecast_exchanges_total", labels] == 2
        assert "tricklecast_log_records_written_total" not in gauges


def test_the_access_log_is_counted(tmp_path: Path) -> None:
    """Written and dropped records, where there is a log."""

    async def main() -> Samples:
        registry = CollectorRegistry()
        plane = DataPlane(Registry(Limits(), autocreate=True, listener=lambda fact: None), Options())
        log = AccessLog(tmp_path / "a.jsonl", node=None, max_bytes=10_000, max_age_s=60, files=1, queue=1)
        for _ in range(3):
            log.put(AccessRecord(1, op=Op.READ))
        log.close()
        await log.run()
        registry.register(PlaneCollector(plane, log))
        return samples(generate_latest(registry).decode())

    found = asyncio.run(main())
    assert found["tricklecast_log_records_dropped_total", ()] == 2
    assert found["tricklecast_log_records_written_total", ()] == 2  # the record, and the event about the two others
