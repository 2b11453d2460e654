"""Ids and fingerprints: what is seen of a storm does not change its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.analytics.rules.test_web import STORMS
from tests.analytics.support.jsonl import read_jsonl
from tests.analytics.support.scenarios import write_all
from tests.analytics.support.writer import write_lines
from tricklecast.analytics.rules.incidents import Incident, family, incidents, without_place
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.simulate.plan import sizes
from tricklecast.analytics.simulate.run import simulate_logs
from tricklecast.analytics.simulate.truth import Set

Halves = Iterator[tuple[list[Incident], list[Incident]]]


def halves(paths: list[Path]) -> Halves:
    """All incidents, and those of the time after and before the middle of one, or of each."""
    with embedded.connect(0) as connection:
        read_jsonl(connection, paths)
        connection.execute("CREATE TABLE every AS FROM line")
        whole = incidents(connection, "every")
        nodes = [one.nodes[0] for one in whole if len(one.nodes) == 1]
        # Where each storm has a node of its own, all are cut at once.
        apart = len(set(nodes)) > len(whole) / 2
        cut = whole if apart else [whole[len(whole) // 2]]
        middles = [(one.nodes[0] if apart else None, (one.since_us + one.until_us) // 2) for one in cut]
        connection.execute("CREATE TEMP TABLE middle (node VARCHAR, at_us BIGINT)")
        connection.executemany("INSERT INTO middle VALUES (?, ?)", middles)
        for way in (">=", "<"):
            connection.execute(f"""CREATE OR REPLACE TEMP VIEW half AS
                SELECT every.* FROM every JOIN middle ON coalesce(middle.node = every.node, true)
                WHERE ts_us {way} at_us""")
            yield whole, incidents(connection, "half")


def same_ids(paths: list[Path]) -> int:
    """Holds the storms of halves of a log to those of the whole; returns how many there are."""
    found = 0
    for cut, half in halves(paths):
        for one in cut:
            same = [each for each in half if not set(each.clients).isdisjoint(one.clients)]
            same = [each for each in same if each.until_us >= one.since_us and each.since_us <= one.until_us]
            found += bool(same)
            assert not same or without_place(one.id) in {without_place(each.id) for each in same}, one
    return found


def test_half_a_storm_has_the_same_id(tmp_path: Path) -> None:
    """``--since`` and ``--until`` that move through a storm do not change it."""
    lines = [
        line | {"node": name, "client": f"{line['client']}@{name}"}
        for name, (scene, *_) in STORMS.items()
        for line in scene
    ]
    by_hand = write_lines(tmp_path / "log.jsonl", write_all(7)[0] + [orjson.dumps(line).decode() for line in lines])
    assert same_ids([by_hand]) > 50


@pytest.mark.long
def test_half_a_simulated_storm_has_the_same_id(tmp_path: Path) -> None:
    """The same for the simulator's."""
    simulate_logs(tmp_path / "simulated", 21, Set.STANDARD, sizes(lines=10_000, kind=Set.STANDARD))
    assert same_ids(sorted((tmp_path / "simulated").rglob("*.jsonl"))) > 0


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["player-1", "player-27"], "player-#"),
        (["GET /users/17/photo", "GET /users/4711/photo"], "GET /users/#/photo"),
        (["f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "0b1c4d2e-aaaa-bbbb-cccc-00a0c91e6bf6"], "#"),
        (["9c621e8a5dac51f8", "00a0c91e6bf6ffff"], "#"),
        (["192.0.2.7+#abcdef01", "2001:db8::1", "::ffff:192.0.2.7", "198.51.100.4"], "#"),
        (["V1StGXR8Z5jdHi6Bmy", "a1B2c3D4e5F6g7H8i9"], "#"),
        (["film", "news", "talk"], "*"),
        (["deadbeef", "facade"], "*"),
        # A hundred are looked at.
        ([*(f"a-{number}" for number in range(51)), *(["film"] * 1000)], "a-#"),
        ([], ""),
    ],
)
def test_kinds_of_names(names: list[str], kind: str) -> None:
    """Names that differ in numbers only are of a kind; of several kinds the one of most counts."""
    assert family(names) == kind
