"""A scrape of /metrics, and the completeness of its reference page."""

from __future__ import annotations

import asyncio
import os
import re
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.access.service import service
from tests.app.access.signing import SECRET, bearer, token
from tests.support.local import local_server
from tests.support.metrics import Family, Samples, families, labelled, samples, scrape
from tests.support.waiting import eventually
from tricklecast.app.access.authorizer import Access
from tricklecast.app.access_log import AccessLog
from tricklecast.app.core.limits import Limit, Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.app.data_plane.responses import MEMORY
from tricklecast.app.metrics import (
    LAG_BYTES,
    LAG_S,
    MIN_INTERVAL_S,
    OTHER_CHANNELS,
    ChannelRates,
    access_metrics,
    reader_lag,
    server_metrics,
)
from tricklecast.app.settings import load
from tricklecast.app.usage import MAX_READERS_EXAMINED, ailments, troubles
from tricklecast.trickle import __version__
from tricklecast.trickle.records import AccessRecord, Op


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
        assert labelled(found, "tricklecast_refusals_total", "limit") == dict.fromkeys([*Limit, MEMORY], 0) | {
            "channels": 1
        }
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


class Behind:
    """A reader that is so many bytes, and as many milliseconds, behind."""

    looked = 0

    def __init__(self, behind: int) -> None:
        self.behind = behind

    def lag(self) -> int:
        Behind.looked += 1
        return self.behind


class Full:
    """A connection whose peer does not read."""

    def __init__(self, reader: Behind) -> None:
        self._reader = reader

    def reader(self) -> Behind:
        return self._reader


def lag_of(*behind: int, catching_up: tuple[int, ...] = ()) -> Samples:
    """A scrape while the readers of full connections are so far behind, and readers that wait for their turn."""
    stalled = {Full(Behind(lag)): None for lag in behind}
    slow_peers = SimpleNamespace(stalled=stalled, lag_s=lambda reader: max(0, reader.behind) / 1000)
    plane: Any = SimpleNamespace(slow_peers=slow_peers, turns=[Behind(lag) for lag in catching_up])
    return scrape(reader_lag(cast(DataPlane, plane)))


def test_nobody_is_behind() -> None:
    """All figures are 0; a reader that was given more than was there when it came has a negative lag."""
    for found in (lag_of(), lag_of(-5)):
        assert found["tricklecast_reader_lag_max_bytes", ()] == 0
        assert set(labelled(found, "tricklecast_readers_behind", "bytes").values()) == {0}


def test_readers_are_counted_by_how_far_they_are_behind() -> None:
    """At a step is not beyond it."""
    found = lag_of(1, LAG_BYTES[0], LAG_BYTES[0] + 1, LAG_BYTES[2] + 1)
    assert found["tricklecast_reader_lag_max_bytes", ()] == LAG_BYTES[2] + 1
    assert list(labelled(found, "tricklecast_readers_behind", "bytes").values()) == [2, 1, 1, 0, 0]


def test_readers_that_catch_up_are_behind_too() -> None:
    """Their connection takes more, and they wait for their turn."""
    assert lag_of(1, catching_up=(70_000,))["tricklecast_reader_lag_max_bytes", ()] == 70_000


def test_readers_are_counted_by_how_long_they_lack_something() -> None:
    """A step is not beyond itself, as for bytes."""
    found = lag_of(400, 500, 501, catching_up=(2001, 9000))
    assert found["tricklecast_reader_lag_max_seconds", ()] == 9
    assert LAG_S == (0.5, 1, 2, 5)
    assert list(labelled(found, "tricklecast_readers_late", "seconds").values()) == [3, 2, 2, 1]
    assert lag_of()["tricklecast_reader_lag_max_seconds", ()] == 0


def test_the_work_is_bounded() -> None:
    """However many have stalled."""
    Behind.looked = 0
    lag_of(*range(MAX_READERS_EXAMINED + 100))
    assert Behind.looked == MAX_READERS_EXAMINED


RECEIVED = "tricklecast_channel_received_bytes_per_second"
SENT = "tricklecast_channel_sent_bytes_per_second"


class Clock:
    """It stands still unless it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def channel(received: int = 0, sent: int = 0, epoch: int = 1) -> Any:
    """One that so much went through."""
    return SimpleNamespace(epoch=epoch, bytes_in=received, bytes_out=sent)


def after(clock: Clock, top: ChannelRates, seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """A scrape so much later: received and sent, by channel."""
    clock.now += seconds
    found = scrape(top.collect())
    return labelled(found, RECEIVED, "channel"), labelled(found, SENT, "channel")


def test_the_busiest_are_named_and_the_rest_is_one() -> None:
    """By what went through since the last scrape, in and out together."""
    clock, channels = Clock(), {name: channel(1000, 1000) for name in "abcd"}
    top = ChannelRates(channels, clock, 2)
    channels["a"].bytes_in += 100
    channels["b"].bytes_out += 300
    channels["c"].bytes_in += 10
    channels["d"].bytes_in += 20
    received, sent = after(clock, top, 10)
    assert received == {"b": 0, "a": 10, OTHER_CHANNELS: 3}
    assert sent == {"b": 30, "a": 0, OTHER_CHANNELS: 0}


def test_a_scrape_that_comes_too_soon_gets_the_rates_of_the_one_before() -> None:
    """One just below the interval; at the interval the rates are new."""
    clock, channels = Clock(), {"a": channel()}
    top = ChannelRates(channels, clock, 1)
    assert after(clock, top, 0) == ({}, {})
    channels["a"].bytes_in = 80
    assert after(clock, top, 8)[0] == {"a": 10, OTHER_CHANNELS: 0}
    assert after(clock, top, MIN_INTERVAL_S - 0.5)[0] == {"a": 10, OTHER_CHANNELS: 0}
    assert after(clock, top, 0.5)[0] == {"a": 0, OTHER_CHANNELS: 0}


def test_a_channel_that_is_new_or_lives_again_counts_from_its_beginning() -> None:
    """And one that has gone is not there any more."""
    clock, channels = Clock(), {"old": channel(1000), "again": channel(1000)}
    top = ChannelRates(channels, clock, 3)
    del channels["old"]
    channels["again"] = channel(50, epoch=2)
    channels["new"] = channel(100)
    assert after(clock, top, 10)[0] == {"new": 10, "again": 5, OTHER_CHANNELS: 0}


def test_with_zero_no_channel_is_named() -> None:
    """Not even their sum."""
    clock, channels = Clock(), {"a": channel()}
    assert after(clock, ChannelRates(channels, clock, 0), 10) == ({}, {})


@given(st.dictionaries(st.text(min_size=1), st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)), max_size=30))
def test_labels_are_few_and_nothing_is_lost(counts: dict[str, tuple[int, int]]) -> None:
    """With any channel names: at most one more than asked for, and together they have all bytes."""
    clock, channels = Clock(), {f"c{name}": channel() for name in counts}
    top = ChannelRates(channels, clock, 5)
    for name, (received, sent) in counts.items():
        channels[f"c{name}"].bytes_in, channels[f"c{name}"].bytes_out = received, sent
    clock.now += 8
    shown = next(iter(top.collect())).samples
    assert len(shown) <= 6
    assert sum(sample.value for sample in shown) * 8 == sum(received for received, _ in counts.values())


def make_plane() -> DataPlane:
    """One without connections."""
    return DataPlane(Registry(Limits(), autocreate=True), Options(), node="n1")


def test_the_access_log_is_counted(tmp_path: Path) -> None:
    """Queued, written and dropped records, where there is a log."""

    async def main() -> tuple[Samples, Samples]:
        log = AccessLog(tmp_path / "a.jsonl", node=None, max_bytes=10_000, max_age_s=60, files=1, queue=1)
        for _ in range(3):
            log.put(AccessRecord(1, op=Op.READ))
        before = scrape(server_metrics(make_plane(), log))
        log.close()
        await log.run()
        return before, scrape(server_metrics(make_plane(), log))

    before, after = asyncio.run(main())
    assert before["tricklecast_log_queue_records", ()] == 1
    assert after["tricklecast_log_queue_records", ()] == 0
    assert after["tricklecast_log_records_dropped_total", ()] == 2
    assert after["tricklecast_log_records_written_total", ()] == 2  # the record, and the event about the two others


def test_a_process_without_a_free_descriptor_is_degraded() -> None:
    """Nobody can connect, until it has one again."""
    plane = make_plane()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        found, why = troubles(plane, None), ailments(plane, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (found, why) == (["descriptors"], {"descriptors": "each new connection is closed at once"})
    assert troubles(plane, None) == []


def test_what_runs_is_named() -> None:
    """Version and node; without a log there is nothing about one."""
    found = scrape(server_metrics(make_plane(), None))
    (build,) = (dict(labels) for name, labels in found if name == "tricklecast_build_info")
    assert (build["version"], build["node"]) == (__version__, "n1")
    assert not [name for name, _ in found if name.startswith("tricklecast_log_")]


def test_a_server_that_goes_away_says_so() -> None:
    """From the first signal on."""
    plane = make_plane()
    assert scrape(server_metrics(plane, None))["tricklecast_draining", ()] == 0
    plane.registry.shutting_down = True
    assert scrape(server_metrics(plane, None))["tricklecast_draining", ()] == 1


def test_the_loops_lag_is_in_seconds() -> None:
    """It is measured in microseconds; what was slower than all bounds is in the last bucket."""
    plane = make_plane()
    plane.loop_lag.add(3_000)
    plane.loop_lag.add(100_000_000)
    found = scrape(server_metrics(plane, None))
    name = "tricklecast_loop_lag_seconds"
    buckets = [found[f"{name}_bucket", (("le", le),)] for le in ("0.0025", "0.005", "60.0", "+Inf")]
    assert buckets == [0, 1, 1, 2]
    assert found[f"{name}_sum", ()] == 100.003


def test_without_access_control() -> None:
    """The names are there."""
    families = {family.name: family.samples for family in access_metrics(Access(load({}).settings, "here"))}
    assert sorted(families) == [f"tricklecast_{name}" for name in (
        "key_fetches", "tokens", "webhook_answers", "webhook_waiting")]  # fmt: skip
    assert [sample.value for sample in families["tricklecast_webhook_waiting"]] == [0]


def test_tokens_and_the_webhook(tmp_path: Path) -> None:
    """Each token by what was found, each answer by its status."""
    (tmp_path / "secret").write_bytes(SECRET)
    with service() as hook:
        hook.says(403)
        settings = {"jwt_secret_file": tmp_path / "secret", "webhook_url": hook.url}
        with local_server(**settings) as server, server.client() as target:
            good = bearer(token(sub="s"))  # once: made in another second it would be another one
            for headers in (good, good, bearer("x"), bearer(token(exp=1))):
                target.ask("GET", f"{target.base}/c/next", headers)
            lines = target.ask("GET", "/metrics", good).body.decode().splitlines()
    assert 'tricklecast_tokens_total{outcome="checked"} 1.0' in lines
    assert 'tricklecast_tokens_total{outcome="remembered"} 2.0' in lines
    assert 'tricklecast_tokens_total{outcome="rejected"} 2.0' in lines
    assert 'tricklecast_webhook_answers_total{status="403"} 1.0' in lines
    assert 'tricklecast_exchanges_total{op="next",reason="expired",status="401"} 1.0' in lines
    assert 'tricklecast_exchanges_total{op="next",reason="webhook:refused",status="403"} 2.0' in lines


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
FAMILIES = families()


def row(family: Family) -> str:
    """The table row of a metric."""
    labels = " ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind} | {labels} | {family.text} |"


def test_the_page_has_a_row_for_each_metric_and_no_other() -> None:
    """Names, kinds, labels and texts are those of /metrics; what is missing stands in the message, to be pasted."""
    written = re.findall(r"^\| `.*\|$", PAGE.read_text(encoding="utf-8").partition("## Values of labels")[0], re.M)
    exposed = [row(family) for family in FAMILIES]
    assert sorted(set(exposed) - set(written)) == []
    assert sorted(set(written) - set(exposed)) == []
    assert len(written) == len(exposed)


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_names_keep_to_the_conventions(family: Family) -> None:
    """Counters end in `_total`, nothing else does; histograms have a unit; each has a text that is a sentence."""
    assert re.fullmatch(r"(tricklecast|process)_[a-z0-9_]+", family.name)
    assert not family.name.startswith("tricklecast_storms_"), "these names belong to the storm report"
    assert family.name.endswith("_total") == (family.kind == "counter")
    if family.kind == "histogram":
        assert family.name.endswith("_seconds")
    assert family.text.endswith(".")


def test_no_name_is_there_twice() -> None:
    """Nor does a series of a histogram have the name of another metric."""
    series = [name for family in FAMILIES for name in family.series]
    assert len(set(series)) == len(series)
