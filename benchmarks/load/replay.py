"""Readers that read a channel from its oldest segment on, again and again: ``python -m benchmarks.load.replay``."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys


async def replay(port: int, path: str, segments: int, bytes_per_s: float) -> None:
    """Read segment after segment, until the process ends.

    Args:
        bytes_per_s: at most so fast; 0 for as fast as they come.
    """
    loop = asyncio.get_running_loop()
    await asyncio.sleep(random.random() / 2)  # no two of them are in step
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    began, received, seq = loop.time(), 0, 0
    while True:
        writer.write(f"GET {path}/{seq} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"replay: {head.decode()}")
        while size := int((await reader.readline()), 16):
            await reader.readexactly(size + 2)
            received += size
            if bytes_per_s and (early := received / bytes_per_s - (loop.time() - began)) > 0:
                await asyncio.sleep(early)
        await reader.readline()
        seq = (seq + 1) % segments


async def main() -> None:
    """Read what the command line says, until the process is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("port", "readers", "segments"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--rate", type=float, default=0.0, help="bytes per second of each reader")
    asked = parser.parse_args()
    await asyncio.gather(*(replay(asked.port, asked.path, asked.segments, asked.rate) for _ in range(asked.readers)))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
