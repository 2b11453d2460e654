"""The values of a report's way: the request, the judgement of an engine, the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tricklecast.analytics.lines import LogFiles, Reading, Window
from tricklecast.analytics.maintenance import Maintenance
from tricklecast.analytics.report.build import LogsRead
from tricklecast.analytics.report.model import Lift, LogLine, Report
from tricklecast.analytics.rules.incidents import Incident
from tricklecast.analytics.rules.params import Params

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from duckdb import DuckDBPyConnection

    from tricklecast.analytics.report.explain import Step
    from tricklecast.analytics.store.table import Table


Advance = Callable[[int], object]


class Stage(Protocol):
    """Announces a stage of the work for as long as its context is open."""

    def __call__(self, name: str, total: int = 0) -> AbstractContextManager[Advance]:
        """Opens it.

        Args:
            name: what is done. total: bytes to read, 0 where that is not known; the context's value is told those read.
        """


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """How Spark is run.

    Attributes:
        master: where; ``None`` leaves it to ``spark-submit``. conf: settings of the user's.
        scratch: a folder for the roll-up that all executors share; ``None`` keeps it on their disks.
        verbose: show its log.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    scratch: str | None = None
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """The logs of a report, and how they are read and judged.

    Attributes:
        files, reading: the lines. params: thresholds. baseline: other logs to compare with, or a time in the table.
        generic: whether all lines are judged as those of any web server, by method, path and status.
        explain: the incident whose steps are wanted: its id, the beginning of it, or its number in the report.
        spark: ``None`` for the embedded engine.
        maintenance: incidents that lie in one of its windows are muted.
        table: a folder, or with Spark a URL, where roll-ups of logs are kept: the files are added to it, and the report
            is on all that is in it. keep_us: for how long, microseconds; ``None`` for the usual time.
    """

    files: LogFiles
    reading: Reading
    params: Params
    baseline: LogFiles | Window | None = None
    generic: bool = False
    explain: str | None = None
    spark: SparkOptions | None = None
    maintenance: Maintenance = field(default_factory=Maintenance)
    table: str | None = None
    keep_us: int | None = None


@dataclass(frozen=True, slots=True)
class ReportResult:
    """A report; the id of the incident to be explained, and the steps that led to it; how it was made."""

    report: Report
    explained: str | None = None
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Judgement:
    """The incidents that one engine found in some logs; the connection has the tables of the last rules."""

    connection: DuckDBPyConnection
    found: list[Incident]
    logs: LogsRead
    lines: Callable[[Sequence[Incident]], dict[str, tuple[LogLine, ...]]]
    table: Table | None = None
    # Reads the logs again, for all lines of one incident.
    all_lines: Callable[[Incident, Advance], Iterator[pa.RecordBatch]] | None = None
    # What sets the requests of incidents apart, by their ids.
    lifts: Callable[[Sequence[Incident]], dict[str, tuple[Lift, ...]]] = lambda shown: {}
