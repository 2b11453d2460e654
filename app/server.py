"""The composition root: the one place that wires the parts together and runs them."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.types import ASGIApp

from tricklecast.app.access.access import Access
from tricklecast.app.access_log import AccessLog
from tricklecast.app.allocator import Trimmer, keep_large_blocks_apart
from tricklecast.app.changefeed import Changefeed
from tricklecast.app.control_plane.api import channels_router
from tricklecast.app.control_plane.health import health_router
from tricklecast.app.control_plane.limits import LimitRequests
from tricklecast.app.control_plane.records import RecordRequests
from tricklecast.app.core.events import ChannelCreated, ChannelEnded, Fact, Journal
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.control import ControlProtocol
from tricklecast.app.data_plane.patience import Patience
from tricklecast.app.data_plane.plane import DataPlane
from tricklecast.app.data_plane.protocol import TrickleProtocol
from tricklecast.app.descriptors import attainable_limits
from tricklecast.app.health import write_address
from tricklecast.app.listeners import nothing_else, serve_on
from tricklecast.app.listening import CannotServe, address_of, listen
from tricklecast.app.metrics.endpoint import metrics_router
from tricklecast.app.settings import Settings
from tricklecast.app.shutdown import drain, end
from tricklecast.app.sockets import tune
from tricklecast.app.sweeper import sweep
from tricklecast.app.tls import tls_context
from tricklecast.trickle import __version__
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.records import Event


def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Run a server until it is told to stop (SIGTERM, SIGINT); a second signal stops it at once.

    SIGHUP opens the access log anew; without one it is a SIGTERM.

    Args:
        announce: told the address of the base path as soon as the server really listens.

    Raises:
        CannotServe: the address, or the certificate, cannot be used.
        AccessLogError: the access log cannot be written.
        InvalidInput: a file that a setting names cannot be used.
    """
    listener = listen(settings.host, settings.port)
    tune(listener, peer_timeout_s=settings.peer_timeout_s)
    control = None
    if settings.control_port is not None:
        try:
            where = settings.control_host or settings.host, settings.control_port
            control = listen(*where, settings=("control_host", "control_port"))
        except CannotServe:
            listener.close()
            raise
    # Before uvicorn has its own handlers a signal is remembered; after it, while the log is completed, it is too late.
    early: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: early.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: None)  # the log has only just been opened
    try:
        if settings.health_file is not None:
            write_address(settings.health_file, address_of(settings, control or listener))
        uvloop.run(_serve(settings, listener, control, announce, early))
    except* TrickleError as group:
        raise group.exceptions[0] from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for opened in filter(None, (listener, control)):
            opened.close()
        if settings.health_file is not None:
            settings.health_file.unlink(missing_ok=True)


async def _serve(
    settings: Settings,
    listener: socket.socket,
    control: socket.socket | None,
    announce: Callable[[str], None],
    early: list[int],
) -> None:
    keep_large_blocks_apart()
    node = settings.node or socket.gethostname()
    log = _access_log(settings, node)
    loop = asyncio.get_running_loop()
    changefeed = Changefeed(loop.call_soon, loop.time)
    journal = Journal()
    if log is not None:
        journal.subscribe(partial(_log_fact, log), ChannelCreated, ChannelEnded)
    if settings.changefeed:
        journal.subscribe(changefeed.note, ChannelCreated, ChannelEnded)
    registry = Registry(attainable_limits(settings), autocreate=settings.autocreate, journal=journal)
    access = Access(settings, node)
    plane = DataPlane(registry, settings.options(), sink=log.put if log else None, node=node, access=access.gate)
    if log is not None:
        await log.check()
        log.event(Event.SERVER_START, release=f"tricklecast/{__version__}")
        log.event(Event.CONFIG, detail=settings.model_dump_json(exclude_defaults=True))
    if settings.changefeed:
        changefeed.start(registry)
    server = Server(uvicorn_config(settings, plane, log, access), plane, log, announce, settings)
    if control is not None:
        server.control = (control_config(settings, plane, log, access), control)
    # A terminal that closes ends a server; where there is a log, SIGHUP is what tools that rename logs send.
    loop.add_signal_handler(signal.SIGHUP, log.reopen if log else server.stop)
    server.should_exit = bool(early)
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(log.run()) if log else None
        if writing is not None:
            # A log that never worked stops the server: its operator believes that there is one.
            writing.add_done_callback(lambda task: server.stop() if task.exception() else None)
        beside = [group.create_task(task) for task in (sweep(plane), access.run(), Trimmer().run())]
        await server.serve(sockets=[listener])
        for task in beside:
            task.cancel()
        if log is not None:
            log.event(Event.SERVER_STOP)
            log.close()


class Server(uvicorn.Server):
    """uvicorn's server with our beginning and end.

    Attributes:
        control: how and where the control plane is served, if it has an address of its own; set before the start.

    Raises:
        CannotServe: the TLS certificate or key cannot be used.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        plane: DataPlane,
        log: AccessLog | None,
        announce: Callable[[str], None],
        settings: Settings,
    ) -> None:
        super().__init__(config)
        self._plane = plane
        self._log = log
        self._announce = announce
        self._settings = settings
        self._tls = tls_context(settings)
        self.control: tuple[uvicorn.Config, socket.socket] | None = None

    def stop(self) -> None:
        """Begin to shut down."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A first signal drains; a second one of any kind stops now."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn's own listener would count a connection when its TLS handshake is over.
        await super().startup([] if self._tls else sockets)
        if self._tls is not None:
            for listener in sockets or []:
                await serve_on(self, self.config, listener, self._plane, self._tls)
        # on_tick makes the first date header only after this; the data plane answers from now on.
        await self.on_tick(0)
        # What the imports made stays for good: keep the collector from walking it again and again, and let it look
        # at new objects less often than the default of every 700.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)
        if self._log is not None:
            self._log.event(Event.SERVER_READY)
        if self.control is not None:
            await serve_on(self, *self.control, self._plane, self._tls)
        for server, path in zip(self.servers, (self._settings.base_path, " (control plane)"), strict=False):
            self._announce(address_of(self._settings, server.sockets[0]) + path)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, and end. uvicorn would stop listening first: whoever comes then meets a reset instead of a 503."""
        plane = self._plane
        if self._log is not None:
            waiting = sum(c.exchange is not None and c.exchange.idle for c in plane.connections)
            self._log.event(Event.DRAIN, detail=f"{waiting} waiting")
        await drain(plane, self._settings.drain(plane.clock()), self._hurry)
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        await end(plane, self.server_state)

    async def _hurry(self) -> bool:
        await self.on_tick(0)  # keeps the date of the answers right
        return self.force_exit


def uvicorn_config(settings: Settings, plane: DataPlane, log: AccessLog | None, access: Access) -> uvicorn.Config:
    """How uvicorn is run at the address of the channels."""
    if settings.control_port is None:
        return _config(settings, control_plane(plane, log, access), plane, TrickleProtocol)
    return _config(settings, RecordRequests(LimitRequests(nothing_else, plane), plane), plane, TrickleProtocol)


def control_config(settings: Settings, plane: DataPlane, log: AccessLog | None, access: Access) -> uvicorn.Config:
    """How uvicorn is run at the control plane's own address."""
    return _config(settings, control_plane(plane, log, access), plane, ControlProtocol)


def _config(settings: Settings, app: ASGIApp, plane: DataPlane, kind: type[Patience]) -> uvicorn.Config:
    config = uvicorn.Config(
        cast(Any, app),
        http=cast(Any, partial(kind, plane)),
        loop="none",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # who a client is, is the same for both planes: app/data_plane/identity.py
        headers=[("server", f"tricklecast/{__version__}")],
        timeout_keep_alive=settings.keep_alive_s,
    )
    config.load()
    return config


def control_plane(plane: DataPlane, log: AccessLog | None, access: Access) -> FastAPI:
    """The FastAPI application for everything outside the base path."""
    api = FastAPI(
        title="tricklecast",
        version=__version__,
        summary="Control plane of a segmented HTTP pub/sub server for live media.",
        redoc_url=None,
    )
    api.include_router(channels_router(plane))
    api.include_router(health_router(plane.registry))
    api.include_router(metrics_router(plane, log, access))
    access.guard(api, plane.jitter)
    api.add_middleware(LimitRequests, plane=plane)
    api.add_middleware(RecordRequests, plane=plane)
    return api


def _access_log(settings: Settings, node: str) -> AccessLog | None:
    if settings.access_log is None:
        return None
    return AccessLog(
        settings.access_log,
        node=node,
        max_bytes=settings.access_log_max_bytes,
        max_age_s=settings.access_log_max_age_s,
        files=settings.access_log_files,
        queue=settings.access_log_queue,
    )


def _log_fact(log: AccessLog, fact: Fact) -> None:
    """Channels' beginnings and ends are the triggers that storms are joined to."""
    match fact:
        case ChannelCreated():
            log.event(Event.CHANNEL_CREATE, channel=fact.channel, epoch=fact.epoch)
        case ChannelEnded():
            log.event(
                Event.CHANNEL_END,
                channel=fact.channel,
                epoch=fact.epoch,
                next_seq=fact.next_seq,
                detail=fact.reason,
            )
