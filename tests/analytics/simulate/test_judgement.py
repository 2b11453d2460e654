"""The report on simulated logs: every class found and named, every look-alike silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tricklecast.analytics.simulate.catalogue import Set
from tricklecast.analytics.simulate.evaluate import reported
from tricklecast.analytics.simulate.score import LIMITS, score
from tricklecast.analytics.simulate.table import details, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.long
@pytest.mark.parametrize("kind", [Set.STANDARD, Set.GREY])
def test_the_report_is_good_enough(kind: Set, spark: SparkSession, request: pytest.FixtureRequest) -> None:
    """Recall, precision, classes and triggers reach what was promised."""
    log = request.getfixturevalue(kind.value)
    found = score(reported(spark, log.folder), log.truth)
    assert found.meets(LIMITS[kind]), "\n".join([table(found, kind), *details(found)])
