"""Run one scenario against one server: ``python -m benchmarks.load``, a job as JSON in, its result as JSON out."""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict

from benchmarks.load import audience, exchange, idle, repeat, stream
from benchmarks.load.loop import Loop
from benchmarks.scenarios import Audience, Dialect, Exchanges, Idle, Repeat, Stream, from_json


def main() -> None:
    """Read the job, run it, print the result."""
    job = json.load(sys.stdin)
    gc.disable()  # It would only add its pauses to the latencies; a run makes few cycles and is short.
    loop = Loop(job["port"])
    pid, dialect = job["pid"], Dialect(job["dialect"])
    match from_json(job["scenario"]):
        case Stream() as scenario:
            result: object = stream.run(loop, scenario, pid, dialect)
        case Exchanges() as scenario:
            result = exchange.run(loop, scenario, pid, dialect)
        case Idle() as scenario:
            result = idle.run(loop, scenario, pid, dialect)
        case Repeat() as scenario:
            result = repeat.run(loop, scenario, pid)
        case Audience() as scenario:
            result = audience.run(loop, scenario, pid)
    json.dump(asdict(result), sys.stdout)  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
