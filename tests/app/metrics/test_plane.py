"""What the registry and the data plane count, over the wire."""

from __future__ import annotations

from tests.app.metrics.scrape import labelled, samples
from tests.support.local import local_server
from tests.support.waiting import eventually
from tricklecast.app.core.limits import Limit


def test_what_is_there_is_shown() -> None:
    """Channels, readers, publishers, connections, segments, bytes."""
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
        gauges = {name.removeprefix("tricklecast_"): value for (name, labels), value in found.items() if not labels}
        expected = {
            "channels": 2, "channels_draining": 1, "readers": 1, "readers_waiting": 1, "preconnects": 1,
            "segments_written": 0, "segments_orphaned": 0, "stalled_connections": 0, "received_bytes_total": 6,
            "overtaking_posts": 0, "draining": 0, "reader_lag_max_bytes": 0, "reader_lag_max_seconds": 0,
        }  # fmt: skip
        assert {name: gauges[name] for name in expected} == expected
        assert gauges["sent_bytes_total"] >= 5
        assert gauges["held_bytes"] >= 6
        assert gauges["segments_kept"] >= 2
        assert gauges["connections"] >= 3
        assert gauges["journal_facts_total"] > 0
        assert "log_records_written_total" not in gauges
        assert found["tricklecast_segments_evicted_total", (("reason", "count"),)] == 0
        labels = (("op", "publish"), ("reason", "complete"), ("status", "200"))
        assert found["tricklecast_exchanges_total", labels] == 2
        assert found["tricklecast_wait_seconds_count", (("op", "publish"),)] == 2
        assert found["tricklecast_wait_seconds_bucket", (("le", "+Inf"), ("op", "publish"))] == 2
        assert found["tricklecast_wait_seconds_bucket", (("le", "60.0"), ("op", "read"))] == 1


def test_refusals_are_counted_by_the_limit() -> None:
    """As their bodies and the access log name it."""
    with local_server(max_channels=1) as server, server.client() as target:
        first, second = target.channel("first"), target.channel("second")
        first.publish(0)  # besides the channel _changes, which takes no place
        refused = target.ask("POST", second.path)
        assert (refused.status, refused.body) == (503, b"Limit reached: channels")
        found = samples(target.ask("GET", "/metrics").body.decode())
        assert labelled(found, "tricklecast_refusals_total", "limit") == dict.fromkeys(Limit, 0) | {"channels": 1}
        assert labelled(found, "tricklecast_limit", "limit")["channels"] == 1
        assert labelled(found, "tricklecast_limit_used", "limit")["channels"] == 1


def test_segments_under_way_are_told_apart() -> None:
    """Written by a connected publisher, or left by one that may come back."""
    with local_server(publisher_grace_s=60) as server, server.client() as target:
        channel = target.channel("c")
        channel.started(0, b"abc")
        lost, _ = channel.started(1, b"abc")
        lost.connection.close()
        totals = {"tricklecast_segments_written": 1.0, "tricklecast_segments_orphaned": 1.0}

        def shown() -> bool:
            found = samples(target.ask("GET", "/metrics").body.decode())
            return {name: found[name, ()] for name in totals} == totals

        eventually(shown)
