"""The limits of the core: what may be held and for how long, what all clients share, and what one client may take."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Final, NamedTuple

MiB = 1 << 20
GiB = 1 << 30


class Limit(StrEnum):
    """A limit that refuses requests. The value is the name of the setting, without its ``max_``."""

    READERS = "readers"
    PUBLISHERS = "publishers"
    CHANNELS = "channels"
    CONNECTIONS = "connections"
    TOTAL_BYTES = "total_bytes"
    CHANNEL_READERS = "readers_per_channel"
    CHANNEL_BYTES = "channel_bytes"
    PUBLISHER_BYTES = "publisher_bytes"
    CLIENT_EXCHANGES = "per_ip_limit"
    CLIENT_CONNECTIONS = "per_ip_connections"
    CLIENT_REQUESTS = "per_ip_requests_per_s"


SERVER_WIDE: Final = frozenset({Limit.READERS, Limit.PUBLISHERS, Limit.CHANNELS, Limit.CONNECTIONS, Limit.TOTAL_BYTES})
"""Limits that all clients share: another server may have room. The others belong to one channel or one client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of what a server holds, and for how long. Bytes, counts and seconds; ``None``: no limit.

    Attributes:
        segment_bytes: body bytes of one segment.
        window_segments, window_bytes, window_age_s: closed segments kept per channel for catching up; the smallest
            of the three limits decides, and the newest closed segment is kept in any case.
        total_bytes: memory of all segments of all channels, overhead included (``Segment.cost``).
        channel_bytes, publisher_bytes: memory of the segments that are being written, of one channel and of one
            publisher: they cannot be evicted.
        channels: channels at a time, ended ones in their drain included.
        readers: readers at a time, waiting ones included; readers_per_channel: of one channel.
        publishers: publishing requests at a time, preconnects included: a publisher has two.
        connections: connections at a time.
        client_exchanges, client_connections: of one client address at a time.
        client_requests_per_s, client_burst: how many requests a client address may make per second in the long run, and
            how many at once.
        clients: client addresses that the server tells apart.
        publisher_grace_s: how long a segment whose publisher disconnected stays open for it to resume.
        skip_grace_s: how long a preconnected writer that was overtaken by a later seq may still begin.
        overtaking_segments: how far beyond the head a POST may lie that has only overtaken others, as happens when
            a client sends without waiting for answers; one that falls silent for 0.1 s at 500 segments/s needs 50.
        overtaking_grace_s: how long an overtaken POST may take to arrive.
        first_byte_timeout_s: how long a preconnect may wait for its first byte.
        channel_drain_s: how long an ended channel's segments stay readable.
        idle_timeout_s: a channel to which nothing was published for so long ends.
        tombstone_s, tombstones: how long, and of how many channels, the server remembers that they have ended.
    """

    segment_bytes: int = 64 * MiB
    window_segments: int = 256
    window_bytes: int = 64 * MiB
    window_age_s: float = 60.0
    total_bytes: int = GiB
    channel_bytes: int | None = None
    publisher_bytes: int | None = None
    channels: int = 10_000
    readers: int = 50_000
    readers_per_channel: int | None = None
    publishers: int | None = 20_000
    connections: int | None = 80_000
    client_exchanges: int | None = None
    client_connections: int | None = None
    client_requests_per_s: float | None = None
    client_burst: int = 50
    clients: int = 100_000
    publisher_grace_s: float = 5.0
    skip_grace_s: float = 2.0
    overtaking_segments: int = 64
    overtaking_grace_s: float = 0.2
    first_byte_timeout_s: float | None = None
    channel_drain_s: float = 10.0
    idle_timeout_s: float = 300.0
    tombstone_s: float = 300.0
    tombstones: int = 10_000

    @property
    def tells_clients_apart(self) -> bool:
        """Whether there is a limit for each client address."""
        return bool(self.client_connections or self.client_exchanges or self.client_requests_per_s)


# What all clients share.

UNLIMITED: Final = 1 << 60
"""Stands for a limit where there is none: no count comes near it."""

JOINS_STOP: Final = (4, 5)
JOINS_RETURN: Final = (3, 5)
"""Shares of a limit, as fractions. From the first share on the server admits no newcomer until less than the second is
in use: the rest belongs to clients that go on with what they have begun. The distance between the two keeps a nearly
full server from admitting and refusing by turns."""


class Capacity:
    """A limit that many clients share, with a reserve for those that are in already.

    Args:
        limit: how many there may be at a time; ``None`` for any number.

    Attributes:
        limit: the same; :data:`UNLIMITED` for ``None``.
        used: how many there are. The caller calls :meth:`take` for each one it admits, and :meth:`give_back` once.
    """

    __slots__ = ("_joins_return", "_joins_stop", "_refuses_joins", "limit", "used")

    def __init__(self, limit: int | None) -> None:
        self.used = 0
        self.limit = UNLIMITED if limit is None else limit
        self._joins_stop = _share(self.limit, JOINS_STOP)
        self._joins_return = _share(self.limit, JOINS_RETURN)
        self._refuses_joins = self._joins_stop <= 0

    @property
    def joinable(self) -> bool:
        """Whether a newcomer may come: not from 80 % of the limit on, until less than 60 % is used again."""
        return not self._refuses_joins

    @property
    def full(self) -> bool:
        """Whether nobody may come."""
        return self.used >= self.limit

    def admits(self, *, join: bool) -> bool:
        """Whether there is room for one more: a newcomer (``join``), or a client that goes on."""
        return not self.full and (not join or self.joinable)

    def take(self) -> None:
        """One more is in."""
        self.used += 1
        if self.used >= self._joins_stop:
            self._refuses_joins = True

    def give_back(self) -> None:
        """One has left."""
        self.used -= 1
        if self.used < self._joins_return:
            self._refuses_joins = False


class Capacities(NamedTuple):
    """The limits that all clients share."""

    readers: Capacity
    publishers: Capacity
    channels: Capacity
    connections: Capacity

    @classmethod
    def of(cls, limits: Limits) -> Capacities:
        """Capacities as large as the limits."""
        return cls(
            Capacity(limits.readers),
            Capacity(limits.publishers),
            Capacity(limits.channels),
            Capacity(limits.connections),
        )


def _share(limit: int, share: tuple[int, int]) -> int:
    """The smallest count that is at least this share of a limit."""
    part, whole = share
    return -(-limit * part // whole)


# What one client may take.


class Client:
    """One client address.

    Attributes:
        address: its key; ``""`` for the client that stands for all addresses that do not fit into the table.
        holders: connections and exchanges that know it; while there are any it stays in the table.
        connections, exchanges: how many of each it has, of those that were admitted.
        tokens: requests that it could make at once at the time ``refilled_at``.
        places: where its numbers stand in memory that several workers share; none with one worker.
    """

    __slots__ = ("address", "connections", "exchanges", "holders", "places", "refilled_at", "tokens")

    def __init__(self, address: str, places: tuple[int, ...] = ()) -> None:
        self.address = address
        self.places = places
        self.holders = self.connections = self.exchanges = 0
        self.tokens, self.refilled_at = 0.0, float("-inf")  # full at the first request, however large the burst is


class Clients:
    """A bounded table of client addresses: those that are connected, and those that were connected last.

    A new address takes the place of the one that has been gone longest. If all are connected, new addresses share one
    client and so its limits: without a bound, one IPv6 network could fill the server's memory with addresses.

    Args:
        limit: addresses that are kept.
        make: a client of its address.

    Attributes:
        others: the client that all addresses share that do not fit.
    """

    def __init__(self, limit: int, make: Callable[[str], Client] = Client) -> None:
        self._limit = limit
        self._make = make
        self._here: dict[str, Client] = {}
        self._gone: OrderedDict[str, Client] = OrderedDict()
        self.others = make("")

    def __len__(self) -> int:
        return len(self._here) + len(self._gone)

    def hold(self, address: str) -> Client:
        """The client of an address. The caller gives it to :meth:`release` once."""
        client = self._here.get(address) or self._enter(address)
        client.holders += 1
        return client

    def release(self, client: Client) -> None:
        """One connection or exchange of the client has ended."""
        client.holders -= 1
        if not client.holders and client is not self.others:
            del self._here[client.address]
            self._gone[client.address] = client

    def _enter(self, address: str) -> Client:
        client = self._gone.pop(address, None)
        if client is None:
            if len(self._here) >= self._limit:
                return self.others
            if len(self) >= self._limit:
                self._gone.popitem(last=False)
            client = self._make(address)
        self._here[address] = client
        return client


class Admission:
    """Admits connections and requests before the server looks at them. One that it refuses is not counted.

    Args:
        limits: per client.
        connections: how many connections there are, and may be.
        make: a client of its address.

    Attributes:
        clients: the table of clients; ``None`` where no limit per client is set.
    """

    def __init__(self, limits: Limits, connections: Capacity, make: Callable[[str], Client] = Client) -> None:
        self._connections = connections
        self.clients: Clients | None = None
        self._client_connections = limits.client_connections or UNLIMITED
        self._client_exchanges = limits.client_exchanges or UNLIMITED
        self._rate, self._burst = limits.client_requests_per_s, limits.client_burst
        if limits.tells_clients_apart:
            self.clients = Clients(limits.clients, make)

    def connect(self, client: Client | None) -> Limit | None:
        """Admit a connection.

        Returns:
            ``None``, or the limit that the connection would exceed. The caller should still answer it with a refusal.
        """
        if not self._connections.admits(join=False):
            return Limit.CONNECTIONS
        if client is not None:
            if client.connections >= self._client_connections:
                return Limit.CLIENT_CONNECTIONS
            client.connections += 1
        self._connections.take()
        return None

    def disconnect(self, client: Client | None) -> None:
        """An admitted connection has closed."""
        self._connections.give_back()
        if client is not None:
            client.connections -= 1

    def begin(self, client: Client, now: float) -> Limit | None:
        """Admit a request; returns ``None``, or the limit that the request would exceed."""
        if client.exchanges >= self._client_exchanges:
            return Limit.CLIENT_EXCHANGES
        if self._rate and not self._take_token(client, self._rate, now):
            return Limit.CLIENT_REQUESTS
        client.exchanges += 1
        return None

    def end(self, client: Client) -> None:
        """The exchange of an admitted request has ended."""
        client.exchanges -= 1

    def wait_s(self, limit: str) -> int:
        """Whole seconds, at least one, before which a client refused by this limit cannot be admitted."""
        return max(1, ceil(1 / self._rate)) if self._rate and limit == Limit.CLIENT_REQUESTS else 1

    def _take_token(self, client: Client, rate: float, now: float) -> bool:
        """A token bucket: ``rate`` tokens a second run in until it holds the burst; each request takes one out."""
        client.tokens = min(self._burst, client.tokens + (now - client.refilled_at) * rate)
        client.refilled_at = now
        if client.tokens < 1.0:
            return False
        client.tokens -= 1.0
        return True
