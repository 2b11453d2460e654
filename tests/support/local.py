"""A server in a thread of the test's own process: quick to start, and open to be looked into.

What it answers is what a server process answers: the same protocol class, configuration and sockets. Signals, exit
codes, the command line and the access log's file need a process of their own (`tests/support/server.py`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import uvloop
from fastapi.dependencies import models

from tests.support.later import make_control_planes_later
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.access.authorizer import Access
from tricklecast.app.bus import Bus
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.listener import tune
from tricklecast.app.node import Node
from tricklecast.app.reload import Reload
from tricklecast.app.server import Server
from tricklecast.app.settings import Settings
from tricklecast.app.sockets import Sockets
from tricklecast.app.storage.archive import Archive
from tricklecast.app.tools.conformance.target import Address, Target
from tricklecast.trickle.records import AccessRecord

T = TypeVar("T")

CACHES = [value for value in vars(models).values() if hasattr(value, "cache_clear")]
"""What FastAPI knows of functions: it keeps a hundred servers, and each collection of garbage looks
through them."""

make_control_planes_later()

QUICK_END: dict[str, Any] = {"shutdown_drain_s": 0.05, "shutdown_deadline_s": 1, "shutdown_restart_s": 0}


@dataclass
class LocalServer:
    """A server that listens.

    Attributes:
        settings: what it runs with.
        node: its parts; look, but change nothing (they live in another thread).
        port: where it listens. control_port: where its control plane does; the same, usually.
        loop: its event loop.
        records: the access records so far. problems: what its event loop complained about; must stay empty.
        stop: what SIGTERM does to it. over: whether it has ended.
        tls: how its clients speak TLS, if it does.
        next_settings: which it finds at a reload; ``None``: the same.
    """

    settings: Settings
    node: Node
    port: int
    control_port: int
    loop: asyncio.AbstractEventLoop
    records: list[AccessRecord]
    problems: list[str]
    stop: Callable[[], None]
    over: Callable[[], bool]
    tls: ssl.SSLContext | None
    next_settings: Settings | None = None

    @property
    def plane(self) -> DataPlane:
        return self.node.plane

    @property
    def access(self) -> Access:
        return self.node.access

    @property
    def archive(self) -> Archive | None:
        return self.node.archive

    @property
    def bus(self) -> Bus:
        return self.node.bus

    @property
    def reload(self) -> Reload:
        """What SIGHUP does to it."""
        return self.node.reload

    def inside(self, function: Callable[[], T]) -> T:
        """Call a function in the server's thread, between two events, and return what it returns."""

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(WITHIN_S)

    def target(self, tls: ssl.SSLContext | None = None) -> Target:
        """A client's view of it."""
        return Target(Address("127.0.0.1", self.port, self.settings.base_path, tls or self.tls), at_once_s=WITHIN_S)

    @contextmanager
    def client(self, tls: ssl.SSLContext | None = None) -> Iterator[Target]:
        """A client that closes its connections and ends its channels at the end of the block."""
        target = self.target(tls)
        try:
            yield target
        finally:
            target.cleanup()

    def record(self, **fields: Any) -> AccessRecord:
        """Wait for the one access record that has these values."""

        def found() -> list[AccessRecord]:
            return [
                record
                for record in list(self.records)
                if all(getattr(record, name) == value for name, value in fields.items())
            ]

        records = eventually(found, what=f"a record with {fields} among {self.records[-5:]}")
        assert len(records) == 1, records
        return records[0]


@contextmanager
def local_server(**settings: Any) -> Iterator[LocalServer]:
    """Run a server with these settings until the block ends.

    Its clients trust the certificate that it is given.

    Raises:
        AssertionError: at the end, if its event loop has seen an exception that nobody handled.
    """
    configured = Settings(**{"port": 0, "node": "here", **QUICK_END, **settings})
    main = socket.create_server(("127.0.0.1", configured.port), backlog=2048)
    tune(main, peer_timeout_s=configured.peer_timeout_s)
    control = None if configured.control_port is None else socket.create_server(("127.0.0.1", 0))
    started: list[LocalServer] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        records: list[AccessRecord] = []
        problems: list[str] = []
        loop.set_exception_handler(lambda _, context: problems.append(repr(context)))
        node = Node(
            configured,
            configured.limits(),
            Sockets(main, control),
            sink=records.append,
            reread=lambda: running.next_settings or configured,
        )
        server = Server(node, lambda _: started.append(running))
        running = LocalServer(
            configured,
            node,
            main.getsockname()[1],
            (control or main).getsockname()[1],
            loop,
            records,
            problems,
            stop=server.stop,
            over=lambda: not thread.is_alive(),
            tls=None if configured.tls_cert is None else ssl.create_default_context(cafile=configured.tls_cert),
        )
        await node.run(server)

    thread = threading.Thread(target=lambda: uvloop.run(run()), name="server", daemon=True)
    thread.start()
    try:
        eventually(lambda: started or not thread.is_alive(), what="the server listens")
        assert started, "the server does not start"
        running = started[0]
        try:
            yield running
        finally:
            running.stop()
            thread.join(WITHIN_S)
        assert not thread.is_alive(), "the server does not stop"
        assert running.problems == []
    finally:
        for cached in CACHES:
            cached.cache_clear()
        main.close()
        if control is not None:
            control.close()
