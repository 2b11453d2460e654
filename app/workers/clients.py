"""The use that one client makes of all workers of a server: connections, requests, unfinished segments.

**The problem.** The connections of one client are at any worker, and its limits hold for all of them. A table of
clients that all workers share would need locks, and a worker that is killed would leave them locked.

**The idea.** A :class:`Tally` adds up by name, and knows no names. A keyed hash gives each name four places. Each
worker adds what it has of a name to a word of its own at each of the four. For each place the words of all workers are
added up, and the smallest of the four sums is the total. That is never too little. It is too much only if the name
shares each of its places with others: with 1,000 clients this holds for one in 19 million, with 10,000 for one in
2,500. What the smallest of these others takes then counts as its own, mostly one connection. The key is another one at
each start, so nobody can choose an address that shares its places with a victim's. Where the readers of a channel have
a limit, they are counted in this way, too.

The rate of requests (a token bucket) is one word in each place, which all workers write: the time at which the bucket
will be full again. Two workers that admit requests of one client at the same moment may take one token for both.
"""

from __future__ import annotations

import mmap
from hashlib import blake2b
from secrets import token_bytes
from struct import Struct
from typing import Final

from tricklecast.app.core.limits import Admission, Capacity, Client, Limit, Limits

PLACES: Final = 4
WIDTH: Final = 1 << 16
"""The places of a name; each is one of this number of words."""

_PLACES: Final = Struct("<4H")

Places = tuple[int, ...]


class Tally:
    """Numbers by name, of all workers. Its memory is the kernel's as long as nothing is written.

    Attributes:
        parts: the words of each worker, which it alone writes.
    """

    def __init__(self, workers: int) -> None:
        size = PLACES * WIDTH
        words = memoryview(mmap.mmap(-1, size * workers * 8)).cast("q")  # shared by forked processes
        self.parts = [words[at * size : (at + 1) * size] for at in range(workers)]

    def add(self, worker: int, places: Places, change: int) -> None:
        """A worker has more of a name, or less."""
        own = self.parts[worker]
        for at in places:
            own[at] += change

    def total(self, places: Places) -> int:
        """The number that all workers have of a name; a higher one if others share each of its places."""
        first, second, third, fourth = places
        one = two = three = four = 0
        for part in self.parts:
            one += part[first]
            two += part[second]
            three += part[third]
            four += part[fourth]
        return min(one, two, three, four)

    def clear(self, worker: int) -> None:
        """A worker has died: it has nothing any more."""
        self.parts[worker].cast("B")[:] = bytes(self.parts[worker].nbytes)


class Tallies:
    """All of a server. Make them before the workers are forked.

    Attributes:
        connections, exchanges: of clients. readers: of channels, if these have a limit.
        reserved: bytes of unfinished segments, of publishers.
        full_at: when the token buckets of clients will be full, in nanoseconds of the monotonic clock.
    """

    def __init__(self, workers: int) -> None:
        self._key = token_bytes(16)
        self.connections, self.exchanges, self.readers, self.reserved = (Tally(workers) for _ in range(4))
        self.full_at = Tally(1).parts[0]

    def places(self, name: str) -> Places:
        """The places of a name."""
        digest = blake2b(name.encode("utf-8", "surrogateescape"), digest_size=_PLACES.size, key=self._key).digest()
        return tuple(row * WIDTH + at for row, at in enumerate(_PLACES.unpack(digest)))

    def clear(self, worker: int) -> None:
        """A worker has died: it has nothing any more."""
        for tally in (self.connections, self.exchanges, self.readers, self.reserved):
            tally.clear(worker)


class SharedAdmission(Admission):
    """Admits what one client asks for as if all workers were one.

    Args:
        limits: per client. connections: of all workers.
        tallies: of the server. worker: this one.
    """

    def __init__(self, limits: Limits, connections: Capacity, tallies: Tallies, worker: int) -> None:
        super().__init__(limits, connections, lambda address: Client(address, tallies.places(address)))
        self._connected, self._asking, self._full_at = tallies.connections, tallies.exchanges, tallies.full_at
        self._worker = worker
        rate = limits.client_requests_per_s or 1.0
        self._token_ns, self._burst_ns = round(1e9 / rate), round(limits.client_burst * 1e9 / rate)

    def connect(self, client: Client | None) -> Limit | None:
        """Admit a connection."""
        limit = super().connect(client)
        if limit is None and client is not None:
            self._connected.add(self._worker, client.places, 1)
            if self._connected.total(client.places) > self._client_connections:
                self.disconnect(client)
                return Limit.CLIENT_CONNECTIONS
        return limit

    def disconnect(self, client: Client | None) -> None:
        """An admitted connection has closed."""
        super().disconnect(client)
        if client is not None:
            self._connected.add(self._worker, client.places, -1)

    def begin(self, client: Client, now: float) -> Limit | None:
        """Admit a request."""
        if self._asking.total(client.places) >= self._client_exchanges:
            return Limit.CLIENT_EXCHANGES
        limit = super().begin(client, now)
        if limit is None:
            self._asking.add(self._worker, client.places, 1)
        return limit

    def end(self, client: Client) -> None:
        """The exchange of an admitted request has ended."""
        super().end(client)
        self._asking.add(self._worker, client.places, -1)

    def _take_token(self, client: Client, rate: float, now: float) -> bool:
        """A token bucket, as of one process. It lacks the tokens that run in until it is full, and may lack a burst."""
        now_ns, full_at = int(now * 1e9), self._full_at
        until = max(now_ns, min([full_at[at] for at in client.places])) + self._token_ns
        if until - now_ns > self._burst_ns:
            return False
        for at in client.places:
            full_at[at] = max(full_at[at], until)
        return True
