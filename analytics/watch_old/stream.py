"""A source of lines for Structured Streaming: growing files, or a Kafka topic.

Spark's own source of files sees only files that are complete, and its Kafka source needs a jar that pip does not bring.
This one reads on the driver, a bounded amount per batch, and its offsets are in Spark's checkpoint. The class is
loaded by its name in a process of Spark's, which must therefore be able to import ``analytics``.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from tricklecast.analytics.watch_old.follow import Follower
from tricklecast.analytics.watch_old.positions import Positions
from tricklecast.analytics.watch_old.reading import Health, write_health

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NAME: Final = "tricklecast_lines"
SCHEMA: Final = "block string, read_us long"
"""A row is many lines: handing each of them over by itself would cost more than parsing it."""

HEALTH_EVERY_S: Final = 0.25
WARM_UP: Final = "warm_up"
"""In an offset: how many batches without lines of the log there were."""

WARMING: Final = '{"v":1,"ts_us":1,"kind":"exchange","op":"api","status":200}\n' * 200
"""Lines of such a batch: records that nothing is concluded from, so that all of the plan has work to do."""


class Lines(Protocol):
    """Where lines come from. Offsets are JSON objects; each knows when it was read."""

    health: Health

    def beginning(self) -> dict[str, Any]:
        """Where a first run begins."""

    def read(self, since: Mapping[str, Any]) -> tuple[list[bytes], dict[str, Any]]:
        """What was added since, as blocks of whole lines, and where it ends."""

    def again(self, since: Mapping[str, Any], until: Mapping[str, Any]) -> list[bytes]:
        """The same blocks once more."""


class FileLines:
    """:class:`Lines` of growing files."""

    def __init__(self, logs: list[str], *, earliest: bool) -> None:
        self._follower = Follower(logs)
        self._earliest = earliest
        self.health = self._follower.health

    def beginning(self) -> dict[str, Any]:
        """Before the files, or behind them."""
        return self._follower.beginning(earliest=self._earliest).as_json()

    def read(self, since: Mapping[str, Any]) -> tuple[list[bytes], dict[str, Any]]:
        """See :class:`Lines`."""
        blocks, end = self._follower.read(Positions.from_json(since))
        return blocks, end.as_json()

    def again(self, since: Mapping[str, Any], until: Mapping[str, Any]) -> list[bytes]:
        """See :class:`Lines`."""
        return self._follower.again(Positions.from_json(since), Positions.from_json(until))


class LinesSource(DataSource):
    """The source as Spark knows it; its options are those of :func:`read_stream`."""

    @classmethod
    def name(cls) -> str:
        """What the source is registered as."""
        return NAME

    def schema(self) -> str:
        """See :data:`SCHEMA`."""
        return SCHEMA

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        """The reader; it lives in a process of Spark's."""
        return LinesReader(json.loads(self.options["json"]))


class LinesReader(SimpleDataSourceStreamReader):
    """Reads on the driver; only a batch that is repeated after a restart is read by a worker."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """
        Args:
            options: as :func:`read_stream` gives them.
        """
        # Ctrl-C goes to every process of the terminal. The command stops the query, and that stops this process.
        with suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._lines = _lines_of(options)
        self._health_file = Path(options["health"])
        self._told = float("-inf")
        self._warm = False
        self._beginning: dict[str, Any] | None = options["since"]

    def initialOffset(self) -> dict[str, Any]:
        """Where a first run begins. Spark asks more than once, and what it then reads begins at either."""
        if self._beginning is None:
            self._beginning = self._lines.beginning() | {WARM_UP: 0}
        return self._beginning

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[str, int]], dict[str, Any]]:
        """What was added since ``start``; waits a moment for it."""
        if not self._warm:
            # Spark compiles its plan with the first batch, which takes seconds. A storm is not to wait for that.
            self._warm = True
            return iter([(WARMING, int(start["read_us"]))]), start | {WARM_UP: start[WARM_UP] + 1}
        blocks, end = self._lines.read(start)
        end = end | {WARM_UP: start[WARM_UP]}
        self._tell()
        return iter(_rows(blocks, end)) if end != start else iter([]), end

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[str, int]]:
        """What :meth:`read` gave, once more."""
        return iter(_rows(self._lines.again(start, end), end))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark keeps the offsets; there is nothing to do."""

    def _tell(self) -> None:
        if time.monotonic() >= self._told + HEALTH_EVERY_S:
            self._told = time.monotonic()
            write_health(self._health_file, self._lines.health)


def _rows(blocks: list[bytes], end: Mapping[str, Any]) -> list[tuple[str, int]]:
    # Spark's own decoding fails at the first invalid byte; a log may have any.
    return [(block.decode("utf-8", "replace"), int(end["read_us"])) for block in blocks or [b""]]


def _lines_of(options: Mapping[str, Any]) -> Lines:
    if "topic" in options:
        from tricklecast.analytics.watch_old.kafka import KafkaLines

        return KafkaLines(options["servers"], options["topic"], options["config"], earliest=options["earliest"])
    return FileLines(options["logs"], earliest=options["earliest"])


def read_stream(
    spark: SparkSession,
    source: Mapping[str, Any],
    health: Path,
    *,
    earliest: bool,
    since: Mapping[str, Any] | None = None,
) -> DataFrame:
    """The stream of blocks of lines.

    Args:
        source: ``logs`` (files, folders), or ``servers``, ``topic`` and ``config`` of Kafka.
        health: file in which the source says how it is doing.
        earliest: begin with what is there already, if there is no checkpoint.
        since: begin there instead.
    """
    spark.dataSource.register(LinesSource)
    options = json.dumps({**source, "health": str(health), "earliest": earliest, "since": since})
    return spark.readStream.format(NAME).option("json", options).load()
