"""A cluster in processes: three nodes, one or three servers of NATS, and ways between them that can be cut."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import Process
from base64 import urlsafe_b64decode
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import nats
from nats.errors import Error
from nats.js import JetStreamContext

from benchmarks.campaign.faults import Fault, Kind
from benchmarks.campaign.http import Answer, Wire
from benchmarks.servers import ROOT, BenchmarkError
from tests.support.nats import NatsServer, Relay, nats_cluster, nats_server, relay
from tests.support.ports import free_port

_OF_NATS: Final = re.compile(r"site-packages/nats/|ConnectionClosedError")

_SIGNED: Final = re.compile(rb"trickle-cluster: ([\w=-]+)\.")

READY_S: Final = 40.0
"""A node that was started, and NATS that was restarted, serve after this time."""

TERM_S: Final = 40.0
"""A node that was told to stop has ended."""


@dataclass
class Node:
    """A node.

    Attributes:
        name, port: its own. root: the checkout whose code it runs. arguments: of ``serve``.
        to_nats: its ways to NATS. to_it: the way of other nodes to it. for_clients: that of clients.
        log: its file.
    """

    name: str
    port: int
    root: Path
    log: Path
    arguments: tuple[str, ...]
    to_nats: list[Relay]
    to_it: Relay
    for_clients: Relay
    process: Process | None = None
    _told: int = 0  # bytes of the log that were looked at
    hops: int = 0  # the nodes that a request had passed on its way to this one, at most

    def look(self, data: bytes) -> None:
        """Look at what another node sends."""
        for about in _SIGNED.findall(data):
            self.hops = max(self.hops, len(json.loads(urlsafe_b64decode(about))[0]))

    def faults(self) -> list[str]:
        """What it has logged of its own faults since the last call, but those of nats-py, which asyncio tells."""
        with self.log.open("rb") as log:
            log.seek(self._told)
            new = log.read()
        self._told += len(new)
        lines = new.decode(errors="replace").splitlines()
        faults = []
        for at, line in enumerate(lines):
            about = "".join(lines[at : at + 2])
            if " ERROR " in line and not ("asyncio" in line and _OF_NATS.search(about)):
                faults.append(line)
        return faults

    async def start(self) -> None:
        """Start it."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
        environment["PYTHONPATH"] = str(self.root)
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tricklecast", "serve", *self.arguments),
                stdout=log,
                stderr=log,
                cwd=self.root,
                env=environment,
            )

    async def ready(self) -> None:
        """Wait until it serves, and can decide.

        Raises:
            BenchmarkError: it does not.
        """
        deadline = time.monotonic() + READY_S
        while True:
            answer = await self.ask("/readyz")
            if answer.status == 200 and b"degraded" not in answer.body:
                return
            if self.process is None or self.process.returncode is not None or time.monotonic() > deadline:
                raise BenchmarkError(f"node {self.name} is not ready: {answer.status} {answer.body!r}; see {self.log}")
            await asyncio.sleep(0.05)

    async def ask(self, path: str, method: str = "GET") -> Answer:
        """Ask it, past all cuts."""
        wire = await Wire.open(self.port, 1.0)
        answer = await wire.ask(f"{method} {path}", "Connection: close", "Content-Length: 0", within_s=5.0)
        wire.close()
        return answer

    async def stop(self, number: signal.Signals) -> None:
        """End it."""
        process, self.process = self.process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
        try:
            async with asyncio.timeout(TERM_S):
                await process.wait()
        except TimeoutError:
            raise BenchmarkError(f"node {self.name} does not end; see {self.log}") from None
        finally:
            if process.returncode is None:
                process.kill()


@dataclass
class Happened:
    """A fault as it was: when it began and ended, by the monotonic clock; and what came of each move."""

    fault: Fault
    begun: float
    ended: float = 0.0
    moves: Counter[int] = field(default_factory=Counter)


@dataclass
class Cluster:
    """A cluster.

    Attributes:
        nodes, servers: its parts. happened: what was done to it since the schedule began. locks: of its parts.
    """

    nodes: list[Node]
    servers: list[NatsServer]
    happened: list[Happened] = field(default_factory=list)
    locks: dict[tuple[str, int], asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def inflict(self, fault: Fault, channels: tuple[str, ...]) -> None:
        """Do what a fault says, and undo it after its time; a node that has ended is started again."""
        async with self.locks[fault.part]:
            await self._inflict(fault, channels)

    async def _inflict(self, fault: Fault, channels: tuple[str, ...]) -> None:
        happened = Happened(fault, time.monotonic())
        self.happened.append(happened)
        node, server = self.nodes[fault.target], self.servers[0]
        match fault.kind:
            case Kind.KILL | Kind.TERM:
                await node.stop(signal.SIGKILL if fault.kind is Kind.KILL else signal.SIGTERM)
                happened.ended = time.monotonic()  # a killed node is gone from here on
                await asyncio.sleep(fault.lasts)
                await node.start()
            case Kind.FREEZE:
                assert node.process is not None
                node.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(fault.lasts)
                node.process.send_signal(signal.SIGCONT)
            case Kind.CUT_NATS:
                await _cut(node.to_nats, fault.lasts)
            case Kind.RESET_NATS:
                for way in node.to_nats:
                    way.break_all()
                await _cut(node.to_nats, fault.lasts)
            case Kind.CUT_NODES:
                await _cut([node.to_it], fault.lasts)
            case Kind.CUT_CLIENTS:
                await _cut([node.for_clients], fault.lasts)
            case Kind.MOVE:
                for channel in channels:
                    answer = await node.ask(f"/api/v1/channels/{channel}/move?to={node.name}", "POST")
                    happened.moves[answer.status] += 1
            case Kind.NATS_KILL:
                server = await asyncio.to_thread(self._leader)
                await asyncio.to_thread(server.stop, signal.SIGKILL)
                await asyncio.sleep(fault.lasts)
                await asyncio.to_thread(server.start)
            case Kind.NATS_FREEZE:
                server = await asyncio.to_thread(self._leader)
                server.freeze()
                await asyncio.sleep(fault.lasts)
                server.thaw()
            case Kind.BUCKET_DELETED:
                await _delete_bucket(server.url)
            case Kind.BUCKET_OLDER:
                await asyncio.to_thread(self._save_and_put_back, fault.lasts)
        happened.ended = time.monotonic()

    async def heal(self) -> None:
        """Wait until all is as it was; no fault is under way any more."""
        await asyncio.gather(*(node.ready() for node in self.nodes))

    def _leader(self) -> NatsServer:
        if len(self.servers) == 1:
            return self.servers[0]
        return next((server for server in self.servers if server.leads("KV_trickle")), self.servers[0])

    def _save_and_put_back(self, after_s: float) -> None:
        """Copy the store of the bucket, wait, and restart NATS with that copy; the histories stay as they are."""
        (server,) = self.servers
        server.stop()
        bucket = next(server.store.glob("jetstream/*/streams/KV_trickle"), None)
        if bucket is None:  # it was deleted a moment ago
            server.start()
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copytree(bucket, Path(folder) / "copy")
            server.start()
            time.sleep(after_s)
            server.stop(signal.SIGKILL)
            shutil.rmtree(bucket, ignore_errors=True)
            shutil.copytree(copy, bucket)
        server.start()


async def _cut(ways: list[Relay], lasts: float) -> None:
    for way in ways:
        way.cut()
    await asyncio.sleep(lasts)
    for way in ways:
        way.heal()


async def _delete_bucket(url: str) -> None:
    with suppress(Error, OSError):
        client = await nats.connect(url, allow_reconnect=False)
        try:
            stream: JetStreamContext = client.jetstream()
            await stream.delete_stream("KV_trickle")
        finally:
            await client.close()


@contextmanager
def _nats(servers: int) -> Iterator[list[NatsServer]]:
    if servers > 1:
        with nats_cluster(servers) as several:
            yield several
    else:
        with nats_server() as alone:
            yield [alone]


@asynccontextmanager
async def running(
    folder: Path, root: Path, servers: int, settings: tuple[str, ...], say: Callable[[str], None]
) -> AsyncIterator[Cluster]:
    """Run a cluster while the block lasts.

    Args:
        folder: for logs. root: the checkout that the nodes run. servers: of NATS. settings: of each node.

    Raises:
        BenchmarkError: it does not start.
    """
    async with AsyncExitStack() as stack:
        manager = _nats(servers)
        of_nats = await asyncio.to_thread(manager.__enter__)
        stack.push_async_callback(asyncio.to_thread, manager.__exit__, None, None, None)
        nodes = []
        for name in ("a", "b", "c"):
            ports = [server.port for server in of_nats]
            to_nats = [await stack.enter_async_context(relay(port)) for port in ports]
            for way in to_nats:  # a server tells clients of the other servers: of the ways to them, from here
                way.names = {
                    str(port).encode(): str(one.port).encode() for port, one in zip(ports, to_nats, strict=True)
                }
            port = free_port()
            to_it, for_clients = [await stack.enter_async_context(relay(port)) for _ in range(2)]
            arguments = (
                *("--node", name, "--port", str(port), "--advertise-url", f"http://127.0.0.1:{to_it.port}"),
                *("--cluster", ",".join(way.url for way in to_nats), *settings),
            )
            node = Node(name, port, root, folder / f"{name}.log", arguments, to_nats, to_it, for_clients)
            to_it.look = node.look
            nodes.append(node)
        cluster = Cluster(nodes, of_nats)
        try:
            for node in nodes:
                await node.start()
            await cluster.heal()
            say(f"three nodes and {len(of_nats)} of NATS run; logs are in {folder}")
            yield cluster
        finally:
            for node in nodes:
                await node.stop(signal.SIGKILL)


def root_of(checkout: str) -> Path:
    """The checkout whose nodes are tested."""
    return Path(checkout).resolve() if checkout else ROOT


def dice_of(seed: int, number: int) -> random.Random:
    """Chance of the load of one schedule."""
    return random.Random(f"load {seed}/{number}")
