"""Episodes find the event that they followed, and only a near one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tricklecast.analytics.params import StormParams
from tricklecast.analytics.triggers import with_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

S = 1_000_000
START, END = 1000 * S, 1010 * S
STORM = "name string, answer string, node string, node_lo string, channel string, first_us long, last_us long"
EVENT = "node string, channel string, event string, ts_us long"

CASES: dict[str, tuple[str, list[tuple[str | None, str, int]], str | None, bool]] = {
    "nothing happened": ("not_found", [], None, False),
    "just before": ("not_found", [("film", "channel_end", START - 1)], "channel_end", True),
    "as long before as allowed": ("not_found", [("film", "channel_end", START - 120 * S)], "channel_end", True),
    "longer before": ("not_found", [("film", "channel_end", START - 120 * S - 1)], None, False),
    "as long after as allowed": ("not_found", [("film", "channel_end", START + 2 * S)], "channel_end", True),
    "longer after": ("not_found", [("film", "channel_end", START + 2 * S + 1)], None, False),
    "another channel": ("not_found", [("other", "channel_end", START)], None, False),
    "only the server": ("not_found", [(None, "server_start", START - S)], "server_start", False),
    "the channel before the server": (
        "not_found",
        [(None, "server_start", START - S), ("film", "channel_end", START - 9 * S)],
        "channel_end",
        True,
    ),
    "the server before the channel": (
        "overload",
        [(None, "server_start", START - 9 * S), ("film", "channel_create", START - S)],
        "server_start",
        False,
    ),
    "a new life before the end of the former one": (
        "seq_missing",
        [("film", "channel_create", START - 9 * S), ("film", "channel_end", START - S)],
        "channel_create",
        True,
    ),
    "the end of a former life": (
        "zero_byte",
        [("film", "channel_end", START - 19 * S), ("film", "channel_create", START - 9 * S)],
        "channel_create",
        True,
    ),
    "just before rather than just after": (
        "overload",
        [(None, "server_ready", START - 9 * S), (None, "config", START + S)],
        "server_ready",
        False,
    ),
    "no cause of this": ("overload", [("film", "channel_end", START - S)], None, True),
    "a crowd at a channel's beginning": (
        "fleet_overload",
        [("film", "channel_create", START - S)],
        "channel_create",
        False,
    ),
    "the latest of a kind": (
        "overload",
        [(None, "server_stop", START - 9 * S), (None, "server_start", START - S)],
        "server_start",
        False,
    ),
    "a server that has long been up": ("not_found", [(None, "server_start", START - 60 * S - 1)], None, False),
    "a channel that is no longer new": ("seq_missing", [("film", "channel_create", START - 20 * S - 1)], None, False),
    "a new life of which nothing is heard": (
        "abandoned",
        [(None, "server_ready", START - S), ("film", "channel_create", START - 9 * S)],
        "channel_create",
        False,
    ),
    "empty until the end": ("zero_byte", [("film", "channel_end", END + 5 * S)], "channel_end", False),
    "empty, and much later the end": ("zero_byte", [("film", "channel_end", END + 5 * S + 1)], None, False),
    "no lifecycle event": ("not_found", [(None, "log_dropped", START)], None, False),
}


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[str | None, tuple[str | None, bool]]:
    """The trigger of each case, and whether the channel had ended; each case has a node of its own."""
    storms = [(name, case[0], name, name, "film", START, END) for name, case in CASES.items()]
    events = [(name, *event) for name, case in CASES.items() for event in case[1]]
    unknown = ("unknown node", "not_found", None, None, "film", START, END)
    several = ("several nodes", "not_found", None, "just before", "film", START, END)
    joined = with_context(
        spark.createDataFrame([*storms, unknown, several], STORM),
        spark.createDataFrame([*events, (None, "film", "channel_end", START)], EVENT),
        StormParams(),
    )
    return {row["name"]: (row["trigger"], row["ended_us"] is not None) for row in joined.collect()}


@pytest.mark.parametrize("name", CASES)
def test_trigger(name: str, found: dict[str | None, tuple[str | None, bool]]) -> None:
    """The likelier kind of event wins, within two minutes before and a moment after the beginning."""
    assert found[name] == CASES[name][2:]


def test_unknown_node(found: dict[str | None, tuple[str | None, bool]]) -> None:
    """A log without nodes still joins: unknown is equal to unknown."""
    assert found["unknown node"] == ("channel_end", True)


def test_several_nodes(found: dict[str | None, tuple[str | None, bool]]) -> None:
    """A storm that a balancer spread over several servers finds the event on one of them."""
    assert found["several nodes"] == ("channel_end", True)
