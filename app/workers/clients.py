"""Limits of one client, counted over all workers: connections, requests, unfinished segments.

**The problem.** A client's connections may be at any workers, and its limits hold for all of them together. A table of
clients that all workers share would need locks, and a worker that is killed would leave them locked.

**The idea.** A :class:`Sketch` counts by name and stores no names (it is a *count-min sketch*). A keyed hash gives each
name four places. Each worker has a word of its own at each place, and adds what it has of a name to its words at the
four places. To count a name, a worker adds up the words of all workers at each place, and takes the smallest of the
four sums.

- The count is never too low. It is too high only if the name shares each of its places with others. With 1,000 clients
  this happens to one in 19 million, with 10,000 to one in 2,500; mostly it counts one connection too many.
- The key is a new one at each start, so nobody can choose an address that shares its places with a victim's.
- If the readers of a channel have a limit, they are counted in the same way, by the channel's name.

The rate of requests (a token bucket) is one word at each place, which all workers write: the time at which the bucket
will be full again. Two workers that admit requests of one client at the same moment may take one token for both.
"""

from __future__ import annotations

import mmap
from hashlib import blake2b
from secrets import token_bytes
from struct import Struct
from typing import Final

from tricklecast.app.core.limits import Admission, Capacity, Client, Limit, Limits

ROWS: Final = 4
WIDTH: Final = 1 << 16
"""The rows of a sketch, and the words of a row. A name has one place in each row."""

_PLACES: Final = Struct("<4H")

Places = tuple[int, ...]
"""Where a name is counted: one index in each row."""


class Sketch:
    """A number for each name, added up over all workers. Pages of it that nobody writes take no memory.

    Attributes:
        words: by the number of the worker, which alone writes them.
    """

    def __init__(self, workers: int) -> None:
        size = ROWS * WIDTH
        memory = memoryview(mmap.mmap(-1, size * workers * 8)).cast("q")  # shared by forked processes
        self.words = [memory[at * size : (at + 1) * size] for at in range(workers)]

    def add(self, worker: int, places: Places, change: int) -> None:
        """Count more of a name, or less, for a worker."""
        own = self.words[worker]
        for at in places:
            own[at] += change

    def total(self, places: Places) -> int:
        """The number that all workers have of a name, or a higher one (see above)."""
        first, second, third, fourth = places
        one = two = three = four = 0
        for words in self.words:
            one += words[first]
            two += words[second]
            three += words[third]
            four += words[fourth]
        return min(one, two, three, four)

    def clear(self, worker: int) -> None:
        """A worker has died: it has nothing any more."""
        self.words[worker].cast("B")[:] = bytes(self.words[worker].nbytes)


class Sketches:
    """All sketches of a server. Make them before the workers are forked.

    Attributes:
        connections, exchanges: of clients. readers: of channels, if these have a limit.
        reserved: bytes of unfinished segments, of publishers.
        full_at: when the token buckets of clients will be full, in nanoseconds of the monotonic clock.
    """

    def __init__(self, workers: int) -> None:
        self._key = token_bytes(16)
        self.connections, self.exchanges, self.readers, self.reserved = (Sketch(workers) for _ in range(4))
        self.full_at = Sketch(1).words[0]

    def places(self, name: str) -> Places:
        """The places of a name."""
        digest = blake2b(name.encode("utf-8", "surrogateescape"), digest_size=_PLACES.size, key=self._key).digest()
        return tuple(row * WIDTH + at for row, at in enumerate(_PLACES.unpack(digest)))

    def clear(self, worker: int) -> None:
        """A worker has died: it has nothing any more."""
        for sketch in (self.connections, self.exchanges, self.readers, self.reserved):
            sketch.clear(worker)


class SharedAdmission(Admission):
    """Admits connections and requests of a client as one process would, by its use of all workers.

    Args:
        limits: of each client. connections: the limit of connections, over all workers.
        sketches: of the server. worker: this one's number.
    """

    def __init__(self, limits: Limits, connections: Capacity, sketches: Sketches, worker: int) -> None:
        super().__init__(limits, connections, lambda address: Client(address, sketches.places(address)))
        self._connected, self._asking, self._full_at = sketches.connections, sketches.exchanges, sketches.full_at
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
        """Take a token, if there is one. The time until the bucket is full says how many it lacks: a burst at most."""
        now_ns, full_at = int(now * 1e9), self._full_at
        until = max(now_ns, min([full_at[at] for at in client.places])) + self._token_ns
        if until - now_ns > self._burst_ns:
            return False
        for at in client.places:
            full_at[at] = max(full_at[at], until)
        return True
