"""What Spark reads: files of this machine, objects that only it can read, and those that are damaged, long or gone."""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest

from tests.analytics.store.killed import silent
from tests.analytics.support.scenarios import write_all
from tricklecast.analytics import incidents
from tricklecast.analytics.errors import BadInput, SparkFailed
from tricklecast.analytics.lines import Reading, Window, embedded, files, find_logs
from tricklecast.analytics.lines.recognise import UnknownFormat
from tricklecast.analytics.logs.compact import compact
from tricklecast.analytics.pipeline.request import ReportRequest, SparkOptions
from tricklecast.analytics.pipeline.run import make
from tricklecast.analytics.report.json import as_json
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded as embedded_scan
from tricklecast.analytics.spark import lines as spark_lines
from tricklecast.analytics.spark import objects, scan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLICES = 8


@cache
def lines() -> list[str]:
    """A log."""
    return sorted(write_all(5)[0][::12], key=lambda line: json.loads(line)["ts_us"])


def hostile() -> bytes:
    """Lines that no server writes, and that may stand in a log all the same."""
    one = lines()[0].encode()
    return b"\n".join(
        [
            *(b"\xff\xfe\x00", b"\x00" * 9, b"\r", b"{", b"[" * 5000, b'{"ts_us":1e400}'),
            one.replace(b'":"', b'":"\xc3\x28', 1),
            *(one.replace(b'":"', b'":"' + odd, 1) for odd in (b"\\u0000", b"\\ud83d", "\u2028\U0001f600".encode())),
            *(one.replace(b'":"', b'":"a\rb', 1), b"\xef\xbb\xbf" + one, b" " + one + b" \r", one + one, b""),
        ]
    )


def silent_word(word: str) -> None:
    """Says nothing."""


def slice_of(number: int) -> bytes:
    """An eighth of a log."""
    size = len(lines()) // SLICES
    return "".join(f"{line}\n" for line in lines()[number * size : (number + 1) * size]).encode()


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder with what is in a folder: a rotated file, compressed ones, a long line, a torn one, Parquet; one that
    Windows wrote, one of an old Mac's, and one that is not called as it is compressed."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(slice_of(0) + b"x" * (3 << 20) + b"\n" + slice_of(0)[:200])
    (folder / "i.jsonl").write_bytes(hostile())
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(slice_of(1)))
    with pa.CompressedOutputStream(str(folder / "c.jsonl.zst"), "zstd") as packed:
        packed.write(slice_of(2))
    (tmp_path / "d.jsonl").write_bytes(slice_of(3))
    (folder / "e.jsonl").write_bytes(slice_of(4).decode().replace("\n", "\r\n").encode("utf-16"))
    (folder / "f.jsonl").write_bytes(slice_of(5).replace(b"\n", b"\r"))
    (folder / "g.jsonl").write_bytes(gzip.compress(slice_of(6)))
    (folder / "h.jsonl.xz").write_bytes(lzma.compress(slice_of(7)))
    compact(find_logs([str(tmp_path / "d.jsonl")]), folder, Reading(details=True), silent_word)
    return folder


def report(*names: object, engine: SparkOptions | None = None) -> dict[str, Any]:
    """What is said of some logs."""
    request = ReportRequest(find_logs(list(map(str, names))), Reading(), Params(), spark=engine)
    told: dict[str, Any] = json.loads(as_json(make(request, silent).report))
    for sample in told["quality"]["samples"]:
        sample.pop("no", None)  # in a part of a file it is not known
    return {name: value for name, value in told.items() if name != "engine"}


def test_whatever_is_in_a_folder(spark: SparkSession, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is that of the embedded engine, with its lines and their numbers; also where files are cut to be
    read in parts, and where an archive is damaged."""
    whole = (logs / "b.jsonl.gz").read_bytes()
    (logs / "b.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(spark_lines, "TASK", 150_000)
    monkeypatch.setattr(spark_lines, "_LEAST_TASK", 50_000)
    here = report(logs)
    assert [caveat for caveat in here["quality"]["caveats"] if "damaged" in caveat]
    assert here["incidents"][0]["lines"]
    assert report(logs, engine=SparkOptions()) == here


def test_objects_that_only_spark_can_read(
    spark: SparkSession, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They give the same; one that is damaged is read up to the damage, and told; one that has gone is told."""
    spark.conf.set("fs.viewfs.mounttable.logs.link./in", f"file://{logs}")
    here, there = report(logs), report("viewfs://logs/in", engine=SparkOptions())
    assert there["figures"] == here["figures"]
    assert [len(one["lines"]) for one in there["incidents"]] == [len(one["lines"]) for one in here["incidents"]]
    without_lines = [[{**one, "lines": 0} for one in told["incidents"]] for told in (here, there)]
    assert without_lines[0] == without_lines[1]
    whole, few = (logs / "b.jsonl.gz").read_bytes(), tmp_path / "few"
    few.mkdir()
    (few / "b.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (few / "g.jsonl").write_bytes(slice_of(0))
    shutil.copy(few / "g.jsonl", few / "z.jsonl")
    spark.conf.set("fs.viewfs.mounttable.few.link./in", f"file://{few}")
    read = spark_lines.read_lines(spark, find_logs(["viewfs://few/in"]))
    (few / "z.jsonl").unlink()
    rolled = scan.roll_up(read, now_us=1 << 60)
    assert rolled.lines.damaged == ("viewfs://few/in/b.jsonl.gz",)
    assert rolled.gone == ("viewfs://few/in/z.jsonl",)
    assert rolled.lines.counts.lines > len(lines()) // SLICES
    monkeypatch.setattr(scan, "MAX_DAMAGED", 0)
    with pytest.raises(SparkFailed, match="more than 0 files cannot be read"):
        scan.roll_up(read, now_us=1 << 60)


@pytest.mark.parametrize("whole", [1 << 30, 0], ids=["whole", "by Spark"])
def test_a_line_that_spark_leaves_out_is_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    """The counts are those of the embedded engine for lines that are longer than Spark reads, in text, in what is
    compressed, and in an object without another line; of one that no worker is given, one line in all. Zeros are no
    line, and names may be any."""
    monkeypatch.setattr(objects, "WHOLE", whole)
    monkeypatch.setattr(scan, "WHOLE", whole)
    for module in (objects, spark_lines, scan):
        monkeypatch.setattr(module, "LONGEST", 3 << 20)
    long = b"x" * (4 << 20) + b"\n"
    (tmp_path / "a.jsonl").write_bytes(slice_of(0) + long * 2 + slice_of(1) + long)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(slice_of(2) + long * 2 + slice_of(3), 1))
    (tmp_path / "c.jsonl").write_bytes(long)
    (tmp_path / "d%20 e+.jsonl").write_bytes(b"\0" * (2 << 20) + slice_of(4))
    spark.conf.set(f"fs.viewfs.mounttable.long{whole}.link./in", f"file://{tmp_path}")
    with duckdb.connect() as con:
        here = embedded.read_lines(con, find_logs([str(tmp_path)])).counts
    read = spark_lines.read_lines(spark, find_logs([f"viewfs://long{whole}/in"]))
    there = scan.roll_up(read, now_us=1 << 60).lines.counts
    # Of three lines only one is known of; and what begins with one that is not looked at is taken for our own log.
    left_out = 0 if whole else 2 - 1
    assert (there.lines, there.bad) == (here.lines - left_out, here.bad - left_out)
    assert here.bad == 5


def test_a_file_that_has_gone(spark: SparkSession, logs: Path) -> None:
    """What was there when the run began is told, and the others are read, whenever it goes."""
    found = find_logs([str(logs)])
    (logs / "a.jsonl").unlink()
    read = spark_lines.read_lines(spark, found)
    assert read.recognised.gone == (str(logs / "a.jsonl"),)
    (logs / "b.jsonl.gz").unlink()
    rolled = scan.roll_up(read, now_us=1 << 60)
    assert rolled.gone == (str(logs / "b.jsonl.gz"),)
    assert rolled.lines.counts.lines > 2 * len(lines()) // SLICES


def test_a_log_of_which_nothing_is_understood(spark: SparkSession, tmp_path: Path) -> None:
    """Spark says why, in the words of the embedded engine."""
    log = tmp_path / "access.log"
    line = '192.0.2.7 - - [99/Foo/2025:08:00:00 +0000] "GET /a HTTP/1.1" 200 12 "-" "app/2"\n'
    log.write_text(line * 30)
    said = []
    for engine in (None, SparkOptions()):
        with pytest.raises(BadInput, match="none of 30 lines") as refused:
            report(log, engine=engine)
        said.append(str(refused.value))
    assert said[0] == said[1]


def test_a_data_frame_to_a_data_frame(spark: SparkSession, tmp_path: Path) -> None:
    """The incidents of lines of text and of records are those of the report; other columns are refused."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines()))
    expected = sorted((one["id"], one["n"]) for one in report(path)["incidents"])
    text = spark.read.text(str(path))
    assert sorted((row.id, row.requests) for row in incidents(text).collect()) == expected
    records = spark.read.json(str(path))
    found = incidents(records, params={"peak_rps": 100.0})
    found.write.parquet(str(tmp_path / "table"))
    kept = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted((row.id, row.requests) for row in kept) == expected
    with pytest.raises(BadInput, match="'value', or records"):
        incidents(spark.range(1))
    with pytest.raises(UnknownFormat, match="the DataFrame"):
        incidents(spark.createDataFrame([("{}",)] * 9, "value STRING"), format="nginx")


def test_only_the_folders_of_some_days_are_listed(spark: SparkSession, tmp_path: Path) -> None:
    """A URI with places for days stands for those between --since and --until; one without leaves others out."""
    for day in ("2025/10/08", "2025/10/09", "2025/10/20"):
        (tmp_path / day).mkdir(parents=True)
        (tmp_path / day / "a.jsonl").write_text(lines()[0])
    (tmp_path / "2025" / "10" / "09" / "b.jsonl").write_text(lines()[0])
    spark.conf.set("fs.viewfs.mounttable.days.link./in", f"file://{tmp_path}")
    uri, since, until = "viewfs://days/in", 1_759_968_000_000_000, 1_760_054_400_000_000  # 9 October
    there = [f"{uri}/2025/10/09/{name}.jsonl" for name in "ab"]
    window = Window(since, until - 1)
    assert [*objects.list_remote(spark, f"{uri}/{{yyyy}}/{{mm}}/{{dd}}", window)] == there
    assert f"{uri}/2025/10/20/a.jsonl" not in objects.list_remote(spark, uri, window)
    assert len(objects.list_remote(spark, uri, Window())) == 4
    with pytest.raises(BadInput, match="--since"):
        objects.list_remote(spark, f"{uri}/{{yyyy}}/{{mm}}/{{dd}}", Window())


@pytest.mark.parametrize("bound", ["PIECE", "FILES"])
def test_a_piece_may_end_anywhere(logs: Path, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """Each line is that of its file and has its number, and one that is unfinished is none, however a worker's files
    are divided into pieces."""
    monkeypatch.setattr(spark_lines, bound, 1)
    monkeypatch.setattr(files, "BLOCK", 1 << 16)
    (logs / "b.jsonl").write_bytes(slice_of(1) + slice_of(0)[:100])
    names = [str(logs / name) for name in ("a.jsonl", "b.jsonl", "c.jsonl.zst")]
    query = "SELECT file, ts_us, client, bad, no FROM parsed_line"
    with duckdb.connect() as con:
        here = embedded.read_lines(con, find_logs(names))
        expected = [(here.recognised.names[file], *row) for file, *row in con.execute(query).fetchall()]
    spans = json.dumps([(name, 0, None) for name in names])
    batch = pa.RecordBatch.from_pydict({"files": [spans]})
    found, pieces = [], 0
    with spark_lines.connect() as con:
        for piece in spark_lines.Parse(here.recognised.formats[0], Reading(), "files").pieces(con, [batch]):
            rows = con.execute(query).fetchall()
            found += [(piece.names[file], *row) for file, *row in rows]
            pieces += 1
            assert bound != "FILES" or len(piece.names) == 1
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert pieces >= len(names)


def test_pulses_of_a_task_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound, the longest stretches tell theirs in fewer and longer ones, with the same sum and span."""
    monkeypatch.setattr(scan, "MAX_PULSES", 20)
    with spark_lines.connect() as con:
        pulse = "[{'from_us': i, 'until_us': i + 1, 'n': 2} FOR i IN range(many)] AS pulse"
        con.execute(f"CREATE TABLE stretches AS SELECT name, {pulse} FROM (VALUES ('a', 3), ('b', 1000)) t(name, many)")
        short, long = con.sql(scan._bounded(con, "stretches")).fetchall()
        assert len(short[1]) == 3
        assert len(long[1]) == 10
        assert (long[1][0]["from_us"], long[1][-1]["until_us"]) == (0, 1000)
        assert sum(one["n"] for one in long[1]) == 2000
        monkeypatch.setattr(scan, "MAX_PULSES", 2000)
        assert len(con.sql(scan._bounded(con, "stretches")).fetchall()[1][1]) == 1000


def test_no_other_run_removes_what_a_worker_has_on_disk() -> None:
    """A report that begins meanwhile removes the folders of those that were killed, and no other."""
    with spark_lines.connect() as con:
        (folder,) = con.execute("SELECT current_setting('temp_directory')").fetchall()[0]
        with embedded_scan.bounded():
            assert Path(folder).is_dir()
    assert not Path(folder).exists()
