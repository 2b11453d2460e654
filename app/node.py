"""One process of the server: which parts it has, in which order they are made, and in which order they end.

**Construction.** A part is made after those that it uses, and gets them when it is made. From the bottom to the top:

1. access log: it must hear of everything that happens, and its first line has the settings of the server.
2. inventory of the data directory, journal, archive, registry: the journal goes on at the inventory's index, the
   archive hears of facts, and the registry asks it for epochs and for segments that have left a window. Then the
   channels in the directory come back, before anybody can ask for one.
3. changes: the log of facts goes on at the index at which the archive stopped.
4. access, the dashboard's events, data plane: it answers requests from the core, and tells the events of refusals.
5. bus: subscriptions in the process, and by the data plane also publications.
6. changefeed: its channel is the first fact of this start, so everybody who hears of facts is there by now.
7. link: with several workers, the ways to the others. Member: with a cluster, the ways to the other nodes.
8. sources: their processes are clients, and begin when the server accepts connections.
9. reload, dashboard, and the application of the control plane: they show and change all of the above.

Sockets, signals and uvicorn are above a node (:mod:`app.server`). It sees them as :class:`Serving`: something that
accepts connections, can be told to stop, and may have to stop at once.

**Shutdown.** A part ends when nothing that uses it is left, from the top to the bottom. Each step has a deadline, after
which the next one begins all the same; docs/reference/signals.md tells operators what is lost then.

1. drain and end of connections (:mod:`app.shutdown`): clients go before what they use (``shutdown_deadline_s``, and
   4 s more). The processes of sources are told to stop before, and end their segments meanwhile.
2. sources: processes that have not ended by then are killed (:data:`app.sources.service.END_S`).
3. bus: subscriptions in the process get their last facts, and end (:data:`app.bus.CLOSE_S`).
4. program in the process: it may still publish what it has read (:data:`PROGRAM_S`, :data:`CANCELLED_S`).
5. mirror, archive: after all that may publish (:data:`app.mirror.service.STOP_S`, :data:`app.storage.archive.END_S`).
6. member: when all is written, others may take this node's channels.
7. tasks beside: the sweeper drives all of the above, so it stops when they have ended. They are cancelled.
8. access log: last, since each step may tell it something (:data:`app.access_log.END_S`).

A part that keeps to no deadline ends with the process (:class:`app.shutdown.LastResort`). A task that fails, such as
that of the access log or the program, begins the same shutdown, and its exception is raised at the end.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from tricklecast.app.access.authorizer import Access
from tricklecast.app.access_log import AccessLog
from tricklecast.app.activity import SHOW_S, Activity
from tricklecast.app.bus import Bus, ServerClosed
from tricklecast.app.changefeed import create_changefeed, start_changefeed
from tricklecast.app.changes import Changes
from tricklecast.app.clock import wall_us
from tricklecast.app.cluster.asking import Answerer
from tricklecast.app.control_plane.api import (
    Overview,
    OwnOverview,
    channels_router,
    health_router,
    invalid_input,
    method_not_allowed,
    out_of_memory,
)
from tricklecast.app.control_plane.changes import changes_router
from tricklecast.app.control_plane.middleware import CheckHost, CheckOrigin, LimitRequests, RecordRequests
from tricklecast.app.control_plane.readers import readers_router
from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, Journal
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.window import Budget
from tricklecast.app.data_plane.context import DataPlane, RecordSink
from tricklecast.app.listener import is_loopback
from tricklecast.app.masking import Mask, mask_for
from tricklecast.app.metrics import Metrics, metrics_router, metrics_text
from tricklecast.app.mirror.destination import ServerDestination
from tricklecast.app.mirror.routes import mirror_router
from tricklecast.app.mirror.service import MirrorService
from tricklecast.app.nodes.changes import ClusterChanges
from tricklecast.app.nodes.face import Face, PassOn
from tricklecast.app.reload import Reload
from tricklecast.app.settings import Settings
from tricklecast.app.sockets import Sockets
from tricklecast.app.sources.routes import sources_answers, sources_router
from tricklecast.app.sources.service import Sources
from tricklecast.app.storage.archive import Ack, Archive
from tricklecast.app.storage.database import Database
from tricklecast.app.storage.restore import Inventory, take_inventory
from tricklecast.app.storage.settle import folder_of
from tricklecast.app.systemd import Watchdog
from tricklecast.app.usage import ailments, lagging, limits_in_use, troubles
from tricklecast.app.web.events import Events
from tricklecast.app.web.feed import DashboardFeed, feed_router
from tricklecast.app.web.pages import Pages, is_open, pages_router
from tricklecast.app.web.reports import Reports, reports_router
from tricklecast.app.workers.dashboard import OtherDashboards, dashboard_answers
from tricklecast.app.workers.facts import LogFollower, answer_facts
from tricklecast.app.workers.link import Link
from tricklecast.app.workers.overview import JoinedOverview, overview_answers
from tricklecast.app.workers.placement import FRONT, owned_by
from tricklecast.app.workers.shared import SharedLimits
from tricklecast.app.workers.supervisor import Worker
from tricklecast.trickle import __version__
from tricklecast.trickle.errors import InvalidInput, needs
from tricklecast.trickle.records import AccessRecord, Event

if TYPE_CHECKING:
    from tricklecast.app.cluster.member import Member

_LOGGER = logging.getLogger(__name__)

SWEEP_S: Final = 0.25
"""How often the data plane does what is due: time-outs of connections, lag, interim answers."""

LOOK_S: Final = 0.05
"""How often the sweeper asks the registry for its next deadline, which a request may have set a moment ago. The
shortest grace (0.2 s for a POST that was overtaken) is longer, so it ends on time. Without a connection nobody sets
one, and the sweeper asks when it ticks."""

LEAST_SLEEP_S: Final = 0.01
"""The sweeper sleeps at least for this time, also if many deadlines follow each other."""

PROGRAM_S: Final = 5.0
"""A program in the process may go on for this time when its subscriptions have ended; then it is cancelled."""

CANCELLED_S: Final = 1.0
"""A cancelled program may take this time to end its segments."""

Program = Callable[[Bus], Awaitable[None]]
"""A coroutine function of a program that embeds the server; it runs in the server's event loop."""


class Serving(Protocol):
    """A server that accepts connections for a node.

    Attributes:
        force_exit: whether the shutdown is to wait for nobody.
    """

    force_exit: bool

    async def serve(self) -> None:
        """Accept connections; when told to stop, drain, and return when the connections have ended."""

    def stop(self) -> None:
        """Begin to shut down."""


class Node:
    """All parts of a server in this process. Make it inside the event loop in which it runs.

    Args:
        settings: of the server. limits: what it may hold; fewer connections than the settings say, if need be.
        sockets: on which it is reached: who can reach a socket decides by which names it answers.
        sink: gets each access record, as the access log does.
        show: gets lines that tell which publishers and readers have come and left, at most once a second.
        reread: puts the settings together again at a reload; without it only files are read again.
        worker: which one of several workers this process is, if the server has several.
        lock: a descriptor with the lock of this worker's data directory, if it is locked already.

    Raises:
        InvalidInput, CannotServe: a file that a setting names cannot be used.
        StorageError: the data directory cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        limits: Limits,
        sockets: Sockets,
        *,
        sink: RecordSink | None = None,
        show: Callable[[list[str]], None] | None = None,
        reread: Callable[[], Settings] | None = None,
        worker: Worker | None = None,
        lock: int | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.sockets = sockets
        self.name = settings.node or socket.gethostname()
        self.mask = mask_for(settings.log_ips, None if worker is None else worker.log.key)  # of clients' addresses
        self.log = _access_log(settings, self.name, worker, self.mask)  # None: the settings name no file
        self._show = show
        self._activity = None if show is None else Activity(loop.time)
        folder, number = settings.data_dir, 0 if worker is None else worker.number
        database = None
        if folder is not None:
            database = Database(folder_of(folder, number), fsync=settings.ack is Ack.FSYNC, lock=lock)
        inventory = Inventory() if database is None else take_inventory(database, wall_us())
        journal = Journal(index=inventory.index)
        if self.log is not None:
            journal.subscribe(self.log.note_fact, ChannelCreated, ChannelEnded)
        if self._activity is not None:
            journal.subscribe(self._activity.note_fact, ChannelCreated, ChannelEnded)
        shares = None  # of the limits that hold for all workers
        if worker is None:
            budget = Budget(limits.total_bytes, journal.faults)
        else:
            shares = SharedLimits(limits, worker.shared, worker.number, time.monotonic)
            limits, budget = shares.limits, Budget(shares.memory.margin, journal.faults, shares.memory)
        self.archive: Archive | None = None  # channels are in memory only
        if database is not None:
            self.archive = Archive(
                database,
                inventory,
                journal,
                budget,
                ack=settings.ack,
                on_full=settings.on_disk_full,
                retention=settings.retention(),
            )
        self.registry = Registry(
            limits,
            autocreate=settings.autocreate,
            instance=secrets.token_hex(8),
            journal=journal,
            budget=budget,
            storage=self.archive,
            capacities=None if shares is None else shares.capacities,
            payers=None if shares is None else shares.payers,
            reading=None if shares is None else shares.reading,
            owns=None if worker is None else owned_by(worker.number, worker.count),
        )
        if self.archive is not None:
            self.archive.bring_back(self.registry, time.monotonic())  # the loop's own time stands still meanwhile
        changes = Changes(self.registry, self.archive, defer=loop.call_soon)
        self.access = Access(settings, self.name)
        sinks = [sink] if sink is not None else []
        if self.log is not None:
            sinks.append(self.log.put)
        if self._activity is not None:
            sinks.append(self._activity.note_exchange)
        is_front = worker is None or worker.number == FRONT
        events = None
        if settings.web:
            events = Events(time.monotonic, wall_us)
            if is_front:  # it hears the facts of all workers
                changes.listeners.append(events.hear)
        options = replace(
            settings.options(),
            is_local=is_loopback(sockets.main),
            control_is_local=is_loopback(sockets.control or sockets.main),
        )
        self.plane = DataPlane(
            self.registry,
            options,
            sink=_all_of(sinks),
            node=self.name,
            authorizer=self.access.authorizer,
            durability=self.archive,
            past=None if self.archive is None else self.archive.past,
            witness=events,
            numbers=None if worker is None else worker.numbers(),
            admission=None if shares is None else shares.admission,
        )
        self.readers = readers_router(self.plane, lambda: lagging(self.plane), self.mask)
        self.member: Member | None = None  # of no cluster
        if settings.cluster:
            self.member = _member(settings, self.name, sockets.main, self.plane)
        self.destination: ServerDestination | None = None  # it can mirror no other server
        if worker is None and self.member is None:
            self.destination = ServerDestination(self.plane, self.archive)
        unable = "a server of several workers" if worker is not None else "a node of a cluster"
        self.mirror = MirrorService(self.destination, folder, f"{unable} mirrors no other server")
        self.bus = Bus(changes, self.registry, self.plane, defer=loop.call_soon)
        if settings.changefeed and is_front and self.member is None:
            start_changefeed(changes, self.registry, loop.time)
        elif settings.changefeed and self.member is not None:
            announce = create_changefeed(self.registry, loop.time)
            # The directory may tell of it in the middle of a change of the core.
            self.member.directory.view.watchers.append(lambda kind, name: loop.call_soon(announce, kind, [name]))
        authorizer = self.access.authorizer
        nodes = None if self.member is None else self.member.cluster
        self.sources = Sources(self.plane, None if authorizer is None else authorizer.own, settings.source, nodes)
        # It has the settings that are in force.
        self.reload = Reload(settings, self.access, self.plane, reread, self.sources.use)
        uses = partial(limits_in_use, self.plane, self.log, self.bus)
        self.link: Link | None = None  # the ways to the other workers of the server, if there are any
        if worker is not None:
            assert shares is not None, "workers share the limits"
            self.link = Link(worker, self.plane, partial(shares.tick, self.registry, self.archive))
        # The workers for which this one speaks, too.
        others = range(1, worker.count) if worker is not None and is_front else ()
        self.feed = None  # there are no web pages
        if events is not None:
            dashboards_of = OtherDashboards(self.link.questions, others) if self.link is not None and others else None
            numbers = None if worker is None else worker.numbers()
            self.feed = DashboardFeed(
                self.plane,
                events,
                uses,
                numbers=numbers,
                others=dashboards_of,
                mirror=self.mirror.figures,
                sources=self.sources.described,
                ailments=lambda: ailments(self.plane, self.log, self.member) | self.reload.ailments(time.time()),
            )
        # The feeds of other workers have one follower, the front's.
        dashboards = None if self.feed is None or not is_front else self.feed.followers
        status = partial(self.mirror.status, lost=False)
        metrics = Metrics(
            self.plane,
            self.log,
            self.access,
            self.bus,
            dashboards,
            self.reload,
            self.link,
            self.member,
            status,
            self.sources.described,
        )
        text = metrics_text(metrics, None if worker is None else worker.number)
        overview: Overview = OwnOverview(self.plane, text, partial(troubles, self.plane, self.log, self.member, status))
        self.answers: dict[str, Answerer] = {}  # to the questions of other workers
        self._followers: list[LogFollower | ClusterChanges] = []  # of the facts of other workers, or nodes
        if self.link is not None:
            self.answers = {**overview_answers(overview), "facts": answer_facts(changes)}
            self.answers |= sources_answers(self.sources)
            if self.feed is not None:
                self.answers |= dashboard_answers(self.feed)
            overview = JoinedOverview(self.link.questions, self.link.placement)
            positions, stored = ({}, False) if self.archive is None else (self.archive.positions, True)
            questions = self.link.questions
            self._followers = [
                LogFollower(other, questions, changes, positions.get(other), stored=stored) for other in others
            ]
        face = None  # of the cluster
        if (member := self.member) is not None:
            face = Face(
                self.plane,
                overview,
                changes,
                member.peers,
                member.directory,
                member.cluster,
                member.moving,
                self.readers,
            )
            overview = face.overview
            self._followers.append(face.changes)
        # The application for everything outside the base path.
        self.control_plane = _control_plane(self, overview, face)

    async def run(self, serving: Serving, program: Program | None = None) -> None:
        """Serve until told to stop, and shut down.

        Args:
            serving: accepts the connections.
            program: runs beside it, from before the first request on. The node does not stop when it returns.

        Raises:
            AccessLogError: the access log cannot be written.
            Exception: what the program, or a part of the node, has raised; the node has shut down.
        """
        if self.log is not None:
            await self.log.check()
        if self.member is not None:
            await self.member.start()
        async with asyncio.TaskGroup() as group:

            def begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[BaseException | None]:
                return group.create_task(_supervised(work, serving))

            # Without its access log the server stops: its operator relies on the log.
            writing = None if self.log is None else begin(self.log.run())
            beat = Watchdog().beat if self.link is None else self.link.tick
            beside = [begin(sweep(self.plane, self.archive, self.log, beat, self.member)), begin(self.access.run())]
            if self.member is not None:
                beside.append(begin(self.member.run()))
            if self.reload.tls is not None:
                beside.append(begin(self.reload.tls.watch()))
            beside += [begin(follower.run()) for follower in self._followers]
            beside.append(begin(self.sources.run()))
            if self._activity is not None and self._show is not None:
                beside.append(begin(_show(self._activity, self.plane, self._show)))
            running = None if program is None else begin(_run(program, self.bus))
            self.mirror.start()
            await serving.serve()
            await self.sources.close()
            await self.bus.close()
            if running is not None:
                await asyncio.wait([running], timeout=0 if serving.force_exit else PROGRAM_S)
                if running.cancel():
                    _LOGGER.warning("the program in the server's process was cancelled, because it did not end")
                    await asyncio.wait([running], timeout=CANCELLED_S)
            await self.mirror.close()
            if self.archive is not None:
                await self.archive.close()
            if self.member is not None:
                await self.member.stop()
            for task in beside:
                task.cancel()
            if self.log is not None:
                self.log.event(Event.SERVER_STOP)
                self.log.close()
        for ended in (running, *beside, writing):
            if ended is not None and not ended.cancelled() and (failed := ended.result()) is not None:
                raise failed


async def _supervised(work: Coroutine[Any, Any, None], serving: Serving) -> BaseException | None:
    """Do something beside the server. An exception that it raises stops the server, in order, and is returned.

    Were it raised, the task group would cancel the server: without a drain, and without the steps that follow.
    """
    try:
        await work
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        serving.stop()
        return error
    return None


async def _run(program: Program, bus: Bus) -> None:
    """Run a program until it ends, or has nothing more to do because the server ends."""
    try:
        await program(bus)
    except ServerClosed:
        pass
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise  # the server has cancelled it
        text = "the program in the server's process ended: a task that it awaited was cancelled"
        raise RuntimeError(text) from error


async def _show(activity: Activity, plane: DataPlane, show: Callable[[list[str]], None]) -> None:
    while True:
        await asyncio.sleep(SHOW_S)
        show(activity.look(plane.connections))


async def sweep(
    plane: DataPlane,
    archive: Archive | None = None,
    log: AccessLog | None = None,
    beat: Callable[[], None] | None = None,
    member: Member | None = None,
) -> None:
    """Let the core expire what is due when it is due, and the data plane four times a second, until cancelled."""
    tick_at = plane.clock() + SWEEP_S
    while True:
        now = plane.clock()
        deadline = plane.registry.next_deadline()
        wake_at = min(tick_at, now + LOOK_S) if plane.connections else tick_at
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
            if beat is not None:
                plane.guarded("in the sweeper (beat)", beat)
            if member is not None:
                plane.guarded("in the sweeper (cluster)", member.look)
            tick_at = now + SWEEP_S
        elif deadline is not None and deadline <= now:
            plane.expire(now)


def _control_plane(node: Node, overview: Overview, face: Face | None = None) -> FastAPI:
    """The FastAPI application for everything outside the base path.

    Args:
        face: passes requests on, if this is a node of a cluster.
    """
    plane, access, bus, reload, feed = node.plane, node.access, node.bus, node.reload, node.feed
    settings = reload.settings
    api = FastAPI(
        title="tricklecast",
        version=__version__,
        summary="Control plane of a segmented HTTP pub/sub server for live media.",
        docs_url=None,  # app/web/ has a page for it that works without another server
        redoc_url=None,
    )
    routers = [
        channels_router(plane, overview),
        node.readers,
        changes_router(plane, bus.changes if face is None else face.changes),
        health_router(overview.troubles),
        metrics_router(overview.metrics),
        mirror_router(node.mirror, settings.base_path, node.sockets.data_port),
        sources_router(node.sources, None if node.link is None else node.link.questions),
    ]
    if feed is not None:
        pages = Pages(settings, has_tokens=access.protects or access.webhook is not None)
        routers += [feed_router(feed), pages_router(settings, pages)]
        api.add_exception_handler(StarletteHTTPException, pages.explain)
        if settings.reports is not None:
            routers.append(reports_router(Reports(settings.reports, plane.wall_us)))
    if face is not None:
        routers.append(face.nodes)
        api.add_middleware(PassOn, face=face)
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


def _member(settings: Settings, name: str, listener: socket.socket, plane: DataPlane) -> Member:
    """Make the server a node of a cluster. What that needs is imported for it alone."""
    try:
        from tricklecast.app.cluster.member import Member
    except ModuleNotFoundError as error:
        raise InvalidInput(f"a cluster {needs(str(error.name), 'cluster')}") from None
    return Member(settings, name, listener, plane)


def _access_log(settings: Settings, node: str, worker: Worker | None, mask: Mask | None) -> AccessLog | None:
    if settings.access_log is None:
        return None
    log = AccessLog(
        settings.access_log,
        node=node,
        max_bytes=settings.access_log_max_bytes,
        max_age_s=settings.access_log_max_age_s,
        files=settings.access_log_files,
        queue=settings.access_log_queue if worker is None else -(-settings.access_log_queue // worker.count),
        mask=mask,
        share=None if worker is None else worker.log,
        worker=None if worker is None else worker.number,
    )
    release, config = f"tricklecast/{__version__}", settings.model_dump_json(exclude_defaults=True)
    if worker is not None and worker.predecessors:
        log.event(Event.WORKER_RESTART, release=release, detail=config)
    elif worker is None or worker.logs_start:
        log.event(Event.SERVER_START, release=release)
        log.event(Event.CONFIG, detail=config)
    return log


def _all_of(sinks: list[RecordSink]) -> RecordSink | None:
    """One sink for several; ``None`` for none, so that nobody makes records for nobody."""

    def tell_all(record: AccessRecord) -> None:
        for sink in sinks:
            sink(record)

    return tell_all if len(sinks) > 1 else sinks[0] if sinks else None
