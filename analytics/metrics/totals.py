"""The first look at a roll-up: how much there is of what, and how far the log can be trusted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from tricklecast.analytics.answers import FAILURES, Answer, among
from tricklecast.analytics.duplicates import Traces, traces
from tricklecast.analytics.durations import DAY_US, SECOND_US
from tricklecast.analytics.report_old.figures import Quality, Totals
from tricklecast.analytics.schema import EXPECTED
from tricklecast.trickle.records import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame

MONTH_US: Final = 30 * DAY_US
MAX_NODES: Final = 10_000

FAR_SHARE: Final = 0.001
"""Lines more than a month from all others are a clock that was not set if they are no more than this share."""

ENOUGH_TIMES: Final = 20
"""So many requests all on whole seconds are no coincidence: one such log in 10^120 would be."""


@dataclass(frozen=True, slots=True)
class Overview:
    """What the first action over a roll-up tells.

    Attributes:
        by_answer: requests by kind of answer.
        lines, unparsable, events, dropped, anonymous: as of :class:`analytics.report_old.figures.Quality`.
        bytes_in, bytes_out, handler_us: sums over all requests.
        first_us, last_us: the first and the last arrival or event; ``None`` in an empty log.
        from_us, to_us: the same without lines that are a month away from all others; far: how many those are.
        nodes: servers that wrote the log.
        failed_clients: distinct clients by kind of failure, about.
        missing_columns: expected fields that no line has.
        coarse: all times are whole seconds.
        rows: rows of the roll-up.
        traces: of lines that are there more than once.
    """

    by_answer: dict[str, int]
    lines: int
    unparsable: int
    events: int
    dropped: int
    anonymous: int
    bytes_in: int
    bytes_out: int
    handler_us: int
    first_us: int | None
    last_us: int | None
    from_us: int | None
    to_us: int | None
    far: int
    nodes: int
    failed_clients: dict[str, int]
    missing_columns: tuple[str, ...]
    coarse: bool
    rows: int
    traces: Traces

    @property
    def requests(self) -> int:
        """All exchanges."""
        return sum(self.by_answer.values())

    def totals(self, repeats: int) -> Totals:
        """The traffic of the whole log, of which so many requests were repeats."""
        return Totals(
            requests=self.requests,
            repeats=repeats,
            by_answer=self.by_answer,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            handler_s=self.handler_us / 1e6,
            first_us=self.first_us,
            last_us=self.last_us,
            nodes=self.nodes,
        )

    def quality(self) -> Quality:
        """What can be told about the log without looking at its nodes one by one."""
        far = f"{self.far:,} of {self.lines:,} lines are a month or more away from all others: a clock was not set"
        return Quality(
            lines=self.lines,
            unparsable=self.unparsable,
            events=self.events,
            dropped=self.dropped,
            anonymous=self.anonymous,
            missing_columns=self.missing_columns,
            coarse=self.coarse,
            notes=(far,) if self.far else (),
        )


def overview(rollup: DataFrame) -> Overview:
    """Adds up a roll-up. If it is to be persisted and is not computed yet, this is what computes it."""
    return _summary(answer_totals(rollup).collect())


def answer_totals(rollup: DataFrame) -> DataFrame:
    """One row per kind of answer and month."""
    dropped = F.when(F.col("event") == Event.LOG_DROPPED.value, F.col("n")).otherwise(0)
    fine = (F.col("first_us") % SECOND_US != 0) | (F.col("last_us") % SECOND_US != 0)
    return rollup.groupBy("answer", F.expr(f"bucket_us DIV {MONTH_US}").alias("month")).agg(
        F.count(F.lit(1)).alias("rows"),
        F.sum("n").alias("n"),
        F.try_sum("bytes_in").alias("bytes_in"),
        F.try_sum("bytes_out").alias("bytes_out"),
        F.try_sum("dur_us").alias("dur_us"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
        F.sum("anonymous").alias("anonymous"),
        F.sum(dropped).alias("dropped"),
        F.bit_or("present").alias("present"),
        F.max(F.when(fine, 1).otherwise(0)).alias("fine"),
        F.slice(F.collect_set("node"), 1, MAX_NODES).alias("nodes"),
        F.approx_count_distinct(F.when(among(FAILURES), F.col("client"))).alias("clients"),
        *(F.expr(f"{found} AS {name}") for name, found in traces().items()),
    )


def _summary(rows: list[Any]) -> Overview:
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row["answer"]] += row["n"]
    lines = counts.total()
    events, unparsable = counts.pop(Answer.EVENT.value, 0), counts.pop(Answer.UNPARSABLE.value, 0)
    failures = {answer.value for answer in FAILURES}
    exchanges = [row for row in rows if row["answer"] in counts]
    from_us, to_us, far = _main_stretch(rows)
    return Overview(
        by_answer=dict(sorted(counts.items())),
        lines=lines,
        unparsable=unparsable,
        events=events,
        dropped=_total(rows, "dropped"),
        anonymous=_total(rows, "anonymous"),
        bytes_in=_total(rows, "bytes_in"),
        bytes_out=_total(rows, "bytes_out"),
        handler_us=_total(rows, "dur_us"),
        first_us=min(_known(rows, "first_us"), default=None),
        last_us=max(_known(rows, "last_us"), default=None),
        from_us=from_us,
        to_us=to_us,
        far=far,
        nodes=len({node for row in rows for node in row["nodes"]}),
        failed_clients={answer: _clients(exchanges, answer) for answer in sorted(failures & counts.keys())},
        missing_columns=_missing(exchanges),
        coarse=counts.total() >= ENOUGH_TIMES and not any(row["fine"] for row in exchanges),
        rows=_total(rows, "rows"),
        traces=Traces.of(rows),
    )


def _clients(rows: Iterable[Any], answer: str) -> int:
    # A client that failed in two months counts twice: an estimate of "how many" only grows by that.
    return sum(row["clients"] for row in rows if row["answer"] == answer)


def _missing(exchanges: list[Any]) -> tuple[str, ...]:
    seen = 0
    for row in exchanges:
        seen |= row["present"] or 0
    return tuple(name for place, name in enumerate(EXPECTED) if not seen >> place & 1) if exchanges else ()


def _main_stretch(rows: list[Any]) -> tuple[int | None, int | None, int]:
    """First and last arrival without the few lines that are a month or more away from all others, and how many."""
    months: dict[int, list[Any]] = {}
    for row in rows:
        if row["month"] is not None and row["first_us"] is not None:
            months.setdefault(row["month"], []).append(row)
    sizes = {month: _total(found, "n") for month, found in months.items()}
    groups: list[list[int]] = []
    for month in sorted(sizes):
        if groups and month - groups[-1][-1] <= 1:
            groups[-1].append(month)
        else:
            groups.append([month])
    total = sum(sizes.values())
    far = [group for group in groups if sum(sizes[month] for month in group) <= FAR_SHARE * total]
    main = [row for group in groups if group not in far for month in group for row in months[month]]
    return (
        min(_known(main, "first_us"), default=None),
        max(_known(main, "last_us"), default=None),
        sum(sizes[month] for group in far for month in group),
    )


def _known(rows: Iterable[Mapping[str, Any]], name: str) -> list[int]:
    return [row[name] for row in rows if row[name] is not None]


def _total(rows: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(row[name] or 0 for row in rows)
