"""How long a stretch would have taken without the storm guard's holds."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.analytics.own_time import LONGEST_HOLD_US, at_once, own_us, own_us_sql
from tricklecast.app.core.storm_guard import LONGEST_HOLD_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAUSES = st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(0, 1000)), min_size=2, max_size=200)


def test_no_hold_is_longer_than_it_counts_on() -> None:
    """The server's limit is the one that is known here."""
    assert LONGEST_HOLD_US == LONGEST_HOLD_S * 1e6


@given(PAUSES)
def test_one_client(pauses: list[tuple[int, int]]) -> None:
    """Its own time is that of its pauses, to within one hold, whatever it was held for; and it is told to be one."""
    gaps_us = [pause_us + 1000 * hold_ms for pause_us, hold_ms in pauses[:-1]]
    own, held_ms = sum(pause_us for pause_us, _ in pauses[:-1]), sum(hold_ms for _, hold_ms in pauses)
    assert at_once(sum(gaps_us), held_ms) == 1
    assert own_us(sum(gaps_us), held_ms, len(pauses)) == pytest.approx(own, abs=LONGEST_HOLD_US)


@given(PAUSES)
def test_without_holds_all_time_is_its_own(pauses: list[tuple[int, int]]) -> None:
    """Logs of a server without the guard are judged as ever."""
    *_, length_us = accumulate(pause_us for pause_us, _ in pauses)
    assert own_us(length_us, 0, len(pauses)) == length_us


@pytest.mark.parametrize("clients", [1, 2, 7, 50])
def test_clients_that_share_a_key(clients: int) -> None:
    """Each pauses a quarter of a second and is held for three: together they are as fast as they are many, about."""
    turns = 200
    n, length_us = clients * turns, (turns - 1) * 1_000_000
    assert 4 * clients / 3 < n / (own_us(length_us, n * 750, n) / 1e6) < 4 * clients * 3


def test_spark_does_the_same_arithmetic(spark: SparkSession) -> None:
    """The text and the function agree, with nothing held and one request, too."""
    cases = [(0, 0, 1), (10_000_000, 0, 7), (10_000_000, 9000, 40), (1, 5000, 9), (60_000_000, 100_000, 300)]
    frame = spark.createDataFrame([*cases, (5_000_000, None, 4)], "length_us long, guard_ms long, n long")
    rows = frame.selectExpr("*", f"{own_us_sql('length_us', 'guard_ms', 'n')} AS own").collect()
    assert [row["own"] for row in rows] == [
        pytest.approx(own_us(row["length_us"], row["guard_ms"] or 0, row["n"])) for row in rows
    ]
