"""The directory of a cluster: which nodes there are, and which of them owns each channel.

**The problem.** Every node has to know at once, without asking, where a channel is; and of two nodes that want it, or
of a node that was given up and comes back, one has to win.

**The idea.** A bucket of NATS (:mod:`~tricklecast.app.cluster.bucket`) holds one key per node and one per channel. Each
node watches all keys, so looking up is a dictionary. What a node knows may be out of date, so it decides nothing by
reading: each decision is one write that names the revision it replaces, and of two only one succeeds.

- ``node.<token>``: a node is (name, term); each start takes a higher term. It writes its key four times in the time of
  a lease, also as such a write.
- ``channel.<token>``: its owner (node and term) and epoch. A claim of a channel mints the next epoch, above all that
  anybody remembers, so an epoch of a channel has one writer. The revision of the key is no such fence: it begins again
  when the bucket is lost.

**Taking over** costs one write per lost node, and one per channel that somebody wants. An observer that has seen no
renewal for the time of a lease writes the key of the node: this term is *deposed*. If the node has renewed meanwhile,
the write fails, and nothing has happened. If it succeeds, no renewal of that term can succeed any more, and its own
lease (:mod:`~tricklecast.app.cluster.lease`) was over before. Then its channels are free. A node that finds itself
deposed takes a new term, and claims again, in the same epoch, those of its channels that nobody has taken; it answers
no publisher of the others.

**A lost bucket** is made again of what nodes remember. A renewal fails in a bucket that was emptied or put back to an
older copy, since the node's key has not the revision that it wrote. Then the node takes a new term and reads all keys
anew. What it remembers, and what is missing or has a lower epoch there, stays in its dictionary and is put back: its
own channels at once, those of others after the time of a lease. Their owners may do it themselves; if these are gone,
their epochs must not be forgotten. Meanwhile nobody claims a channel: a node that has read all keys waits for the time
of a lease (two in a bucket that is new), and until no other one says that it puts something back.

**The node's own truth** is ``_mine``: channels that it has claimed and not ended. Where the bucket says something else
(``_unsure``, ``_outbox``), one task writes until both agree, or until the channel turns out to be lost. So an operator
may delete keys, an answer may get lost, and NATS may go away, at any time.

Nothing here raises an error of NATS: without NATS all that is known stays, and decisions are :class:`Unavailable`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

import orjson

from tricklecast.app.clock import wall_us
from tricklecast.app.cluster.bucket import AnyBucket
from tricklecast.app.cluster.jetstream import Conflict, Unreachable
from tricklecast.app.cluster.lease import LEASE_S, RENEWALS, Lease, LeaseState, answered, boottime
from tricklecast.app.cluster.names import to_name, to_token
from tricklecast.trickle.errors import InvalidInput

logger = logging.getLogger("tricklecast.cluster")

CLAIM_S: Final = 2.0
"""A claim that has not succeeded after this time is refused: its publisher has waited long enough."""

MAX_CLAIMS: Final = 1_000
"""Claims that wait for NATS at once. More are refused, so that a flood of new channels takes bounded memory."""

MAX_TOMBSTONES: Final = 100_000
"""Ended channels that this node knows at a time, 0.25 kB each. The bucket has the others, and tells who claims one."""

ATTEMPTS: Final = 8
"""A write that meets another revision is tried again with that one, so often."""

BATCH: Final = 64
"""Writes of the outbox that are on their way at once."""

STOP_S: Final = 1.0
"""To tell the others that this node leaves. Closing the connection takes 0.5 s more at most."""

BACKOFF_S: Final = (0.05, 0.5)
"""First and longest pause before NATS is tried again, times a random factor of 0.5 to 1."""

FORGET_S: Final = 3600.0
"""A node that was gone for this time is forgotten, and its channels count as ended."""

SWEEP_S: Final = 60.0
"""How often one of the nodes looks for such nodes."""


@dataclass
class NodeFacts:
    """What a node tells of itself.

    Attributes:
        name: unique in the cluster, and the same after a restart. url: where other nodes and clients reach it.
        version: of the software. load: a number that grows with what the node has to do.
        draining: whether it takes no new channels.
    """

    name: str
    url: str
    version: str = ""
    load: float = 0.0
    draining: bool = False


SERVING: Final = "serving"
RESTORING: Final = "restoring"  # it puts back what a lost bucket does not hold any more
DRAINING: Final = "draining"
LEFT: Final = "left"  # it was stopped: nobody has to wait for its lease
DEPOSED: Final = "deposed"  # another node has ended its term


@dataclass(slots=True)
class Node:
    """A node as this one sees it.

    Attributes:
        name, url, term, load, state, version: as it told. revision: of its key; 0: the bucket has none.
        lease_s: how long it trusts its lease, if that is longer than this node's.
        seen_at: when its key last changed, on this node's clock; it counts only while this node has a lease itself.
    """

    name: str
    term: int
    url: str = ""
    load: float = 0.0
    state: str = SERVING
    version: str = ""
    revision: int = 0
    seen_at: float = 0.0
    lease_s: float = 0.0

    @property
    def over(self) -> bool:
        """Whether its term has ended for ever."""
        return self.state in (LEFT, DEPOSED)


class Owner(NamedTuple):
    """A term of a node; one object for all of its channels."""

    node: str
    term: int


class Entry:
    """A channel in the directory. There may be a million: it has no more than it needs.

    Attributes:
        owner, epoch: of the channel. revision: of its key; 0: there is no such key.
        ended: whether this epoch has ended; the entry is a tombstone then.
        lost: the bucket had this entry, and has an older one now, or none.
    """

    __slots__ = ("ended", "epoch", "lost", "owner", "revision")

    def __init__(self, owner: Owner, epoch: int, revision: int, ended: bool) -> None:
        self.owner, self.epoch, self.revision, self.ended, self.lost = owner, epoch, revision, ended, False


class _Verdict(Enum):
    """Of the directory's entry for a channel that this node owns."""

    KEEP = auto()
    WRITE = auto()  # the bucket has to be told
    LOST = auto()  # somebody else has it


class Place(NamedTuple):
    """Where a channel is.

    Attributes:
        node, url: of its owner. epoch: of the channel. reachable: whether the owner has renewed its lease, as far as
            this node knows.
    """

    node: str
    url: str
    epoch: int
    reachable: bool


class Claimed(NamedTuple):
    """The channel belongs to this node, in this epoch."""

    epoch: int


class Taken(NamedTuple):
    """Another node has the channel, or may still have it."""

    place: Place


class Unavailable(NamedTuple):
    """It cannot be decided now; why. Come back in a second."""

    why: str


class NameInUse(InvalidInput):
    """Another process has this node's name and is alive."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(name, url)
        self.name, self.url = name, url

    def __str__(self) -> str:
        return f"the node name {self.name!r} is in use by {self.url}: give this one another name with --node"


class Listeners(Protocol):
    """Hears of channels. It is called in the event loop, and must not wait."""

    def moved(self, channel: str, place: Place | None) -> None:
        """A channel has another owner or epoch, or (``None``) has none any more."""

    def lost(self, channel: str, epoch: int) -> None:
        """This node does not own the channel any more: a higher epoch has begun elsewhere. It ends here."""

    def given(self, channel: str, epoch: int) -> bool:
        """Another node hands its channel over. Returns whether this node goes on with it in the same epoch."""


@dataclass
class Counters:
    """What has happened since the start, for metrics."""

    renewals: int = 0
    renewals_failed: int = 0
    claims: int = 0
    claims_taken: int = 0
    claims_unavailable: int = 0
    takeovers: int = 0
    deposed: int = 0
    terms_lost: int = 0
    conflicts: int = 0
    put_back: int = 0
    lost: int = 0
    moved: int = 0
    updates: int = 0
    connections: int = 0
    errors: int = 0
    bad_values: int = 0


class Directory:
    """This node's view of the cluster, and its part in it.

    Args:
        open_bucket: makes a connection to the bucket; raises :class:`Unreachable` if it cannot.
        me: this node; its load and whether it drains may change.
        listeners: hears of channels.
        tombstone_s: how long the directory remembers the epoch of a channel that has ended.
        keeps_epochs: whether a channel of a node that is gone goes on in its epoch, since its history is kept elsewhere
            (``--ack quorum``); without it, its next owner begins the next epoch.
        clock: the time in seconds, on a clock that goes on while the machine is suspended.
        wall: microseconds since 1970, for terms. dice: for pauses.

    Attributes:
        lease: of this node. nodes: all nodes by name, this one included. counters: for metrics.
        secret: of the cluster; empty until the bucket was read. term: of this node; 0 until it is registered.
        replaced: another process has this node's name, so this one must end.
    """

    def __init__(
        self,
        open_bucket: Callable[[], Awaitable[AnyBucket]],
        me: NodeFacts,
        listeners: Listeners,
        *,
        lease_s: float = LEASE_S,
        tombstone_s: float = 300.0,
        keeps_epochs: bool = False,
        clock: Callable[[], float] = boottime,
        wall: Callable[[], int] = wall_us,
        dice: random.Random | None = None,
    ) -> None:
        self.me = me
        self.lease = Lease(lease_s, clock)
        self.nodes: dict[str, Node] = {}
        self.counters = Counters()
        self.secret = ""
        self.term = 0
        self.replaced: NameInUse | None = None
        self._open, self._listeners, self._clock, self._wall = open_bucket, listeners, clock, wall
        self._tombstone_s, self._keeps_epochs = tombstone_s, keeps_epochs
        self._stray_s = FORGET_S if keeps_epochs else lease_s
        self._dice = dice or random.Random()
        # What the bucket says.
        self._channels: dict[str, Entry] = {}
        self._owners: dict[Owner, Owner] = {}
        self._tombstones: deque[tuple[float, str, int]] = deque()  # when to forget it, name, epoch
        self._meta: dict[str, Any] = {}
        self._meta_found: tuple[dict[str, Any] | None, int] = None, 0  # what the bucket has for it, and its revision
        # What this node has claimed and not ended: the epochs.
        self._mine: dict[str, int] = {}
        self._moving: set[str] = set()  # of these: the bucket may say that they were handed over
        self._claims: dict[str, asyncio.Task[Claimed | Taken | Unavailable]] = {}
        # Where they differ.
        self._unsure: dict[str, None] = {}  # channels of this node of which the bucket may say something else
        self._outbox: dict[str, Entry] = {}  # tombstones, and channels of others that are put back
        self._later: list[tuple[str, Entry]] = []  # for the outbox, unless their owners put them back before
        self._later_at = 0.0
        self._restoring = False  # until all of these are written
        self._strays: dict[str, float] = {}  # entries that name this node, but it does not own them: since when
        # The connection.
        self._bucket: AnyBucket | None = None
        self._key = f"node.{to_token(me.name)}"
        self._revision = 0  # of this node's key
        self._instance: str | None = None  # of the bucket that was read; None: it has to be read anew
        self._seen = 0  # the last revision that the watch brought
        self._heard_at = clock()  # when the watch last brought something
        self._reread = False  # the keys have to be read anew, since the bucket is not what it was
        self._filling: dict[str, Entry] | None = None  # the channels, while they are read anew
        self._synced = asyncio.Event()  # all keys of the bucket are known
        self._settled = asyncio.Event()  # and nobody is going to put back channels that this node does not know
        self._settle_at = 0.0
        self._registered: asyncio.Future[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._stopping = False
        self._trouble = "there is no connection yet"
        self._said: LeaseState | None = None  # the state of the lease that was logged
        self._sweep_at = clock() + SWEEP_S

    # Life.

    async def start(self, owned: Mapping[str, int], within_s: float = 10.0) -> bool:
        """Register this node and read the bucket.

        Args:
            owned: the channels that this node goes on with after a restart (from its data directory), with epochs.
                Others that the bucket says to be this node's are ended.

        Returns:
            Whether it has succeeded in this time. If not, it goes on trying.

        Raises:
            NameInUse: another process has this node's name, and renews its lease.
        """
        self._mine.update(owned)
        self._unsure.update(dict.fromkeys(owned))
        self._registered = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(within_s):
                await asyncio.shield(self._registered)
                await self._synced.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Leave: others may take this node's channels at once. It takes less than 2 s without NATS, too."""
        self._stopping = True
        self.lease.wanted.set()
        claims = list(self._claims.values())
        for claim in claims:
            claim.cancel()
        if self._running is not None:
            await asyncio.wait((self._running,), timeout=STOP_S)
            self._running.cancel()
            await asyncio.wait((self._running, *claims), timeout=STOP_S)
        self.lease.cut_off()
        self.lease.lost()

    # Looking up.

    def place(self, channel: str) -> Place | None:
        """Where a channel is; ``None`` if the directory has none of this name, or it has ended."""
        entry = self._channels.get(channel)
        return None if entry is None or entry.ended else self._place(entry)

    def former(self, channel: str) -> Place | None:
        """Where a channel was that has ended, as long as the directory remembers it."""
        entry = self._channels.get(channel)
        return None if entry is None or not entry.ended else self._place(entry)

    def owns(self, channel: str) -> bool:
        """Whether this node owns a channel, as far as it knows; :meth:`confirmed` is sure of it."""
        return channel in self._mine and channel not in self._moving

    def reachable(self, name: str) -> bool:
        """Whether a node has renewed its lease, as far as this node knows. Without NATS all is as it was."""
        node = self.nodes.get(name)
        if node is None or node.over or not node.url:
            return False
        return name == self.me.name or not self.lease.valid or not self._silent(node)

    @property
    def channels(self) -> Mapping[str, Entry]:
        """All entries by name, tombstones included."""
        return self._channels

    @property
    def degraded(self) -> str:
        """Why decisions cannot be made at present; empty if they can."""
        if self.replaced is not None:
            return str(self.replaced)
        if self.lease.state is LeaseState.CUT_OFF:
            return f"NATS is out of reach: {self._trouble}"
        if not self._synced.is_set():
            return "the directory is being read"
        if not self._settled.is_set():
            return "other nodes may still put back what the bucket does not hold"
        return "" if self.lease.valid else "this process stood still, and has not renewed its lease since"

    @property
    def age_s(self) -> float:
        """Seconds since the watch has brought something: while all is well, less than a quarter of a lease."""
        return self._clock() - self._heard_at

    # Deciding.

    async def claim(self, channel: str, at_least_epoch: int = 0) -> Claimed | Taken | Unavailable:
        """Make this node the owner of a channel, if no node that is alive has it: in a new epoch, or in that of a
        channel that goes on (`keeps_epochs`).

        Args:
            at_least_epoch: the highest epoch of that name which this node remembers elsewhere (data directory,
                tombstones, a replica); the new one is higher.
        """
        if channel in self._mine and self.lease.fresh:
            return Claimed(self._mine[channel])
        if (task := self._claims.get(channel)) is None:
            if self._stopping or self.replaced is not None or len(self._claims) >= MAX_CLAIMS:
                self.counters.claims_unavailable += 1
                why = "this node stops" if self._stopping else self.degraded or "too many claims wait for NATS"
                return Unavailable(why)
            task = self._claims[channel] = asyncio.create_task(self._claim(channel, at_least_epoch))
            task.add_done_callback(lambda _: self._claims.pop(channel))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            return Unavailable("this node stops")

    async def confirmed(self, channel: str, epoch: int) -> bool:
        """Whether a publisher of this epoch may be answered; in doubt NATS is asked, for the time of a lease at most.

        If not, look at :attr:`Lease.state`: while NATS is out of reach a node may decide to go on, degraded.
        """
        if not self.lease.fresh:
            if not await self.lease.confirmed():
                return False
            if channel in self._unsure:
                with suppress(Unreachable, TimeoutError):
                    async with asyncio.timeout(self.lease.lease_s / 2):
                        await self._settle(channel)
            if channel in self._unsure or not self.lease.valid:
                return False
        return self._mine.get(channel) == epoch and channel not in self._moving

    def ended(self, channel: str, epoch: int) -> None:
        """This node's channel has ended: the directory keeps a tombstone of it for a while."""
        if self._mine.get(channel) == epoch:
            self._disown(channel)
            self._outbox[channel] = Entry(self._owner(self.me.name, self.term), epoch, 0, True)
            self._kick()

    async def hand_over(self, channel: str, epoch: int, to: str) -> bool | Unavailable:
        """Give a channel to another node, which goes on in the same epoch. From the call on this node owns it no more.

        Returns:
            Whether the other node has it. If not, it is this node's again, or a third one's (:meth:`owns`). If nobody
            knows yet (:class:`Unavailable`), it may be this node's again once NATS has answered.
        """
        target, bucket = self.nodes.get(to), self._bucket
        if self._mine.get(channel) != epoch or target is None or target.state != SERVING or not self.reachable(to):
            return False
        if bucket is None or not self.lease.fresh:
            return Unavailable(self.degraded or "the lease is in doubt")
        entry = self._channels[channel]
        self._moving.add(channel)
        try:
            new = Entry(self._owner(to, target.term), epoch, entry.revision, False)
            await self._write(bucket, channel, new, given_by=self.me.name)
        except (Conflict, Unreachable) as error:
            # The write may still arrive. A write of our own over it decides which of the two was first.
            self._unsure[channel] = None
            self.lease.hold(True)
            with suppress(Unreachable, TimeoutError):
                async with asyncio.timeout(CLAIM_S):
                    await self._settle(channel)
            if channel in self._unsure:
                return Unavailable(str(error))
        return channel not in self._mine

    # The connection.

    async def _run(self) -> None:
        """Keep a connection to the bucket."""
        pause = BACKOFF_S[0]
        while not self._stopping:
            began = self._clock()
            try:
                await self._session()
                continue
            except (Conflict, Unreachable, TimeoutError) as error:
                self.counters.errors += 1
                self._trouble = str(error) or "no answer"
            except NameInUse as error:
                self._replace(error)
                return
            except Exception as error:  # a fault here must not take the directory away for good
                self.counters.errors += 1
                self._trouble = f"a fault: {error!r}"
                logger.exception("a fault in the directory of the cluster")
            self._tick()
            pause = BACKOFF_S[0] if self._clock() - began > self.lease.lease_s else min(2 * pause, BACKOFF_S[1])
            await asyncio.sleep(pause * self._dice.uniform(0.5, 1))

    async def _session(self) -> None:
        """Everything that one connection to the bucket is good for, until it breaks or this node stops."""
        bucket = await self._open()
        self._bucket = bucket
        self.counters.connections += 1
        syncing: asyncio.Task[None] | None = None
        try:
            await (self._renew(bucket) if self.term else self._register(bucket))
            while True:
                if syncing is None:
                    after, self._reread = self._seen if self._instance == bucket.instance else None, False
                    syncing = asyncio.create_task(self._sync(bucket, after))
                self._tick()
                if self._stopping:
                    return await self._leave(bucket)
                await self._until_renewal(bucket, syncing)
                if syncing.done():
                    syncing.result()
                if bucket.closed.done():
                    raise Unreachable(bucket.closed.result())
                if not self._stopping:
                    await self._renew(bucket)
                if self._reread:
                    syncing.cancel()
                    syncing = None
                elif syncing.done() and self.age_s > self.lease.lease_s:  # it should have brought four renewals
                    raise Unreachable("the watch brings nothing")
        finally:
            self._bucket, self._filling = None, None
            self.lease.cut_off()
            for task in (syncing, self._writing):
                if task is not None:
                    task.cancel()
            await bucket.close()

    async def _until_renewal(self, bucket: AnyBucket, syncing: asyncio.Task[None]) -> None:
        wanted = asyncio.ensure_future(self.lease.wanted.wait())
        first: set[asyncio.Future[Any]] = {wanted, bucket.closed}
        if not syncing.done():
            first.add(syncing)
        await asyncio.wait(first, timeout=self.lease.lease_s / RENEWALS, return_when=asyncio.FIRST_COMPLETED)
        wanted.cancel()

    async def _register(self, bucket: AnyBucket) -> None:
        """Take this node's name. A process that has it and may be alive is given the time of a lease to show it."""
        value, revision = await bucket.get(self._key)
        before = self._parse_node(self.me.name, value, revision)
        for patience in (1, 0):
            if before is None or before.over:
                break
            await asyncio.sleep(max(self.lease.lease_s, before.lease_s))
            value, again = await bucket.get(self._key)
            before = self._parse_node(self.me.name, value, again) or before
            if again == revision:
                break
            if not patience and not before.over:  # one change may be what a process that is dead had sent before
                raise NameInUse(self.me.name, before.url)
            revision = again
        self._revision, sent_at = revision, self._clock()
        self._new_term(before)
        try:
            await self._put_node(bucket)
        except BaseException:
            self.term = 0  # somebody else may have been first: look again
            raise
        self.lease.renewed(sent_at, hold=bool(self._unsure))
        if self._registered is not None and not self._registered.done():
            self._registered.set_result(None)

    def _new_term(self, before: Node | None) -> None:
        # By the wall clock, so that a term is new although the bucket has forgotten the last one.
        self.term = max(self.term + 1, 1 if before is None else before.term + 1, self._wall() // 1000)
        logger.info("this is node %r of the cluster, in term %d", self.me.name, self.term)

    async def _renew(self, bucket: AnyBucket) -> None:
        """Renew the lease. A node whose key is not as it has written it takes a new term.

        Raises:
            Unreachable: there is no answer.
            NameInUse: another process has taken this node's name.
        """
        for _ in range(ATTEMPTS):
            sent_at, was_valid = self._clock(), self.lease.valid
            writing = asyncio.ensure_future(self._put_node(bucket))
            try:
                if not await answered(writing, self.lease.lease_s / 2):
                    raise Unreachable("a renewal of the lease has no answer")
                writing.result()
            except Conflict:
                await self._contested(bucket)
                continue
            except Unreachable:
                self.counters.renewals_failed += 1
                raise
            finally:
                writing.cancel()
            self.counters.renewals += 1
            self._trouble = ""
            if not was_valid:
                # While this node could not renew, others could not, perhaps, or it has not heard of it.
                for node in self.nodes.values():
                    node.seen_at = self._clock()
            self.lease.renewed(sent_at, hold=bool(self._unsure))
            return
        raise Unreachable("a renewal met another revision each time")

    async def _contested(self, bucket: AnyBucket) -> None:
        """This node's key is not as this node has written it: find out why, and what its next write replaces."""
        self.counters.conflicts += 1
        value, revision = await bucket.get(self._key)
        found = self._parse_node(self.me.name, value, revision)
        if found is not None and found.term == self.term and not found.over and revision > self._revision:
            self._revision = revision  # a renewal of this node that had no answer
            return
        if found is not None and found.term > self.term:
            raise NameInUse(self.me.name, found.url)
        self.lease.lost()
        self.counters.terms_lost += 1
        deposed = found is not None and found.term == self.term and found.over
        why = "another node has ended its term, since it was silent" if deposed else "the bucket has lost its key"
        logger.warning("%s: this node takes a new term, and reads all keys anew", why)
        self._revision, self._instance, self._reread = revision, None, True
        self._new_term(found)
        self._unsure.update(dict.fromkeys(self._mine))

    async def _put_node(self, bucket: AnyBucket, state: str = "") -> None:
        """Write this node's key."""
        me, restoring = self.me, self._restoring or self._unsure or not self._synced.is_set()
        state = state or (RESTORING if restoring else DRAINING if me.draining else SERVING)
        about = {"url": me.url, "term": self.term, "load": me.load, "state": state, "version": me.version}
        about["lease"] = self.lease.lease_s
        ttl_s = FORGET_S if state == LEFT else 0
        self._revision = await bucket.put(self._key, orjson.dumps(about), self._revision, ttl_s=ttl_s)

    async def _leave(self, bucket: AnyBucket) -> None:
        with suppress(Conflict, Unreachable, TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._write_all()
                await self._put_node(bucket, LEFT)

    def _replace(self, error: NameInUse) -> None:
        """Another process is this node now: nothing here is this node's any more."""
        self.replaced = error
        self.lease.lost()
        logger.error("%s", error)
        if self._registered is not None and not self._registered.done():
            self._registered.set_exception(error)
        for channel in list(self._mine):
            self._lose(channel)

    # Reading the bucket.

    async def _sync(self, bucket: AnyBucket, after: int | None) -> None:
        """Read all keys, or those that have changed since; then hear of every change."""
        done = asyncio.Event()
        nodes = self.nodes
        if after is None:
            self._synced.clear()
            self._instance, self._filling, self.nodes, self._meta_found, self._seen = None, {}, {}, (None, 0), 0

        filling = self._filling

        def synced() -> None:
            if after is None and self._filling is filling:
                self._merge(nodes, bucket)
            self._heard_at = self._clock()
            done.set()

        await bucket.watch(after, self._take, synced)
        await done.wait()
        await self._restore_meta(bucket)
        self._instance = bucket.instance
        self._synced.set()
        logger.info("the directory has %d channels and %d nodes", len(self._channels), len(self.nodes))

    def _merge(self, nodes: dict[str, Node], bucket: AnyBucket) -> None:
        """All keys were read anew. What this node remembers, and what is missing or older there, stays."""
        before, channels, now = self._channels, self._filling or {}, self._clock()
        self._filling, self._channels = None, channels
        is_start = not before
        for channel, entry in before.items():
            found = channels.get(channel)
            if found is None or found.epoch < entry.epoch:
                channels[channel] = entry
                self._keep(channel, entry, found.revision if found else 0)
        for name, node in nodes.items():
            if name not in self.nodes:
                node.revision = 0
                self.nodes[name] = node
        for channel, epoch in list(self._mine.items()):
            if self._verdict(channel, epoch) is not _Verdict.KEEP:
                self._unsure[channel] = None
        for channel, entry in channels.items():
            old = before.get(channel)
            if old is not entry:
                self._changed(channel, old, entry, told=not is_start)
        if self._later:
            logger.warning("%d channels are not in the bucket as they were: they are put back", len(self._later))
            self._restoring = True
        young = not self._meta_found[0] or bucket.young_s < 2 * self.lease.lease_s or self._restoring
        self._settle_at = now + (2 if young else 1) * self.lease.lease_s
        self._settled.clear()

    def _take(self, key: str, value: bytes | None, revision: int) -> None:
        """A key that the watch brings."""
        self._seen, self._heard_at = revision, self._clock()
        self.counters.updates += 1
        kind, _, token = key.partition(".")
        try:
            if kind == "channel":
                self._take_channel(to_name(token), value, revision)
            elif kind == "node":
                self._take_node(to_name(token), value, revision)
            elif key == "meta":
                self._meta_found = _parse_meta(value, revision)
                self._kick()
        except ValueError:
            self._complain(key, value)

    def _take_channel(self, channel: str, value: bytes | None, revision: int) -> None:
        before = (self._channels if self._filling is None else self._filling).get(channel)
        if (parsed := self._parse_channel(channel, value, revision)) is not None:
            entry, given = parsed
            if self._filling is None:
                self._set(channel, entry, given=given)
            elif before is None or before.revision < revision:
                self._filling[channel] = entry
        elif before is not None and before.revision < revision:  # by a person, who knows what for
            self._keep(channel, before, revision)

    def _keep(self, channel: str, entry: Entry, revision: int) -> None:
        """The bucket has lost this entry, or has an older one: it is put back, by its owner or later by this node."""
        entry.revision, entry.lost = revision, True
        if channel in self._mine:
            self._unsure[channel] = None
            self.lease.hold(True)
            self._kick()
            return
        if not self._later:
            self._later_at = self._clock() + self.lease.lease_s
        self._later.append((channel, entry))

    def _parse_channel(self, channel: str, value: bytes | None, revision: int) -> tuple[Entry, bool] | None:
        """An entry, and whether another node has given it to its owner; ``None`` if there is none that makes sense."""
        if value is None:
            return None
        try:
            about = _parse(value)
            owner = self._owner(str(about["node"]), int(about["term"]))
            return Entry(owner, int(about["epoch"]), revision, bool(about.get("ended"))), "from" in about
        except (ValueError, KeyError, TypeError):
            self._complain(channel, value)
            return None

    def _take_node(self, name: str, value: bytes | None, revision: int) -> None:
        node = self._parse_node(name, value, revision)
        before = self.nodes.get(name)
        if node is None:
            if before is not None:
                before.revision = revision
            return
        if before is not None and revision <= before.revision:
            return
        self.nodes[name] = node

    def _parse_node(self, name: str, value: bytes | None, revision: int) -> Node | None:
        if value is None:
            return None
        try:
            about = _parse(value)
            texts = [str(about.get(key, "")) for key in ("url", "state", "version")]
            url, state, version = texts
            load, lease_s, now = float(about.get("load", 0)), float(about.get("lease", 0)), self._clock()
            return Node(name, int(about["term"]), url, load, state, version, revision, now, lease_s)
        except (ValueError, KeyError, TypeError):
            self._complain(name, value)
            return None

    def _set(self, channel: str, entry: Entry, *, given: bool = False) -> None:
        """The bucket has this entry, unless it is known to have this one already, or a newer one."""
        before = self._channels.get(channel)
        if before is not None and before.revision >= entry.revision:
            return
        self._channels[channel] = entry
        if self._filling is not None:
            read = self._filling.get(channel)
            if read is None or read.revision < entry.revision:
                self._filling[channel] = entry
        self._changed(channel, before, entry, given=given)

    def _changed(
        self, channel: str, before: Entry | None, entry: Entry, *, given: bool = False, told: bool = True
    ) -> None:
        """Draw conclusions from a new entry."""
        if entry.ended:
            self._tombstones.append((self._clock() + self._tombstone_s, channel, entry.epoch))
        if (epoch := self._mine.get(channel)) is not None:
            match self._verdict(channel, epoch):
                case _Verdict.LOST:
                    self._lose(channel)
                case _Verdict.WRITE:
                    self._unsure[channel] = None
                    self.lease.hold(True)
                    self._kick()
        elif entry.owner.node == self.me.name and not entry.ended and channel not in self._claims:
            given = given and entry.owner.term == self.term and not self._stopping
            if given and self._tell(self._listeners.given, channel, entry.epoch):
                self._mine[channel] = entry.epoch
                self._outbox.pop(channel, None)
            else:
                self._strays[channel] = self._clock()
        if told and (before is None or _where(before) != _where(entry)) and (before is not None or not entry.ended):
            self.counters.moved += 1
            self._tell(self._listeners.moved, channel, None if entry.ended else self._place(entry))

    # Writing.

    def _verdict(self, channel: str, epoch: int) -> _Verdict:
        """What this node has to do about a channel that it owns in this epoch, as the directory has it now."""
        entry = self._channels.get(channel)
        if entry is None or entry.epoch < epoch:
            return _Verdict.WRITE
        if entry.epoch > epoch or entry.owner.node != self.me.name or entry.owner.term > self.term:
            return _Verdict.LOST
        known = not (entry.ended or entry.lost) and entry.owner.term == self.term and channel not in self._moving
        return _Verdict.KEEP if known else _Verdict.WRITE

    def _due(self, channel: str) -> Entry | None:
        """What has to be written of a channel; ``None`` takes it off the lists of those to be written."""
        entry = self._channels.get(channel)
        revision = entry.revision if entry is not None else 0
        if (epoch := self._mine.get(channel)) is not None:
            match self._verdict(channel, epoch):
                case _Verdict.WRITE:
                    return Entry(self._owner(self.me.name, self.term), epoch, revision, False)
                case _Verdict.LOST:
                    self._lose(channel)
        self._unsure.pop(channel, None)
        wanted = self._outbox.get(channel)
        if wanted is None:
            return None
        if entry is None or entry.epoch < wanted.epoch or (entry.lost and entry.epoch == wanted.epoch):
            return Entry(wanted.owner, wanted.epoch, revision, wanted.ended)
        is_same = entry.owner == wanted.owner or entry.owner.node == self.me.name
        if wanted.ended and entry.epoch == wanted.epoch and not entry.ended and is_same and channel not in self._mine:
            return Entry(entry.owner, wanted.epoch, revision, True)
        del self._outbox[channel]
        return None

    async def _settle(self, channel: str) -> None:
        """Write what is due of a channel until nothing is.

        Raises:
            Unreachable: it could not be written.
        """
        for attempt in range(ATTEMPTS):
            await self._pause(attempt)
            if (bucket := self._bucket) is None:
                raise Unreachable(self._trouble)
            if (new := self._due(channel)) is None:
                return
            try:
                await self._write(bucket, channel, new)
            except Conflict:
                await self._refresh(bucket, channel)
            else:
                self._moving.discard(channel)
                self.counters.put_back += 1
        raise Unreachable("others write the same key")

    async def _write(self, bucket: AnyBucket, channel: str, entry: Entry, *, given_by: str = "") -> None:
        """Write a channel's key, if it has the revision of this entry."""
        about: dict[str, object] = {"node": entry.owner.node, "term": entry.owner.term, "epoch": entry.epoch}
        if entry.ended:
            about["ended"] = True
        if given_by:
            about["from"] = given_by
        ttl_s = self._tombstone_s if entry.ended else 0
        revision = await bucket.put(_key(channel), orjson.dumps(about), entry.revision, ttl_s=ttl_s)
        self._set(channel, Entry(entry.owner, entry.epoch, revision, entry.ended))

    async def _refresh(self, bucket: AnyBucket, channel: str) -> None:
        """Ask for a channel's key, since a write met another revision. No epoch that is known here is forgotten."""
        self.counters.conflicts += 1
        known = self._channels.get(channel)
        value, revision = await bucket.get(_key(channel))
        if self._channels.get(channel) is not known:
            return  # the watch was quicker, and this answer may be older
        parsed = self._parse_channel(channel, value, revision)
        found = parsed and parsed[0]
        if known is None:
            nobody = Entry(self._owner("", 0), 0, revision, True)
            self._set(channel, found or nobody)
        elif found is None or found.epoch < known.epoch:
            self._keep(channel, known, revision)
        else:
            known.revision = min(known.revision, revision - 1)
            self._set(channel, found)

    def _kick(self) -> None:
        """Begin to write what is to be written."""
        if self._bucket is None or not self._synced.is_set() or not self.lease.valid or self._stopping:
            return
        is_due = self._unsure or self._outbox or self._meta_found[0] != self._meta
        if is_due and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            if self._meta_found[0] != self._meta and self._bucket is not None:
                await self._restore_meta(self._bucket)
            while batch := list(islice(self._unsure or self._outbox, BATCH)):
                results = await asyncio.gather(*map(self._settle, batch), return_exceptions=True)
                if not self._unsure:
                    self.lease.hold(False)
                if failed := [channel for channel, result in zip(batch, results, strict=True) if result is not None]:
                    for channel in failed:  # others come first the next time
                        if channel in self._unsure:
                            self._unsure[channel] = self._unsure.pop(channel)
                        if channel in self._outbox:
                            self._outbox[channel] = self._outbox.pop(channel)
                    raise next(result for result in results if result is not None)
        except (Conflict, Unreachable) as error:
            self.counters.errors += 1
            logger.debug("not everything could be written, and is tried again: %s", error)

    async def _restore_meta(self, bucket: AnyBucket) -> None:
        """Agree on the secret of the cluster: the oldest one that somebody remembers."""
        for attempt in range(ATTEMPTS):
            await self._pause(attempt)
            found, revision = self._meta_found
            if found is not None and (not self._meta or _age(found) <= _age(self._meta)):
                self._meta = found
            if not self._meta:
                new = secrets.token_hex(8), secrets.token_hex(32), self._wall()
                self._meta = dict(zip(("instance", "secret", "created"), new, strict=True))
            self.secret = str(self._meta["secret"])
            if found == self._meta:
                return
            try:
                self._meta_found = self._meta, await bucket.put("meta", orjson.dumps(self._meta), revision)
            except Conflict:
                self._meta_found = _parse_meta(*await bucket.get("meta"))
        raise Unreachable("others write the same key")

    # Deciding, in detail.

    async def _claim(self, channel: str, at_least_epoch: int) -> Claimed | Taken | Unavailable:
        self.counters.claims += 1
        try:
            async with asyncio.timeout(CLAIM_S):
                result = await self._decide(channel, at_least_epoch)
        except (Unreachable, TimeoutError) as error:
            self.counters.claims_unavailable += 1
            return Unavailable(str(error) or self.degraded or "NATS has not answered in time")
        if isinstance(result, Taken):
            self.counters.claims_taken += 1
        return result

    async def _decide(self, channel: str, at_least_epoch: int) -> Claimed | Taken:
        for attempt in range(ATTEMPTS):
            await self._pause(attempt)
            if not await self.lease.confirmed():
                raise Unreachable(self.degraded)
            if (epoch := self._mine.get(channel)) is not None:
                if await self.confirmed(channel, epoch):
                    return Claimed(epoch)
                continue
            await self._synced.wait()
            await self._caught_up()
            entry = self._channels.get(channel)
            if (
                entry is not None
                and (place := self._place(entry)).reachable
                and place.node != self.me.name
                and not entry.ended
            ):
                return Taken(place)
            await self._settled.wait()
            if (bucket := self._bucket) is None:
                raise Unreachable(self._trouble)
            entry = self._channels.get(channel)
            if entry is not None and not entry.ended and not await self._is_free(bucket, entry):
                return Taken(self._place(entry))
            epoch = max(at_least_epoch, 0 if entry is None else entry.epoch)
            if not self._keeps_epochs or entry is None or entry.ended or entry.epoch < epoch:
                epoch += 1
            revision = 0 if entry is None else entry.revision
            new = Entry(self._owner(self.me.name, self.term), epoch, revision, False)
            try:
                await self._write(bucket, channel, new)
            except Conflict:
                await self._refresh(bucket, channel)
                continue
            if entry is not None and not entry.ended and entry.owner.node != self.me.name:
                self.counters.takeovers += 1
            self._mine[channel] = epoch
            if self._verdict(channel, epoch) is _Verdict.KEEP:
                return Claimed(epoch)
            self._unsure[channel] = None  # this node was deposed meanwhile
            self.lease.hold(True)
        raise Unreachable("others claim the channel at the same time")

    async def _caught_up(self) -> None:
        """Wait until the watch has brought this node's last renewal, and with it all that others wrote before.

        Revisions protect a claim from what this node has not heard of yet; but not if the bucket is lost meanwhile.
        """
        if self.age_s > 1.5 * self.lease.lease_s / RENEWALS:
            self.lease.wanted.set()
            while self.age_s > self.lease.lease_s / RENEWALS:  # noqa: ASYNC110 - an event for each message costs more
                await asyncio.sleep(self.lease.lease_s / 100)

    async def _is_free(self, bucket: AnyBucket, entry: Entry) -> bool:
        """Whether the term that owns a channel is over. A node that was silent for too long is deposed."""
        owner, now = entry.owner, self._clock()
        if owner.node == self.me.name:
            return True  # by a claim whose answer got lost, or before a restart
        node = self.nodes.get(owner.node)
        if node is None:  # a node that nobody has heard of has as long as others to show itself
            node = self.nodes[owner.node] = Node(owner.node, owner.term, seen_at=now)
        if node.term > owner.term or (node.over and node.term == owner.term):
            return True
        if not self._silent(node):
            return False
        key = f"node.{to_token(node.name)}"
        term = max(node.term, owner.term)
        about = {
            "url": node.url,
            "term": term,
            "load": 0,
            "state": DEPOSED,
            "version": node.version,
            "by": self.me.name,
        }
        try:
            revision = await bucket.put(key, orjson.dumps(about), node.revision, ttl_s=FORGET_S)
        except Conflict:
            self._take_node(node.name, *await bucket.get(key))
            return False
        node.term, node.state, node.revision, node.seen_at = term, DEPOSED, revision, now
        self.counters.deposed += 1
        logger.warning(
            "node %r was silent for %.1f s: its term is over, its channels are free", node.name, self.lease.lease_s
        )
        return True

    # Small things.

    def _owner(self, node: str, term: int) -> Owner:
        owner = Owner(node, term)
        return self._owners.setdefault(owner, owner)

    def _place(self, entry: Entry) -> Place:
        node = self.nodes.get(entry.owner.node)
        if node is None:
            return Place(entry.owner.node, "", entry.epoch, False)
        return Place(node.name, node.url, entry.epoch, node.term == entry.owner.term and self.reachable(node.name))

    def _silent(self, node: Node) -> bool:
        return self._clock() - node.seen_at >= max(self.lease.lease_s, node.lease_s)

    def _disown(self, channel: str) -> None:
        del self._mine[channel]
        self._moving.discard(channel)
        self._unsure.pop(channel, None)

    def _lose(self, channel: str) -> None:
        """Somebody else has a channel of this node."""
        epoch, handed_over = self._mine[channel], channel in self._moving
        self._disown(channel)
        if not handed_over:
            self.counters.lost += 1
            self._tell(self._listeners.lost, channel, epoch)

    def _complain(self, name: str, value: bytes | None) -> None:
        self.counters.bad_values += 1
        logger.warning("the bucket has a value for %r that makes no sense: %.200r", name, value)

    def _tell(self, listener: Callable[..., Any], *about: Any) -> Any:
        try:
            return listener(*about)
        except Exception:
            self.counters.errors += 1
            logger.exception("a fault after the directory has changed")

    async def _pause(self, attempt: int) -> None:
        """Before another attempt: the first ones follow soon, and those of several nodes not at the same time."""
        if attempt:
            await asyncio.sleep(self._dice.uniform(0, 0.005 * 2**attempt))

    def _tick(self) -> None:
        """What is due by time; it is called at each renewal, and each time that NATS could not be reached."""
        now = self._clock()
        self._note_state()
        while self._tombstones and (self._tombstones[0][0] <= now or len(self._tombstones) > MAX_TOMBSTONES):
            _, channel, epoch = self._tombstones.popleft()
            entry = self._channels.get(channel)
            if entry is not None and entry.ended and entry.epoch == epoch and channel not in self._outbox:
                del self._channels[channel]
        if self._later and now >= self._later_at:
            missing, self._later = self._later, []
            self._outbox.update((channel, entry) for channel, entry in missing if self._channels.get(channel) is entry)
        self._restoring = bool(self._restoring and (self._later or self._outbox or self._unsure))
        for channel, since in list(self._strays.items()):
            if now - since >= self._stray_s and channel not in self._claims:
                del self._strays[channel]
                entry = self._channels.get(channel)
                if entry is not None and entry.owner.node == self.me.name and channel not in self._mine:
                    self._outbox[channel] = Entry(entry.owner, entry.epoch, 0, True)
        if self._synced.is_set() and not self._settled.is_set():
            late = now - self._settle_at
            others = (node for name, node in self.nodes.items() if name != self.me.name and self.reachable(name))
            restoring = any(node.state == RESTORING for node in others)
            if late >= 0 and (not restoring or late > 10 * self.lease.lease_s):
                self._settled.set()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            self._sweep(now)
        self._kick()

    def _sweep(self, now: float) -> None:
        """The first of the nodes that are alive forgets those that were gone for too long."""
        if not self.lease.valid or self.me.name != min(filter(self.reachable, self.nodes), default=""):
            return
        gone = {name for name, node in self.nodes.items() if not self.reachable(name) and now - node.seen_at > FORGET_S}
        if gone:
            for channel, entry in self._channels.items():
                if entry.owner.node in gone and not entry.ended:
                    self._outbox[channel] = Entry(entry.owner, entry.epoch, 0, True)

    def _note_state(self) -> None:
        """Log each change of the lease's state once."""
        state = self.lease.state
        if state is self._said:
            return
        self._said = state
        if state is LeaseState.LEASED:
            logger.info("the lease of node %r is valid", self.me.name)
        else:
            logger.warning("the lease of node %r is %s: %s", self.me.name, state.value, self.degraded)


def _key(channel: str) -> str:
    return f"channel.{to_token(channel)}"


def _parse(value: bytes) -> dict[str, Any]:
    about = orjson.loads(value)
    if not isinstance(about, dict):
        raise ValueError("it is not an object")
    return about


def _parse_meta(value: bytes | None, revision: int) -> tuple[dict[str, Any] | None, int]:
    about = None
    if value is not None:
        with suppress(ValueError):
            about = _parse(value)
    if about is not None and not (isinstance(about.get("created"), int) and isinstance(about.get("secret"), str)):
        about = None
    return about, revision


def _age(meta: dict[str, Any]) -> tuple[int, str]:
    return meta["created"], str(meta.get("instance"))


def _where(entry: Entry) -> tuple[Owner, int, bool]:
    return entry.owner, entry.epoch, entry.ended
