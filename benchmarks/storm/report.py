"""One report by the command's own pipeline, with a clock for each stage; prints JSON.

Run as a process of its own: ``python -m benchmarks.storm.report embedded|spark FOLDER``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tricklecast.analytics.lines import Reading, find_logs
from tricklecast.analytics.pipeline.request import ReportRequest, SparkOptions
from tricklecast.analytics.pipeline.run import make
from tricklecast.analytics.rules.params import Params


def timed(engine: str, folder: str) -> dict[str, float]:
    """Makes a report.

    Returns:
        seconds by the first word of each stage's name (``starting``, ``reading``, ``looking``, ``writing``), and how
        many ``incidents`` were found.
    """
    spent: dict[str, float] = {}

    @contextmanager
    def stage(name: str, total: int = 0) -> Iterator[Callable[[int], object]]:
        begun = time.perf_counter()
        yield lambda taken: None
        spent[name.partition(" ")[0]] = time.perf_counter() - begun

    request = ReportRequest(
        find_logs([folder]), Reading(), Params(), spark=SparkOptions("local[*]") if engine == "spark" else None
    )
    made = make(request, stage)
    return {**spent, "incidents": len(made.report.incidents)}


if __name__ == "__main__":
    print(json.dumps(timed(sys.argv[1], sys.argv[2])))
