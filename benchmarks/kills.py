"""Workers are killed under load: channels of the others miss nothing.

Starts ``serve --workers N``, publishes to channels of all workers and reads them, each over a connection that is kept,
and kills a random worker (SIGKILL) every few seconds. A connection that breaks, or an answer that is wrong, is a
violation unless the channel's own worker was killed since the connection was made. With ``--data-dir`` channels
outlive their worker: then every acknowledged segment has to be read, also by a reader that lost its connection.

    python -m benchmarks.kills --seconds 300
    python -m benchmarks.kills --seconds 300 --data-dir /tmp/kills
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from tricklecast.app.workers.placement import owner_of

SERVER: Final = """
from tricklecast.app.cli import main
from tricklecast.app.workers import supervisor
supervisor.MAX_DEATHS = 10**9
main()
"""
ANSWER_S: Final = 20.0


class Broken(Exception):
    """A connection ended, or an answer was wrong."""


class Campaign:
    """The server, its clients, and what they have met."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.kills = [0] * options.workers  # of each worker
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.sent: dict[tuple[str, int], bytes] = {}
        self.acknowledged: set[tuple[str, int]] = set()

    async def ask(
        self, head: str, body: bytes, stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> tuple[int, bytes]:
        """Ask on a connection; the status and the body."""
        reader, writer = stream
        try:
            async with asyncio.timeout(ANSWER_S):
                writer.write(f"{head} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
                answer = (await reader.readuntil(b"\r\n\r\n")).lower()
                if b"transfer-encoding: chunked" not in answer:
                    size = int(answer.partition(b"content-length: ")[2].split()[0])
                    return int(answer.split()[1]), await reader.readexactly(size)
                chunks = b""
                while size := int(await reader.readuntil(b"\r\n"), 16):
                    chunks += (await reader.readexactly(size + 2))[:-2]
                trailer = await reader.readuntil(b"\r\n")
                while trailer != b"\r\n":
                    trailer = await reader.readuntil(b"\r\n")
                return int(answer.split()[1]), chunks
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            raise Broken(f"{type(error).__name__} {error}") from None

    async def client(self, channel: str, *, publishes: bool) -> None:
        """Publish or read a channel, over one connection after the other."""
        seq, worker = 0, owner_of(channel, self.options.workers)
        while True:
            kills, established = self.kills[worker], False
            try:
                stream = await asyncio.open_connection("127.0.0.1", self.options.port)
            except OSError:
                self.violations.append(f"{channel}: no connection")
                continue
            try:
                status, told = await self.ask(f"GET /trickle/{channel}/next", b"", stream)
                if publishes or self.options.data_dir is None:
                    seq = int(told) if status == 200 else 0
                established = True
                while True:
                    if publishes:
                        await self.publish(channel, seq, stream)
                    elif not await self.read(channel, seq, stream):
                        await asyncio.sleep(0.05)
                        continue
                    seq += 1
            except Broken as error:
                self.counts["connections lost"] += 1
                if established and self.kills[worker] == kills:
                    await asyncio.sleep(0.2)  # the killer may not have counted yet
                    if self.kills[worker] == kills:
                        self.violations.append(
                            f"{'publisher' if publishes else 'reader'} of {channel}, segment {seq}: {error}"
                        )
            finally:
                stream[1].transport.abort()
            await asyncio.sleep(0.1)

    async def publish(self, channel: str, seq: int, stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        body = f"{channel} {seq} {random.random()} ".encode() * random.randint(1, 2000)
        self.sent[channel, seq] = body
        status, answer = await self.ask(f"POST /trickle/{channel}/{seq}", body, stream)
        if status != 200:
            raise Broken(f"{status} {answer!r}")
        self.acknowledged.add((channel, seq))
        self.counts["published"] += 1
        await asyncio.sleep(0.05)

    async def read(self, channel: str, seq: int, stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
        """Read a segment; ``False`` if its channel does not exist yet."""
        status, body = await self.ask(f"GET /trickle/{channel}/{seq}", b"", stream)
        if status == 404:
            return False
        if status == 470 and self.options.data_dir is not None and (channel, seq) not in self.acknowledged:
            self.counts["gaps that were told"] += 1  # it was being published when its worker was killed
            return True
        if status != 200 or body != self.sent.get((channel, seq)):
            if self.options.data_dir is not None and (channel, seq) in self.acknowledged:
                self.violations.append(f"{channel}: acknowledged segment {seq} is lost: {status}")
            raise Broken(f"{status}, {len(body)} bytes")
        self.counts["read"] += 1
        return True

    async def kill(self, server: asyncio.subprocess.Process) -> None:
        """Kill a random worker, again and again."""
        pids = children(server.pid)
        while True:
            await asyncio.sleep(self.options.every)
            worker = random.randrange(self.options.workers)
            self.kills[worker] += 1
            os.kill(pids[worker], signal.SIGKILL)
            while not (new := set(children(server.pid)) - set(pids)):  # noqa: ASYNC110 - a process tells nobody
                await asyncio.sleep(0.01)
            pids[worker] = new.pop()

    async def run(self) -> int:
        options = self.options
        arguments = ["serve", "--workers", str(options.workers), "--port", str(options.port), "--storm-guard", "off"]
        if options.data_dir is not None:
            arguments += ["--data-dir", options.data_dir, "--ack", "fsync"]
        server = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, *arguments, stdout=-1, stderr=-3)
        assert server.stdout is not None
        await server.stdout.readline()
        try:
            async with asyncio.timeout(options.seconds), asyncio.TaskGroup() as group:
                group.create_task(self.kill(server))
                for number in range(options.channels):
                    group.create_task(self.client(f"channel-{number}", publishes=True))
                    for _ in range(options.readers):
                        group.create_task(self.client(f"channel-{number}", publishes=False))
        except TimeoutError:
            pass
        server.terminate()
        print(f"kills {self.kills}, {dict(self.counts)}, exit code {await server.wait()}")
        print("\n".join([f"{len(self.violations)} violations", *self.violations[:20]]))
        return bool(self.violations)


def children(pid: int) -> list[int]:
    """The processes that a process has started (Linux)."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, default in (
        ("seconds", float, 60.0), ("every", float, 2.0), ("workers", int, 2), ("channels", int, 20),
        ("readers", int, 2), ("port", int, 28391), ("data-dir", str, None),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, default=default)
    sys.exit(asyncio.run(Campaign(parser.parse_args()).run()))


if __name__ == "__main__":
    main()
