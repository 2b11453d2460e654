"""The crowd: publishers and readers that come, go, stall and reset, and are replaced at once by others.

``python -m benchmarks.endurance.crowd``: a job as a line of JSON in, then ``{"rate": chunks/s}`` lines; once a second
what has happened so far, and how late the process is, as a line of JSON out. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import uvloop

from benchmarks.endurance.wire import BROKEN, FILLER, Answer, Wire

PAUSE_S = 0.5
"""How long an actor waits after a failure, on average, if it was not told how long."""

PATIENCE_S = 3.0
"""For so long beyond its life a reader waits for the end of its segment."""

LATE_S = 2.0
"""Publishers that have fallen so far behind do not try to catch up."""


class Way(StrEnum):
    """How an actor behaves; the weights below say how often each is drawn."""

    STEADY = "steady"
    LEAVES = "leaves"
    RESETS = "resets"
    STALLS = "stalls"
    ONE_SHOT = "one shot"
    LOST = "lost"


READERS = {
    Way.STEADY: 70,
    Way.LEAVES: 10,
    Way.RESETS: 8,
    Way.STALLS: 4,
    Way.ONE_SHOT: 5,
    Way.LOST: 3,
}
PUBLISHERS = {Way.STEADY: 70, Way.LEAVES: 15, Way.RESETS: 15}


@dataclass(frozen=True, slots=True)
class Job:
    """What the crowd does.

    Attributes:
        port: of the server. seed: of all that is drawn.
        publishers, readers: so many at any time.
        chunk_bytes: of a published chunk. segment_s: how long a segment lasts.
        life_s: how long an actor lives on average.
        rate: chunks per second over all publishers, at first.
    """

    port: int
    seed: int = 1
    publishers: int = 8
    readers: int = 800
    chunk_bytes: int = 1 << 10
    segment_s: float = 0.5
    life_s: float = 20.0
    rate: float = 30.0


class Crowd:
    """All actors, and what they share.

    Attributes:
        rate: chunks per second over all publishers. seen: what has happened, counted.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rate = job.rate
        self.seen: Counter[str] = Counter()
        self.rng = random.Random(job.seed)
        self.channels: list[str] = []
        self._chunk = b"%x\r\n%b\r\n" % (job.chunk_bytes, FILLER * job.chunk_bytes)
        self._numbers = 0

    async def run(self, group: asyncio.TaskGroup) -> None:
        """Begin."""
        for _ in range(self.job.publishers):
            group.create_task(self._for_ever(self._publisher))
        for _ in range(self.job.readers):
            group.create_task(self._for_ever(self._reader))

    async def _for_ever(self, life: Any) -> None:
        while True:
            try:
                await life()
            except OSError:  # the server is not there
                self.seen["no connection"] += 1
                await self._pause(BROKEN)

    def _lifetime(self) -> float:
        return self.rng.expovariate(1 / self.job.life_s)

    def _draw(self, ways: dict[Way, int]) -> Way:
        return self.rng.choices(list(ways), list(ways.values()))[0]

    async def _pause(self, answer: Answer) -> None:
        await asyncio.sleep(answer.retry_after_s + self.rng.uniform(0, 2 * PAUSE_S))

    def _note(self, who: str, answer: Answer) -> None:
        self.seen[f"{who} {answer.status}" if answer.status else f"{who} broken"] += 1

    # Publishers.

    async def _publisher(self) -> None:
        self._numbers += 1
        name = f"soak{self._numbers}"
        path = f"/trickle/{name}"
        wire = await Wire.open(self.job.port)
        way, ends = self._draw(PUBLISHERS), time.monotonic() + self._lifetime()
        self.channels.append(name)
        try:
            seq = 0
            while time.monotonic() < ends:
                if not wire.usable:
                    wire = await Wire.open(self.job.port)
                answer = await self._segment(wire, f"{path}/{seq}")
                self._note("POST", answer)
                if answer.status != 200:
                    wire.close()
                    await self._pause(answer)
                seq += 1
            if way is Way.RESETS:
                wire.begin(f"POST {path}/{seq}", "Transfer-Encoding: chunked\r\n")
                wire.write(self._chunk + b"fff\r\n")
                await asyncio.sleep(0)
                wire.close(reset=True)
            elif way is Way.STEADY and wire.usable:
                self._note("DELETE", await wire.ask(f"DELETE {path}"))
        finally:
            self.channels.remove(name)
            wire.close()
        self.seen[f"publisher {way}"] += 1

    async def _segment(self, wire: Wire, path: str) -> Answer:
        """Publish one segment at the pace of the moment; returns its answer."""
        answer = wire.begin(f"POST {path}", "Content-Type: video/mp2t\r\nTransfer-Encoding: chunked\r\n")
        due = time.monotonic()
        ends = due + self.job.segment_s
        while due < ends and not answer.done():
            wire.write(self._chunk)
            self.seen["chunks"] += 1
            due = max(due + self.job.publishers / self.rate, time.monotonic() - LATE_S)
            await asyncio.sleep(max(0.0, min(due, ends) - time.monotonic()))
        wire.write(b"0\r\n\r\n")
        return await answer

    # Readers.

    async def _reader(self) -> None:
        way, ends = self._draw(READERS), time.monotonic() + self._lifetime()
        channel = self.rng.choice(self.channels) if self.channels and way is not Way.LOST else "nowhere"
        wire = await Wire.open(self.job.port)
        seq = -1 if self.rng.random() < 0.7 else -2
        try:
            while time.monotonic() < ends:
                if not wire.usable:
                    wire = await Wire.open(self.job.port)
                if way is Way.STALLS and seq >= 0:
                    await self._stall(wire, f"/trickle/{channel}/{seq}")
                    break
                answer = await self._read(wire, f"/trickle/{channel}/{seq}", ends, way)
                if answer is None or way is Way.ONE_SHOT or answer.ended:
                    break
                if answer.status == 200 and answer.seq is not None:
                    seq = answer.seq + 1
                else:
                    seq = -1
                    await self._pause(answer)
                    channel = channel if answer.status in (0, 470) else self.rng.choice(self.channels or [channel])
        finally:
            wire.close(reset=way is Way.RESETS)
            self.seen["bytes"] += wire.received
        self.seen[f"reader {way}"] += 1

    async def _read(self, wire: Wire, path: str, ends: float, way: Way) -> Answer | None:
        """Read one segment; ``None`` if this life ended in the middle of it."""
        asked = wire.begin(f"GET {path}")
        # The others read to the end of the segment, unless its publisher has left and nobody knows.
        stays_s = 0.0 if way in (Way.LEAVES, Way.RESETS) else PATIENCE_S
        done, _ = await asyncio.wait([asked], timeout=max(0.0, ends + stays_s - time.monotonic()))
        if not done:
            return None
        answer = asked.result()
        self._note("GET", answer)
        if answer.close:
            wire.close()
        return answer

    async def _stall(self, wire: Wire, path: str) -> None:
        """Ask for a segment, and not read it, for one more life or until the server has cut the reader off."""
        answer = wire.begin(f"GET {path}")
        wire.stall()
        done, _ = await asyncio.wait([answer], timeout=self._lifetime())
        if done:
            self._note("stalled GET", answer.result())


async def _main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    crowd = Crowd(Job(**json.loads(await reader.readline())))
    with suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            report = group.create_task(_report(crowd))
            await crowd.run(group)
            while line := await reader.readline():
                crowd.rate = json.loads(line)["rate"]
            report.cancel()
            raise asyncio.CancelledError


async def _report(crowd: Crowd) -> None:
    while True:
        due = time.monotonic() + 1.0
        await asyncio.sleep(1.0)
        sys.stdout.write(json.dumps({"late_s": time.monotonic() - due, "seen": crowd.seen}) + "\n")
        sys.stdout.flush()


def job_line(job: Job) -> bytes:
    """What the process is told first."""
    return json.dumps(asdict(job)).encode() + b"\n"


def rate_line(rate: float) -> bytes:
    """How many chunks are to be published per second from now on."""
    return json.dumps({"rate": rate}).encode() + b"\n"


if __name__ == "__main__":
    uvloop.run(_main())
