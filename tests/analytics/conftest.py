"""One Spark session for all tests of the package: it takes longer to start than most of them to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from analytics.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark session, configured as the command configures it."""
    with spark_session(small=True) as session:
        yield session
