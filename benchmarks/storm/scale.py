"""What a fleet's logs do to Spark: many objects, one client or server with most of the lines, a line of 600 MB, and a
crowd that loops all day. Each case beside the same lines in their easy shape.

Run it as ``python -m benchmarks.storm.scale [--only CASE] [--size PART]``; README.md in the folder above has figures.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.storm.made import BASE_US
from benchmarks.storms import RunFailed, watched

MB: Final = 1_000_000
STORMS: Final = (sys.executable, "-m", "tricklecast", "storms", "--engine", "spark", "-q", "--fail-on", "never")
DRIVER: Final = ("--conf", "spark.driver.memory=1g")

Case = Callable[[Path, float], Iterator[tuple[str, Path]]]
"""Makes logs of a size, and names them; the first is what the others are compared with."""


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


def objects(folder: Path, size: float) -> Iterator[tuple[str, Path]]:
    """The same lines in 20 files and in 20,000."""
    select = _lines(round(200_000 * size), "'v' || i % 1000", "'n' || i % 4")
    yield "20 files", _write(folder, "few", select, 20)
    many = round(20_000 * size)
    yield f"{many:,} files", _write(folder, "many", select, many)


def skew(folder: Path, size: float) -> Iterator[tuple[str, Path]]:
    """19 of 20 lines are one client's, or one server's."""
    count, many, node = round(1_000_000 * size), "'v' || i % 1000", "'n' || i % 20"
    yield "even", _write(folder, "even", _lines(count, many, node))
    yield (
        "one client",
        _write(folder, "client", _lines(count, f"CASE WHEN i % 20 > 0 THEN 'hot' ELSE {many} END", node)),
    )
    yield "one server", _write(folder, "node", _lines(count, many, f"CASE WHEN i % 20 > 0 THEN 'hot' ELSE {node} END"))


def long_line(folder: Path, size: float) -> Iterator[tuple[str, Path]]:
    """A line of 600 MB among others."""
    select = _lines(round(100_000 * size), "'v' || i % 1000", "'n' || i % 4")
    yield "no long line", _write(folder, "short", select)
    path = _write(folder, "long", select)
    with (path / "access-000001.jsonl").open("ab") as file:
        for _ in range(round(600 * size)):
            file.write(b"x" * MB)
        file.write(b"\n")
    yield f"a line of {600 * size:.0f} MB", path


def loops(folder: Path, size: float) -> Iterator[tuple[str, Path]]:
    """A hundred thousand clients, each with a loop of its own on a channel of its own."""
    clients = round(100_000 * size)

    def looping(count: int) -> str:
        return f"""SELECT i, '{{"v":1,"ts_us":' || ({BASE_US} + (i // {count}) * 200000 + i % {count} % 1000 * 100)
            || ',"node":"n' || (i % 20) || '","kind":"exchange","op":"read","method":"GET","status":404,"channel":"f'
            || (i % {count}) || '","client":"v' || (i % {count}) || '","dur_us":900}}' AS line
            FROM range({count} * 60) r(i)"""

    yield f"{clients // 10:,} clients", _write(folder, "tenth", looping(clients // 10))
    yield f"{clients:,} clients", _write(folder, "all", looping(clients))


CASES: Final[dict[str, Case]] = {"objects": objects, "skew": skew, "long-line": long_line, "loops": loops}


def main() -> None:
    """Runs the cases, and prints for each how long it took and what it held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, help="one case")
    parser.add_argument("--size", type=float, default=1.0, help="a part of the full size (default: 1)")
    options = parser.parse_args()
    for name in [options.only] if options.only else CASES:
        with tempfile.TemporaryDirectory() as folder:
            first = 0.0
            for case, logs in CASES[name](Path(folder), options.size):
                try:
                    found = watched([*STORMS, *DRIVER, "--json-file", "/dev/null", str(logs)])
                except RunFailed as failed:
                    print(f"{name}: {case}: failed: {str(failed)[-300:]}", flush=True)
                    continue
                first = first or found["s"]
                print(
                    f"{name}: {case}: {found['s']:.1f} s ({found['s'] / first:.2f} times), {found['peak_mb']:.0f} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
