"""The sources of a server: which of them run here, who waits for one, and how they stand.

**Own way in.** The processes of sources come to a Unix socket of this process, in a folder that only its user may
enter. So it does not matter at which addresses and names, with which certificates and limits, clients come. Where
clients need a token, each process has one of its own, which is good for its channels alone and is drawn anew for each
source (:attr:`~app.access.authorizer.RequestAuthorizer.own`).

**One process runs a source**: that in which its channel may begin. With several workers that is the worker that owns
the channel. In a cluster a node leaves a source alone while another node has its channel, and is alive.

**A ladder** has a channel for each size. That of the highest one has the source's name and decides where the source
runs; one worker owns all of them (:func:`~app.workers.placement.owner_of`). A reader of any of them counts.

**On demand** a reader of a channel that is not there does not get 404: its request waits for the channel, and the
source begins. It stops when nobody has read the channel for ``stop_after_s``.

The loop of :meth:`Sources.run` looks twice a second at each source, and when a process has ended; there are at most
:data:`~app.source_settings.MAX_SOURCES`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from tricklecast.app.core.facts import ChannelCreated, EndReason, Fact
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.context import DataPlane, ParkedFor
from tricklecast.app.data_plane.exchange import Caller, Parked
from tricklecast.app.data_plane.handler import resolve
from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.responses import Reply
from tricklecast.app.data_plane.routing import Route
from tricklecast.app.data_plane.stages import park
from tricklecast.app.source_settings import SourceSettings
from tricklecast.app.sources.source import Source, State
from tricklecast.trickle.records import Op, Reason
from tricklecast.trickle.wire import SEQ_CURRENT, SEQ_NEXT, Status

_LOGGER = logging.getLogger("tricklecast.sources")

WAIT_S: Final = 15.0
"""A reader waits so long for a channel that is published on demand: to open a camera takes seconds."""

RETRY_S: Final = 2
"""``Retry-After`` when that was not enough."""

LOOK_S: Final = 0.5

END_S: Final = 2.0
KILLED_S: Final = 1.0
"""When all connections have ended, processes may take this time to end, and then to be killed."""

_WAITS: Final = frozenset({Op.READ, Op.STREAM, Op.PLAYLIST, Op.HLS, Op.FEED})
"""Requests that start a source. Publishers ask for the head, too, and the process of a source is one."""


class Nodes(Protocol):
    """The other nodes of a cluster, as sources see them (:class:`app.cluster.replicas.Cluster`)."""

    def is_followed(self, channel: Channel) -> bool:
        """Whether another node has readers of a channel of this one."""

    def may_begin(self, name: str) -> bool:
        """Whether a channel is here, or may begin here: no other node has it, or that node is gone."""


class Closable(Protocol):
    def close(self) -> object: ...


Listen = Callable[[str], Awaitable[Closable]]
"""Accepts connections on a Unix socket of this path, until what it returns is closed."""


class Sources:
    """All sources that may run in this process.

    Args:
        plane: of this process.
        permit: gets the channels of each token of a process, by the token; ``None``: clients need no token.
        settings: the sources at the start. nodes: of the cluster; ``None``: this server is alone.
    """

    def __init__(
        self,
        plane: DataPlane,
        permit: dict[bytes, tuple[str, ...]] | None,
        settings: Mapping[str, SourceSettings],
        nodes: Nodes | None = None,
    ) -> None:
        self._plane, self._permit, self._nodes = plane, permit, nodes
        self._settings = dict(settings)
        self._sources: dict[str, Source] = {}
        self._by_channel: dict[str, Source] = {}
        self._tokens: dict[str, str] = {}  # of the processes, by the source
        self._asked_at: dict[str, float] = {}  # when somebody wanted a source on demand, by the plane's clock
        self._waiting: dict[str, dict[Parked, Route]] = {}  # requests that wait for a channel
        self._listen: Listen | None = None  # the server does not accept yet
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._listener: Closable | None = None
        self._opening = asyncio.Lock()
        self._leaving: dict[str, Source] = {}  # those that were removed, and stop
        self._ending: set[asyncio.Task[None]] = set()  # of sources that were removed
        self._over = False
        plane.registry.journal.subscribe(self._created, ChannelCreated)

    # Its life.

    async def start(self, listen: Listen) -> None:
        """Begin, since the server accepts connections."""
        self._listen = listen
        await self._begin()

    def use(self, settings: Mapping[str, SourceSettings]) -> None:
        """Take over new settings: stop, start and restart what differs."""
        self._settings = dict(settings)
        if self._listen is not None and not self._over:
            self._beside(self._begin())

    async def run(self) -> None:
        """Decide which sources are wanted, until cancelled."""
        while True:
            self._look_guarded()
            await asyncio.sleep(LOOK_S)

    def leave(self) -> None:
        """Tell all processes to stop: the server ends."""
        self._over = True
        for source in self._sources.values():
            source.leave()

    async def close(self) -> None:
        """Wait until they have stopped."""
        self.leave()
        sources = [*self._sources.values(), *self._leaving.values()]
        stopping = asyncio.gather(*(source.stop() for source in sources), *self._ending)
        if not (await asyncio.wait({stopping}, timeout=END_S))[0]:
            for source in sources:
                source.kill()
            await asyncio.wait({stopping}, timeout=KILLED_S)
        if self._listener is not None:
            self._listener.close()
        if self._folder is not None:
            with suppress(OSError):
                self._folder.cleanup()

    async def _begin(self) -> None:
        """Let exactly the sources of the settings be there."""
        async with self._opening:
            if self._settings and self._listener is None:
                assert self._listen is not None, "the server accepts"
                try:
                    self._folder = tempfile.TemporaryDirectory(prefix="tricklecast-")
                    self._listener = await self._listen(str(self._socket))
                except OSError as error:
                    _LOGGER.error("no source can be published: there is no place for a socket: %s", error)
                    return
        if self._over:
            return
        for name in [name for name in self._sources if name not in self._settings]:
            source = self._leaving[name] = self._sources.pop(name)
            self._beside(self._remove(source))
        for name, settings in self._settings.items():
            before = self._sources.get(name)
            if before is None or before.settings != settings:
                self._sources[name] = self._made(name, settings, before or self._leaving.get(name))
                if before is not None:
                    self._beside(self._replace(before))
        self._by_channel = {channel: source for source in self._sources.values() for channel in source.channels}
        self._plane.sources = self if self._sources else None  # most servers have none
        self._look()

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _made(self, name: str, settings: SourceSettings, before: Source | None) -> Source:
        token = self._tokens.setdefault(name, secrets.token_urlsafe(32))
        if self._permit is not None:
            self._permit[token.encode()] = settings.channels(name)
        at = f"http+unix://{quote(str(self._socket), safe='')}{self._plane.options.base_path}/{quote(name, safe='')}"
        if before is not None:
            before.leave()
        return Source(
            name,
            settings,
            to=at,
            socket=str(self._socket),
            token=token,
            is_published=partial(self._is_published, name),
            # Who waits for the next process must be there before it publishes.
            ended=self._look_guarded,
            rng=self._plane.rng,
            before=before,
        )

    async def _remove(self, source: Source) -> None:
        """Stop a source that is configured no more, and end its channel, unless somebody else publishes to it."""
        await source.stop()
        name = source.name
        if self._leaving.get(name) is source:
            del self._leaving[name]
        if name not in self._sources:  # else it is configured again
            token = self._tokens.pop(name, "")
            if self._permit is not None:
                self._permit.pop(token.encode(), None)
        self._end_channels(source)

    async def _replace(self, source: Source) -> None:
        """Stop a source that is configured otherwise now, and end those of its channels that no source has any more."""
        await source.stop()
        self._end_channels(source)

    def _end_channels(self, source: Source) -> None:
        registry = self._plane.registry
        for name in source.channels:
            channel = None if name in self._by_channel else registry.live(name)
            if channel is not None and all(segment.writer is None for segment in channel.unclosed):
                registry.end(name, self._plane.clock(), EndReason.DELETED)

    @property
    def _socket(self) -> Path:
        assert self._folder is not None, "there are sources"
        return Path(self._folder.name) / "sources.sock"

    # Which are wanted.

    def _look_guarded(self) -> None:
        self._plane.guarded("in the look at sources", self._look)

    def _look(self) -> None:
        now = self._plane.clock()
        for name, source in self._sources.items():
            may_run = self._may_run(name)
            source.want(not self._over and may_run and self._is_wanted(source, now))
            source.state()  # notes when it has changed
            for channel in source.channels:
                # It has begun elsewhere, or a process that was to stop has left it open.
                if not may_run or (not source.stops and self._plane.registry.live(channel) is not None):
                    for parked in list(self._waiting.get(channel, ())):
                        parked.go_on()

    def _may_run(self, name: str) -> bool:
        """Whether the channel of a source may begin in this process, or is here."""
        owns = self._plane.registry.owns
        if self._nodes is not None:
            return self._nodes.may_begin(name)
        return owns is None or owns(name)

    def _is_wanted(self, source: Source, now: float) -> bool:
        if source.settings.when == "always":
            return True
        if any(self._waiting.get(channel) or self._has_readers(channel) for channel in source.channels):
            self._asked_at[source.name] = now
        stop_after_s = source.settings.stop_after_s
        return now - self._asked_at.get(source.name, now - stop_after_s) < stop_after_s

    def _has_readers(self, name: str) -> bool:
        channel = self._plane.registry.live(name)
        if channel is None:
            return False
        return bool(channel.readers) or (self._nodes is not None and self._nodes.is_followed(channel))

    def _is_published(self, name: str, since: float) -> bool:
        channel = self._plane.registry.channels.get(name)
        return (
            isinstance(channel, OwnedChannel)
            and not channel.ended
            and channel.bytes_in > 0
            and (channel.active_at >= since)
        )

    # Readers that wait (app.data_plane.context.Demand).

    def answer(self, connection: Caller, request: Request, route: Route) -> Any:
        """Let a reader wait for a channel that is published on demand; ``None`` if it need not."""
        source = self._by_channel.get(route.channel)
        if source is None or source.settings.when == "always" or route.op not in _WAITS or request.method == b"HEAD":
            return None
        plane = self._plane
        if plane.registry.shutting_down or not self._may_run(source.name):
            return None
        self._asked_at[source.name] = (
            plane.clock()
        )  # also by who polls, and is never there when the source is looked at
        if not self._is_missing(route, source):
            return None
        source.want(True)
        left_s = request.arrived + WAIT_S - plane.clock()
        if left_s <= 0:
            body = b"The source of this channel has not begun yet"
            return Reply(Status.UNAVAILABLE, Reason.TIMEOUT, body=body, retry_after_s=RETRY_S)
        if route.seq == SEQ_NEXT:
            route = Route(route.op, route.channel, SEQ_NEXT)  # a copy, which _created() changes
        parked = park(connection, request, route, ParkedFor.SOURCE, resolve)
        parked.wait(left_s)
        waiting = self._waiting.setdefault(route.channel, {})
        waiting[parked] = route
        timer = parked.cancel

        def cancel() -> None:
            timer()
            waiting.pop(parked, None)

        parked.cancel = cancel
        return parked

    def _is_missing(self, route: Route, source: Source) -> bool:
        """Whether a request is for a channel that has to begin first. One that drains has readers, who read to its end:
        only who asks for the newest is new. A channel whose source stops is about to end."""
        channel = self._plane.registry.channels.get(route.channel)
        if channel is None or not (channel.ended or source.stops):
            return channel is None
        asked = route.blocking
        return (route.seq is not None and route.seq < 0) or (asked is not None and not asked.is_media)

    def _created(self, fact: Fact) -> None:
        """A channel has begun: go on with those who wait for it, when the core has told everybody."""
        for parked, route in list(self._waiting.get(fact.channel, {}).items()):
            if route.seq == SEQ_NEXT:  # the one that was next when the reader came is that which begins the channel
                route.seq = SEQ_CURRENT
            asyncio.get_running_loop().call_soon(parked.go_on)

    # How they stand.

    def described(self) -> list[dict[str, Any]]:
        """Each source that this process runs, or would run, as the API tells it."""
        return [
            {
                "name": name,
                "url": str(source.settings.url),
                "when": source.settings.when,
                "ladder": source.settings.ladder,
                "state": source.state(),
                "since": source.since,
                "retry_at": source.retry_at,
                "pid": source.pid,
                "restarts": source.restarts,
                "error": source.error,
            }
            for name, source in self._sources.items()
            if self._may_run(name) or source.state() is not State.WAITING
        ]
