"""Readers and a publisher of one channel that speak TLS: ``python -m benchmarks.load.tls``, a job as JSON in."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import trustme

from benchmarks.load.meter import Meter
from benchmarks.load.stream import CHANNEL

CHUNK: Final = 8 << 10
SETTLE_S: Final = 1.0
RUN_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is run.

    Attributes:
        pid, port: of the server. readers: of one response each over all segments. rate: chunks per second.
        seconds: that are measured.
    """

    pid: int
    port: int
    readers: int
    rate: float
    seconds: float


@contextmanager
def certificate() -> Iterator[tuple[str, ...]]:
    """A certificate that nobody trusts, as options of a server."""
    with tempfile.TemporaryDirectory(prefix="tricklecast-benchmark-") as folder:
        cert, key = Path(folder, "cert.pem"), Path(folder, "key.pem")
        made = trustme.CA().issue_cert("127.0.0.1")
        cert.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        key.write_bytes(made.private_key_pem.bytes())
        yield "--tls-cert", str(cert), "--tls-key", str(key)


def run(job: Job) -> dict[str, float]:
    """Run it in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.load.tls"]
    done = subprocess.run(command, input=json.dumps(asdict(job)), capture_output=True, text=True, timeout=RUN_S)
    if done.returncode:
        raise ConnectionError(done.stderr.strip().rpartition("\n")[2])
    found: dict[str, float] = json.loads(done.stdout)
    return found


async def _main(job: Job) -> dict[str, float]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    meter, received = Meter(job.pid), 0

    async def connect(head: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", job.port, ssl=context, limit=1 << 20)
        writer.write(f"{head} HTTP/1.1\r\nHost: bench\r\n".encode())
        return reader, writer

    async def read() -> None:
        nonlocal received
        reader, writer = await connect(f"GET {CHANNEL}/stream?start=next")
        writer.write(b"\r\n")
        while data := await reader.read(1 << 18):
            received += len(data)
            meter.delivered = received // CHUNK

    async def publish() -> None:
        _, writer = await connect(f"POST {CHANNEL}/0")
        writer.write(b"Transfer-Encoding: chunked\r\nContent-Type: video/mp2t\r\n\r\n")
        began, chunk = time.monotonic(), b"%x\r\n" % CHUNK + bytes(CHUNK) + b"\r\n"
        for number in range(1 << 30):
            await asyncio.sleep(max(0.0, began + number / job.rate - time.monotonic()))
            writer.write(chunk)

    create, writer = await connect(f"POST {CHANNEL}")
    writer.write(b"Content-Length: 0\r\n\r\n")
    await create.readuntil(b"\r\n\r\n")
    readers = [asyncio.create_task(read()) for _ in range(job.readers)]
    await asyncio.sleep(SETTLE_S)
    publisher = asyncio.create_task(publish())
    await asyncio.sleep(SETTLE_S)
    meter.begin()
    await asyncio.sleep(job.seconds)
    meter.end()
    for task in (publisher, *readers):
        task.cancel()
    found = meter.result(meter.delivered)
    return {"cpu_us": found.cpu_us, "rate": found.rate, "server_busy": found.server_busy, "load_busy": found.load_busy}


if __name__ == "__main__":
    json.dump(asyncio.run(_main(Job(**json.load(sys.stdin)))), sys.stdout)
