"""What all tests of the package share: one Spark session, which takes longer to start than most of them to run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import pytest

from tricklecast.analytics.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""Plans are run as they are, and Spark does not note which line of Python each part of them comes from: compiling
plans and taking notes would be a third of what these tests cost."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark session, configured as the command configures it, but for the settings in :data:`QUICK`.

    It starts and works without a word of Java's on standard error.
    """
    with ExitStack() as ended:
        with TemporaryFile() as said:
            stderr = os.dup(2)
            os.dup2(said.fileno(), 2)
            try:
                session = ended.enter_context(spark_session(small=True, conf=QUICK))
                assert session.range(3).count() == 3
            finally:
                os.dup2(stderr, 2)
                os.close(stderr)
            said.seek(0)
            assert said.read() == b""
        yield session
