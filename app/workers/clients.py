"""What one client takes in all workers of a server: its connections and requests, and its unfinished segments.

**The problem.** The connections of one client are at any worker, and its limits hold for all of them. A table of
clients that all workers share would need locks, and a worker that is killed would leave them locked.

**The idea.** Each worker knows its own clients exactly, by name. What they take elsewhere stands in a :class:`Tally`,
which knows no names. A keyed hash of the name gives a client four places. Each worker adds what the client takes to a
word of its own at each of the four, and the smallest of the four sums is what the client takes elsewhere. That is never
too little. It is too much only if the client shares every one of its four places with others: with 1,000 clients in the
other workers this holds for one client in 19 million, with 10,000 for one in 2,500. What the smallest of these others
takes then counts as its own, mostly one connection. The key is another one at each start, so nobody can choose an
address that shares its places with a victim's.

The rate of requests (a token bucket) is one word in each place, which all workers write: the time at which the bucket
will be full again. Two workers that admit requests of one client at the same moment may take one token for both.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from hashlib import blake2b
from struct import Struct
from typing import Final

from tricklecast.app.core.limits import Admission, Capacity, Client, Limit, Limits, Payer, Payers

PLACES: Final = 4
WIDTH: Final = 1 << 16
"""The places of a client; each is one of this number of words."""

UNPUBLISHED: Final = 16
"""Of its quota a publisher may take a sixteenth, in all workers together, that is not told to the others: most need no
more, and then nothing is shared."""

_PLACES: Final = Struct("<4H")

Places = tuple[int, int, int, int]


class Tally:
    """Sums by names that nobody can list. Its memory is the kernel's as long as nothing is written.

    Args:
        parts: 1, or one for each worker.
    """

    def __init__(self, parts: int) -> None:
        size = PLACES * WIDTH
        words = memoryview(mmap.mmap(-1, size * parts * 8)).cast("q")
        self.parts = [words[at * size : (at + 1) * size] for at in range(parts)]

    def clear(self, part: int) -> None:
        """Nothing is in this part any more."""
        self.parts[part].cast("B")[:] = bytes(PLACES * WIDTH * 8)


class Share:
    """One worker's view of a tally.

    Args:
        worker: its own part, which it alone writes.
    """

    def __init__(self, tally: Tally, worker: int) -> None:
        self._own = tally.parts[worker]
        self._others = [part for at, part in enumerate(tally.parts) if at != worker]

    def add(self, places: Places, change: int) -> None:
        """A client takes more, or less, here."""
        own, (first, second, third, fourth) = self._own, places
        own[first] += change
        own[second] += change
        own[third] += change
        own[fourth] += change

    def elsewhere(self, places: Places) -> int:
        """What a client takes in the other workers; more, if it shares its places with others."""
        first, second, third, fourth = places
        one = two = three = four = 0
        for part in self._others:
            one += part[first]
            two += part[second]
            three += part[third]
            four += part[fourth]
        return min(one, two, three, four)


class Tallies:
    """All of them, in memory that the workers share. Make them before the workers are forked.

    Args:
        key: of the hash.

    Attributes:
        connections, exchanges, reserved: of clients, in each worker; reserved are bytes of unfinished segments.
        full_at: when their token buckets will be full, in nanoseconds of the monotonic clock.
    """

    def __init__(self, workers: int, key: bytes) -> None:
        self.workers = workers
        self._key = key
        self.connections, self.exchanges, self.reserved = Tally(workers), Tally(workers), Tally(workers)
        self.full_at = Tally(1).parts[0]

    def places(self, name: str) -> Places:
        """The places of a client."""
        digest = blake2b(name.encode("utf-8", "surrogateescape"), digest_size=_PLACES.size, key=self._key).digest()
        first, second, third, fourth = _PLACES.unpack(digest)
        return first, WIDTH + second, 2 * WIDTH + third, 3 * WIDTH + fourth

    def clear(self, worker: int) -> None:
        """A worker has died: it has nothing any more."""
        for tally in (self.connections, self.exchanges, self.reserved):
            tally.clear(worker)


class SharedClient(Client):
    """A client of this worker that others may have, too."""

    __slots__ = ("places",)

    def __init__(self, address: str, places: Places) -> None:
        super().__init__(address)
        self.places = places


class SharedAdmission(Admission):
    """Admits what one client asks for as if all workers were one.

    Args:
        limits: per client. connections: of all workers.
        tallies: of all clients. worker: this one.
    """

    def __init__(self, limits: Limits, connections: Capacity, tallies: Tallies, worker: int) -> None:
        super().__init__(limits, connections, lambda address: SharedClient(address, tallies.places(address)))
        self._connected, self._asking = Share(tallies.connections, worker), Share(tallies.exchanges, worker)
        self._full_at = tallies.full_at
        rate = limits.client_requests_per_s or 1.0
        self._token_ns, self._burst_ns = round(1e9 / rate), round(limits.client_burst * 1e9 / rate)

    def connect(self, client: Client | None) -> Limit | None:
        """Admit a connection."""
        limit = super().connect(client)
        if limit is None and isinstance(client, SharedClient):
            if client.connections + self._connected.elsewhere(client.places) > self._client_connections:
                super().disconnect(client)
                return Limit.CLIENT_CONNECTIONS
            self._connected.add(client.places, 1)
        return limit

    def disconnect(self, client: Client | None) -> None:
        """An admitted connection has closed."""
        super().disconnect(client)
        if isinstance(client, SharedClient):
            self._connected.add(client.places, -1)

    def begin(self, client: Client, now: float) -> Limit | None:
        """Admit a request."""
        assert isinstance(client, SharedClient), "this admission makes the clients"
        if client.exchanges + self._asking.elsewhere(client.places) >= self._client_exchanges:
            return Limit.CLIENT_EXCHANGES
        limit = super().begin(client, now)
        if limit is None:
            self._asking.add(client.places, 1)
        return limit

    def end(self, client: Client) -> None:
        """The exchange of an admitted request has ended."""
        super().end(client)
        assert isinstance(client, SharedClient), "this admission makes the clients"
        self._asking.add(client.places, -1)

    def _take_token(self, client: Client, rate: float, now: float) -> bool:
        """A token bucket, as of one process. It lacks the tokens that run in until it is full, and may lack a burst."""
        assert isinstance(client, SharedClient), "this admission makes the clients"
        now_ns, full_at = int(now * 1e9), self._full_at
        first, second, third, fourth = places = client.places
        full = min(full_at[first], full_at[second], full_at[third], full_at[fourth])
        until = max(now_ns, full) + self._token_ns
        if until - now_ns > self._burst_ns:
            return False
        for at in places:
            if full_at[at] < until:
                full_at[at] = until
        return True


class SharedPayer(Payer):
    """A publisher of this worker that others may have, too.

    Attributes:
        places: of its name.
        quota: what it may take here without a question: what is reserved, and a part of it that is not told.
        reserved: bytes of its quota that are told to the other workers, since it takes them here.
    """

    __slots__ = ("_extend", "places", "reserved")

    def __init__(self, quota: int, places: Places, extend: Callable[[SharedPayer, int], bool]) -> None:
        super().__init__(quota)
        self.places = places
        self.reserved = 0
        self._extend = extend

    def extends(self, size: int) -> bool:
        """Take more of the quota, if the other workers leave that much."""
        return self._extend(self, size)


class SharedPayers(Payers):
    """Publishers whose quota holds over all workers.

    It may be exceeded by a sixteenth; and by more if a publisher asks for the rest at two workers at the same moment.

    Args:
        quota: bytes of memory for the unfinished segments of each; ``None`` for any number.
        tallies: of all clients. worker: this one.
    """

    def __init__(self, quota: int | None, tallies: Tallies, worker: int) -> None:
        super().__init__(quota)
        self._tallies, self._share = tallies, Share(tallies.reserved, worker)
        self._step = (quota or 0) // (UNPUBLISHED * tallies.workers)
        self._large: set[SharedPayer] = set()  # those that have reserved something

    def _make(self, name: str, quota: int) -> Payer:
        return SharedPayer(self._step, self._tallies.places(name), self._extend)

    def _extend(self, payer: SharedPayer, size: int) -> bool:
        assert self._quota is not None, "without a quota there are no payers"
        missing = payer.open + size - payer.quota
        free = self._quota - payer.quota - self._share.elsewhere(payer.places)
        if missing > free:
            return False
        self._reserve(payer, min(free, max(missing, self._step)))
        return True

    def _reserve(self, payer: SharedPayer, change: int) -> None:
        self._share.add(payer.places, change)
        payer.reserved += change
        payer.quota += change
        (self._large.add if payer.reserved else self._large.discard)(payer)

    def tick(self) -> None:
        """Give back what is not used any more; four times a second."""
        for payer in list(self._large):
            idle = min(payer.quota - payer.open - self._step, payer.reserved)
            if idle > 0:
                self._reserve(payer, -idle)
