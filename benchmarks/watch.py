"""How soon `tricklecast storms watch` tells of a storm: from the write of its tenth line to the alert.

    python -m benchmarks.watch [--storms 20] [--rate 50] [--background 200]

Prints the median, the 90th percentile and the maximum. Storms come one
after the other, each of a client and a channel of its own, in the middle of healthy traffic.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

READY_S: Final = 300.0
AFTER_S: Final = 12.0
"""How long is waited after the last storm, for alerts that are late and for the ends of storms. Seconds."""


def line(client: str, channel: str, **fields: Any) -> bytes:
    """One line of the access log, of this moment."""
    record = {"v": 1, "ts_us": time.time_ns() // 1000, "node": "bench", "kind": "exchange", "op": "read"}
    record |= {"method": "GET", "channel": channel, "client": client, "conn": 1, "release": "bench/1.0"} | fields
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def drive(log: Path, storms: int, rate: float, background: float) -> list[float]:
    """Writes the storms and the healthy traffic; returns when the tenth line of each was written."""
    tenth: list[float] = []
    with log.open("ab", buffering=0) as file:
        began, healthy = time.monotonic(), 0
        for number in range(storms):
            for turn in range(25):
                file.write(line(f"client-{number}", f"channel-{number}", status=404))
                if turn == 9:
                    tenth.append(time.time())
                time.sleep(1 / rate)
                while healthy < (time.monotonic() - began) * background:
                    seq = healthy // 50
                    served = {"status": 200, "seq": -1, "rseq": seq, "next_seq": seq + 1, "bytes_out": 8192}
                    file.write(line(f"viewer-{healthy % 50}", "live", **served))
                    healthy += 1
            time.sleep(0.3)
    return tenth


def run(storms: int, rate: float, background: float) -> None:
    """One measurement."""
    with tempfile.TemporaryDirectory() as folder:
        log, out, err = (Path(folder, name) for name in ("access.jsonl", "out", "err"))
        log.touch()
        with out.open("wb") as told, err.open("wb") as said:
            command = [sys.executable, "-m", "tricklecast", "storms", "watch", str(log), "--json"]
            process = subprocess.Popen(command, stdout=told, stderr=said)
            began = time.monotonic()
            try:
                while b"Ctrl-C" not in err.read_bytes():
                    if process.poll() is not None or time.monotonic() > began + READY_S:
                        sys.exit(err.read_text())
                    time.sleep(0.05)
                print(f"ready after {time.monotonic() - began:.1f} s")
                tenth = drive(log, storms, rate, background)
                time.sleep(AFTER_S)
            finally:
                process.terminate()
                process.wait()
        show([json.loads(each) for each in out.read_text().splitlines()], tenth)


def show(told: list[dict[str, Any]], tenth: list[float]) -> None:
    """Prints the figures."""
    late: dict[int, float] = {}
    for news in told:
        if news["status"] == "firing":
            [client] = news["episode"]["clients"]
            number = int(client.removeprefix("client-"))
            late[number] = news["told_us"] / 1e6 - tenth[number]
    times = sorted(late.values())
    print(f"{len(tenth)} storms, {len(late)} told, {sum(n['status'] == 'resolved' for n in told)} ended")
    if times:
        print(f"median {median(times):.2f} s, p90 {times[len(times) * 9 // 10]:.2f} s, max {times[-1]:.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storms", type=int, default=20)
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second of a storm")
    parser.add_argument("--background", type=float, default=200.0, help="healthy lines per second")
    arguments = parser.parse_args()
    run(arguments.storms, arguments.rate, arguments.background)
