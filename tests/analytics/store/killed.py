"""Kills runs over a table: ``python -m tests.analytics.store.killed FOLDER steps|moments``, with logs in FOLDER/logs.

Every run is a fork of this process, which has imported everything and started no thread. ``steps``: logs are added up
to each call of the operating system that changes something in the table. ``moments``: whole reports, at random times.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import duckdb  # noqa: F401  # imported here so that no fork has to
import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: F401  # the same

from tricklecast.analytics.lines import ALWAYS, Reading, find_logs
from tricklecast.analytics.pipeline.request import ReportRequest
from tricklecast.analytics.pipeline.run import make
from tricklecast.analytics.report.json import as_json
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.store import place as places
from tricklecast.analytics.store import table as tables

NOW_US = 1_900_000_000_000_000
MOMENTS = 100
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime")


def used(logs: Path, place: Path) -> str:
    """All that a run does to a table; what it has then."""
    # So that what was replaced goes at once.
    places.IN_USE_S = 0  # type: ignore[misc]
    table, files = tables.Table(places.Folder(str(place))), find_logs([str(logs)])
    with embedded.connect(0) as con:
        table.add(files, Reading(), False, tables.Embedded(con, files, Reading(), False, NOW_US))
        told = tables.embedded_rows(con, table, ALWAYS, files)
        rows = con.execute("FROM rollup ORDER BY ALL").fetchall()
    assert not [note for note in table.notes if "damaged" in note]
    assert not table.doubts
    return repr((told.counts, rows))


def silent(name: str, total: int = 0) -> nullcontext[Callable[[int], object]]:
    """Announces nothing."""
    return nullcontext(lambda taken: None)


def reported(logs: Path, place: Path) -> str:
    """The report."""
    made = make(ReportRequest(find_logs([str(logs)]), Reading(), Params(), table=str(place)), silent)
    assert not [note for note in made.notes if "damaged" in note]
    return as_json(made.report)


def fork(work: Callable[[], None]) -> int:
    """Starts some work in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return child


def ended(child: int) -> int:
    """How a process ended: its exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(step: int, root: Path, work: Callable[[], object]) -> None:
    """Does some work until the given call that changes something below a folder."""
    left = step

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        changes = event in CHANGES or (event == "open" and int(str(arguments[2])) & (os.O_WRONLY | os.O_RDWR))
        # To remove a folder, Python gives names in it.
        inside = event in ("os.remove", "os.rmdir") or str(arguments[0]).startswith(str(root))
        if changes and inside:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    work()


def checked(folder: Path, work: Callable[[Path, Path], str], expected: str | None) -> str:
    """What a whole run says; it is as expected."""
    result = folder / "result"
    assert ended(fork(lambda: void(result.write_text(work(folder / "logs", folder / "table"))))) == 0
    text = result.read_text()
    assert expected in (None, text)
    return text


def void(_: object) -> None:
    """Nothing."""


def steps(folder: Path) -> int:
    """Kills at each call until a run gets through; how many there were.

    One log is known, one has grown, so that rows are replaced and removed, and one is new.
    """
    logs, table, half = folder / "logs", folder / "table", folder / "half"
    _, second, third = sorted(logs.iterdir())
    whole = second.read_bytes()
    second.write_bytes(whole[: whole.index(b"\n", len(whole) // 2) + 1])
    third.rename(folder / "third")
    checked(folder, used, None)
    table.rename(half)
    second.write_bytes(whole)
    (folder / "third").rename(third)
    shutil.copytree(half, table)
    expected = checked(folder, used, None)
    shutil.rmtree(table)
    assert checked(folder, used, None) == expected
    for step in range(1, 1000):
        shutil.rmtree(table)
        shutil.copytree(half, table)
        code = ended(fork(lambda step=step: killed_at(step, table, lambda: used(logs, table))))  # type: ignore[misc]
        checked(folder, used, expected)
        if code == 0:
            return step
        assert code == -signal.SIGKILL
    raise AssertionError


def moments(folder: Path) -> int:
    """Kills whole reports at random times; how many were at work then."""
    dice, killed = random.Random(1), 0
    expected = checked(folder, reported, None)
    began = time.monotonic()
    shutil.rmtree(folder / "table")
    checked(folder, reported, expected)
    span = time.monotonic() - began
    for moment in range(MOMENTS):
        if moment % 2:
            shutil.rmtree(folder / "table")
        child = fork(lambda: void(reported(folder / "logs", folder / "table")))
        time.sleep(dice.uniform(0, span))
        os.kill(child, signal.SIGKILL)
        killed += ended(child) == -signal.SIGKILL
        checked(folder, reported, expected)
    return killed


if __name__ == "__main__":
    print({"steps": steps, "moments": moments}[sys.argv[2]](Path(sys.argv[1])))
