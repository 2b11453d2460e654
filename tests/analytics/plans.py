"""What Spark really ran, as plain trees, and the rules that the report's plans keep."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON: Final = re.compile(r"Python|Pandas|Arrow")
"""In names of operators that send rows through a Python process: BatchEvalPython, MapInPandas, ArrowEvalPython ..."""

ON_THE_WAY: Final = frozenset({"ColumnarToRow", "Filter", "Project", "Union", "Coalesce", "WholeStageCodegen"})
"""What may stand between a scan and the first aggregation: one row in, at most one row out, nothing kept."""

SCAN: Final = re.compile(r"Scan (json|parquet|text|csv|orc)|FileScan|BatchScan")


@dataclass(slots=True)
class Operator:
    """One operator of a plan, with those that feed it and the one it feeds."""

    name: str
    text: str
    feeds: list[Operator] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Its name without what it is applied to."""
        return self.name.split(" ")[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """One query that was run."""

    operators: tuple[Operator, ...]

    @property
    def scans(self) -> list[Operator]:
        """Operators that read files."""
        return [operator for operator in self.operators if SCAN.search(operator.name)]


def watched(spark: SparkSession, work: Callable[[], object]) -> tuple[list[Plan], list[int]]:
    """Does some work.

    Returns:
        the plans of all queries that ran meanwhile, and how many records each stage took in from files or caches.
    """
    java: Any = spark._jsparkSession
    store = java.sharedState().statusStore()
    bus = java.sparkContext().listenerBus()
    bus.waitUntilEmpty()
    queries, stages = _ids(store), _stages(spark)
    work()
    bus.waitUntilEmpty()
    plans = [_plan(store.planGraph(query)) for query in sorted(_ids(store) - queries)]
    later = _stages(spark)
    return plans, [records for stage, records in sorted(later.items()) if stage not in stages]


def _ids(store: Any) -> set[int]:
    return {execution.executionId() for execution in _each(store.executionsList())}


def _stages(spark: SparkSession) -> dict[int, int]:
    java, gateway = spark.sparkContext._jsc.sc(), spark.sparkContext._gateway
    assert gateway is not None
    every, no_quantiles = gateway.jvm.java.util.ArrayList(), gateway.new_array(gateway.jvm.double, 0)
    stages = java.statusStore().stageList(every, False, False, no_quantiles, every)
    return {stage.stageId(): stage.inputRecords() for stage in _each(stages)}


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(place) for place in range(sequence.size()))


def _plan(graph: Any) -> Plan:
    operators = {node.id(): Operator(node.name(), node.desc()) for node in _each(graph.allNodes())}
    for edge in _each(graph.edges()):
        operators[edge.fromId()].feeds.append(operators[edge.toId()])
    return Plan(tuple(operators.values()))


def broken_rules(plan: Plan) -> list[str]:
    """What a plan does to lines that it should not; nothing if it is fit for logs of any size."""
    found = [f"{operator.name} runs Python" for operator in plan.operators if PYTHON.search(operator.name)]
    for scan in plan.scans:
        found += _above(scan)
    return found


def _above(scan: Operator) -> Iterator[str]:
    """Follows lines upwards until they have been added up: partly where they were read, then all of a key."""
    operator = scan
    while operator.feeds:
        (operator,) = operator.feeds
        if operator.kind == "HashAggregate":
            break
        if operator.kind not in ON_THE_WAY:
            yield f"{operator.name} over lines"
            return
    else:
        yield "lines are not added up"
        return
    if "partial_" not in operator.text:
        yield "lines are added up in one step"
        return
    exchange = operator.feeds[0] if operator.feeds else operator
    final = exchange.feeds[0] if exchange.feeds else operator
    if exchange.kind != "Exchange" or final.kind != "HashAggregate" or "partial_" in final.text:
        yield f"{exchange.name}, {final.name} after the first addition"
