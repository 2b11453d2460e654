"""Logs become hours of Parquet: every line once, whatever happens to the files and to the process meanwhile."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.analytics.lines.test_formats import FOREIGN
from tests.analytics.lines.traffic import EVENT, NATIVE, START_US, as_line, read_files, write, written
from tests.support.long import mostly_long
from tricklecast.analytics.errors import BadInput, Busy, CannotWrite
from tricklecast.analytics.lines import NothingUnderstood, Reading, find_logs
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.logs import compact as module
from tricklecast.analytics.logs.compact import FOLDER, Compacted, compact
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.simulate.formats import FormatName
from tricklecast.analytics.store.store import Store

HOUR_US = 3_600_000_000


def line(hour: int, number: int, **fields: Any) -> bytes:
    """A line of an hour."""
    return (
        NATIVE.replace(b'"ts_us":1760000000001000', b'"ts_us":%d' % (START_US + hour * HOUR_US))
        .replace(b'"conn":17', b'"conn":%d' % number)
        .replace(b'"v":1', b'"v":%d' % fields.get("v", 1))
    )


def lines_of(first: int, last: int) -> bytes:
    """Lines of one hour, with numbers."""
    return b"".join(line(0, number) + b"\n" for number in range(first, last))


def run(out: Path, *logs: Path | str) -> Compacted:
    """Compacts some logs."""
    return compact(find_logs([str(log) for log in logs]), out, Reading(), lambda stage: None)


def kept(out: Path) -> Counter[tuple[int, int]]:
    """Hour and number of each line in a folder."""
    rows, _ = read_files(str(out))
    return Counter(((row["ts_us"] - START_US) // HOUR_US, row["conn"]) for row in rows)


def numbers(*ranges: tuple[int, int]) -> Counter[tuple[int, int]]:
    """What :func:`kept` says of lines of one hour."""
    return Counter((0, number) for first, last in ranges for number in range(first, last))


def test_a_day_in_the_life(tmp_path: Path) -> None:
    """Logs grow, are rotated and compressed, and come late: each line is in its hour, once."""
    path, out = tmp_path / "access.jsonl", tmp_path / "out"
    first = [line(0, number) for number in range(50)] + [line(2, number) for number in range(10)]
    path.write_bytes(b"\n".join([*first, b"nonsense", line(1, 99, v=2), b'{"v":1,"ts_us":17']))
    done = run(out, path)
    assert (done.lines, done.bad, done.hours) == (60, 2, 2)
    assert [sample.why for sample in done.samples] == ["unreadable", "version"]
    assert sorted(str(found.relative_to(out)) for found in out.glob("dt=*/*/*")) == [
        "dt=2025-10-09/hr=08/lines.parquet",
        "dt=2025-10-09/hr=10/lines.parquet",
    ]
    untouched = (out / "dt=2025-10-09/hr=10/lines.parquet").read_bytes()
    done = run(out, path)
    assert (done.lines, done.hours, done.known) == (0, 0, 1)

    late = [line(0, 1000), line(1, 1001)]
    rotated = tmp_path / "access-1.jsonl.gz"
    rotated.write_bytes(gzip.compress(b"\n".join([*first, b"nonsense", line(1, 99, v=2), *late]) + b"\n"))
    path.unlink()
    write(path, [line(3, 2000)])
    done = run(out, path, rotated)
    assert (done.lines, done.bad, done.hours) == (3, 0, 3)
    wanted = [(0, number) for number in range(50)] + [(2, number) for number in range(10)]
    assert kept(out) == Counter([*wanted, (0, 1000), (1, 1001), (3, 2000)])
    assert (out / "dt=2025-10-09/hr=10/lines.parquet").read_bytes() == untouched


def test_growing_renamed_compressed(tmp_path: Path) -> None:
    """Over a log's life each of its lines is taken once; a copy of an earlier state adds nothing."""
    path, out = tmp_path / "access.jsonl", tmp_path / "out"
    write(path, lines_of(0, 100))
    run(out, path)
    write(path, lines_of(0, 150) + b'{"li')
    assert run(out, path).lines == 50
    rotated = path.rename(tmp_path / "access-1.jsonl")
    write(path, lines_of(500, 510))
    write(rotated, lines_of(0, 160))
    assert run(out, rotated, path).lines == 20
    packed = tmp_path / "access-1.jsonl.gz"
    packed.write_bytes(gzip.compress(lines_of(0, 160)))
    assert run(out, packed, rotated, path).hours == 0
    write(tmp_path / "early.jsonl", lines_of(0, 70))
    assert run(out, tmp_path / "early.jsonl").hours == 0
    packed.write_bytes(gzip.compress(lines_of(0, 170)))
    assert run(out, packed).lines == 10
    assert kept(out) == numbers((0, 170), (500, 510))


def test_two_servers_whose_logs_begin_alike(tmp_path: Path) -> None:
    """Only the same content is the same log: what two servers were asked in the same second is not."""
    probes = lines_of(0, 100)
    write(tmp_path / "a.jsonl", probes + lines_of(200, 300))
    run(tmp_path / "out", tmp_path / "a.jsonl")
    write(tmp_path / "b.jsonl", probes[:2000].rpartition(b"\n")[0] + b"\n" + lines_of(300, 310))
    assert run(tmp_path / "out", tmp_path / "b.jsonl").lines == probes[:2000].count(b"\n") + 10


def test_lines_that_stand_in_two_logs(tmp_path: Path) -> None:
    """They are written once, and the count of lines is that of the lines written."""
    request = {"request_method": "GET", "request_uri": "/trickle/film/1", "status": 404, "remote_addr": "192.0.2.7"}
    rows = [as_line(request | {"msec": START_US / 1e6 + number, "request_id": f"{number:032x}"}) for number in range(7)]
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    write(logs[0], rows[:5])
    write(logs[1], rows[2:])
    done = run(tmp_path / "out", *logs)
    assert (done.lines, done.doubled) == (len(read_files(str(tmp_path / "out"))[0]), 3) == (7, 3)


def test_the_last_line(tmp_path: Path) -> None:
    """A record without its line's end is taken, and not again when the end comes; half a record waits."""
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    write(path, lines_of(0, 2)[:-1])
    assert run(out, path).lines == 2
    write(path, lines_of(0, 3)[:-50])
    assert run(out, path).lines == 0
    write(path, lines_of(0, 3))
    assert run(out, path).lines == 1
    assert kept(out) == numbers((0, 3))


def test_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is larger than a batch is taken in several, and so are many small ones."""
    monkeypatch.setattr(module, "BATCH", 20_000)
    monkeypatch.setattr("tricklecast.analytics.lines.files.BLOCK", 1000)
    monkeypatch.setattr(module, "piece_of", lambda file: (file.read(1000), False))
    out = tmp_path / "out"
    write(tmp_path / "big.jsonl", lines_of(0, 300))
    for number in range(4):
        write(tmp_path / f"{number}.jsonl", lines_of(1000 + 30 * number, 1030 + 30 * number))
    done = run(out, *sorted(tmp_path.glob("*.jsonl")))
    assert (done.lines, done.hours > 4) == (420, True)
    write(tmp_path / "big.jsonl", lines_of(0, 500))
    assert run(out, tmp_path / "big.jsonl").lines == 200
    assert kept(out) == numbers((0, 500), (1000, 1120))


def rows(*logs: Path) -> list[str]:
    """All that the analysis reads of some logs, whatever file it is from."""
    found, _ = read_files(*map(str, logs))
    return sorted(repr(row) for row in found)


def test_hours_say_what_the_lines_say(tmp_path: Path) -> None:
    """Every format: what is read from the hours is what is read from the lines, what cannot be known included."""
    logs = {"own": as_line(EVENT) + b"\n" + written(FormatName.JSONL)} | {
        name: log for name, (log, _) in FOREIGN.items()
    }
    names = [tmp_path / f"{name}.log" for name in logs]
    for path, log in zip(names, logs.values(), strict=True):
        write(path, log)
    run(tmp_path / "out", *names)
    expected = rows(*names)
    assert rows(tmp_path / "out") == expected
    run(tmp_path / "again", tmp_path / "out")
    assert rows(tmp_path / "again") == expected
    assert run(tmp_path / "out", tmp_path / "out").hours == 0


def test_whole_records_are_kept(tmp_path: Path) -> None:
    """Also the fields that no analysis needs."""
    event = EVENT | {"detail": "why", "trace": "0af7", "worker": 1, "answered_by": "b", "via": "a"}
    write(tmp_path / "a.log", [as_line(event)])
    run(tmp_path / "out", tmp_path / "a.log")
    columns = "v, detail, trace, worker, answered_by, via"
    found = duckdb.execute(f"SELECT {columns} FROM '{tmp_path}/out/dt=*/hr=*/*.parquet'").fetchall()
    assert found == [(1, "why", "0af7", 1, "b", "a")]


def test_a_request_that_was_passed_on_counts_once(tmp_path: Path) -> None:
    """By the line of the node that the client came to, whether the logs of both nodes were compacted or not."""
    here, there = NATIVE[:-1] + b',"answered_by":"owner"}', NATIVE[:-1] + b',"via":"edge"}'
    write(tmp_path / "edge.log", [here, NATIVE])
    write(tmp_path / "owner.log", [there, NATIVE, there])
    logs = [str(tmp_path / "edge.log"), str(tmp_path / "owner.log")]
    run(tmp_path / "out", *logs)
    for names in (logs, [str(tmp_path / "out")]):
        with embedded.connect(0) as con:
            lines = read_lines(con, find_logs(names))
            assert con.sql("SELECT count(*) FROM line").fetchall() == [(3,)]
            assert (lines.counts.lines, lines.counts.bad) == (3, 0)


def test_damaged_files_wait(tmp_path: Path) -> None:
    """A cut archive may be in the middle of being copied: it is left out, and taken when it is whole."""
    path = tmp_path / "a.jsonl.gz"
    whole = gzip.compress(lines_of(0, 1000))
    path.write_bytes(whole[:-100])
    assert run(tmp_path / "out", path).left == (str(path),)
    path.write_bytes(whole)
    assert run(tmp_path / "out", path).lines == 1000


def test_what_cannot_be_done(tmp_path: Path) -> None:
    """Files of elsewhere, or of which nothing is understood; a folder that is none, or in use."""
    log = Path(write(tmp_path / "a.log", lines_of(0, 10)))
    with pytest.raises(BadInput, match="this machine"):
        run(tmp_path / "out", "s3a://bucket/logs")
    with pytest.raises(NothingUnderstood):
        run(tmp_path / "out", write(tmp_path / "b.log", b'{"ts_us": 1, }\n' * 3))
    with pytest.raises(CannotWrite, match="cannot write"):
        run(log, log)
    with Store(tmp_path / "out" / FOLDER), pytest.raises(Busy):
        run(tmp_path / "out", log)


def test_a_file_that_is_cut_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is taken; the next run takes what there is."""
    log = Path(write(tmp_path / "a.log", lines_of(0, 10)))
    read = read_lines

    def cut_then_read(*args: Any, **kwargs: Any) -> Any:
        log.write_bytes(lines_of(20, 22))
        return read(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(module, "read_lines", cut_then_read)
        with pytest.raises(BadInput, match="was cut"):
            run(tmp_path / "out", log)
    assert run(tmp_path / "out", log).lines == 2
    assert kept(tmp_path / "out") == numbers((20, 22))


class Interrupted(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("after", mostly_long(range(14), 3))
def test_interrupted_before_any_step(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a run ends, the next one completes it: no line is lost, none is there twice."""
    log, out = tmp_path / "a.log", tmp_path / "out"
    write(log, [line(hour, hour) for hour in range(2)])
    run(out, log)
    write(log, [line(hour, hour) for hour in range(2)] + [line(hour, 10 + hour) for hour in range(3)])
    left = after

    def counted(do: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Interrupted
            return do(*args, **kwargs)

        return step

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", counted(Path.replace))
        patched.setattr(Store, "set_fact", counted(Store.set_fact))
        patched.setattr(module, "_synced", counted(module._synced))
        # A killed process cleans nothing up.
        patched.setattr("shutil.rmtree", lambda *args, **kwargs: None)
        try:
            run(out, log)
        except Interrupted:
            assert after < 13
        else:
            assert after >= 13
    run(out, log)
    assert kept(out) == Counter([(0, 0), (1, 1), (0, 10), (1, 11), (2, 12)])
    assert not (out / FOLDER / "work").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.analytics.logs.test_compact import run

left, out = int(sys.argv[1]), sys.argv[2]

def hook(event, args):
    global left
    if event in ("open", "os.rename", "os.mkdir", "os.remove", "sqlite3.connect") and out in str(args[0]):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
run(Path(out), *sys.argv[3:])
"""


@pytest.mark.long
def test_killed_before_any_change_of_a_file(tmp_path: Path) -> None:
    """A process that is killed again and again, at another place each time, gets there in the end."""
    log, out = tmp_path / "a.log", tmp_path / "out"
    killed = 0
    for steps in range(24):
        write(log, [line(number % 5, number) for number in range(10 * (steps + 1))])
        command = [sys.executable, "-c", KILLED, str(2 * steps), str(out), str(log)]
        status = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, check=False)
        assert status.returncode in (0, -signal.SIGKILL), status.stderr.decode()
        killed += status.returncode != 0
    assert killed > 10
    run(out, log)
    assert kept(out) == Counter((number % 5, number) for number in range(240))
