"""Kills runs over kept parts: ``python -m tests.analytics.cli.killed FOLDER steps|moments``, with logs in FOLDER/logs.

Every run is a fork of this process, which has imported everything and started no thread. ``steps``: what touches the
state is done up to each call of the operating system that changes something. ``moments``: whole reports, at random
times.
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
from contextlib import closing, nullcontext
from pathlib import Path

import duckdb  # noqa: F401  # imported here so that no fork has to

from tricklecast.analytics.cli.incremental import EmbeddedReader, gather
from tricklecast.analytics.cli.pipeline import Asked, make
from tricklecast.analytics.lines import Reading, find_logs
from tricklecast.analytics.report.json import as_json
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.store.parts import LocalParts

NOW_US = 1_900_000_000_000_000
MOMENTS = 100
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime")
TEXT = "f" * 32


def used(logs: Path, state: Path) -> str:
    """All that a run does to a state; what it has then."""
    reader = EmbeddedReader(LocalParts(str(state)), Reading(), lambda con: "line", NOW_US, NOW_US)
    with closing(reader), embedded.connect() as con:
        gathered = gather(reader, find_logs([str(logs)]), Reading(), False)
        reader.roll_up(con, gathered)
        if reader.parts.text(TEXT) is None:
            reader.parts.keep_text(TEXT, b"text")
        rows = con.execute("FROM rollup ORDER BY ALL").fetchall()
        assert reader.parts.text(TEXT) == b"text"
        assert not reader.parts.damaged
        return repr((gathered.counts, rows))


def silent(name: str, total: int = 0) -> nullcontext[Callable[[int], object]]:
    """Announces nothing."""
    return nullcontext(lambda taken: None)


def reported(logs: Path, state: Path) -> str:
    """The report."""
    asked = Asked(find_logs([str(logs)]), Reading(), Params(), incremental=str(state))
    made = make(asked, silent)
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
    """What a whole run says; it is as expected, and leaves nothing half done that is younger than a day."""
    result = folder / "result"
    assert ended(fork(lambda: void(result.write_text(work(folder / "logs", folder / "state"))))) == 0
    text = result.read_text()
    assert expected in (None, text)
    return text


def void(_: object) -> None:
    """Nothing."""


def steps(folder: Path) -> int:
    """Kills at each call until a run gets through; how many there were."""
    shutil.rmtree(folder / "state", ignore_errors=True)
    expected = checked(folder, used, None)
    half = folder / "half"
    # One part is missing, and one has to go.
    shutil.copytree(folder / "state", half)
    first = min(path for path in half.iterdir() if path.is_dir())
    stale = first.rename(half / f"{'0' * 32}-{'0' * 32}")
    os.utime(stale, (0, 0))
    logs, state = folder / "logs", folder / "state"
    for step in range(1, 1000):
        shutil.rmtree(state)
        shutil.copytree(half, state)
        code = ended(fork(lambda step=step: killed_at(step, state, lambda: used(logs, state))))  # type: ignore[misc]
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
    shutil.rmtree(folder / "state")
    checked(folder, reported, expected)
    span = time.monotonic() - began
    for moment in range(MOMENTS):
        if moment % 2:
            shutil.rmtree(folder / "state")
        child = fork(lambda: void(reported(folder / "logs", folder / "state")))
        time.sleep(dice.uniform(0, span))
        os.kill(child, signal.SIGKILL)
        killed += ended(child) == -signal.SIGKILL
        checked(folder, reported, expected)
    return killed


if __name__ == "__main__":
    print({"steps": steps, "moments": moments}[sys.argv[2]](Path(sys.argv[1])))
