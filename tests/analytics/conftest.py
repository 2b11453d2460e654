"""What all tests of the package share: one Spark session, which takes longer to start than most of them to run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.analytics.support.writer import LogWriter
from tricklecast.analytics.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark session, configured as the command configures it."""
    with spark_session(small=True) as session:
        yield session


@pytest.fixture
def log() -> LogWriter:
    """The log of one node, empty."""
    return LogWriter("n1", random.Random(1))
