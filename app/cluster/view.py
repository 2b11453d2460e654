"""A node's view of the cluster: what the bucket says, what the node owns, and what it has to write where they differ.

There is no I/O here: :class:`~tricklecast.app.cluster.directory.Directory` brings the keys of the bucket, and writes
what is due.

**What the bucket says** is in :attr:`View.nodes` and :attr:`View.channels`, one object per key, with its revision. When
a key vanishes, or is put back to a lower epoch, its entry stays here, and is *missing* in the bucket. While the bucket
is read anew (:meth:`View.begin`) all entries are missing, until it has shown them.

**What this node owns** is in :attr:`View.mine`: channels that it has claimed and not ended. An entry with a higher
epoch, or with another owner, takes a channel away. Any other difference is the bucket's fault.

**What is due** is one rule, :meth:`View.wanted`: the entry that the bucket should have instead of the one it has.

- A channel of this node: its entry, at once. Until it is written the node is unsure of the channel, and its lease is
  not fresh.
- A missing entry: the same again, after the time of a lease, if its owner has not done it before. The owner may be
  gone, and its epoch must not be forgotten.
- An entry that names this node, although it does not own the channel: a tombstone, after the time of a lease. The
  answer to a claim got lost, or this node has had the channel before a restart.
- A channel that this node has ended: a tombstone. It is a missing entry from the beginning, and due at once.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import orjson

from tricklecast.app.cluster.lease import Lease
from tricklecast.app.cluster.names import to_name

logger = logging.getLogger("tricklecast.cluster")

T = TypeVar("T")

MAX_TOMBSTONES: Final = 100_000
"""Ended channels that this node knows at a time, 0.25 kB each. The bucket has the others, and tells who claims one."""

FORGET_S: Final = 3600.0
"""A node that was gone for this time is forgotten, and its channels count as ended."""

SWEEP_S: Final = 60.0
"""How often one of the nodes looks for such nodes."""

SERVING: Final = "serving"
RESTORING: Final = "restoring"  # it reads the bucket, or puts back what a lost bucket does not hold any more
DRAINING: Final = "draining"
LEFT: Final = "left"  # it was stopped: nobody has to wait for its lease
DEPOSED: Final = "deposed"  # another node has ended its term


@dataclass(slots=True)
class Node:
    """A node as this one sees it.

    Attributes:
        name, url, term, load, state, version: as it told. revision: of its key; 0: the bucket has none.
        seen_at: when its key last changed, on this node's clock; it counts only while this node has a lease itself.
        lease_s: how long it trusts its lease, if that is longer than this node's.
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
        missing: whether the bucket has an older entry instead, or none.
    """

    __slots__ = ("ended", "epoch", "missing", "owner", "revision")

    def __init__(self, owner: Owner, epoch: int, revision: int, ended: bool, missing: bool = False) -> None:
        self.owner, self.epoch, self.revision, self.ended, self.missing = owner, epoch, revision, ended, missing

    def says(self, owner: Owner, epoch: int) -> bool:
        """Whether the bucket says that the channel has this owner, in this epoch."""
        return (self.owner, self.epoch, self.ended, self.missing) == (owner, epoch, False, False)

    def outranks(self, other: Entry) -> bool:
        """Whether this is the later one of two entries whose revisions tell nothing."""
        if self.epoch != other.epoch:
            return self.epoch > other.epoch
        return self.ended and not other.ended and self.owner.node == other.owner.node


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
    """Counts events since the start, for metrics: ``takeovers`` is the number of channels taken from lost nodes."""

    connections: int = 0
    errors: int = 0
    updates: int = 0
    bad_values: int = 0
    renewals: int = 0
    renewals_failed: int = 0
    terms_lost: int = 0
    deposed: int = 0
    claims: int = 0
    claims_unavailable: int = 0
    takeovers: int = 0
    moved: int = 0
    lost: int = 0
    put_back: int = 0


class View:
    """See the module's text.

    Args:
        me: the name of this node. lease: of this node.
        tombstone_s: how long the epoch of a channel that has ended is remembered.
        stray_s: after this time an entry is ended that names this node, although it does not own the channel.
        clock: the time in seconds. claiming: the channels that this node claims at present.

    Attributes:
        term: of this node; 0 until it is registered. nodes, channels: by name.
        mine: the epochs of the channels that this node owns.
        moving: those of them that are being handed over: the bucket may already say so.
        due: the other channels of which something has to be written, and from when on.
        meta: the secret of the cluster, and when it was made. meta_revision: of the key in the bucket.
        reading: whether the bucket is being read anew.
        restoring: whether it was lost, and others have to wait until this node has put back what it knows.
        accepts: whether this node takes channels that others hand over.
        watchers: called with ``added`` or ``removed``, and the name of a channel that has come or gone in the cluster.
    """

    def __init__(
        self,
        me: str,
        listeners: Listeners,
        lease: Lease,
        counters: Counters,
        clock: Callable[[], float],
        tombstone_s: float,
        stray_s: float,
        claiming: Container[str] = (),
    ) -> None:
        self.term = 0
        self.nodes: dict[str, Node] = {}
        self.channels: dict[str, Entry] = {}
        self.mine: dict[str, int] = {}
        self.moving: set[str] = set()
        self.due: dict[str, float] = {}
        self.meta: dict[str, Any] = {}
        self.meta_revision = 0
        self.reading = self.restoring = False
        self.accepts = True
        self.watchers: list[Callable[[str, str], object]] = []
        self._me, self._listeners, self._lease, self._counters, self._clock = me, listeners, lease, counters, clock
        self._tombstone_s, self._stray_s, self._claiming = tombstone_s, stray_s, claiming
        self._found: dict[str, Any] | None = None  # what the bucket has as meta
        self._owners: dict[Owner, Owner] = {}
        self._tombstones: deque[tuple[float, str, int]] = deque()  # when to forget it, name, epoch
        self._sweep_at = clock() + SWEEP_S

    # Looking up.

    def place(self, channel: str) -> Place | None:
        """Where a channel is; ``None`` if there is none of this name, or it has ended."""
        entry = self.channels.get(channel)
        return None if entry is None or entry.ended else self.place_of(entry)

    def former(self, channel: str) -> Place | None:
        """Where a channel was that has ended, as long as that is remembered."""
        entry = self.channels.get(channel)
        return self.place_of(entry) if entry is not None and entry.ended else None

    def place_of(self, entry: Entry) -> Place:
        """Where its owner is."""
        name, term = entry.owner
        node = self.nodes.get(name)
        if node is None:
            return Place(name, "", entry.epoch, False)
        return Place(name, node.url, entry.epoch, node.term == term and self.reachable(name))

    def revision(self, channel: str) -> int:
        """Of its key, as far as it is known."""
        entry = self.channels.get(channel)
        return 0 if entry is None else entry.revision

    def owns(self, channel: str) -> bool:
        """Whether this node owns a channel, as far as it knows."""
        return channel in self.mine and channel not in self.moving

    def reachable(self, name: str) -> bool:
        """Whether a node has renewed its lease, as far as this node knows. Without NATS all is as it was."""
        node = self.nodes.get(name)
        if node is None or node.over or not node.url:
            return False
        return name == self._me or not self._lease.valid or not self.silent(node)

    def silent(self, node: Node) -> bool:
        """Whether nothing was heard of a node for the time of a lease."""
        return self._clock() - node.seen_at >= max(self._lease.lease_s, node.lease_s)

    def owner(self, node: str, term: int) -> Owner:
        """The object that stands for this term."""
        owner = Owner(node, term)
        return self._owners.setdefault(owner, owner)

    @property
    def myself(self) -> Owner:
        """This term of this node."""
        return self.owner(self._me, self.term)

    # What the bucket says.

    def take(self, key: str, value: bytes | None, revision: int) -> None:
        """A key has this value now; ``None``: it was deleted. A value that makes no sense counts as deleted."""
        kind, _, token = key.partition(".")
        try:
            name = to_name(token) if token else ""
        except ValueError:
            self._complain(key, value)
            return
        if kind == "channel":
            self._take_channel(name, value, revision)
        elif kind == "node":
            known, node = self.nodes.get(name), self.parse_node(name, value, revision)
            if known is None or known.revision < revision:
                if node is not None:
                    self.nodes[name] = node
                elif known is not None:
                    known.revision = revision
        elif key == "meta":
            self._found, self.meta_revision = self._parse(key, value, _meta), revision

    def begin(self) -> None:
        """The bucket is read anew: nothing is known to be in it."""
        self.reading = True
        self._found, self.meta_revision = None, 0
        for entry in self.channels.values():
            entry.revision, entry.missing = 0, True
        for node in self.nodes.values():
            node.revision = 0

    def end(self) -> None:
        """All of the bucket was read. What it has not, or has older, is to be put back."""
        self.reading = False
        missing = [channel for channel, entry in self.channels.items() if entry.missing]
        for channel in (*missing, *self.mine):
            self.review(channel)
        self.restoring = self._lacks_something()
        if missing:
            logger.warning("%d channels are not in the bucket as they were: they are put back", len(missing))

    def accept(self, channel: str, entry: Entry, *, given: bool = False) -> None:
        """The bucket has this entry of a channel.

        Args:
            given: another node has handed the channel over to the owner.
        """
        known = self.channels.get(channel)
        if known is not None and entry.revision <= known.revision:
            return
        if known is not None and known.missing and known.outranks(entry):
            known.revision = entry.revision
            self.review(channel)
            return
        self.channels[channel] = entry
        if entry.ended:
            self._tombstones.append((self._clock() + self._tombstone_s, channel, entry.epoch))
        is_free = not entry.ended and self.accepts and channel not in self.mine and channel not in self._claiming
        if given and is_free and entry.owner == self.myself and self._tell(self._listeners.given, channel, entry.epoch):
            self.mine[channel] = entry.epoch
        self.review(channel)
        self._moved(channel, known, entry)

    def correct(self, channel: str, value: bytes | None, revision: int) -> None:
        """A write has met another revision than the one that is known: this is what the bucket has."""
        known = self.channels.setdefault(channel, Entry(self.owner("", 0), 0, 0, True))
        known.revision, known.missing = -1, True
        self._take_channel(channel, value, revision)

    def parse_node(self, name: str, value: bytes | None, revision: int) -> Node | None:
        """The node of which a key tells; ``None``: of none."""

        def node(about: Any) -> Node:
            url, state, version = (str(about.get(key, "")) for key in ("url", "state", "version"))
            load, lease_s, now = float(about.get("load", 0)), float(about.get("lease", 0)), self._clock()
            return Node(name, int(about["term"]), url, load, state, version, revision, now, lease_s)

        return self._parse(name, value, node)

    def _take_channel(self, channel: str, value: bytes | None, revision: int) -> None:
        def parse(about: Any) -> tuple[Entry, bool]:
            owner = self.owner(str(about["node"]), int(about["term"]))
            return Entry(owner, int(about["epoch"]), revision, bool(about.get("ended"))), "from" in about

        if (parsed := self._parse(channel, value, parse)) is not None:
            self.accept(channel, parsed[0], given=parsed[1])
        elif (known := self.channels.get(channel)) is not None and known.revision < revision:
            known.revision, known.missing = revision, True
            self.review(channel)

    def _parse(self, key: str, value: bytes | None, parse: Callable[[Any], T]) -> T | None:
        if value is not None:
            try:
                return parse(orjson.loads(value))
            except (ValueError, KeyError, TypeError, AttributeError):
                self._complain(key, value)
        return None

    def _complain(self, key: str, value: bytes | None) -> None:
        self._counters.bad_values += 1
        logger.warning("the bucket has a value for %r that makes no sense: %.200r", key, value)

    # What is due.

    def wanted(self, channel: str) -> Entry | None:
        """The entry that the bucket should have instead of the one it has; ``None``: it is right."""
        entry, epoch, me = self.channels.get(channel), self.mine.get(channel), self.myself
        if epoch is not None:
            is_right = entry is not None and entry.says(me, epoch) and channel not in self.moving
            return None if is_right or self._is_lost(entry, epoch) else Entry(me, epoch, self.revision(channel), False)
        if entry is None or not entry.epoch:
            return None
        if entry.missing:
            return entry
        is_stray = entry.owner.node == self._me and not entry.ended and channel not in self._claiming
        return Entry(entry.owner, entry.epoch, entry.revision, True) if is_stray else None

    def review(self, channel: str) -> None:
        """Find out whether a channel of this node is lost, and whether something is due. Call it after each change."""
        entry, epoch = self.channels.get(channel), self.mine.get(channel)
        if self.reading and (entry is None or entry.missing):
            return
        if epoch is not None and self._is_lost(entry, epoch):
            self.lose(channel)
        is_mine, wanted = channel in self.mine, self.wanted(channel)
        if wanted is not None and is_mine:
            self._lease.unsure[channel] = None
        else:
            self._lease.unsure.pop(channel, None)
        if wanted is not None and not is_mine:
            self.due.setdefault(channel, self._clock() + (self._lease.lease_s if wanted is entry else self._stray_s))
        else:
            self.due.pop(channel, None)

    def ready(self, own: bool = True) -> Iterator[str]:
        """The channels of which something is to be written now; those of this node first, or not at all."""
        now = self._clock()
        yield from self._lease.unsure if own else ()
        yield from (channel for channel, at in self.due.items() if at <= now)

    def wrote(self, channel: str, entry: Entry, revision: int) -> None:
        """This entry was written."""
        if entry.owner == self.myself:
            self.moving.discard(channel)
        self.accept(channel, Entry(entry.owner, entry.epoch, revision, entry.ended))

    def ended(self, channel: str, owner: Owner, epoch: int) -> None:
        """An epoch has ended, and the bucket has to be told so."""
        known = self.channels.get(channel)
        entry = Entry(owner, epoch, self.revision(channel), True, missing=True)
        self.channels[channel] = entry
        self.due[channel] = self._clock()
        self._moved(channel, known, entry)

    def disown(self, channel: str) -> None:
        """A channel is not this node's any more."""
        del self.mine[channel]
        self.moving.discard(channel)
        self._lease.unsure.pop(channel, None)

    def lose(self, channel: str) -> None:
        """Somebody else has a channel of this node."""
        epoch, is_handed_over = self.mine[channel], channel in self.moving
        self.disown(channel)
        if not is_handed_over:
            self._counters.lost += 1
            self._tell(self._listeners.lost, channel, epoch)

    def meta_wanted(self, now_us: int) -> dict[str, Any] | None:
        """Agree with the bucket on the secret: the oldest one counts. Returns the value to write, or ``None``."""
        if self._found is not None and (not self.meta or _age(self._found) < _age(self.meta)):
            self.meta = self._found
        if not self.meta:
            self.meta = {"secret": secrets.token_hex(32), "created": now_us}
        return None if self._found == self.meta else self.meta

    def _is_lost(self, entry: Entry | None, epoch: int) -> bool:
        """Whether an entry takes a channel away that this node owns in this epoch."""
        if entry is None or entry.epoch != epoch:
            return entry is not None and entry.epoch > epoch
        return entry.owner.node != self._me or entry.owner.term > self.term

    def _lacks_something(self) -> bool:
        return any(self.channels[channel].missing for channel in self.due)

    # Time.

    def tick(self) -> None:
        """Call it a few times in the time of a lease."""
        now, tombstones = self._clock(), self._tombstones
        while tombstones and (tombstones[0][0] <= now or len(tombstones) > MAX_TOMBSTONES):
            _, channel, epoch = tombstones.popleft()
            entry = self.channels.get(channel)
            if entry is not None and entry.ended and entry.epoch == epoch and channel not in self.due:
                del self.channels[channel]
        self.restoring = self.restoring and self._lacks_something()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            self._sweep(now)

    def was_away(self) -> None:
        """This node had no lease: others could not renew theirs, perhaps, or it has not heard of it."""
        for node in self.nodes.values():
            node.seen_at = self._clock()

    def _sweep(self, now: float) -> None:
        """The first of the nodes that are alive forgets those that were gone for too long."""
        if not self._lease.valid or self._me != min(filter(self.reachable, self.nodes), default=""):
            return
        gone = {name for name, node in self.nodes.items() if not self.reachable(name) and now - node.seen_at > FORGET_S}
        for channel, entry in list(self.channels.items()) if gone else ():
            if entry.owner.node in gone and not entry.ended:
                self.ended(channel, entry.owner, entry.epoch)

    # Telling.

    def _moved(self, channel: str, known: Entry | None, entry: Entry) -> None:
        if known is None:
            is_news = not (entry.ended or self.reading)
        else:
            is_news = (known.owner, known.epoch, known.ended) != (entry.owner, entry.epoch, entry.ended)
        if is_news:
            self._counters.moved += 1
            self._tell(self._listeners.moved, channel, None if entry.ended else self.place_of(entry))
            if (known is None or known.ended) != entry.ended:
                for watcher in self.watchers:
                    self._tell(watcher, "removed" if entry.ended else "added", channel)

    def _tell(self, listener: Callable[..., Any], *about: Any) -> Any:
        try:
            return listener(*about)
        except Exception:
            self._counters.errors += 1
            logger.exception("a fault after the directory has changed")


def _meta(about: Any) -> dict[str, Any]:
    return {"secret": str(about["secret"]), "created": int(about["created"])}


def _age(meta: dict[str, Any]) -> tuple[int, str]:
    return meta["created"], meta["secret"]
