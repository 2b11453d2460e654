"""What a fleet's logs do to Spark: many objects, one client or server with most of the lines, a line of 600 MB, a file
that goes away, a crowd that loops; and what many episodes do to the rules. Each beside the same in its easy shape.

Run as ``python -m benchmarks.storm.scale CASE FOLDER`` it is a process that benchmarks/storms.py measures.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.storm.made import BASE_US

MB: Final = 1_000_000
SPARK: Final = ("--engine", "spark", "-q", "--fail-on", "never", "--json-file", os.devnull)
DRIVER: Final = ("--conf", "spark.driver.memory=1g")

Commands = dict[str, list[str]]
Case = Callable[[Path, float], Commands]
"""Makes logs of a part of the full size; gives the commands that are measured, that of the easy shape first."""


def _storms(folder: Path) -> list[str]:
    return [sys.executable, "-m", "tricklecast", "storms", *SPARK, *DRIVER, str(folder)]


def _lines(count: int, client: str, node: str, every_us: int = 500) -> str:
    """SELECT of lines: a tenth of them are 404, and all else is healthy reading."""
    return f"""SELECT i, '{{"v":1,"ts_us":' || ({BASE_US} + i * {every_us}) || ',"node":"' || {node}
        || '","kind":"exchange","op":"read","method":"GET","path":"/trickle/c' || (i % 100) || '/' || i
        || '","channel":"c' || (i % 100) || '","seq":' || i || ',"rseq":' || i || ',"next_seq":' || (i + 1)
        || ',"status":' || CASE WHEN i % 10 = 0 THEN 404 ELSE 200 END || ',"bytes_out":' || (i % 900 + 1)
        || ',"dur_us":4000,"wait_us":3000,"client":"' || {client} || '","ip":"10.0.0.7","conn":' || (i % 5000) || '}}'
        AS line FROM range({count}) r(i)"""


def _write(folder: Path, name: str, select: str, files: int = 4) -> Path:
    """Writes lines to some files, each a stretch of time."""
    import duckdb

    path = folder / name
    path.mkdir()
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE made AS {select}")
        share = -(-con.execute("SELECT count(*) FROM made").fetchall()[0][0] // files)
        texts = con.execute(
            f"SELECT i // {share} AS file, string_agg(line, chr(10) ORDER BY i) FROM made GROUP BY file"
        ).fetchall()
    for number, text in texts:
        (path / f"access-{number:06}.jsonl").write_text(f"{text}\n")
    return path


def objects(folder: Path, size: float) -> Commands:
    """The same lines in 20 files, in 20,000, and in 200,000."""
    select, counts = _lines(round(200_000 * size), "'v' || i % 1000", "'n' || i % 4"), (20, 20_000, 200_000)
    files = [round(count * (size if count > 20 else 1)) for count in counts]
    return {f"{count:,} files": _storms(_write(folder, f"files-{count}", select, count)) for count in files}


def skew(folder: Path, size: float) -> Commands:
    """19 of 20 lines are one client's, or one server's."""
    count, many, node = round(1_000_000 * size), "'v' || i % 1000", "'n' || i % 20"
    hot = {
        "even": (many, node),
        "one client": (f"CASE WHEN i % 20 > 0 THEN 'hot' ELSE {many} END", node),
        "one server": (many, f"CASE WHEN i % 20 > 0 THEN 'hot' ELSE {node} END"),
    }
    return {name: _storms(_write(folder, name.replace(" ", "-"), _lines(count, *of))) for name, of in hot.items()}


def long_line(folder: Path, size: float) -> Commands:
    """A line of 600 MB among others; and an object that is there when the files are listed, and not when it is read."""
    select = _lines(round(100_000 * size), "'v' || i % 1000", "'n' || i % 4")
    path = _write(folder, "long", select)
    with (path / "access-000001.jsonl").open("ab") as file:
        for _ in range(round(600 * size)):
            file.write(b"x" * MB)
        file.write(b"\n")
    gone = [sys.executable, "-m", "benchmarks.storm.scale", "gone", str(_write(folder, "gone", select, 20))]
    return {
        "as usual": _storms(_write(folder, "short", select)),
        "a line of 600 MB": _storms(path),
        "a file goes": gone,
    }


def loops(folder: Path, size: float) -> Commands:
    """A hundred thousand clients, each with a loop of its own on a channel of its own, and a tenth of them."""
    clients = round(100_000 * size)

    def looping(count: int) -> str:
        return f"""SELECT i, '{{"v":1,"ts_us":' || ({BASE_US} + (i // {count}) * 200000 + i % {count} % 1000 * 100)
            || ',"node":"n' || (i % 20) || '","kind":"exchange","op":"read","method":"GET","status":404,"channel":"f'
            || (i % {count}) || '","client":"v' || (i % {count}) || '","dur_us":900}}' AS line
            FROM range({count} * 60) r(i)"""

    logs = {f"{count:,} loops": _write(folder, f"loops-{count}", looping(count)) for count in (clients // 10, clients)}
    return {name: _storms(path) for name, path in logs.items()}


def rules(folder: Path, size: float) -> Commands:
    """The rules alone, over ten times as many episodes: of clients apart, of fleets of one server, on many servers."""
    counts = [round(count * size) for count in (10_000, 100_000)]
    run = [sys.executable, "-m", "benchmarks.storm.scale"]
    return {f"{shape}, {count:,}": [*run, shape, str(count)] for shape in EPISODES for count in counts}


EPISODES: Final = {
    "apart": ("k % 1000 * 3000000", "'n' || k % 20", "'f' || k", 404),
    "fleets": ("k // 20 * 60000000 + k % 20 * 1000", "'n'", "'film'", 503),
    "balanced": ("k % 1000 * 3000000", "'n' || hash(k * 100 + i) % 50", "'f' || k", 404),
}
"""SQL for an episode's beginning, server, channel and status, by its number ``k`` and its request's ``i``."""


def episodes(shape: str, count: int) -> float:
    """CPU seconds that the rules take for some episodes of forty requests."""
    from tricklecast.analytics.rules import engine
    from tricklecast.analytics.scan import embedded

    begins, node, channel, status = EPISODES[shape]
    with embedded.connect() as con:
        con.execute(f"""CREATE TEMP TABLE line AS
            SELECT {BASE_US} + {begins} + i * 100000 AS ts_us, {node} AS node, 'exchange' AS kind, 'read' AS op,
                'GET' AS method, {status} AS status, {channel} AS channel, 'v' || k AS client, 900 AS dur_us
            FROM range({count}) a(k), range(40) b(i)""")
        embedded.roll_up(con)
        embedded.reduce(con)
        begun = time.process_time()
        engine.run(con)
        return time.process_time() - begun


def gone(folder: str) -> list[str]:
    """The caveats of a report over a folder from which a file vanishes after it was listed."""
    from contextlib import nullcontext

    from tricklecast.analytics.lines import Reading, find_logs
    from tricklecast.analytics.pipeline.request import ReportRequest, SparkOptions
    from tricklecast.analytics.pipeline.run import make
    from tricklecast.analytics.rules.params import Params

    files = find_logs([folder])
    os.unlink(files.names[-1])
    request = ReportRequest(files, Reading(), Params(), spark=SparkOptions("local[*]"))
    caveats = list(make(request, lambda *_: nullcontext(lambda taken: None)).report.quality.caveats)
    assert any("had gone" in one for one in caveats), caveats
    return caveats


CASES: Final[dict[str, tuple[Case, tuple[float, ...]]]] = {
    "objects": (objects, (1.3, 3.0)),
    "skew": (skew, (1.3, 1.3)),
    "odd": (long_line, (1.5, 1.3)),
    "loops": (loops, (10.0,)),
    "rules": (rules, (13.0,)),
}
"""Cases, with how many times each command but the first may take what the first takes."""

if __name__ == "__main__":
    case, of = sys.argv[1:]
    print(json.dumps({"said": gone(of)} if case == "gone" else {"rules_s": episodes(case, int(of))}))
