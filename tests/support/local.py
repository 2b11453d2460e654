"""A server in a thread of the test's own process: quick to start, and open to be looked into.

What it answers is what a server process answers: the same protocol class, configuration and sockets. Signals, exit
codes, the command line and the access log's file need a process of their own (`tests/support/server.py`).
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvloop

from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.access.authorizer import Access
from tricklecast.app.bus import Bus
from tricklecast.app.changefeed import Changefeed
from tricklecast.app.changes import Changes
from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, Journal
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.listener import tune
from tricklecast.app.reload import Reload
from tricklecast.app.server import Server, control_config, open_archive, sweep, uvicorn_config
from tricklecast.app.settings import Settings
from tricklecast.app.storage.archive import Archive
from tricklecast.app.tools.conformance.target import Address, Target
from tricklecast.trickle.records import AccessRecord

T = TypeVar("T")

QUICK_END: dict[str, Any] = {"shutdown_drain_s": 0.05, "shutdown_deadline_s": 1, "shutdown_restart_s": 0}


@dataclass
class LocalServer:
    """A server that listens.

    Attributes:
        settings: what it runs with.
        port: where it listens. control_port: where its control plane does; the same, usually.
        access: who may do what. archive: its storage, if it has any. bus: subscriptions in the process.
        plane: its data plane; look, but change nothing (it lives in another thread).
        loop: its event loop.
        tls: how its clients speak TLS, if it does.
        records: the access records so far. problems: what its event loop complained about; must stay empty.
        reload: what SIGHUP does to it. next_settings: which it then finds; ``None``: the same.
        stop: what SIGTERM does to it. over: whether it has ended.
    """

    settings: Settings
    port: int
    plane: DataPlane
    loop: asyncio.AbstractEventLoop
    records: list[AccessRecord]
    tls: ssl.SSLContext | None = None
    problems: list[str] = field(default_factory=list)
    control_port: int = 0
    access: Access | None = None
    archive: Archive | None = None
    bus: Bus | None = None
    reload: Reload = field(init=False)
    next_settings: Settings | None = None
    stop: Callable[[], None] = field(init=False)
    over: Callable[[], bool] = field(init=False)

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
    configured = Settings(port=0, **{**QUICK_END, **settings})
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    tune(listener, peer_timeout_s=configured.peer_timeout_s)
    control = None if configured.control_port is None else socket.create_server(("127.0.0.1", 0))
    records: list[AccessRecord] = []
    started: list[tuple[LocalServer, Server]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        changefeed = Changefeed(loop.call_soon, loop.time)
        journal = Journal()
        journal.subscribe(changefeed.note, ChannelCreated, ChannelEnded)
        registry = Registry(configured.limits(), autocreate=configured.autocreate, journal=journal)
        registry.instance = secrets.token_hex(8)
        archive = open_archive(configured, registry, loop.time())
        bus = Bus(Changes(registry, archive, defer=loop.call_soon), registry, defer=loop.call_soon)
        access = Access(configured, "here")
        options, authorizer = configured.options(), access.authorizer
        plane = DataPlane(registry, options, sink=records.append, node="here", authorizer=authorizer)
        plane.durability = archive
        bus.plane = plane
        changefeed.start(registry)
        running = LocalServer(configured, listener.getsockname()[1], plane, loop, records)
        running.control_port = listener.getsockname()[1] if control is None else control.getsockname()[1]
        running.access = access
        running.bus = bus
        if configured.tls_cert is not None:
            running.tls = ssl.create_default_context(cafile=configured.tls_cert)
        loop.set_exception_handler(lambda _, context: running.problems.append(repr(context)))
        running.reload = reload = Reload(configured, access, plane, lambda: running.next_settings or configured)
        config = uvicorn_config(plane, None, access, bus, reload)
        server = Server(config, plane, None, lambda _: started.append((running, server)), reload)
        if control is not None:
            server.control = (control_config(plane, None, access, bus, reload), control)
        beside = [loop.create_task(sweep(plane, archive)), loop.create_task(access.run())]
        running.archive = archive
        await server.serve(sockets=[listener])
        await bus.close()
        if archive is not None:
            await archive.close()
        for task in beside:
            task.cancel()

    thread = threading.Thread(target=lambda: uvloop.run(main()), name="server", daemon=True)
    thread.start()
    try:
        eventually(lambda: started or not thread.is_alive(), what="the server listens")
        assert started, "the server does not start"
        running, server = started[0]
        running.stop, running.over = server.stop, lambda: not thread.is_alive()
        try:
            yield running
        finally:
            server.stop()
            thread.join(WITHIN_S)
        assert not thread.is_alive(), "the server does not stop"
        assert running.problems == []
    finally:
        listener.close()
        if control is not None:
            control.close()
