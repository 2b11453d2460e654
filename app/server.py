"""The composition root: wires the parts of the server together and runs them."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, Final, cast

import uvicorn
import uvloop
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp

from tricklecast.app.access.authorizer import Access
from tricklecast.app.access_log import AccessLog
from tricklecast.app.activity import SHOW_S, Activity
from tricklecast.app.bus import Bus, ServerClosed
from tricklecast.app.changefeed import Changefeed
from tricklecast.app.changes import Changes
from tricklecast.app.control_plane.api import (
    channels_router,
    health_router,
    invalid_input,
    method_not_allowed,
    out_of_memory,
)
from tricklecast.app.control_plane.changes import changes_router
from tricklecast.app.control_plane.middleware import CheckHost, CheckOrigin, LimitRequests, RecordRequests
from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, Fact, Journal
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.context import DataPlane, RecordSink
from tricklecast.app.health import remove_address, write_address
from tricklecast.app.http1.connection import Endpoint
from tricklecast.app.listener import (
    accept_on,
    address_of,
    attainable_limits,
    is_loopback,
    not_found,
)
from tricklecast.app.masking import mask_for
from tricklecast.app.metrics import metrics_router
from tricklecast.app.reload import Reload, Terminal
from tricklecast.app.settings import Settings
from tricklecast.app.shutdown import LAST_S, LastResort, drain, end
from tricklecast.app.sockets import Sockets, opened
from tricklecast.app.storage.archive import Ack, Archive
from tricklecast.app.storage.database import Database
from tricklecast.app.storage.restore import restore
from tricklecast.app.systemd import Watchdog, notify
from tricklecast.app.usage import limits_in_use, troubles
from tricklecast.app.web.feed import Feed, feed_router
from tricklecast.app.web.pages import Pages, is_open, pages_router
from tricklecast.app.web.reports import Reports, reports_router
from tricklecast.trickle import __version__
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.records import AccessRecord, Event

_LOGGER = logging.getLogger(__name__)

SWEEP_S: Final = 0.25
"""How often the data plane does what is due: time-outs of connections, lag, interim answers."""

LOOK_S: Final = 0.05
"""How often the sweeper asks the registry for its next deadline, which a request may have set a moment ago. The
shortest grace (0.2 s for a POST that was overtaken) is longer, so it ends on time."""

LEAST_SLEEP_S: Final = 0.01
"""The sweeper sleeps at least so long, however many deadlines follow each other."""

PROGRAM_S: Final = 5.0
"""How long a program in the process may go on when its subscriptions have ended; then it is cancelled."""

CANCELLED_S: Final = 1.0
"""And how long it may take to end its segments then."""

HANG_UP_S: Final = 2.0
"""How long after SIGHUP a terminal may still be open, although its shell is ending."""

Program = Callable[[Bus], Awaitable[None]]
"""What a program that embeds the server runs beside it, in the server's event loop."""

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
            with ``ServerClosed``, and it may go on for :data:`PROGRAM_S`. The server does not stop when it returns.
        show: gets lines that tell which publishers and readers have come and left, at most once a second.
        reread: puts the settings together again at SIGHUP; without it only files are read again.

    Raises:
        Exception: what the program has raised. The server has stopped, as after SIGTERM.
        CannotServe: the address or the certificate cannot be used, or the process may open too few files.
        AccessLogError: the access log cannot be written.
        InvalidInput: a file that a setting names cannot be used.
    """
    limits = attainable_limits(settings)
    with opened(settings) as sockets:
        _serve_on(sockets, settings, limits, announce, program, show, reread)


def _serve_on(
    sockets: Sockets,
    settings: Settings,
    limits: Limits,
    announce: Callable[[str], None],
    program: Program | None,
    show: Callable[[list[str]], None] | None,
    reread: Callable[[], Settings] | None,
) -> None:
    """Run a server on these sockets, with the process's signals in its hands."""
    last_resort = LastResort()
    early: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        """For signals that come before uvicorn has installed its handlers, or after it has removed them."""
        del frame
        early.append(number)
        last_resort.begin(settings.shutdown_deadline_s + LAST_S)

    before = {number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGINT)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: None)  # the log has only just been opened
    before |= {number: signal.signal(number, _ignore) for number in _UNUSED_SIGNALS}
    told = None
    try:
        if settings.health_file is not None:
            told = address_of(settings, sockets.control or sockets.main)
            write_address(settings.health_file, told)
        uvloop.run(_serve(settings, limits, sockets, announce, early, program, show, reread, last_resort))
    except* TrickleError as group:
        raise group.exceptions[0] from None
    finally:
        last_resort.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
        if settings.health_file is not None and told is not None:
            remove_address(settings.health_file, told)


def _ignore(number: int, frame: FrameType | None) -> None:
    """By default these signals end a process at once: all exchanges would break, without a drain."""
    del frame
    _LOGGER.warning("%s is ignored; SIGTERM ends the server", signal.Signals(number).name)


async def _serve(
    settings: Settings,
    limits: Limits,
    sockets: Sockets,
    announce: Callable[[str], None],
    early: list[int],
    program: Program | None,
    show: Callable[[list[str]], None] | None,
    reread: Callable[[], Settings] | None,
    last_resort: LastResort,
) -> None:
    node = settings.node or socket.gethostname()
    log = _access_log(settings, node)
    loop = asyncio.get_running_loop()
    changefeed = Changefeed(loop.call_soon, loop.time)
    journal = Journal()
    if log is not None:
        journal.subscribe(partial(_log_fact, log), ChannelCreated, ChannelEnded)
    activity = None if show is None else Activity(loop.time)
    if activity is not None:
        journal.subscribe(activity.note_fact, ChannelCreated, ChannelEnded)
    if settings.changefeed:
        journal.subscribe(changefeed.note, ChannelCreated, ChannelEnded)
    registry = Registry(limits, autocreate=settings.autocreate, journal=journal)
    registry.instance = secrets.token_hex(8)
    archive = open_archive(settings, registry, loop.time())
    bus = Bus(Changes(registry, archive, defer=loop.call_soon), registry, defer=loop.call_soon)
    access = Access(settings, node)
    sinks: list[RecordSink] = [one for one in (log and log.put, activity and activity.note_exchange) if one]
    sink = sinks[0] if len(sinks) == 1 else partial(_tell_all, sinks) if sinks else None
    options = replace(
        settings.options(),
        is_local=is_loopback(sockets.main),
        control_is_local=is_loopback(sockets.control or sockets.main),
    )
    plane = DataPlane(registry, options, sink=sink, node=node, authorizer=access.authorizer)
    plane.durability = archive
    bus.plane = plane
    if log is not None:
        log.event(Event.SERVER_START, release=f"tricklecast/{__version__}")
        log.event(Event.CONFIG, detail=settings.model_dump_json(exclude_defaults=True))
        await log.check()
    if settings.changefeed:
        changefeed.start(registry)
    reload = Reload(settings, access, plane, reread)
    server = Server(uvicorn_config(plane, log, access, bus, reload), plane, log, announce, reload, last_resort)
    if sockets.control is not None:
        server.control = (control_config(plane, log, access, bus, reload), sockets.control)
    loop.add_signal_handler(signal.SIGHUP, partial(_hang_up, Terminal(), server, log, reload))
    server.should_exit = bool(early)
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(log.run()) if log else None
        if writing is not None:
            # Without its access log the server stops: its operator relies on the log.
            writing.add_done_callback(lambda task: server.stop() if task.exception() else None)
        beside = [group.create_task(task) for task in (sweep(plane, archive, log, Watchdog()), access.run())]
        if reload.tls is not None:
            beside.append(group.create_task(reload.tls.watch()))
        if activity is not None and show is not None:
            beside.append(group.create_task(_show(activity, plane, show)))
        failed: list[BaseException] = []
        running = None if program is None else group.create_task(_run(program, bus, server, failed))
        with _few_collections():
            await server.serve(sockets=[sockets.main])
        await bus.close()
        if running is not None:
            await asyncio.wait([running], timeout=0 if server.force_exit else PROGRAM_S)
            if running.cancel():
                _LOGGER.warning("the program in the server's process was cancelled, because it did not end")
                await asyncio.wait([running], timeout=CANCELLED_S)
        if archive is not None:
            await archive.close()  # after all that may still publish
        for task in beside:
            task.cancel()
        if log is not None:
            log.event(Event.SERVER_STOP)
            log.close()
    if failed:
        raise failed[0]


@contextmanager
def _few_collections() -> Iterator[None]:
    """Let the garbage collector leave out what stays for ever, and look at new objects less often.

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


def _hang_up(terminal: Terminal, server: Server, log: AccessLog | None, reload: Reload) -> None:
    """SIGHUP: the server's terminal was closed; or its operator wants it to open its log and read its files anew."""
    if terminal.is_gone():
        server.stop()
        return
    if log is not None:
        log.reopen()
    reload()
    if terminal.is_one:
        # A shell that ends may send the signal before its terminal is closed.
        asyncio.get_running_loop().call_later(HANG_UP_S, lambda: server.stop() if terminal.is_gone() else None)


def _tell_all(sinks: list[RecordSink], record: AccessRecord) -> None:
    for sink in sinks:
        sink(record)


async def _show(activity: Activity, plane: DataPlane, show: Callable[[list[str]], None]) -> None:
    while True:
        await asyncio.sleep(SHOW_S)
        show(activity.look(plane.connections))


async def _run(program: Program, bus: Bus, server: Server, failed: list[BaseException]) -> None:
    """Run a program beside the server; what it raises stops the server."""
    try:
        await program(bus)
    except ServerClosed:
        pass  # it had nothing to do at the end
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise  # the server has cancelled it
        failed.append(RuntimeError("the program in the server's process ended: a task that it awaited was cancelled"))
        failed[-1].__cause__ = error
        server.stop()
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        failed.append(error)
        server.stop()


def open_archive(settings: Settings, registry: Registry, now: float) -> Archive | None:
    """Bring back what the data directory holds, if there is one."""
    if settings.data_dir is None:
        return None
    database = Database(settings.data_dir, fsync=settings.ack is Ack.FSYNC)
    archive = Archive(
        database, registry, ack=settings.ack, on_full=settings.on_disk_full, retention=settings.retention()
    )
    found = restore(archive, registry.instance, now)
    _LOGGER.info(
        "%s: %d channels, %d segments (%d bytes), %d of them truncated",
        settings.data_dir,
        found.channels,
        found.segments,
        found.bytes,
        found.truncated,
    )
    return archive


async def sweep(
    plane: DataPlane, archive: Archive | None = None, log: AccessLog | None = None, watchdog: Watchdog | None = None
) -> None:
    """Let the core expire what is due when it is due, and the data plane four times a second, until cancelled."""
    tick_at = plane.clock() + SWEEP_S
    while True:
        now = plane.clock()
        deadline = plane.registry.next_deadline()
        wake_at = min(tick_at, now + LOOK_S)
        if deadline is not None:
            wake_at = min(wake_at, deadline)
        wake_at = max(wake_at, now + LEAST_SLEEP_S)
        await asyncio.sleep(wake_at - now)
        now = plane.clock()
        # A timer may come a little early: it is set in whole milliseconds.
        plane.loop_lag.add(max(0, int((now - wake_at) * 1_000_000)))
        if now >= tick_at:
            plane.tick(now)
            if archive is not None:
                plane.guarded("in the sweeper (storage)", archive.tick)
            if log is not None:
                plane.guarded("in the sweeper (access log)", log.look)
            if watchdog is not None:
                plane.guarded("in the sweeper (watchdog)", watchdog.beat)
            tick_at = now + SWEEP_S
        elif deadline is not None and deadline <= now:
            plane.expire(now)


class Server(uvicorn.Server):
    """uvicorn's server with listeners and a shutdown of our own.

    Attributes:
        control: configuration and socket of the control plane, if it has an address of its own; set before the start.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        plane: DataPlane,
        log: AccessLog | None,
        announce: Callable[[str], None],
        reload: Reload,
        last_resort: LastResort | None = None,
    ) -> None:
        super().__init__(config)
        self._plane = plane
        self._log = log
        self._announce = announce
        self._reload = reload
        self._last_resort = last_resort
        self.control: tuple[uvicorn.Config, socket.socket] | None = None

    def stop(self) -> None:
        """Begin to shut down, as soon as the event loop turns; if it does not, the process ends all the same."""
        self.should_exit = True
        if self._last_resort is not None:
            self._last_resort.begin(self._reload.settings.shutdown_deadline_s + LAST_S)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A first signal drains; a second one of any kind stops now."""
        if self.should_exit:
            self.force_exit = True
        self.stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # No sockets: uvicorn's own listener would count a connection when its TLS handshake is over.
        await super().startup([])
        for listener in sockets or []:
            await accept_on(self, self.config, listener, self._plane, self._reload.tls)
        await self.on_tick(0)  # makes the date header of the control plane's answers
        if self._log is not None:
            self._log.event(Event.SERVER_READY)
        if self.control is not None:
            await accept_on(self, *self.control, self._plane, self._reload.tls)
        for server, path in zip(self.servers, (self._reload.settings.base_path, " (control plane)"), strict=False):
            self._announce(address_of(self._reload.settings, server.sockets[0]) + path)
        notify("READY=1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, and end. uvicorn would stop listening first, and reset new clients instead of answering 503."""
        plane = self._plane
        notify("STOPPING=1")
        self.stop()
        if self._log is not None:
            waiting = sum(connection.waiting for connection in plane.connections)
            self._log.event(Event.DRAIN, detail=f"{waiting} waiting")
        await drain(plane, self._reload.settings.drain(plane.clock()), self._hurry)
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        await end(plane, self.server_state)

    async def _hurry(self) -> bool:
        await self.on_tick(0)  # keeps the date header right
        return self.force_exit


def uvicorn_config(plane: DataPlane, log: AccessLog | None, access: Access, bus: Bus, reload: Reload) -> uvicorn.Config:
    """uvicorn's configuration at the address of the channels."""
    if reload.settings.control_port is None:
        return _config(control_plane(plane, log, access, bus, reload), Endpoint(plane))
    return _config(RecordRequests(LimitRequests(not_found, plane), plane), Endpoint(plane))


def control_config(plane: DataPlane, log: AccessLog | None, access: Access, bus: Bus, reload: Reload) -> uvicorn.Config:
    """uvicorn's configuration at the control plane's own address."""
    return _config(control_plane(plane, log, access, bus, reload), Endpoint(plane, routes=False))


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


def control_plane(plane: DataPlane, log: AccessLog | None, access: Access, bus: Bus, reload: Reload) -> FastAPI:
    """The FastAPI application for everything outside the base path."""
    settings = reload.settings
    api = FastAPI(
        title="tricklecast",
        version=__version__,
        summary="Control plane of a segmented HTTP pub/sub server for live media.",
        docs_url=None,  # app/web/ has a page for it that works without another server
        redoc_url=None,
    )
    feed = Feed(plane, lambda dashboards: limits_in_use(plane, log, bus, dashboards)) if settings.web else None
    routers = [
        channels_router(plane),
        changes_router(plane, bus.changes),
        health_router(plane.registry, partial(troubles, plane, log)),
        metrics_router(plane, log, access, bus, None if feed is None else feed.followers, reload),
    ]
    if feed is not None:
        has_tokens = access.protects or access.webhook is not None
        pages = Pages(settings, has_tokens=has_tokens)

        def first_view(request: Request) -> dict[str, Any]:
            shown = {} if has_tokens else feed.first_view()
            return {"has_reports": settings.reports is not None, **shown}

        routers += [feed_router(feed), pages_router(settings, pages, first_view)]
        if settings.reports is not None:
            routers.append(reports_router(Reports(settings.reports, plane.wall_us)))
    for router in routers:
        api.include_router(router)
    api.add_exception_handler(405, method_not_allowed(routers))
    api.add_exception_handler(RequestValidationError, invalid_input)
    api.add_exception_handler(MemoryError, out_of_memory(plane))
    access.protect(api, is_open if settings.web else lambda path: False)
    # A preflight carries no token: it must not come as far as the access control.
    api.add_middleware(CheckOrigin, plane=plane)
    api.add_middleware(CheckHost, plane=plane)
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
        mask=mask_for(settings.log_ips),
    )


def _log_fact(log: AccessLog, fact: Fact) -> None:
    """Log that a channel began or ended: the storm report joins storms to these events."""
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
