"""How soon `tricklecast storms watch` tells of a storm: from the write of its tenth line to the alert; and its cost.

    python -m benchmarks.watch [--storms 20] [--rate 50] [--background 1000] [--healthy 20]
    python -m benchmarks.watch --catch-up 1000000

Prints how long it took to be ready, the processor's time with healthy traffic alone and with storms, and the median,
the 90th percentile and the maximum of the delays. Storms come one after the other, each of a client and a channel of
its own, in the middle of healthy traffic. With ``--catch-up``: how fast it reads so many lines of the last hour, a part
of them storms, with how much memory, and how soon SIGTERM ends it in the middle of that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from io import FileIO
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any, Final

READY_S: Final = 60.0
AFTER_S: Final = 8.0
"""How long is waited after the last storm, for alerts that are late and for the ends of storms. Seconds."""


def line(client: str, channel: str, **fields: Any) -> bytes:
    """One line of the access log, of this moment."""
    record = {"v": 1, "ts_us": time.time_ns() // 1000, "node": "bench", "kind": "exchange", "op": "read"}
    record |= {"method": "GET", "channel": channel, "client": client, "conn": 1, "release": "bench/1.0"} | fields
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


class Background:
    """Healthy traffic: fifty viewers of one channel, each of whom gets every segment once."""

    def __init__(self, file: FileIO, rate: float) -> None:
        self._file, self._rate = file, rate
        self._began, self._lines = time.monotonic(), 0

    def passed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    def write(self) -> None:
        """Writes what has come due."""
        due = []
        while self._lines < self.passed_s() * self._rate:
            seq = self._lines // 50
            served = {"status": 200, "seq": -1, "rseq": seq, "next_seq": seq + 1, "bytes_out": 8192}
            due.append(line(f"viewer-{self._lines % 50}", "live", **served))
            self._lines += 1
        self._file.write(b"".join(due))


def drive(file: FileIO, traffic: Background, storms: int, rate: float) -> list[float]:
    """Writes the storms and the healthy traffic; returns when the tenth line of each was written."""
    tenth: list[float] = []
    for number in range(storms):
        for turn in range(25):
            file.write(line(f"client-{number}", f"channel-{number}", status=404))
            if turn == 9:
                tenth.append(time.time())
            time.sleep(1 / rate)
            traffic.write()
        until = time.monotonic() + 0.3 + 0.37 * (number % 4)
        while time.monotonic() < until:
            traffic.write()
            time.sleep(0.02)
    return tenth


def run(storms: int, rate: float, background: float, healthy_s: float) -> None:
    """One measurement."""
    with tempfile.TemporaryDirectory() as folder, Path(folder, "access.jsonl").open("ab", buffering=0) as file:
        err = Path(folder, "err")
        told: list[tuple[float, dict[str, Any]]] = []
        with err.open("wb") as said:
            command = [sys.executable, "-m", "tricklecast", "storms", "watch", file.name, "--json"]
            began = time.monotonic()
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said)
            assert process.stdout is not None
            out = process.stdout
            reader = Thread(target=lambda: told.extend((time.time(), json.loads(each)) for each in out))
            reader.start()
            try:
                while b"Ctrl-C" not in err.read_bytes():
                    if process.poll() is not None or time.monotonic() > began + READY_S:
                        sys.exit(err.read_text())
                    time.sleep(0.02)
                print(f"ready after {time.monotonic() - began:.1f} s")
                time.sleep(2)  # the rules are planned meanwhile
                traffic = Background(file, background)
                before = cpu_s(process.pid)
                while traffic.passed_s() < healthy_s:
                    traffic.write()
                    time.sleep(0.02)
                if healthy_s:
                    share = (cpu_s(process.pid) - before) / healthy_s
                    print(f"{share:.1%} of a core at {background:,.0f} healthy lines per second")
                before, since = cpu_s(process.pid), time.monotonic()
                tenth = drive(file, traffic, storms, rate)
                share = (cpu_s(process.pid) - before) / (time.monotonic() - since)
                print(f"{share:.1%} of a core with one storm after the other")
                time.sleep(AFTER_S)
            finally:
                process.terminate()
                process.wait()
                reader.join()
        show(told, tenth)


def catch_up(lines: int) -> None:
    """Measures how a log that was written before is read."""
    with tempfile.TemporaryDirectory() as folder, Path(folder, "access.jsonl").open("wb") as file:
        begin_us = time.time_ns() // 1000 - 3_600_000_000
        for number in range(lines):
            fields: dict[str, Any] = {"status": 200, "rseq": number // 2_000, "bytes_out": 8192}
            client, channel = f"viewer-{number % 2_000}", "live"
            part = number * 20 // lines
            if part in (5, 6, 7):
                client, channel, fields = "looper", "gone", {"status": 404}
            elif part in (12, 13, 14) and number % 2:
                client, fields = f"crowd-{number % 499}", {"status": 503, "retry_after_ms": 2000}
            file.write(line(client, channel, ts_us=begin_us + number * 3_600_000_000 // lines, **fields))
        file.flush()
        err = Path(folder, "err")
        for until in ("catching up", "caught up"):
            command = [sys.executable, "-m", "tricklecast", "storms", "watch", file.name, "--start", "earliest"]
            with err.open("wb") as said:
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
            began, peak = time.monotonic(), 0
            while until not in err.read_text() and process.poll() is None:
                time.sleep(0.05)
                peak = max(peak, resident(process.pid))
            took_s, took_cpu_s = time.monotonic() - began, cpu_s(process.pid)
            began = time.monotonic()
            process.terminate()
            process.wait()
            print(f"ended {time.monotonic() - began:.2f} s after SIGTERM")
        print(f"{lines / took_s:,.0f} lines/s, {lines / took_cpu_s:,.0f} per second of a core, {peak >> 20} MiB")


def resident(pid: int) -> int:
    """Bytes of memory that a process has; 0 where /proc does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def cpu_s(pid: int) -> float:
    """The time that a process has spent on processors; 0 where /proc does not tell. Seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show(told: list[tuple[float, dict[str, Any]]], tenth: list[float]) -> None:
    """Prints the figures."""
    late: dict[str, float] = {}
    for moment, news in told:
        for client in news["incident"]["clients"]:
            if news["status"] == "firing" and client.startswith("client-"):
                late.setdefault(client, moment - tenth[int(client.removeprefix("client-"))])
    times = sorted(late.values())
    print(f"{len(tenth)} storms, {len(late)} told, {sum(n['status'] == 'resolved' for _, n in told)} ended")
    if times:
        print(f"median {median(times):.2f} s, p90 {times[len(times) * 9 // 10]:.2f} s, max {times[-1]:.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storms", type=int, default=20)
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second of a storm")
    parser.add_argument("--background", type=float, default=1000.0, help="healthy lines per second")
    parser.add_argument("--healthy", type=float, default=20.0, help="seconds of healthy traffic before the storms")
    parser.add_argument("--catch-up", type=int, help="lines that were written before; then nothing else is measured")
    arguments = parser.parse_args()
    if arguments.catch_up:
        catch_up(arguments.catch_up)
        sys.exit()
    run(arguments.storms, arguments.rate, arguments.background, arguments.healthy)
