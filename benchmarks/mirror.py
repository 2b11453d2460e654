"""A mirror under kills, and what it costs: is the destination the source, byte by byte?

``kills``: channels are published to a source, and a destination mirrors them. Source, destination and the command
``tricklecast mirror`` are killed at random moments, and started again. Then all come to rest, and the two data
directories are compared: each segment, its state, its size, its checksum; and the bytes with the checksums.

``lag``: what a reader of the destination waits longer than one of the source, and what the mirror costs both servers.

``promote``: the source is killed while clients of this project, which have both URLs, publish and read. The destination
is promoted. What is missing in the end has to be what ``mirror status --for-promotion`` has said, and no more.

``planned``: the same clients, while the destination takes over from a source that lives, and hands over again. Nothing
may be missing, or cut short.

``many``: how long a promotion of many channels takes, and for how long a reader of the destination waits meanwhile.

    python -m benchmarks.mirror kills --channels 1000 --segments 360 --kills 200
    python -m benchmarks.mirror many --channels 10000
    python -m benchmarks.mirror lag
    python -m benchmarks.mirror promote --rounds 10
    python -m benchmarks.mirror planned --rounds 10
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
import urllib.request
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from rich.console import Console

from benchmarks.campaign.http import Wire
from benchmarks.servers import BenchmarkError, raise_file_limit
from tests.support.ports import free_port
from tricklecast import ConnectionLost, Publisher, Subscriber
from tricklecast.app.storage.cli import DataDirectory

START_S: Final = 60.0
REST_S: Final = 1800.0
EXCHANGE_S: Final = 10.0


@dataclass
class Party:
    """One of the three processes, which may be killed.

    Attributes:
        arguments: of ``tricklecast``. cpu_s: what it has used so far, of all its starts.
    """

    name: str
    arguments: tuple[str, ...]
    log: Path
    port: int = 0
    process: Process | None = None
    cpu_s: float = 0.0

    async def start(self) -> None:
        """Start it; a server is waited for."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tricklecast", *self.arguments, stdout=log, stderr=log
            )
        if not self.port:
            return
        async with asyncio.timeout(START_S):
            while True:
                with suppress(OSError):
                    await asyncio.to_thread(_get, f"{self.url}/healthz")
                    return
                await asyncio.sleep(0.05)

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal, and wait for its end."""
        process, self.process = self.process, None
        if process is not None:
            self.cpu_s += cpu_of(process.pid)
            with suppress(ProcessLookupError):
                process.send_signal(number)
            await process.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def cpu_of(pid: int) -> float:
    """Seconds that a process has used (Linux)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / 100


def _get(url: str, method: str = "GET") -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=EXCHANGE_S) as response:
        return bytes(response.read())


async def ask(url: str) -> Any:
    """The JSON of an answer."""
    return json.loads(await asyncio.to_thread(_get, url))


@dataclass
class Site:
    """The two servers, and the command between them."""

    folder: Path
    settings: tuple[str, ...] = ()
    source: Party = field(init=False)
    destination: Party = field(init=False)
    command: Party = field(init=False)

    def __post_init__(self) -> None:
        def server(name: str) -> Party:
            port = free_port()
            arguments = ("serve", "--port", str(port), "--data-dir", str(self.folder / name), *self.settings)
            return Party(name, (*arguments, "--shutdown-drain-s", "1"), self.folder / f"{name}.log", port)

        self.source, self.destination = server("source"), server("destination")
        arguments = ("mirror", f"{self.source.url}/trickle", self.destination.url)
        self.command = Party("command", arguments, self.folder / "command.log")

    @property
    def parties(self) -> tuple[Party, Party, Party]:
        return self.source, self.destination, self.command

    async def status(self) -> dict[str, Any]:
        """That of the mirror."""
        answer: dict[str, Any] = await ask(f"{self.destination.url}/api/v1/mirror")
        return answer

    async def rests(self) -> float:
        """Wait until all is copied; the seconds that it took."""
        return await self.reaches(self.destination, _is_complete, 0.2)

    async def misses_its_source(self) -> float:
        """Wait until the destination says that its source is gone; the seconds that it took."""
        return await self.reaches(self.destination, lambda status: status["state"] == "unreachable", 0.02)

    async def reaches(self, party: Party, reached: Callable[[dict[str, Any]], bool], pause_s: float = 0.05) -> float:
        """Wait for a state of the mirror of a server; the seconds that it took."""
        begun = time.monotonic()
        async with asyncio.timeout(REST_S):
            while True:
                with suppress(OSError):
                    if reached(await ask(f"{party.url}/api/v1/mirror")):
                        return time.monotonic() - begun
                await asyncio.sleep(pause_s)


def _is_complete(status: dict[str, Any]) -> bool:
    return bool(status["state"] == "following" and status["complete"])


@asynccontextmanager
async def site(*settings: str) -> AsyncIterator[Site]:
    """Run all three while the block lasts."""
    with tempfile.TemporaryDirectory(prefix="tricklecast-mirror-") as folder:
        one = Site(Path(folder), settings)
        try:
            for party in one.parties:
                await party.start()
            yield one
        except BaseException:
            for party in one.parties:
                sys.stderr.write(f"== {party.name}\n{party.log.read_text(errors='replace')[-3000:]}\n")
            raise
        finally:
            for party in one.parties:
                if party.process is not None:
                    await party.stop(signal.SIGKILL)


# Kills.


async def publish(port: int, channel: str, segments: int, pause_s: float, counts: Counter[str]) -> None:
    """Publish segments to a channel over one connection after the other; each that is confirmed counts."""
    dice = random.Random(channel)
    wire, seq = None, 0
    while seq < segments:
        if wire is None or not wire.usable:
            wire = await Wire.open(port, EXCHANGE_S)
            answer = await _exchange(wire, f"GET /trickle/{channel}/next")
            if answer is None:
                await asyncio.sleep(0.1)
                continue
            seq = max(seq, int(answer)) if answer.isdigit() else seq
        body = f"{channel} {seq} {dice.random()} ".encode() * dice.randint(1, 60)
        if await _exchange(wire, f"POST /trickle/{channel}/{seq}", body) is not None:
            counts["confirmed"] += 1
            seq += 1
        await asyncio.sleep(pause_s * dice.uniform(0.5, 1.5))
    if wire is not None:
        wire.close()


async def _exchange(wire: Wire, line: str, body: bytes = b"") -> bytes | None:
    """The body of an answer; ``None`` if the connection broke, or the answer was no success."""
    answer = wire.begin(line, "Transfer-Encoding: chunked") if body else wire.begin(line)
    if body:
        wire.write(body)
        wire.write(b"")
    found = await wire.end(answer, EXCHANGE_S)
    return found.body if found.whole and found.status in (200, 404, 409) else None


async def kills(options: argparse.Namespace, console: Console) -> int:
    """Publish, kill, let all come to rest, and compare."""
    counts: Counter[str] = Counter()
    dice = random.Random(options.seed)
    async with site("--ack", "journal", "--retain-channel-segments", "100000", "--idle-timeout-s", "1h") as one:
        async with asyncio.TaskGroup() as group:
            for number in range(options.channels):
                work = publish(one.source.port, f"cam{number}", options.segments, options.pause_s, counts)
                group.create_task(work)
            for _ in range(options.kills):
                await asyncio.sleep(options.every_s * dice.uniform(0.2, 1.8))
                party = dice.choice(one.parties)
                await party.stop(signal.SIGKILL)
                counts[f"{party.name} killed"] += 1
                await asyncio.sleep(dice.choice((0.0, 0.2, 1.0)))
                await party.start()
        rest_s = await one.rests()
        counts["mismatches"] = (await one.status())["mismatches"]
        for party in one.parties:
            await party.stop()
        differences = compare(one.folder / "source", one.folder / "destination")
        for name in ("source", "destination"):
            if await damaged(one.folder / name):
                differences.append(f"{name}: bytes that do not match their checksums")
    console.print(f"{dict(counts)}; at rest after {rest_s:.1f} s")
    for difference in differences[:20]:
        console.print(difference, markup=False)
    console.print(f"{len(differences)} differences")
    return 1 if differences else 0


def compare(source: Path, destination: Path) -> list[str]:
    """What the two data directories do not have in common."""
    found = []
    for folder in (source, destination):
        directory = DataDirectory(folder)
        found.append(
            {
                (channel.name, channel.epoch, row.seq): (row.state, row.size, row.crc)
                for row in directory.segments
                if (channel := directory.channels[row.channel]) and not channel.name.startswith("_")
            }
        )
    here, there = found
    return [
        f"{key}: {here.get(key)} at the source, {there.get(key)} at the destination"
        for key in sorted(here.keys() | there.keys())
        if here.get(key) != there.get(key)
    ]


async def damaged(folder: Path) -> bool:
    """Whether the bytes of a data directory differ from their checksums."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tricklecast", "store", "check", str(folder), stdout=asyncio.subprocess.DEVNULL
    )
    return await process.wait() != 0


# Lag and cost.


async def lag(options: argparse.Namespace, console: Console) -> int:
    """Compare readers of both, and the CPU time of both servers."""
    async with site() as one:
        arrived: dict[tuple[int, int], dict[str, float]] = {}

        async def read(party: Party, number: int) -> None:
            async with Subscriber(f"{party.url}/trickle/cam{number}", start=0, wait_for_channel_s=30) as subscriber:
                async for segment in subscriber:
                    async for _ in segment:
                        pass
                    arrived.setdefault((number, segment.seq), {})[party.name] = time.monotonic()

        async def write(number: int) -> None:
            async with Publisher(f"{one.source.url}/trickle/cam{number}") as publisher:
                for _ in range(options.segments):
                    async with publisher.segment() as segment:
                        for _ in range(8):
                            await segment.write(bytes(options.size // 8))
                            await asyncio.sleep(options.pause_s / 8)
                await asyncio.sleep(1)

        before = [party_cpu(party) for party in one.parties[:2]]
        async with asyncio.TaskGroup() as group:
            for number in range(options.channels):
                group.create_task(write(number))
                for party in one.parties[:2]:
                    group.create_task(read(party, number))
        used = [party_cpu(party) - then for party, then in zip(one.parties[:2], before, strict=True)]
        late = [times["destination"] - times["source"] for times in arrived.values() if len(times) == 2]
        if len(late) < 2:
            raise BenchmarkError("no segment came to both readers")
        megabytes = options.channels * options.segments * options.size / 1e6
        points = quantiles(late, n=100)
        console.print(
            f"{len(late)} segments: a reader of the destination has the end of one {points[49] * 1000:.1f} ms (p50), "
            f"{points[98] * 1000:.1f} ms (p99) after a reader of the source"
        )
        console.print(
            f"CPU for each mirrored MB, with one reader at each server: source {used[0] / megabytes * 1000:.1f} ms, "
            f"destination {used[1] / megabytes * 1000:.1f} ms"
        )
        return 0


def party_cpu(party: Party) -> float:
    """Seconds that a party has used."""
    return party.cpu_s + (0.0 if party.process is None else cpu_of(party.process.pid))


# Promotion.


@dataclass
class Clients:
    """A publisher and a reader that have the URLs of both servers.

    Attributes:
        sent: the segments, in order; each takes 20 ms. got: those that the reader has whole. cut: those that are not.
        over: set when the publisher is to end.
    """

    urls: list[str]
    sent: list[bytes] = field(default_factory=list)
    got: dict[int, bytes] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self) -> None:
        async with Publisher(self.urls) as publisher:
            while not self.over.is_set():
                self.sent.append(b"%d " % len(self.sent) * random.randint(1, 4000))
                async with publisher.segment() as segment:
                    for part in (self.sent[-1][:100], self.sent[-1][100:]):
                        await segment.write(part)
                        await asyncio.sleep(0.01)

    async def read(self) -> None:
        with suppress(ConnectionLost):
            async with Subscriber(self.urls[::-1], start=0, wait_for_channel_s=30) as subscriber:
                async for segment in subscriber:
                    data = await segment.read()
                    if segment.truncated:
                        self.cut.add(segment.seq)
                    else:
                        self.got[segment.seq] = data

    @property
    def missing(self) -> list[int]:
        return [seq for seq in range(len(self.sent)) if seq not in self.got]

    @property
    def different(self) -> list[int]:
        return [seq for seq, data in self.got.items() if data != self.sent[seq]]


async def promote(options: argparse.Namespace, console: Console) -> int:
    """Kill the source under load, promote the destination, and compare what is missing with what was said."""
    wrong = 0
    for number in range(options.rounds):
        async with site() as one:
            clients = Clients([f"{party.url}/trickle/cam" for party in one.parties[:2]])
            async with asyncio.TaskGroup() as group:
                writing, reading = group.create_task(clients.write()), group.create_task(clients.read())
                await asyncio.sleep(random.uniform(1.0, 3.0))
                await one.source.stop(signal.SIGKILL)
                said = (await ask(f"{one.destination.url}/api/v1/mirror?for_promotion=1"))["lost"]
                begun = time.monotonic()
                await asyncio.to_thread(_get, f"{one.destination.url}/api/v1/mirror/promote", method="POST")
                took_s = time.monotonic() - begun
                await asyncio.sleep(3)
                clients.over.set()
                await writing
                await reading
            console.print(
                f"{number}: {len(clients.sent)} segments; promoted in {took_s * 1000:.0f} ms; said to be lost: "
                f"{[one['seq'] for one in said]}; missing: {clients.missing}; wrong: {clients.different}"
            )
            wrong += bool(clients.different) or not set(clients.missing) <= {one["seq"] for one in said}
    return 1 if wrong else 0


async def planned(options: argparse.Namespace, console: Console) -> int:
    """Move to the destination and back under load, while all is well: nothing may be missing, or cut short."""
    wrong = 0
    async with site() as one:
        there, here = one.source, one.destination
        clients = Clients([f"{party.url}/trickle/cam" for party in (there, here)])
        async with asyncio.TaskGroup() as group:
            writing, reading = group.create_task(clients.write()), group.create_task(clients.read())
            for number in range(options.rounds):
                await asyncio.sleep(random.uniform(1.0, 3.0))
                await one.reaches(here, lambda status: status["live"] == 1)
                before, begun = len(clients.sent), time.monotonic()
                await asyncio.to_thread(_get, f"{here.url}/api/v1/mirror/promote?drain_s=10", method="POST")
                took_s = time.monotonic() - begun
                await one.reaches(there, lambda status: status["state"] == "deposed")
                await asyncio.sleep(2)
                came, within_s = len(clients.sent) - before, time.monotonic() - begun
                console.print(
                    f"{number}: at segment {before}; promoted in {took_s * 1000:.0f} ms; then {came} segments in "
                    f"{within_s:.1f} s; cut short: {sorted(clients.cut)}"
                )
                await _back(here, there)
                there, here = here, there
            clients.over.set()
            await writing
            await reading
        wrong = len(clients.missing) + len(clients.different) + len(clients.cut)
        console.print(
            f"{len(clients.sent)} segments, {options.rounds} moves; missing: {clients.missing}; "
            f"wrong: {clients.different}; cut short: {sorted(clients.cut)}"
        )
    return 1 if wrong else 0


async def _back(new: Party, old: Party) -> None:
    """``tricklecast mirror back``: it refuses if only the old server has something."""
    arguments = "mirror", "back", f"{new.url}/trickle", f"{old.url}/trickle"
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tricklecast", *arguments)
    if await process.wait():
        raise BenchmarkError("the former source has something that the new one has not")


async def many(options: argparse.Namespace, console: Console) -> int:
    """Promote many channels at once."""
    most = str(2 * options.channels)  # one client may have a part of each limit
    async with site("--idle-timeout-s", "1h", "--max-channels", most, "--max-readers", most) as one:
        counts: Counter[str] = Counter()
        began = time.monotonic()
        for first in range(0, options.channels, 200):
            async with asyncio.TaskGroup() as group:
                for number in range(first, min(first + 200, options.channels)):
                    group.create_task(publish(one.source.port, f"cam{number}", 1, 0.0, counts))
        published_s = time.monotonic() - began
        rest_s = await one.rests()
        await one.command.stop()
        await one.source.stop(signal.SIGKILL)
        gone_s = await one.misses_its_source()
        over, waits = asyncio.Event(), []

        async def read() -> None:
            wire = await Wire.open(one.destination.port, EXCHANGE_S)
            while not over.is_set():
                begun = time.monotonic()
                await _exchange(wire, "GET /trickle/cam0/0")
                waits.append(time.monotonic() - begun)
                await asyncio.sleep(0.001)

        reading = asyncio.ensure_future(read())
        begun, used_s = time.monotonic(), party_cpu(one.destination)
        await asyncio.to_thread(_get, f"{one.destination.url}/api/v1/mirror/promote", method="POST")
        took_s, cpu_s = time.monotonic() - begun, party_cpu(one.destination) - used_s
        over.set()
        await reading
        console.print(
            f"{counts['confirmed']} channels were published in {published_s:.1f} s, and copied {rest_s:.1f} s later "
            f"(CPU: {one.source.cpu_s:.1f} s, {used_s:.1f} s); the loss of the source was known after "
            f"{gone_s:.2f} s; promoted in {took_s:.2f} s ({cpu_s:.2f} s of CPU, with its readers); a reader "
            f"waited {max(waits) * 1000:.0f} ms at most"
        )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mirror", description=__doc__)
    parser.add_argument("section", choices=("kills", "lag", "promote", "planned", "many"))
    parser.add_argument("--channels", type=int, default=50, help="how many (50)")
    parser.add_argument("--segments", type=int, default=60, help="of each (60)")
    parser.add_argument("--size", type=int, default=64_000, help="of a segment, for lag (64,000 bytes)")
    parser.add_argument("--pause-s", type=float, default=0.5, help="between two segments of a channel (0.5)")
    parser.add_argument("--kills", type=int, default=20, help="how many (20)")
    parser.add_argument("--every-s", type=float, default=1.0, help="between two kills (1)")
    parser.add_argument("--rounds", type=int, default=3, help="of promote, and moves of planned (3)")
    parser.add_argument("--seed", type=int, default=1, help="of the kills (1)")
    options = parser.parse_args()
    raise_file_limit()
    section = {"kills": kills, "lag": lag, "promote": promote, "planned": planned, "many": many}[options.section]
    return asyncio.run(section(options, Console(soft_wrap=True, highlight=False)))


if __name__ == "__main__":
    sys.exit(main())
