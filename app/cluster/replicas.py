"""Any node answers any request: it holds channels of other nodes for its readers, and forwards all other requests.

**Reads.** The first read of a channel that another node owns makes this node follow that channel (:class:`Replicas`):
one feed, however many readers come. The read waits until the replica is there, at most :data:`WAIT_S`, and until the
first attempt fails. A replica answers what its owner would answer alike (:mod:`app.data_plane.held`), and all else is
forwarded. It ends :data:`KEEP_S` after its last reader.

**A channel that nobody has**, as far as this node knows, may have begun elsewhere a moment ago: its publisher was
answered, and the news is on its way. So NATS is asked before a request is answered 404. A node that has not read the
directory yet knows of no channel, and answers 503.

**The owner goes away.** The replica looks in the directory before each attempt to reach the owner, and its readers wait
meanwhile. If a new owner has not all that is here, or there is another epoch, they are sent away with 503 and ask
again, so no answer mixes two epochs. An owner that is asked and does not own the channel says so (421), which is an
attempt like any other: the next one comes after a pause that grows to 2 s.

**After the end.** The node that had a channel answers for it as long as the directory remembers it: only that node
knows what can still be read, and which POST is a latecomer of the ended epoch.

**Writes.** A POST or a creation for a name that nobody has claims it in the directory, and waits for the decision. So
does one for a channel whose owner is gone, and a question for the head of such a channel (its publisher asks where to
go on). Requests that come meanwhile wait for the same decision. A claim of which no channel comes, since the request is
refused after all, is given back (:data:`UNUSED_S`). While a channel is given to another node
(:mod:`~tricklecast.app.cluster.moving`), requests that would change it wait, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from tricklecast.app.clock import to_time
from tricklecast.app.cluster.feeds import Feeds
from tricklecast.app.cluster.forward import MOVED, WAKE_BATCH
from tricklecast.app.cluster.peers import ChannelPlace, NodePlace, Peers
from tricklecast.app.cluster.recorded import OF_RECORDINGS, Recorded
from tricklecast.app.core.facts import ChannelEnded, EndReason, Fact
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.context import DataPlane, ParkedFor, Serve
from tricklecast.app.data_plane.exchange import Caller, Exchange, Parked
from tricklecast.app.data_plane.handler import resolve
from tricklecast.app.data_plane.held import READS, holder_answers, keep_readers, send_away
from tricklecast.app.data_plane.request import RESET, Request, Via
from tricklecast.app.data_plane.responses import Reply, elsewhere_reply, unconfirmed_reply
from tricklecast.app.data_plane.routing import Route
from tricklecast.app.data_plane.stages import park
from tricklecast.app.data_plane.upload import Upload
from tricklecast.app.replication.replica import Replica
from tricklecast.app.replication.transport import follow
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.records import Op, Reason
from tricklecast.trickle.wire import Status

logger = logging.getLogger("tricklecast.cluster")

MAX_HELD: Final = 1_000
"""Channels of other nodes that are held at a time. Each takes a connection at both nodes and the memory of its window,
which counts as that of any channel. Reads of further ones are forwarded."""

KEEP_S: Final = 5.0
"""A replica ends so long after its last reader, or after its owner was last reached."""

WAIT_S: Final = 2.0
"""A read waits so long for a replica that is on its way, and is forwarded then."""

CLAIM_S: Final = 3.0
"""A request waits so long for the decision about its channel; the directory gives up after 2 s."""

ASK_S: Final = 1.0
"""A request waits so long to hear from NATS whether there is a channel of which this node has not heard."""

FIND_S: Final = 3.0
"""A request waits so long to hear whether another node has the recording of its channel; they are given 2 s."""

MAX_ASKED: Final = 100
"""Channels about which NATS is asked at a time, and other nodes. Requests for further ones that nobody has heard of are
not found."""

CLAIMS: Final = 2
"""Decisions for which one request waits: the first may be overtaken by another node that goes away at once."""

MOVING_S: Final = 0.05
MOVING_LOOKS: Final = 40
"""A request that would change a channel looks again so often, each time after this time, if nobody knows whether the
channel was handed over: for 2 s, since the directory gives up then."""

PARTED_S: Final = 60.0
"""A request waits so long for the end of a move, which has an earlier deadline of its own."""

MOVED_S: Final = 1.0
"""A node that has passed a publisher's request on has so long to begin it anew with the new owner. It does not if it
has sent a byte of the body; then the request goes on from here."""

UNUSED_S: Final = 5.0
"""A claim of which no channel has come after this time is given back."""

UNDECIDED: Final = Reply(
    Status.UNAVAILABLE,
    Reason.UNREACHABLE,
    body=b"The cluster cannot decide now which node has this channel: ask again",
    close=True,
    retry_after_s=1,
)

_BEGINS: Final = (Op.PUBLISH, Op.CREATE)


class Directory(Protocol):
    """What is asked of the directory (:class:`~tricklecast.app.cluster.directory.Directory`)."""

    @property
    def informed(self) -> bool:
        """Whether this node has read where channels are."""

    def place(self, channel: str) -> ChannelPlace | None:
        """Where a channel is; ``None`` if nobody has it."""

    def former(self, channel: str) -> ChannelPlace | None:
        """Where a channel was that has ended, as long as the directory remembers it."""

    def owns(self, channel: str) -> bool:
        """Whether this node owns it."""

    async def look_up(self, channel: str) -> None:
        """Ask NATS where a channel is of which this node has not heard."""

    async def claim(self, channel: str, at_least_epoch: int = 0) -> object:
        """Try to own it, in an epoch above this one; :meth:`place` tells what was decided."""

    def ended(self, channel: str, epoch: int) -> None:
        """This node's channel has ended."""

    def left(self, channel: str, epoch: int) -> None:
        """Another node goes on with this node's channel, whatever the directory says."""


@dataclass(eq=False)
class HeldChannel:
    """A channel of another node that is held here.

    Attributes:
        replica: of the channel. following: the task that keeps it up to date.
        began_at: when it was last begun. read_at: when it was last wanted.
        arrived: whether it has been there since then. tried: the owner was asked for a feed since it was there last.
        failed: that brought nothing. waiting: reads that wait for it.
        connection: to the owner. wanted: how many moves to this node go on. whole: it has all that its owner will give.
    """

    replica: Replica
    began_at: float
    read_at: float
    following: asyncio.Task[None] | None = None
    arrived: bool = False
    tried: bool = False
    failed: bool = False
    waiting: dict[Parked, None] = field(default_factory=dict)
    connection: asyncio.StreamWriter | None = None
    wanted: int = 0
    whole: bool = False


class Replicas:
    """The channels of other nodes that are held here.

    Args:
        plane: of this node. connect: asks the owner of a channel for its feed, by the channel's name.
        most: how many are held at a time.

    Attributes:
        held: by name. refused: reads that were forwarded, since too many channels are held.
    """

    def __init__(
        self,
        plane: DataPlane,
        connect: Callable[[str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]],
        *,
        most: int = MAX_HELD,
    ) -> None:
        self._plane, self._connect, self._most = plane, connect, most
        self.held: dict[str, HeldChannel] = {}
        self.refused = 0

    def want(self, name: str) -> HeldChannel | None:
        """The replica of a channel that somebody reads, which begins if there is none; ``None``: there are too many."""
        now, held = self._plane.clock(), self.held.get(name)
        if held is None:
            if len(self.held) >= self._most:
                self.refused += 1
                return None
            held = self._hold(name, now)
        elif held.arrived and not held.replica.live:  # its connection broke
            held.arrived, held.began_at = False, now
        held.read_at = now
        return held

    def wait(self, held: HeldChannel, connection: Caller, request: Request, route: Route) -> Parked | None:
        """Let a read wait for a replica; ``None`` if its owner has just sent no feed, or it takes too long."""
        left_s = held.began_at + WAIT_S - self._plane.clock()
        if left_s <= 0 or held.failed or self._plane.registry.shutting_down:
            return None
        return _await(connection, request, route, left_s, held.waiting)

    def drop(self, name: str) -> None:
        """Hold a channel no longer. Its readers are sent away, and ask again."""
        if (held := self.held.pop(name, None)) is not None:
            held.replica.end()
            assert held.following is not None, "it is followed from its beginning"
            held.following.cancel()

    def moved(self, name: str, epoch: int) -> None:
        """A channel has another owner. In the same epoch its readers stay: the replica goes on with the new one's feed.

        If that one does not know that it has all that is here, its feed is of another start, and the readers ask again.
        """
        held = self.held.get(name)
        channel = None if held is None else held.replica.channel
        if held is None or channel is None or channel.ended or channel.epoch != epoch:
            self.drop(name)
        elif held.connection is not None:
            held.connection.transport.abort()

    def keep(self, owned: OwnedChannel) -> bool:
        """Hold a channel that this node has owned, since another node goes on with it; its readers stay.

        Returns:
            ``False``: too many channels are held, or a segment is not whole.
        """
        plane, name = self._plane, owned.name
        if len(self.held) >= self._most or any(segment.size for segment in owned.unclosed):
            return False
        channel = plane.registry.disown(owned, plane.clock())
        keep_readers(plane, owned, channel)
        self._hold(name, plane.clock()).replica.take(channel, plane.registry.instance)
        return True

    def adopt(self, name: str, epoch: int) -> OwnedChannel | None:
        """Own a channel that is held, in its epoch, since its owner has given it up; its readers stay.

        Returns:
            ``None`` if not all is here that its owner had when the present feed began.
        """
        held = self.held.get(name)
        channel = None if held is None else held.replica.channel
        if held is None or channel is None or channel.ended or channel.epoch != epoch:
            return None
        if not (held.replica.live or held.whole):
            return None
        del self.held[name]
        owned = self._plane.registry.adopt(channel, self._plane.clock())
        owned.predecessor = held.replica.instance
        keep_readers(self._plane, channel, owned)
        assert held.following is not None, "it is followed from its beginning"
        held.following.cancel()
        return owned

    def look(self, now: float) -> None:
        """End the replicas that nobody has read for a while. Call it a few times a second."""
        for name, held in list(self.held.items()):
            channel = held.replica.channel
            if held.waiting or held.wanted or (channel is not None and channel.reading.used):
                held.read_at = now
            elif now - held.read_at >= KEEP_S:
                self.drop(name)

    def end(self) -> None:
        """Hold nothing any more."""
        for name in list(self.held):
            self.drop(name)

    def _hold(self, name: str, now: float) -> HeldChannel:
        plane, loop = self._plane, asyncio.get_running_loop()

        def failed() -> None:
            held.failed = True
            _wake(held.waiting)  # they are forwarded, and hear from the owner how things are

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            if held.tried:
                failed()
            held.tried = True
            try:
                reader, held.connection = await self._connect(name)
            except (OSError, TrickleError):
                failed()
                raise
            return reader, held.connection

        def arrived() -> None:
            held.arrived, held.tried, held.failed = True, False, False
            loop.call_soon(_wake, held.waiting)  # the replica is in the middle of a change

        def ended(task: asyncio.Task[None]) -> None:
            _wake(held.waiting)  # before it is gone: they begin no other one
            if self.held.get(name) is held:
                del self.held[name]
            if not task.cancelled() and (error := task.exception()) is not None:
                plane.fault("while a channel of another node was held", error)

        def leave(channel: Channel) -> None:
            send_away(plane, channel)

        replica = Replica(name, plane.registry, plane.clock, to_time, arrived=arrived, leave=leave)
        held = self.held[name] = HeldChannel(replica, now, now)
        held.following = loop.create_task(follow(replica, connect, lost_s=KEEP_S))
        held.following.add_done_callback(ended)
        return held


class Cluster:
    """The cluster as this node sees it: which requests are answered here (:class:`app.data_plane.context.Elsewhere`).

    Args:
        plane: of this node. peers: knows and signs requests of nodes. directory: knows where channels are.
        forward: lets another node answer a request (:class:`~tricklecast.app.cluster.forward.Forwarding`).
        feeds: to and from other nodes. replicas: of this node.
        recover: goes on with a channel whose owner is gone, in its epoch (:meth:`.Quorum.recover`); ``None``: it begins
            again in the next one.

    Attributes:
        elsewhere: where a new channel is to begin; ``None``: here.
        recorded: which other nodes have recordings.
    """

    def __init__(
        self,
        plane: DataPlane,
        peers: Peers,
        directory: Directory,
        forward: Callable[[Caller, Request, Route, NodePlace], Reply | Exchange],
        feeds: Feeds,
        replicas: Replicas,
        recover: Callable[[str, int], Awaitable[OwnedChannel | None]] | None = None,
    ) -> None:
        self._plane, self._peers, self._directory, self._forward = plane, peers, directory, forward
        self._recover = recover
        self.feeds, self.replicas = feeds, replicas
        self.elsewhere: Callable[[], NodePlace | None] = _nowhere
        self.recorded = Recorded(plane.clock)
        # Channels of this node that are being moved: requests that wait for the end of that.
        self._parting: dict[str, dict[Parked, None]] = {}
        # By name: requests that wait for the decision about a channel.
        self._deciding: dict[str, dict[Parked, None]] = {}
        # Claimed channels that have not begun here yet, with the time of the claim.
        self._unused: dict[str, tuple[int, float]] = {}
        # By name: requests that wait to hear whether there is a channel of which this node has not heard.
        self._asking: dict[str, dict[Parked, None]] = {}
        # By name: requests that wait to hear whether another node has the recording of a channel.
        self._finding: dict[str, dict[Parked, None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        plane.registry.journal.subscribe(self._channel_ended, ChannelEnded)

    # Asked by the data plane.

    def sender(self, request: Request) -> Via | Reply:
        """Find out which node has passed a request on."""
        return self._peers.sender(request)

    def switch(self, request: Request) -> Reply | Serve:
        """Answer a node that asks for a feed."""
        return self.feeds.switch(request)

    def answer(self, connection: Caller, request: Request, route: Route) -> Reply | Exchange | None:
        """Answer a request whose channel is elsewhere, or let the core of this node answer (``None``)."""
        name, op = route.channel, route.op
        if op is None or is_reserved(name):
            return None
        if (parting := self._parting.get(name)) is not None:
            if op in READS or op is Op.NEXT:
                return None
            return _await(connection, request, route, PARTED_S, parting)
        place, is_live = self._directory.place(name), self._plane.registry.live(name) is not None
        if place is None and not is_live:
            former = self._directory.former(name)
            if former is not None and former.node != self._peers.me and former.reachable and op is not Op.FEED:
                return self._forward(connection, request, route, former)
        is_past = place is None and op in OF_RECORDINGS and name not in self._plane.registry.channels
        if is_past and request.via is None and (there := self.recorded.place(name)) is not None:
            return self._forward(connection, request, route, there)
        if name in self._deciding and self._recover is not None:
            return self._claim(connection, request, route)  # it may be half read
        if place is None or place.node == self._peers.me:
            if is_live and op not in READS and not self._directory.owns(name):
                return self._wait_while_moving(connection, request, route)
            if self._is_free(request, route, place):
                return self._claim(connection, request, route)
            if self._may_be_new(request, name, place):
                return self._ask(connection, request, route) if self._directory.informed else UNDECIDED
            if is_past and request.via is None and self._may_be_recorded(name):
                return self._join(connection, request, route, self._finding, self._find, FIND_S)
            return None
        if not place.reachable and request.looks < CLAIMS and self._may_claim(op):
            return self._claim(connection, request, route)
        if not place.url:
            return UNDECIDED  # nobody knows that node: its key was lost, or is still on its way
        if op is Op.FEED:
            return elsewhere_reply(place.url)
        if op in READS and request.via is None and (held := self.replicas.want(name)) is not None:
            channel = held.replica.channel
            if held.replica.live and channel is not None:
                if channel.epoch >= place.epoch and holder_answers(self._plane, channel, route, stored=True):
                    return None
            elif not request.looks and (parked := self.replicas.wait(held, connection, request, route)) is not None:
                request.looks += 1
                return parked
        return self._forward(connection, request, route, place)

    def is_followed(self, channel: Channel) -> bool:
        """Whether another node has readers of a channel, or had some a moment ago: it holds a replica as long."""
        return any(one is channel for one in self.feeds.sending.tasks.values())

    def may_begin(self, name: str) -> bool:
        """Whether a channel is here, or may begin here.

        Its owner is gone when its lease is over: who publishes claims the channel. One that has ended a moment ago
        begins again at its former owner, to which all requests for it go.
        """
        place = self._directory.place(name) or self._directory.former(name)
        return place is None or place.node == self._peers.me or not place.reachable

    # Asked by the registry.

    def owns(self, name: str) -> bool:
        """Whether no other node has a channel of this name."""
        place = self._directory.place(name)
        return place is None or place.node == self._peers.me or is_reserved(name)

    def epoch(self, name: str) -> int | None:
        """The epoch with which a channel of this name begins here; ``None`` if it has to be claimed."""
        place = self._directory.place(name)
        return place.epoch if place is not None and self._directory.owns(name) else None

    # Told by the directory.

    def moved(self, channel: str, place: ChannelPlace | None) -> None:
        """A channel has another owner or epoch.

        One that has ended says so in its feed; one that was given to this node is adopted (:meth:`given`).
        """
        if place is not None and place.node != self._peers.me:
            self.replicas.moved(channel, place.epoch)

    def lost(self, channel: str, epoch: int) -> None:
        """A higher epoch of this node's channel has begun elsewhere: this one ends, and its clients are told.

        Its publishers get 503, since what they have sent belongs to no epoch that goes on. Its readers ask again, too:
        an end would tell them that no more comes, and they would leave a channel that goes on.
        """
        owned = self._plane.registry.live(channel)
        if owned is not None and owned.epoch == epoch:
            self.refuse_publishers(owned)
            send_away(self._plane, owned)
            self._plane.registry.end(channel, self._plane.clock(), EndReason.MOVED, force=True)

    def part(self, owned: OwnedChannel) -> None:
        """This node's channel is about to move: publishers that have not begun to write a segment wait."""
        waiting = self._parting[owned.name] = {}
        for segment in owned.unclosed:
            upload = None if segment.writer is None else segment.writer.owner
            # One below the head would be skipped, if its publisher left.
            if isinstance(upload, Upload) and upload.idle and segment.seq >= owned.next_seq:
                connection, request = upload.connection, upload.request
                assert request.route is not None, "it publishes"
                upload.withdraw()
                connection.exchange = _await(connection, request, request.route, PARTED_S, waiting)

    def stay(self, channel: str) -> None:
        """The move is over: requests that have waited for it go on, with the channel wherever it is."""
        if (waiting := self._parting.pop(channel, None)) is None:
            return
        if not self._directory.owns(channel):
            for parked in list(waiting):
                request = parked.request
                if parked.via is not None and request.waits and not (request.chunks or request.complete):
                    parked.connection.send(MOVED)  # the node that has passed it on asks the new owner
                    parked.wait_for_body(MOVED_S)
        _wake(waiting)

    def gave(self, channel: str) -> None:
        """Another node goes on with this node's channel, in its epoch.

        Its readers stay, as those of a replica; but if a segment is not whole they ask again, and find it there.
        """
        owned = self._plane.registry.live(channel)
        if owned is not None:
            self.refuse_publishers(owned)
            for feeds in (self.feeds.sending, self._plane.feeds):
                feeds.stop(owned)
            if not self.replicas.keep(owned):
                send_away(self._plane, owned)
                self._plane.registry.give_up(owned, self._plane.clock())

    def refuse_publishers(self, owned: OwnedChannel) -> None:
        """Send those away that write to a channel: they ask again."""
        for segment in owned.unclosed:
            if segment.writer is not None and isinstance(upload := segment.writer.owner, Upload):
                upload.send_away(unconfirmed_reply(self._plane.jitter))

    def given(self, channel: str, epoch: int) -> bool:
        """Another node hands its channel over; whether this one goes on with it, since it has all of it."""
        return self.replicas.adopt(channel, epoch) is not None

    # Time.

    def look(self, now: float) -> None:
        """Do what is due. Call it a few times a second."""
        self.replicas.look(now)
        self.feeds.sending.expire()
        for name, (epoch, since) in list(self._unused.items()):
            if self._plane.registry.live(name) is not None:
                del self._unused[name]
            elif now - since >= UNUSED_S:
                del self._unused[name]
                self._directory.ended(name, epoch)

    def end(self) -> None:
        """Hold nothing and decide nothing any more."""
        self.replicas.end()
        for task in list(self._tasks):
            task.cancel()

    # Deciding.

    def _may_claim(self, op: Op | None) -> bool:
        """Whether a request may make this node the owner of a channel: it begins one, or goes on with one.

        A publisher that has lost its connection asks for the head before it sends a segment again. So this request
        must not wait for a POST.
        """
        registry = self._plane.registry
        begins = op is Op.CREATE or (op in (Op.PUBLISH, Op.NEXT) and registry.autocreate)
        return (begins or self._recover is not None) and not registry.shutting_down

    def _is_free(self, request: Request, route: Route, place: ChannelPlace | None) -> bool:
        """Whether a request needs a claim: it may begin a channel, or the next epoch of one, as the core decides."""
        registry = self._plane.registry
        if not self._may_claim(route.op):
            return False
        if place is not None and self._recover is not None and not self._directory.owns(route.channel):
            return True  # it was this node's before a restart
        if route.op not in _BEGINS:
            return False
        channel = registry.channels.get(route.channel)
        if channel is not None and (
            not channel.ended or (route.op is Op.PUBLISH and not _is_beginning(request, route))
        ):
            return False
        if place is None or place.epoch <= registry.last_epoch(route.channel):
            return True
        return not self._directory.owns(route.channel)  # a claim without an answer, or before a restart

    def _claim(self, connection: Caller, request: Request, route: Route) -> Reply | Exchange:
        """Let a request wait until it is decided who has its channel."""
        if request.looks >= CLAIMS:
            return UNDECIDED
        name = route.channel
        is_new = not (name in self._deciding or self._directory.owns(name))
        if is_new and request.via is None and (better := self.elsewhere()) is not None:
            return self._forward(connection, request, route, better)
        return self._join(connection, request, route, self._deciding, self._decide, CLAIM_S)

    def _wait_while_moving(self, connection: Caller, request: Request, route: Route) -> Reply | Exchange:
        """Let a request wait that would change a channel which is being handed over: here the change might be lost."""
        if request.looks >= MOVING_LOOKS:
            return UNDECIDED
        request.looks += 1
        parked = park(connection, request, route, ParkedFor.REPLICA, resolve)
        parked.wait(MOVING_S)
        return parked

    async def claim(self, name: str) -> None:
        """Have it decided who has a channel that nobody has, as far as this node knows, or whose owner is gone.

        Raises:
            TrickleError: it cannot be taken over now.
        """
        plane, directory = self._plane, self._directory
        before = directory.place(name)
        await directory.claim(name, plane.registry.last_epoch(name))
        epoch = self.epoch(name)
        if epoch is not None:
            self.replicas.drop(name)
            is_going_on = self._recover is not None and before is not None and before.epoch == epoch
            if self._recover is not None and is_going_on and await self._recover(name, epoch) is None:
                directory.ended(name, epoch)  # nothing of it is left
                await directory.claim(name, epoch)
                epoch = self.epoch(name)
        if epoch is not None and plane.registry.live(name) is None:
            self._unused[name] = epoch, plane.clock()

    async def _decide(self, name: str) -> None:
        plane = self._plane
        try:
            await self.claim(name)
        except TrickleError as error:
            logger.warning("%r cannot be taken over now: %s", name, error)
        except Exception as error:
            plane.fault("while a channel was claimed", error)
        finally:
            _wake(self._deciding.pop(name))

    def _may_be_new(self, request: Request, name: str, place: ChannelPlace | None) -> bool:
        """Whether a request may be for a channel that has begun elsewhere a moment ago."""
        if place is not None or name in self._plane.registry.channels or request.via is not None or request.looks:
            return False
        return name in self._asking or (len(self._asking) < MAX_ASKED and not self._plane.registry.shutting_down)

    def _ask(self, connection: Caller, request: Request, route: Route) -> Parked:
        """Let a request wait until it is known whether its channel is at another node."""
        return self._join(connection, request, route, self._asking, self._look_up, ASK_S)

    async def _look_up(self, name: str) -> None:
        try:
            await self._directory.look_up(name)
        except Exception as error:
            self._plane.fault("while a channel was looked up", error)
        finally:
            _wake(self._asking.pop(name))

    def _may_be_recorded(self, name: str) -> bool:
        """Whether the other nodes are to be asked for the recording of a channel."""
        if self.recorded.knows(name) or self._plane.registry.shutting_down:
            return False
        return name in self._finding or len(self._finding) < MAX_ASKED

    async def _find(self, name: str) -> None:
        try:
            await self.recorded.ask(name)
        except Exception as error:
            self._plane.fault("while a recording was looked for", error)
        finally:
            _wake(self._finding.pop(name))

    def _join(
        self,
        connection: Caller,
        request: Request,
        route: Route,
        waiting: dict[str, dict[Parked, None]],
        work: Callable[[str], Coroutine[None, None, None]],
        wait_s: float,
    ) -> Parked:
        """Let a request wait for work on its channel, which the first of several requests begins.

        Args:
            waiting: the requests that wait for such work, by the channel's name; the work takes them out at its end.
        """
        request.looks += 1
        name = route.channel
        if name not in waiting:
            waiting[name] = {}
            self._begin(work(name))
        return _await(connection, request, route, wait_s, waiting[name])

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _channel_ended(self, fact: Fact) -> None:
        assert isinstance(fact, ChannelEnded)
        if is_reserved(fact.channel):
            return
        if fact.reason is EndReason.MOVED:
            self._directory.left(fact.channel, fact.epoch)
        else:
            self._directory.ended(fact.channel, fact.epoch)


def _nowhere() -> NodePlace | None:
    """All channels begin at the node to which their publishers come."""
    return None


def _is_beginning(request: Request, route: Route) -> bool:
    """Whether a POST begins the next epoch of a channel that has ended (docs/reference/protocol.md, section 5)."""
    return route.seq == 0 or bool(request.text(RESET))


def _await(connection: Caller, request: Request, route: Route, wait_s: float, waiting: dict[Parked, None]) -> Parked:
    """Let a request wait, until it is woken with others or the time is over; then the data plane asks again."""
    parked = park(connection, request, route, ParkedFor.REPLICA, resolve)
    parked.wait(wait_s)
    timer = parked.cancel
    waiting[parked] = None

    def cancel() -> None:
        timer()
        waiting.pop(parked, None)

    parked.cancel = cancel
    return parked


def _wake(waiting: dict[Parked, None]) -> None:
    """Let requests go on, some in each turn of the event loop."""
    for parked in list(islice(waiting, WAKE_BATCH)):
        parked.go_on()
        waiting.pop(parked, None)
    if waiting:
        asyncio.get_running_loop().call_soon(_wake, waiting)
