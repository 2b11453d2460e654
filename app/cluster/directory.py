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
anew. What is missing or has a lower epoch there, it puts back: its own channels at once, those of others after the time
of a lease, since their owners may be gone. Meanwhile nobody claims a channel: a node that has read all keys waits for
the time of a lease (two in a bucket that is new), and until no other one says that it puts something back. A node whose
lease was over when it found the loss may have been deposed before, so it waits for its own channels, too.

**Two parts.** :mod:`~tricklecast.app.cluster.view` knows the content of the bucket and the channels of this node, and
concludes which keys have to be written so that both agree. Here is the conversation with NATS: one session per
connection, which renews the lease, and one task that writes what is due until nothing is. So an operator may delete
keys, an answer may get lost, and NATS may go away, at any time.

Nothing here raises an error of NATS: without NATS all that is known stays, and decisions are :class:`Unavailable`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import orjson

from tricklecast.app.clock import wall_us
from tricklecast.app.cluster.bucket import AnyBucket
from tricklecast.app.cluster.jetstream import Conflict, Unreachable
from tricklecast.app.cluster.lease import LEASE_S, RENEWALS, Lease, LeaseState, answered, boottime
from tricklecast.app.cluster.names import to_token
from tricklecast.app.cluster.view import (
    DEPOSED,
    DRAINING,
    FORGET_S,
    LEFT,
    RESTORING,
    SERVING,
    Counters,
    Entry,
    Listeners,
    Node,
    Place,
    View,
)
from tricklecast.trickle.errors import InvalidInput

logger = logging.getLogger("tricklecast.cluster")

CLAIM_S: Final = 2.0
"""A claim that has not succeeded after this time is refused: its publisher has waited long enough."""

MAX_CLAIMS: Final = 1_000
"""Claims that wait for NATS at once. More are refused, so that a flood of new channels takes bounded memory."""

ATTEMPTS: Final = 8
"""A write that meets another revision is tried again with that one, so often."""

BATCH: Final = 64
"""Channels of which something is written at once."""

STOP_S: Final = 1.0
"""To tell the others that this node leaves. Closing the connection takes 0.5 s more at most."""

BACKOFF_S: Final = (0.05, 0.5)
"""First and longest pause before NATS is tried again, times a random factor of 0.5 to 1."""


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
        servers: those of NATS, as the log names them.

    Attributes:
        lease: of this node. counters: for metrics. view: what is known.
        nodes, channels, place, former, owns, reachable: of the view. ``owns`` is as far as this node knows;
            :meth:`confirmed` is sure of it.
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
        servers: str = "NATS",
    ) -> None:
        self.me = me
        self.lease = Lease(lease_s, clock)
        self.counters = Counters()
        self._claims: dict[str, asyncio.Task[Claimed | Taken | Unavailable]] = {}
        stray_s = FORGET_S if keeps_epochs else lease_s
        self.view = View(me.name, listeners, self.lease, self.counters, clock, tombstone_s, stray_s, self._claims)
        self.nodes, self.channels = self.view.nodes, self.view.channels
        self.place, self.former = self.view.place, self.view.former
        self.owns, self.reachable = self.view.owns, self.view.reachable
        self.replaced: NameInUse | None = None
        self._open, self._clock, self._wall, self._servers = open_bucket, clock, wall, servers
        self._tombstone_s, self._keeps_epochs = tombstone_s, keeps_epochs
        self._dice = dice or random.Random()
        # The connection.
        self._bucket: AnyBucket | None = None
        self._key = f"node.{to_token(me.name)}"
        self._revision = 0  # of this node's key
        self._instance: str | None = None  # of the bucket that was read; None: it has to be read anew
        self._seen = 0  # the last revision that the watch brought
        self._heard_at = clock()  # when the watch last brought something
        self._synced = asyncio.Event()  # all keys of the bucket are known
        self._settled = asyncio.Event()  # and nobody is going to put back channels that this node does not know
        self._settle_at = 0.0
        self._running: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._may_be_deposed = False  # by a node that has still to put back what it has taken
        self._stopping = False
        self._trouble = "there is no connection yet"
        self._said: LeaseState | None = None  # the state of the lease that was logged

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
        self.view.mine.update(owned)
        self.lease.unsure.update(dict.fromkeys(owned))
        self._running = asyncio.create_task(self._run())
        synced = asyncio.create_task(self._synced.wait())
        try:
            await asyncio.wait((self._running, synced), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            synced.cancel()
        if self.replaced is not None:
            raise self.replaced
        return self._synced.is_set()

    async def stop(self) -> None:
        """Leave: others may take this node's channels at once. It takes less than 2 s without NATS, too."""
        self._stopping, self.view.accepts = True, False
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

    # State.

    @property
    def secret(self) -> str:
        """Of the cluster; empty until the bucket was read."""
        return str(self.view.meta.get("secret", ""))

    @property
    def cut_off(self) -> str:
        """Why NATS cannot be asked whether a channel is still this node's; empty if it can."""
        return f"NATS is out of reach: {self._trouble}" if self.lease.state is LeaseState.CUT_OFF else ""

    @property
    def degraded(self) -> str:
        """Why decisions cannot be made at present; empty if they can."""
        if self.replaced is not None:
            return str(self.replaced)
        if self.cut_off:
            return self.cut_off
        if not self._synced.is_set():
            return "the directory is being read"
        if not self._settled.is_set():
            return "other nodes may still put back what the bucket does not hold"
        return "" if self.lease.valid else "this process stood still, and has not renewed its lease since"

    @property
    def informed(self) -> bool:
        """Whether the bucket has been read, so that a channel that is not there was not there a moment ago."""
        return self._synced.is_set()

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
        if channel in self.view.mine and self.lease.fresh:
            return Claimed(self.view.mine[channel])
        if (task := self._claims.get(channel)) is None:
            if self._stopping or self.replaced is not None or len(self._claims) >= MAX_CLAIMS:
                self.counters.claims_unavailable += 1
                why = "this node stops" if self._stopping else self.degraded or "too many claims wait for NATS"
                return Unavailable(why)
            task = self._claims[channel] = asyncio.create_task(self._claim(channel, at_least_epoch))
            task.add_done_callback(lambda _: self._claim_ended(channel))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            return Unavailable("this node stops")

    async def look_up(self, channel: str) -> None:
        """Ask for a channel of which this node has not heard: what the watch brings may be late."""
        with suppress(Unreachable):
            if (bucket := self._bucket) is not None:
                value, revision = await bucket.get(_key(channel))
                if value is not None and channel not in self.channels:
                    self.view.correct(channel, value, revision)

    async def confirmed(self, channel: str, epoch: int) -> bool:
        """Whether a publisher of this epoch may be answered; in doubt NATS is asked, for the time of a lease at most.

        If not, look at :attr:`Lease.state`: while NATS is out of reach a node may decide to go on, degraded.
        """
        if not self.lease.fresh:
            if not await self.lease.confirmed():
                return False
            if channel in self.lease.unsure:
                with suppress(Unreachable, TimeoutError):
                    async with asyncio.timeout(self.lease.lease_s / 2):
                        await self._settle(channel)
            if channel in self.lease.unsure or not self.lease.valid:
                return False
        return self.owns(channel) and self.view.mine[channel] == epoch

    def ended(self, channel: str, epoch: int) -> None:
        """This node's channel has ended: the directory keeps a tombstone of it for a while."""
        if self.view.mine.get(channel) == epoch:
            self.view.disown(channel)
            self.view.ended(channel, self.view.myself, epoch)
            self._kick()

    def left(self, channel: str, epoch: int) -> None:
        """Another node goes on with this node's channel, as its history says; a bucket that was lost may not know."""
        if self.view.mine.get(channel) == epoch:
            self.view.disown(channel)
            self.view.review(channel)

    async def hand_over(self, channel: str, epoch: int, to: str) -> bool | Unavailable:
        """Give a channel to another node, which goes on in the same epoch. From the call on this node owns it no more.

        Returns:
            Whether the other node has it. If not, it is this node's again, or a third one's (:meth:`owns`). If nobody
            knows yet (:class:`Unavailable`), it may be this node's again once NATS has answered.
        """
        view, target, bucket = self.view, self.nodes.get(to), self._bucket
        if view.mine.get(channel) != epoch or target is None or target.state != SERVING or not self.reachable(to):
            return False
        if bucket is None or not self.lease.fresh:
            return Unavailable(self.degraded or "the lease is in doubt")
        view.moving.add(channel)
        try:
            new = Entry(view.owner(to, target.term), epoch, view.revision(channel), False)
            await self._write(bucket, channel, new, given_by=self.me.name)
        except (Conflict, Unreachable) as error:
            # The write may still arrive. A write of our own over it decides which of the two was first.
            view.review(channel)
            with suppress(Unreachable, TimeoutError):
                async with asyncio.timeout(CLAIM_S):
                    await self._settle(channel)
            if channel in self.lease.unsure:
                return Unavailable(str(error))
        return channel not in view.mine

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
                logger.error("%s", error)
                self.replaced = error
                self.lease.lost()
                for channel in list(self.view.mine):
                    self.view.lose(channel)
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
        self._bucket = bucket = await self._open()
        self.counters.connections += 1
        reading: asyncio.Task[None] | None = None
        try:
            if not self.view.term:
                await self._register(bucket)
            await self._renew(bucket)
            reading = self._begin_to_read(bucket)
            while True:
                self._tick()
                if self._stopping:
                    return await self._leave(bucket)
                await self._until_renewal(bucket, reading)
                if reading.done():
                    reading.result()
                if bucket.closed.done():
                    raise Unreachable(bucket.closed.result())
                if not self._stopping and await self._renew(bucket):
                    reading.cancel()
                    reading = self._begin_to_read(bucket)
                elif reading.done() and self.age_s > self.lease.lease_s:  # it should have brought four renewals
                    raise Unreachable("the watch brings nothing")
        finally:
            self._bucket = None
            self.lease.cut_off()
            for task in (reading, self._writing):
                if task is not None:
                    task.cancel()
            await bucket.close()

    async def _until_renewal(self, bucket: AnyBucket, reading: asyncio.Task[None]) -> None:
        wanted = asyncio.ensure_future(self.lease.wanted.wait())
        first: set[asyncio.Future[Any]] = {wanted, bucket.closed}
        if not reading.done():
            first.add(reading)
        await asyncio.wait(first, timeout=self.lease.lease_s / RENEWALS, return_when=asyncio.FIRST_COMPLETED)
        wanted.cancel()

    async def _register(self, bucket: AnyBucket) -> None:
        """Take this node's name. A process that has it and may be alive is given the time of a lease to show it."""
        patience, last = 2, 0  # one change may be what a process that is dead had sent before
        while True:
            value, self._revision = await bucket.get(self._key)
            before = self.view.parse_node(self.me.name, value, self._revision)
            if before is None or before.over or self._revision == last:
                break
            if not patience:
                raise NameInUse(self.me.name, before.url)
            patience, last = patience - 1, self._revision
            await asyncio.sleep(max(self.lease.lease_s, before.lease_s))
        self._new_term(before)
        try:
            await self._put_node(bucket)
        except BaseException:
            self.view.term = 0  # somebody else may have been first: look again
            raise

    def _new_term(self, before: Node | None) -> None:
        # By the wall clock, so that a term is new although the bucket has forgotten the last one.
        self.view.term = max(self.view.term + 1, 1 if before is None else before.term + 1, self._wall() // 1000)
        logger.info("this is node %r of the cluster, in term %d", self.me.name, self.view.term)

    async def _renew(self, bucket: AnyBucket) -> bool:
        """Renew the lease. A node whose key is not as it has written it takes a new term.

        Returns:
            Whether that has happened, so all keys have to be read anew.

        Raises:
            Unreachable: there is no answer.
            NameInUse: another process has taken this node's name.
        """
        is_new = False
        for _ in range(ATTEMPTS):
            sent_at, was_valid = self._clock(), self.lease.valid
            writing = asyncio.ensure_future(self._put_node(bucket))
            try:
                if not await answered(writing, self.lease.lease_s / 2):
                    raise Unreachable("a renewal of the lease has no answer")
                writing.result()
            except Conflict:
                is_new |= await self._is_over(bucket)
                continue
            except Unreachable:
                self.counters.renewals_failed += 1
                raise
            finally:
                writing.cancel()
            self.counters.renewals += 1
            self._trouble = ""
            if not was_valid:
                self.view.was_away()
            self.lease.renewed(sent_at)
            return is_new
        raise Unreachable("a renewal met another revision each time")

    async def _is_over(self, bucket: AnyBucket) -> bool:
        """This node's key is not as it has written it: find out what its next write replaces, and whether its term is
        over. Then it takes a new one.
        """
        value, revision = await bucket.get(self._key)
        found = self.view.parse_node(self.me.name, value, revision)
        known, self._revision = self._revision, revision
        if found is not None and found.term > self.view.term:
            raise NameInUse(self.me.name, found.url)
        is_deposed = found is not None and found.term == self.view.term and found.over
        if found is not None and found.term == self.view.term and not is_deposed and revision > known:
            return False  # a renewal of this node that had no answer
        self.counters.terms_lost += 1
        why = "another node has ended its term, since it was silent" if is_deposed else "the bucket has lost its key"
        logger.warning("%s: this node takes a new term, and reads all keys anew", why)
        # It may have been deposed before that was forgotten, unless its lease is valid to this moment.
        self._may_be_deposed |= not (is_deposed or self.lease.valid)
        self.lease.lost()
        self.lease.unsure.update(dict.fromkeys(self.view.mine))
        self._instance = None
        self._synced.clear()
        self._settled.clear()
        self._new_term(found)
        return True

    async def _put_node(self, bucket: AnyBucket, state: str = "") -> None:
        """Write this node's key."""
        me, is_restoring = self.me, self.view.restoring or not self._synced.is_set()
        is_restoring |= bool(self.lease.unsure) and not self._may_be_deposed
        state = state or (RESTORING if is_restoring else DRAINING if me.draining else SERVING)
        about = {"url": me.url, "term": self.view.term, "load": me.load, "state": state, "version": me.version}
        about["lease"] = self.lease.lease_s
        ttl_s = FORGET_S if state == LEFT else 0
        self._revision = await bucket.put(self._key, orjson.dumps(about), self._revision, ttl_s=ttl_s)

    async def _leave(self, bucket: AnyBucket) -> None:
        with suppress(Conflict, Unreachable, TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._write_all()
                await self._put_node(bucket, LEFT)

    # Reading.

    def _begin_to_read(self, bucket: AnyBucket) -> asyncio.Task[None]:
        reading = asyncio.create_task(self._read(bucket))
        # When it is cancelled, it may fail instead, since its connection has ended: nobody asks why.
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return reading

    async def _read(self, bucket: AnyBucket) -> None:
        """Read all keys, or those that have changed since; then hear of every change."""
        done = asyncio.Event()
        after = self._seen if self._instance == bucket.instance else None
        if after is None:
            self._synced.clear()
            self._instance, self._seen = None, 0
            self.view.begin()

        def read() -> None:
            self._heard_at = self._clock()
            if after is None:
                is_new = not self.view.meta_revision or bucket.young_s < 2 * self.lease.lease_s
                self.view.end()
                is_lost = is_new or self.view.restoring or self._may_be_deposed
                self._settle_at = self._heard_at + (2 if is_lost else 1) * self.lease.lease_s
                self._settled.clear()
            done.set()

        await bucket.watch(after, self._take, read)
        await done.wait()
        await self._agree()
        self._instance = bucket.instance
        self._synced.set()
        logger.info("the directory has %d channels and %d nodes", len(self.channels), len(self.nodes))

    def _take(self, key: str, value: bytes | None, revision: int) -> None:
        """A key that the watch brings."""
        self._seen, self._heard_at = revision, self._clock()
        self.counters.updates += 1
        self.view.take(key, value, revision)
        if self.lease.unsure or key == "meta":
            self._kick()

    # Writing.

    async def _attempt(self, number: int) -> AnyBucket:
        """The bucket, for this attempt. The first ones follow soon, and those of several nodes not at the same time."""
        if number:
            await asyncio.sleep(self._dice.uniform(0, 0.005 * 2**number))
        if self._bucket is None:
            raise Unreachable(self._trouble)
        return self._bucket

    async def _write(self, bucket: AnyBucket, channel: str, entry: Entry, *, given_by: str = "") -> None:
        """Write a channel's key, if it has the revision of this entry."""
        about: dict[str, object] = {"node": entry.owner.node, "term": entry.owner.term, "epoch": entry.epoch}
        if entry.ended:
            about["ended"] = True
        if given_by:
            about["from"] = given_by
        ttl_s = self._tombstone_s if entry.ended else 0
        revision = await bucket.put(_key(channel), orjson.dumps(about), entry.revision, ttl_s=ttl_s)
        self.view.wrote(channel, entry, revision)

    async def _refresh(self, bucket: AnyBucket, channel: str, tried: int) -> None:
        """A write has met another revision than this one: ask for the right one, unless the watch was quicker."""
        value, revision = await bucket.get(_key(channel))
        if self.view.revision(channel) == tried:
            self.view.correct(channel, value, revision)

    async def _settle(self, channel: str) -> None:
        """Write what is due of a channel until nothing is.

        Raises:
            Unreachable: it could not be written.
        """
        if self._may_be_deposed and channel in self.view.mine:
            await self._settled.wait()
        for attempt in range(ATTEMPTS):
            bucket = await self._attempt(attempt)
            if (entry := self.view.wanted(channel)) is None:
                self.view.review(channel)
                return
            try:
                await self._write(bucket, channel, entry)
                self.counters.put_back += 1
            except Conflict:
                await self._refresh(bucket, channel, entry.revision)
        raise Unreachable("others write the same key")

    def _kick(self) -> None:
        """Write what is due, unless that is being done."""
        may_write = self._bucket is not None and self._synced.is_set() and self.lease.valid and not self._stopping
        if may_write and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._write_all())

    async def _write_all(self) -> None:
        """Write until nothing is due. After a failure the rest waits for the next renewal."""
        try:
            await self._agree()
            while due := list(islice(self.view.ready(own=not self._may_be_deposed), BATCH)):
                await asyncio.gather(*map(self._settle, due))
        except Unreachable as error:
            self.counters.errors += 1
            logger.debug("not everything could be written: %s", error)

    async def _agree(self) -> None:
        """Have one secret with all other nodes.

        Raises:
            Unreachable: it could not be written.
        """
        for attempt in range(ATTEMPTS):
            bucket = await self._attempt(attempt)
            if (meta := self.view.meta_wanted(self._wall())) is None:
                return
            value = orjson.dumps(meta)
            try:
                self.view.take("meta", value, await bucket.put("meta", value, self.view.meta_revision))
            except Conflict:
                self.view.take("meta", *await bucket.get("meta"))
        raise Unreachable("others write the same key")

    # Deciding, in detail.

    async def _claim(self, channel: str, at_least_epoch: int) -> Claimed | Taken | Unavailable:
        self.counters.claims += 1
        try:
            async with asyncio.timeout(CLAIM_S):
                return await self._decide(channel, at_least_epoch)
        except (Unreachable, TimeoutError) as error:
            self.counters.claims_unavailable += 1
            return Unavailable(str(error) or self.degraded or "NATS has not answered in time")

    def _claim_ended(self, channel: str) -> None:
        del self._claims[channel]
        self.view.review(channel)  # its write may have arrived although it has failed

    async def _decide(self, channel: str, at_least_epoch: int) -> Claimed | Taken:
        view, me = self.view, self.me.name
        for attempt in range(ATTEMPTS):
            await self._attempt(attempt)
            if not await self.lease.confirmed():
                raise Unreachable(self.degraded)
            if (epoch := view.mine.get(channel)) is not None:
                if await self.confirmed(channel, epoch):
                    return Claimed(epoch)
                continue
            await self._synced.wait()
            await self._caught_up()
            if (place := view.place(channel)) is not None and place.reachable and place.node != me:
                return Taken(place)
            await self._settled.wait()
            bucket = await self._attempt(0)
            entry = self.channels.get(channel)
            is_live = entry is not None and not entry.ended
            if entry is not None and is_live and not await self._is_free(bucket, entry):
                return Taken(view.place_of(entry))
            if self.channels.get(channel) is not entry:
                continue  # another node was faster
            # Both of one entry: behind the revision of a later one, its epoch would have two owners.
            revision, last = (0, 0) if entry is None else (entry.revision, entry.epoch)
            goes_on = self._keeps_epochs and is_live and last >= at_least_epoch
            epoch = last if goes_on else max(last, at_least_epoch) + 1
            try:
                await self._write(bucket, channel, Entry(view.myself, epoch, revision, False))
            except Conflict:
                await self._refresh(bucket, channel, revision)
                continue
            if entry is not None and is_live and entry.owner.node != me:
                self.counters.takeovers += 1
            view.mine[channel] = epoch
            view.review(channel)
            if view.mine.get(channel) == epoch and channel not in self.lease.unsure:
                return Claimed(epoch)
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
        view, (name, term) = self.view, entry.owner
        if name == self.me.name:
            return True  # by a claim whose answer got lost, or before a restart
        # A node that nobody has heard of has as long as others to show itself.
        node = view.nodes.setdefault(name, Node(name, term, seen_at=self._clock()))
        if node.term > term or (node.over and node.term == term):
            return True
        if not view.silent(node):
            return False
        key, told = f"node.{to_token(name)}", {"url": node.url, "version": node.version, "by": self.me.name}
        value = orjson.dumps({"term": max(node.term, term), "load": 0, "state": DEPOSED, **told})
        try:
            view.take(key, value, await bucket.put(key, value, node.revision, ttl_s=FORGET_S))
        except Conflict:
            view.take(key, *await bucket.get(key))
            return False
        self.counters.deposed += 1
        logger.warning("node %r was silent for %.1f s: its channels are free", name, self.lease.lease_s)
        return True

    # Time.

    def _tick(self) -> None:
        """Do what is due by time; it is called at each renewal, and each time that NATS could not be reached."""
        state, now = self.lease.state, self._clock()
        if state is not self._said:
            name = self.me.name
            if state is not LeaseState.LEASED:
                tries = f"; this node goes on asking {self._servers}" if self.cut_off else ""
                logger.warning("the lease of node %r is %s: %s%s", name, state.value, self.degraded, tries)
            elif self._said is not None:  # those who have read the warning wait for this
                logger.warning("node %r has renewed its lease: all is well again", name)
            self._said = state
        self.view.tick()
        if self._synced.is_set() and not self._settled.is_set() and now >= self._settle_at:
            others = (node for name, node in self.nodes.items() if name != self.me.name and self.reachable(name))
            is_late = now - self._settle_at > 10 * self.lease.lease_s
            if is_late or not any(node.state == RESTORING for node in others):
                self._may_be_deposed = False
                self._settled.set()
        self._kick()


def _key(channel: str) -> str:
    return f"channel.{to_token(channel)}"
