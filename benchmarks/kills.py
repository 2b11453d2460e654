"""Workers are killed under load: channels of the others miss nothing.

Starts ``serve --workers N``, publishes to channels of all workers and reads them, each over a connection that is kept,
and kills a random worker every few seconds. A connection that breaks, or an answer that is wrong, is a violation unless
the channel's own worker was killed since the connection was made. With ``--data-dir`` channels outlive their worker:
then each reader goes on where it was, and has to get every acknowledged segment.

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

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Broken(Exception):
    """A connection ended, or an answer was wrong."""


async def ask(stream: Stream, head: str, body: bytes = b"") -> tuple[int, bytes, bytes]:
    """Ask on a connection; the status, the head and the body."""
    reader, writer = stream
    try:
        async with asyncio.timeout(ANSWER_S):
            writer.write(f"{head} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            data = b""
            if b"transfer-encoding: chunked" in answer:
                while size := int(await reader.readuntil(b"\r\n"), 16):
                    data += (await reader.readexactly(size + 2))[:-2]
                while (trailer := await reader.readuntil(b"\r\n")) != b"\r\n":
                    answer += trailer.lower()
            else:
                data = await reader.readexactly(int(answer.partition(b"content-length: ")[2].split()[0]))
            return int(answer.split()[1]), answer, data
    except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
        raise Broken(f"{type(error).__name__} {error}") from None


def children(pid: int) -> list[int]:
    """The processes that a process has started (Linux)."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Campaign:
    """The server, its clients, and what they have met."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.durable = options, options.data_dir is not None
        self.kills = [0] * options.workers  # of each worker
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.sent: dict[tuple[str, int], bytes] = {}
        self.acknowledged: set[tuple[str, int]] = set()

    async def client(self, channel: str, *, publishes: bool) -> None:
        """Publish or read a channel, over one connection after the other."""
        seq, worker = 0, owner_of(channel, self.options.workers)
        while True:
            kills, established = self.kills[worker], False
            stream = await asyncio.open_connection("127.0.0.1", self.options.port)
            try:
                status, _, told = await ask(stream, f"GET /trickle/{channel}/next")
                established = True
                if publishes or not self.durable:
                    seq = int(told) if status == 200 else 0
                while True:
                    seq += await (self.publish if publishes else self.read)(channel, seq, stream)
            except Broken as error:
                self.counts["connections lost"] += 1
                if established and self.kills[worker] == kills:
                    self.violations.append(f"{channel}, segment {seq}, publishes: {publishes}: {error}")
            finally:
                stream[1].transport.abort()
            await asyncio.sleep(0.1)

    async def publish(self, channel: str, seq: int, stream: Stream) -> bool:
        body = self.sent[channel, seq] = f"{channel} {seq} {random.random()} ".encode() * random.randint(1, 2000)
        status, _, answer = await ask(stream, f"POST /trickle/{channel}/{seq}", body)
        if status != 200:
            raise Broken(f"{status} {answer!r}")
        self.acknowledged.add((channel, seq))
        self.counts["published"] += 1
        await asyncio.sleep(0.05)
        return True

    async def read(self, channel: str, seq: int, stream: Stream) -> bool:
        """Read a segment; ``False`` if there is none yet."""
        status, head, body = await ask(stream, f"GET /trickle/{channel}/{seq}")
        is_acknowledged = self.durable and (channel, seq) in self.acknowledged
        if status == 404 and not is_acknowledged:
            await asyncio.sleep(0.05)
            return False
        if status == 470 and self.durable and not is_acknowledged:
            # It was being published when its worker was killed. It is lost, or this reader was ahead of the disk.
            await asyncio.sleep(0.05)
            lost = int(head.partition(b"lp-trickle-latest: ")[2].split()[0]) > seq
            self.counts["gaps that were told"] += lost
            return lost
        if self.durable and not is_acknowledged and b"lp-trickle-truncated: truncated" in head:
            self.counts["cut segments that were told"] += 1
            return True
        if status != 200 or body != self.sent.get((channel, seq)):
            if is_acknowledged:
                self.violations.append(f"{channel}: acknowledged segment {seq} is lost: {status}")
            raise Broken(f"{status}, {len(body)} bytes")
        self.counts["read"] += 1
        return True

    async def kill(self, server: int) -> None:
        """Kill a random worker, again and again."""
        pids = children(server)
        while True:
            await asyncio.sleep(self.options.every)
            worker = random.randrange(len(pids))
            self.kills[worker] += 1
            os.kill(pids[worker], signal.SIGKILL)
            while not (new := set(children(server)) - set(pids)):  # noqa: ASYNC110 - a process tells nobody
                await asyncio.sleep(0.01)
            pids[worker] = new.pop()

    async def run(self) -> int:
        options = self.options
        arguments = ["serve", "--workers", str(options.workers), "--port", str(options.port), "--storm-guard", "off"]
        arguments += ["--data-dir", options.data_dir, "--ack", "fsync"] if self.durable else []
        server = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, *arguments, stdout=-1, stderr=-3)
        assert server.stdout is not None
        await server.stdout.readline()
        try:
            async with asyncio.timeout(options.seconds), asyncio.TaskGroup() as group:
                group.create_task(self.kill(server.pid))
                for number in range(options.channels):
                    for publishes in (True, False, False):
                        group.create_task(self.client(f"channel-{number}", publishes=publishes))
        except TimeoutError:
            pass
        server.terminate()
        print(f"kills {self.kills}, {dict(self.counts)}, exit code {await server.wait()}")
        print("\n".join([f"{len(self.violations)} violations", *self.violations[:20]]))
        return bool(self.violations)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, default in (("seconds", float, 60), ("every", float, 2), ("workers", int, 2), ("channels", int, 20),
                                ("port", int, 28391), ("data-dir", str, None)):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, default=default)
    sys.exit(asyncio.run(Campaign(parser.parse_args()).run()))
