"""A server process: sockets, signals and uvicorn around one :class:`~tricklecast.app.node.Node`.

**Signals.** SIGTERM and SIGINT may come at any moment. While uvicorn serves, it has them: the first one drains, and a
second one ends the server at once. Before that, a handler of ours remembers them: a server that is told to stop while
it starts does start, and then drains, so that its access log and its data directory are complete. After that, the same
handler keeps further signals from changing the exit code.

**The last resort** begins with the first signal, whoever handles it, since any later step may hang.

**uvicorn** parses no request: connections are those of :mod:`app.http1`. It has the signal handlers.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Final, cast

import uvicorn
import uvloop
from starlette.types import ASGIApp

from tricklecast.app.control_plane.middleware import LimitRequests, RecordRequests
from tricklecast.app.core.limits import Limits
from tricklecast.app.health import remove_address, write_address
from tricklecast.app.http1.connection import Connection, Endpoint
from tricklecast.app.listener import (
    CannotServe,
    Listener,
    TlsListener,
    accept_on,
    address_of,
    attainable_limits,
    maker,
    not_found,
)
from tricklecast.app.machine import usable_cores
from tricklecast.app.node import Node, Program
from tricklecast.app.reload import Terminal, merged
from tricklecast.app.server_log import configure
from tricklecast.app.settings import Settings
from tricklecast.app.shutdown import LAST_S, TICK_S, LastResort, drain, end, give_away
from tricklecast.app.sockets import Sockets, opened
from tricklecast.app.sources.service import Closable
from tricklecast.app.storage.settle import settle
from tricklecast.app.systemd import notify
from tricklecast.app.workers.link import Link
from tricklecast.app.workers.placement import owner_of
from tricklecast.app.workers.supervisor import HANG_UP_S, PASSED_ON, READY, Supervisor, Worker
from tricklecast.trickle import __version__
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.records import Event

_LOGGER = logging.getLogger(__name__)

DATE_S: Final = 1.0
"""How often the date in answers of the control plane is made."""

KILL_S: Final = 2.0
"""A worker is killed so long after its last resort should have ended it."""

_UNUSED_SIGNALS: Final = (signal.SIGUSR1, signal.SIGUSR2)


def serve(
    settings: Settings,
    announce: Callable[[str], None],
    program: Program | None = None,
    *,
    show: Callable[[list[str]], None] | None = None,
    reread: Callable[[], Settings] | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT; a second one stops it at once.

    SIGHUP reopens the access log and reads certificates, keys, secrets and settings again
    (:mod:`tricklecast.app.reload`); only when the server's terminal was closed, it is a SIGTERM. SIGUSR1 and SIGUSR2 do
    nothing. A shutdown that does not come to its end ends the process with exit code 1 (:class:`LastResort`).

    Args:
        settings: the server's.
        announce: gets the URL of the base path as soon as the server listens.
        program: runs beside the server, from before the first request on. When the server stops, its subscriptions end
            with ``ServerClosed``, and it may go on for :data:`~app.node.PROGRAM_S`. The server does not stop when it
            returns.
        show: gets lines that tell which publishers and readers have come and left, at most once a second.
        reread: puts the settings together again at SIGHUP; without it only files are read again.

    Raises:
        Exception: what the program has raised. The server has stopped, as after SIGTERM.
        CannotServe: the address or the certificate cannot be used, or the process may open too few files.
        AccessLogError: the access log cannot be written.
        InvalidInput: a file that a setting names cannot be used.
    """
    count = usable_cores() if settings.workers == "auto" else settings.workers
    if count > 1:
        _supervise(count, settings, announce, program, show, reread)
        return
    if program is not None and settings.cluster:
        raise CannotServe("a program in the server's process sees only that node's channels: it needs no cluster")
    limits = attainable_limits(settings)
    with opened(settings) as [sockets], _health_file(settings, sockets):
        _settled(settings, count)
        _serve_on(sockets, settings, limits, announce, program, show, reread)


def _supervise(
    count: int,
    settings: Settings,
    announce: Callable[[str], None],
    program: Program | None,
    show: Callable[[list[str]], None] | None,
    reread: Callable[[], Settings] | None,
) -> None:
    """Run a server of several processes."""
    if program is not None:
        raise CannotServe("a program in the server's process sees only that process's channels: it needs workers = 1")
    configure(settings.log_format, threaded=False)  # a process that forks has one thread
    limits = attainable_limits(settings, count)
    in_force = settings
    with opened(settings, count) as sockets, _health_file(settings, sockets[0]), _ignoring_unused():
        locks = _settled(settings, count)

        def work(worker: Worker) -> None:
            configure(settings.log_format, worker=worker.number)
            own, lock = sockets[worker.number], locks[worker.number] if locks else None
            mains = [each.main for each in sockets]
            _serve_on(own, in_force, limits, lambda _: worker.report(READY), None, show, reread, worker, lock, mains)

        def reload() -> None:
            nonlocal in_force
            # Without a word: each worker does the same, and tells what it has reloaded, and why not.
            with suppress(Exception):
                in_force, _ = merged(in_force, in_force if reread is None else reread())

        def ready() -> None:
            for listener, path in zip(sockets[0], (settings.base_path, " (control plane)"), strict=True):
                if listener is not None:
                    announce(address_of(settings, listener) + path)

        def stopping() -> None:
            # Else connections that come to a worker which has ended would wait for the last one.
            for each in sockets:
                for listener in filter(None, each):
                    listener.close()

        try:
            Supervisor(
                count,
                work,
                ready=ready,
                stopping=stopping,
                reload=reload,
                terminal_is_gone=Terminal().is_gone,
                # A worker's own last resort comes first, and tells where it hangs.
                deadline_s=lambda: in_force.shutdown_deadline_s + LAST_S + KILL_S,
            ).run()
        finally:
            for one in locks:
                os.close(one)


def _settled(settings: Settings, workers: int) -> list[int]:
    """Make the data directory, if there is one, that of this number of workers; the locks of several, in their order.

    The locks belong to the server as long as any of its processes lives, also while a worker is started again.
    """
    folder = settings.data_dir
    return [] if folder is None else settle(folder, workers, partial(owner_of, workers=workers))


def _serve_on(
    sockets: Sockets,
    settings: Settings,
    limits: Limits,
    announce: Callable[[str], None],
    program: Program | None,
    show: Callable[[list[str]], None] | None,
    reread: Callable[[], Settings] | None,
    worker: Worker | None = None,
    lock: int | None = None,
    mains: Sequence[socket.socket] = (),
) -> None:
    """Run a server on these sockets, or one worker of it, with the process's signals in its hands."""
    last_resort = LastResort()
    early: list[int] = []  # signals that came before uvicorn had installed its handlers

    def remember(number: int, frame: FrameType | None) -> None:
        """For signals that come before uvicorn has installed its handlers, or after it has removed them."""
        del frame
        early.append(number)
        last_resort.begin(settings.shutdown_deadline_s + LAST_S)

    async def run() -> None:
        node = Node(settings, limits, sockets, show=show, reread=reread, worker=worker, lock=lock)
        server = Server(node, announce, early=early, last_resort=last_resort, mains=mains)
        loop = asyncio.get_running_loop()
        if worker is None:
            loop.add_signal_handler(signal.SIGHUP, partial(_hang_up, Terminal(), server, node))
        else:
            loop.add_reader(worker.alive, server.orphaned, worker.alive)
            loop.add_signal_handler(signal.SIGHUP, partial(_reload, node))
        with _few_collections():
            await node.run(server, program)

    try:
        with _handlers(remember):
            if worker is not None:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
            uvloop.run(run())
    except* TrickleError as group:
        raise group.exceptions[0] from None
    finally:
        last_resort.cancel()


@contextmanager
def _handlers(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install handlers of signals that hold until others are installed, and give the former ones back at the end."""
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: None)  # the log has only just been opened
    try:
        with _ignoring_unused():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _ignoring_unused() -> Iterator[None]:
    """Keep signals that mean nothing to a server from ending it."""
    before = {number: signal.signal(number, _ignore) for number in _UNUSED_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _health_file(settings: Settings, sockets: Sockets) -> Iterator[None]:
    """Keep the address of the control plane in the file that the settings name."""
    if (file := settings.health_file) is None:
        yield
        return
    address = address_of(settings, sockets.control or sockets.main)
    write_address(file, address)
    try:
        yield
    finally:
        remove_address(file, address)


def _ignore(number: int, frame: FrameType | None) -> None:
    """By default these signals end a process at once: all exchanges would break, without a drain."""
    del frame
    _LOGGER.warning("%s is ignored; SIGTERM ends the server", signal.Signals(number).name)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Let the garbage collector leave out the objects that exist now, and run less often.

    The imports made most objects of a server's process. Without this, the collector walks them again and again.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)  # by default: every 700 objects
    try:
        yield
    finally:
        gc.set_threshold(*before)
        # Else the objects of a program that goes on would never be freed, not even when it ends: nanobind, with which
        # DuckDB is built, then reports them as leaked.
        gc.unfreeze()


def _hang_up(terminal: Terminal, server: Server, node: Node) -> None:
    """SIGHUP: the server's terminal was closed; or its operator wants it to open its log and read its files anew."""
    if terminal.is_gone():
        server.stop()
        return
    _reload(node)
    if terminal.is_one:
        # A shell that ends may send the signal before its terminal is closed.
        asyncio.get_running_loop().call_later(HANG_UP_S, lambda: server.stop() if terminal.is_gone() else None)


def _reload(node: Node) -> None:
    if node.log is not None:
        node.log.reopen()
    node.reload()


class Server(uvicorn.Server):
    """uvicorn's server with listeners and a shutdown of our own.

    Args:
        node: what it serves.
        announce: gets the URLs at which it listens.
        early: gets the signals that come before uvicorn has installed its handlers; with one, the server stops as soon
            as it has started.
        last_resort: ends the process if the shutdown does not; ``None`` where the process is not the server's.
        mains: where each of several workers accepts connections for channels.
    """

    def __init__(
        self,
        node: Node,
        announce: Callable[[str], None],
        *,
        early: Sequence[int] = (),
        last_resort: LastResort | None = None,
        mains: Sequence[socket.socket] = (),
    ) -> None:
        plane, control = node.plane, node.sockets.control
        own = RecordRequests(LimitRequests(not_found, plane), plane)  # the address of the channels has nothing else
        neighbours = None if node.link is None else node.link.handover
        main = Endpoint(plane, neighbours=neighbours)
        super().__init__(_config(node.control_plane if control is None else own, main))
        self._listeners = [(self.config, node.sockets.main)]
        if control is not None:
            self._listeners.append(
                (_config(node.control_plane, Endpoint(plane, 1, routes=False, neighbours=neighbours)), control)
            )
        self._node = node
        self._announce = announce
        self._mains = mains
        self._early = early
        self._last_resort = last_resort
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Begin to shut down, as soon as the event loop turns; if it does not, the process ends all the same."""
        self.should_exit = True
        with suppress(RuntimeError):  # all is over already
            self._loop.call_soon_threadsafe(self._stopping.set)  # it may be a signal handler that calls
        if self._last_resort is not None:
            self._last_resort.begin(self._node.reload.settings.shutdown_deadline_s + LAST_S)

    def orphaned(self, alive: int) -> None:
        """The supervisor is gone: stop, as after SIGTERM."""
        asyncio.get_running_loop().remove_reader(alive)
        self.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A first signal drains; a second one of any kind stops now. A supervisor has a word of its own for that."""
        if self.should_exit and (self._node.link is None or sig == signal.SIGINT):
            self.force_exit = True
        self.stop()

    async def main_loop(self) -> None:
        """Serve until told to stop. uvicorn would wake up ten times a second to look for that."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._stopping.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._early:
            self.stop()
        node = self._node
        # No sockets: uvicorn's own listener would count a connection when its TLS handshake is over.
        await super().startup([])
        await self.on_tick(0)  # makes the date header of the control plane's answers
        makers = [maker(self, config) for config, _ in self._listeners]
        link, tls = node.link, node.reload.tls

        def listen_as_worker(link: Link, listener: socket.socket, number: int = 0) -> Listener:
            """Accept as one of several workers. Under TLS no connection moves here: its request is not readable yet."""
            if tls is None:
                return Listener(listener, partial(link.handover.accepted, number))
            return TlsListener(listener, tls, node.plane, makers[number])

        for number, ((_, listener), make) in enumerate(zip(self._listeners, makers, strict=True)):
            if link is None:
                self.servers.append(await accept_on(make, listener, node.plane, tls))
            else:
                self.servers.append(cast(Any, listen_as_worker(link, listener, number)))
        if link is not None:
            has_own_socket = self._mains[0] is not self._mains[1]  # else all workers accept from one
            accept_for = (lambda worker: listen_as_worker(link, self._mains[worker])) if has_own_socket else None
            link.start(makers, node.answers, accept_for)
        await node.sources.start(partial(self._listen_for_sources, makers[0]))
        if node.log is not None and (node.link is None or node.link.worker.logs_start):
            node.log.event(Event.SERVER_READY)
        for server, path in zip(self.servers, (node.reload.settings.base_path, " (control plane)"), strict=False):
            self._announce(address_of(node.reload.settings, server.sockets[0]) + path)
        if node.link is None:
            notify("READY=1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, and end. uvicorn would stop listening first, and reset new clients instead of answering 503."""
        plane, log = self._node.plane, self._node.log
        if self._node.link is None:
            notify("STOPPING=1")
        self.stop()
        self._node.sources.leave()
        if log is not None:
            waiting = sum(connection.waiting for connection in plane.connections)
            log.event(Event.DRAIN, detail=f"{waiting} waiting")
        plan, link = self._node.reload.settings.drain(plane.clock()), self._node.link
        if link is not None:
            link.set_draining(True)
        if (member := self._node.member) is not None:
            plan = await give_away(member.moving.drain(plan.deadline_s / 2), plan, plane.clock, self._hurry)
        await drain(plane, plan, self._hurry)
        if link is not None:
            link.set_draining(False)
            # The others may still bring connections, and serve clients whose TLS sessions are here.
            until = plan.begun_at + plan.deadline_s
            while link.any_draining and plane.clock() < until and not await self._hurry():  # noqa: ASYNC110 - memory
                await asyncio.sleep(TICK_S)
            link.close()
        for server in self.servers:
            server.close()
        # A worker that has ended accepts nothing, so nobody else may have its socket open.
        for listener in (*(own for _, own in self._listeners), *self._mains):
            listener.close()
        await end(plane, self.server_state)
        if link is not None:
            link.end()

    async def _listen_for_sources(self, make: Callable[[], Connection], path: str) -> Closable:
        """Accept the connections of sources on a Unix socket: without TLS, and none of them moves to another worker."""
        return await self._loop.create_unix_server(make, path)

    async def _hurry(self) -> bool:
        await self.on_tick(0)  # keeps the date header right
        return self.force_exit


def _config(app: ASGIApp, endpoint: Endpoint) -> uvicorn.Config:
    config = uvicorn.Config(
        cast(Any, app),
        http=cast(Any, endpoint),
        loop="none",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # app/data_plane/client_address.py finds a client's address, for both planes alike
        headers=[("server", f"tricklecast/{__version__}")],
    )
    config.load()
    return config
