"""Every example runs against a real server, stays short, and stands in the docs as it is."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import duckdb
import httpx
import numpy as np
import pytest
from av.audio.frame import AudioFrame

from tests.analytics.support.scenarios import STORMS
from tests.analytics.support.writer import LogWriter
from tests.support.forked import forked, python
from tests.support.spark_cluster import HOME, run_in_cluster, spark_cluster
from tests.support.spark_cluster import environment as spark_environment
from tests.support.waiting import eventually
from tricklecast import Publisher, Subscriber, sync
from tricklecast.analytics.lines import Reading, find_logs
from tricklecast.analytics.logs.compact import compact
from tricklecast.media import MediaPublisher
from tricklecast.testing import TestServer, server

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MAX_LINES = 50
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def trickle() -> Iterator[TestServer]:
    """One server for all of them."""
    with server(channel_drain_s=30) as running:
        yield running


def start(name: str, *arguments: object, stdin: str = "") -> subprocess.Popen[str]:
    """Run an example as a user does."""
    process = subprocess.Popen(
        forked(*arguments, script=ROOT / "examples" / name),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )
    if stdin:
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None
    return process


def output(process: subprocess.Popen[str]) -> list[str]:
    """What it printed, once it has ended well."""
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (0, "")
    return out.splitlines()


def readme(language: str, marker: str) -> str:
    """The code block of the README that contains this text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    (block,) = (block for block in blocks if marker in block)
    return str(block)


def test_readme_program(trickle: TestServer, capsys: pytest.CaptureFixture[str]) -> None:
    """The README's Python publishes a segment, and reads it until the channel's end."""
    names: dict[str, Any] = {}
    exec(readme("python", "async def publish"), names)
    asyncio.run(names["publish"](trickle.url("readme")))
    asyncio.run(names["read"](trickle.url("readme")))
    lines = [line.partition(" ") for line in capsys.readouterr().out.splitlines()]
    assert {seq for seq, _, _ in lines} == {"0"}
    assert b"".join(ast.literal_eval(chunk) for _, _, chunk in lines) == b"readers have this before the segment ends"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_readme_curl(trickle: TestServer) -> None:
    """The README's curl lines create a channel, wait for a segment, publish it, and end the channel."""
    script = readme("bash", "curl -X POST").replace("http://127.0.0.1:2939/trickle/chat", trickle.url("curl"))
    done = subprocess.run(
        ["bash", "-ec", f"{script}wait"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "hello"), done.stderr


def test_live_channel(trickle: TestServer) -> None:
    """The reader prints what the publisher wrote to segment 0, and ends with the channel."""
    lines = [line.split() for line in output(start("live_channel.py", trickle.url("live")))]
    # On a busy machine two chunks may arrive as one.
    assert ({seq for seq, _ in lines}, "".join(text for _, text in lines)) == ({"0"}, "threetwoone")


def test_json_events(trickle: TestServer) -> None:
    """A line in is an event out."""
    url = trickle.url("events")
    reader = start("json_events_read.py", url)
    published = output(start("json_events_publish.py", url, stdin="hello\nworld\n"))
    assert [line.partition(":")[0] for line in published] == ["event 0", "event 1"]
    assert output(reader) == ["0 hello", "1 world"]


def test_overlap(trickle: TestServer) -> None:
    """All five segments are answered, whole."""
    *segments, statistics = output(start("overlap.py", trickle.url("overlap")))
    assert sorted(line.partition(",")[0] for line in segments) == [f"segment {seq}: 80000 bytes" for seq in range(5)]
    assert "dropped=0" in statistics


def test_relay(trickle: TestServer) -> None:
    """What is published to one channel comes out of another."""
    relay = start("relay.py", trickle.url("near"), trickle.url("far"))
    reader = start("json_events_read.py", trickle.url("far"))
    output(start("json_events_publish.py", trickle.url("near"), stdin="over there\n"))
    assert output(relay) == []
    assert output(reader) == ["0 over there"]


def test_relay_of_a_truncated_segment(trickle: TestServer) -> None:
    """It leaves truncated, too, and the relay goes on with the next one."""
    near, far = trickle.url("near-cut"), trickle.url("far-cut")
    relay = start("relay.py", near, far)

    async def publish() -> None:
        async with Publisher(near, content_type="text/plain") as publisher:
            with suppress(ZeroDivisionError):
                async with publisher.segment() as segment:
                    await segment.write(b"part")
                    async with Subscriber(far, start="current", wait_for_channel_s=60) as waiting:
                        await anext(aiter(await anext(waiting)))
                    raise ZeroDivisionError
            await publisher.publish(b"whole")

    async def read() -> list[tuple[bytes, bool]]:
        async with Subscriber(far, start="earliest") as subscriber:
            return [(await segment.read(), segment.truncated is not None) async for segment in subscriber]

    anyio.run(publish)
    _, told = relay.communicate(timeout=TIMEOUT_S)
    assert (relay.returncode, told) == (0, "segment 0 is lost: the source cut it short (truncated)\n")
    assert anyio.run(read) == [(b"part", True), (b"whole", False)]


def test_frames(trickle: TestServer) -> None:
    """Pictures that are published come back with their size."""
    lines = output(start("frames.py", trickle.url("frames"), 1))
    assert len(lines) > 5
    assert all("(360, 640, 3)" in line for line in lines)


def test_model(trickle: TestServer) -> None:
    """Each picture has a result, or was dropped."""
    url = trickle.url("model")
    camera = start("frames.py", url, 2)
    eventually(lambda: life(url) == ("1", None))
    model = start("model.py", url)
    output(camera)
    out, err = model.communicate(timeout=TIMEOUT_S)
    assert model.returncode == 0, err
    assert len(out.splitlines()) > 5
    assert re.fullmatch(r"\d+ pictures were dropped\n", err)


def test_match_sound(trickle: TestServer) -> None:
    """A loud second follows a quiet one, in the pictures' times."""
    url, rate = trickle.url("loud"), 48_000

    async def publish() -> None:
        async with MediaPublisher(url, audio=True, fps=25, when_full="wait") as publisher:
            for number in range(50):
                sound = AudioFrame.from_ndarray(
                    np.full((1, rate // 25), 0.5 * (number >= 25), np.float32), format="fltp", layout="mono"
                )
                sound.sample_rate, sound.pts, sound.time_base = rate, number * rate // 25, Fraction(1, rate)
                await publisher.write(np.zeros((64, 96, 3), np.uint8), pts=number, time_base=Fraction(1, 25))
                await publisher.write(sound)

    anyio.run(publish)
    lines = [line.split() for line in output(start("match_sound.py", url))]
    times = [float(line[0]) for line in lines]
    loud = [float(line[-1]) > 0.2 for line in lines]
    assert len(lines) >= 45
    assert loud == sorted(loud)
    assert 0.9 < times[loud.index(True)] - times[0] < 1.1


def test_frame_relay(trickle: TestServer) -> None:
    """A relay goes on over two lives of its source; at Ctrl-C it ends its target, and says in one line what it did."""
    source, target = trickle.url("bars"), trickle.url("inverted")
    relay = start("frame_relay.py", source, target)
    output(start("frames.py", source, 1))
    eventually(lambda: life(target) == ("1", "terminated"))
    with subprocess.Popen(forked(source, 60, script=ROOT / "examples" / "frames.py"), cwd=ROOT) as camera:
        eventually(lambda: life(target) == ("2", None))
        relay.send_signal(signal.SIGINT)
        out, err = relay.communicate(timeout=TIMEOUT_S)
        camera.kill()
    assert (relay.returncode, out, len(err.splitlines())) == (130, "", 1), err
    assert err.startswith("stopped: ")
    assert life(target) == ("2", "terminated")


def life(url: str) -> tuple[str | None, str | None]:
    """Which life of a channel it is, and whether it has ended."""
    headers = httpx.get(f"{url}/next").headers
    return headers.get("Lp-Trickle-Epoch"), headers.get("Lp-Trickle-Closed")


def test_resume(trickle: TestServer, tmp_path: Path) -> None:
    """A second run goes on after what the first one has read."""
    url, kept = trickle.url("resumed"), tmp_path / "position"
    output(start("json_events_publish.py", url, stdin="a\nb\nc\n"))
    assert [line.split()[0] for line in output(start("resume.py", url, kept))] == ["0", "1", "2"]
    assert kept.read_text().partition("@")[0] == "3"
    assert output(start("resume.py", url, kept)) == []


def test_threads(trickle: TestServer) -> None:
    """Ctrl-C ends all threads: those that read, and those that wait for a channel."""
    urls = [trickle.url(f"thread-{number}") for number in range(5)]
    for url in urls[:4]:  # nobody publishes to the last one
        httpx.post(url)
    readers = start("threads.py", *urls)
    assert readers.stdout is not None
    for number, url in enumerate(urls[:4]):
        eventually(partial(is_read, url))
        httpx.post(f"{url}/0", content=b"12345")
        assert readers.stdout.readline() == f"thread-{number} 0 5\n"
    readers.send_signal(signal.SIGINT)
    assert readers.communicate(timeout=TIMEOUT_S) == ("", "")
    assert readers.returncode == 130


def is_read(url: str) -> bool:
    """Whether somebody waits for the channel's next segment."""
    channel = url.rpartition("/")[2]
    found = httpx.get(url.replace(f"/trickle/{channel}", f"/api/v1/channels/{channel}")).json()
    return int(found["readers"]) > 0


def test_test_own_code() -> None:
    """The example of a test passes."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/test_own_code.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_fastapi_app(trickle: TestServer) -> None:
    """A posted message is published, read back in the background and shown; the channel ends with the app."""
    command = [python(), "-m", "uvicorn", "--app-dir", "examples", "--port", "0", "fastapi_app:app"]
    environment = {**os.environ, "CHANNEL_URL": trickle.url("web")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as app:
        assert app.stderr is not None
        at = next(found[1] for line in app.stderr if (found := re.search(r"running on (\S+)", line)))
        try:
            said = [httpx.post(f"{at}/messages", json={"n": n}).json() for n in range(2)]
            eventually(lambda: httpx.get(f"{at}/messages").json() == [{"n": 0}, {"n": 1}])
            with ThreadPoolExecutor(20) as threads:
                posted = [threads.submit(httpx.post, f"{at}/messages", json={"n": n}) for n in range(2, 100)]
            assert [post.result().status_code for post in posted] == [200] * 98
            eventually(lambda: len(httpx.get(f"{at}/messages").json()) == 100)
            heard = httpx.get(f"{at}/messages").json()
            assert sorted(message["n"] for message in heard) == list(range(100))
        finally:
            app.terminate()
            app.stderr.read()
    assert said == [0, 1]
    assert httpx.get(f"{trickle.url('web')}/next").headers["Lp-Trickle-Closed"] == "terminated"


def test_fastapi_stream(trickle: TestServer) -> None:
    """The response has all messages, and goes on; the app's stop breaks it off, so that its client knows."""
    options = ["--app-dir", "examples", "--port", "0", "--timeout-graceful-shutdown", "1"]
    command = [python(), "-m", "uvicorn", *options, "fastapi_stream:app"]
    url = trickle.url("streamed")
    with sync.Publisher(url) as publisher:
        publisher.publish_json(0)
        environment = {**os.environ, "CHANNEL_URL": url}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as app:
            assert app.stderr is not None
            try:
                at = next(found[1] for line in app.stderr if (found := re.search(r"running on (\S+)", line)))
                with httpx.stream("GET", f"{at}/stream") as response:
                    lines = response.iter_lines()
                    for number in range(3):
                        assert json.loads(next(lines)) == {"missed": 0, "value": number}
                        publisher.publish_json(number + 1)
                    app.terminate()
                    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
                        list(lines)
            finally:
                app.terminate()
                app.stderr.read()


def test_fastapi_app_under_its_test_client(trickle: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI's client for tests runs the lifespan: the recipe's test works."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would rather have another HTTP client
        from fastapi.testclient import TestClient
    monkeypatch.setenv("CHANNEL_URL", trickle.url("tested"))
    names = runpy.run_path(str(ROOT / "examples" / "fastapi_app.py"))
    with TestClient(names["app"]) as client:
        assert client.post("/messages", json={"text": "hello"}).json() == 0
        eventually(lambda: client.get("/messages").json() == [{"text": "hello"}])


def test_billing(tmp_path: Path) -> None:
    """Every byte is billed once, over a restart with the server killed in between, be it before there was a book."""
    book = tmp_path / "bills.json"
    owed: Counter[str] = Counter()
    kill, terminate = subprocess.Popen.kill, subprocess.Popen.terminate
    for channels, end in (("a", kill), ("b", kill), ("ab", terminate)):
        process = start("billing.py", tmp_path)
        assert process.stdout is not None
        base = process.stdout.readline().strip()
        for channel in channels:
            for line in output(start("json_events_publish.py", f"{base}/{channel}", stdin="hello\nworld\n")):
                owed[channel] += int(line.split()[2])
        eventually(lambda: book.exists() and json.loads(book.read_text())["bytes"] == owed)
        end(process)
        process.communicate(timeout=TIMEOUT_S)
        if channels == "a":
            book.unlink()  # as if the server had been killed before it was written
    assert process.returncode == 0


@pytest.mark.long
def test_storms_job(tmp_path: Path) -> None:
    """On a cluster, through spark-submit, the report finds what it finds in one process."""
    writer = LogWriter("relay", random.Random(0))
    (truth,) = STORMS["not_found_loop"](writer)
    log, report = tmp_path / "access.jsonl", tmp_path / "report.json"
    log.write_text("".join(f"{line}\n" for line in writer.lines()))
    arguments = [str(ROOT / "examples" / "storms_job.py"), str(log), "--json-file", str(report), "--fail-on", "never"]
    with spark_cluster(tmp_path) as master:
        command = [str(HOME / "bin" / "spark-submit"), "--master", master, *arguments]
        environment = {**spark_environment(), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        assert list((tmp_path / "work").glob("app-*/*/stderr")), "no executor has worked"
    (incident,) = json.loads(report.read_text())["incidents"]
    assert (incident["storm"], incident["n"]) == (truth.storm, truth.n)


@pytest.mark.long
def test_storms_table(tmp_path: Path) -> None:
    """The incidents become rows of a table, also where the driver runs on a worker (--deploy-mode cluster), which gets
    the job and the package from a web server: no file of the machine that submits it is needed."""
    writer = LogWriter("relay", random.Random(0))
    (truth,) = STORMS["not_found_loop"](writer)
    log, table, served = tmp_path / "access.jsonl", tmp_path / "table", tmp_path / "served"
    log.write_text("".join(f"{line}\n" for line in writer.lines()))
    compact(find_logs([str(log)]), tmp_path / "hours", Reading(details=True), print)
    served.mkdir()
    shutil.copy(ROOT / "examples" / "storms_table.py", served)
    with zipfile.ZipFile(served / "tricklecast.zip", "w") as package:
        for name in ("__init__.py", "analytics", "app", "trickle"):
            for path in sorted({ROOT / "tricklecast" / name, *(ROOT / name).rglob("*")}):
                if path.is_file() and path.suffix in (".py", ".sql"):
                    package.write(path, f"tricklecast/{path.relative_to(ROOT).as_posix().removeprefix('tricklecast/')}")
    (tmp_path / "cluster").mkdir()
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=served)) as web,
        ThreadPoolExecutor() as pool,
        spark_cluster(tmp_path / "cluster") as master,
    ):
        pool.submit(web.serve_forever)
        url = f"http://127.0.0.1:{web.server_port}"
        job = [f"{url}/storms_table.py", str(tmp_path / "hours"), str(table)]
        memory = ("--conf", "spark.executor.memory=512m", "--conf", "spark.executor.cores=1")
        try:
            said = run_in_cluster(tmp_path / "cluster", master, *memory, "--py-files", f"{url}/tricklecast.zip", *job)
        finally:
            web.shutdown()
    assert said == "1 incidents\n"
    with duckdb.connect() as con:
        rows = con.execute(f"SELECT storm, requests FROM '{table}/*.parquet'").fetchall()
    assert rows == [(truth.storm, truth.n)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_tested_and_in_the_docs(path: Path) -> None:
    """At most 50 lines; run by a test above; and the docs that show it show what is run."""
    code = path.read_text(encoding="utf-8")
    assert len(code.splitlines()) <= MAX_LINES
    assert f"def test_{path.stem.removesuffix('_publish').removesuffix('_read')}(" in Path(__file__).read_text()
    naming = [page for page in PAGES if f"`examples/{path.name}`" in page.read_text(encoding="utf-8")]
    assert naming, "no page of the docs names it"
    assert any(f"```python\n{code}```" in page.read_text(encoding="utf-8") for page in naming)
