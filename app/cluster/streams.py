"""The streams of a cluster: made by whichever node needs them first, and looked at by all.

There are :data:`PARTITIONS` of them, since each has its own leader, which spreads the load over the servers of NATS. A
channel belongs to one by its name.

**Full.** A stream refuses what finds no room (``discard new``): to drop the oldest would lose what quiet channels have
acknowledged. From :data:`HOLD` of the room on it is *held*: owners write new generations only, which are shorter than
what they replace, so there is room to make room.

**Lost.** A stream may be deleted, emptied, or put back to an older copy of itself, and others may have written to it
since. Each of these takes the newest messages. So a node looks, each :data:`LOOK_S`, whether the message that it has
written last is there, and the last of its channel; and a writer may find, when it writes, that its own is not. Then all
writers of the node write anew what they have begun before.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeVar
from zlib import crc32

from tricklecast.app.cluster.jetstream import Conflict, Connection, Full, NatsOptions, NoStream, Unreachable
from tricklecast.app.cluster.names import to_token

logger = logging.getLogger("tricklecast.cluster")

T = TypeVar("T")

PARTITIONS: Final = 16

HOLD: Final = 0.8
"""From this part of a stream's room on only new generations are written."""

LOOK_PART: Final = 20
"""A stream is looked at when this part of its room was written here since the last time, so that no node passes from
:data:`HOLD` to the end unnoticed."""

LOOK_S: Final = 2.0
"""How often the streams in use are looked at."""

MAKE_S: Final = 5.0
"""To make a stream: three servers that have just started take some time for sixteen of them."""

AGAIN_S: Final = 0.05
"""NATS is asked again so long after it was out of reach."""

BACKOFF_S: Final = (0.005, 0.5)
"""First and longest pause before JetStream is asked again, times a random factor of 0.5 to 1."""

LOG_S: Final = 30.0
"""A trouble that lasts is logged so often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Settings.

    Attributes:
        max_bytes: the room of all streams together, which NATS reserves at each server that has them. The default is
            enough for four nodes with the usual ``--max-total-bytes`` of 1 GiB, each full: a history has up to three
            times what its channel holds.
        max_age_s: what is older is removed; owners write their channels again in half of the time. So the history of a
            channel that nobody took over goes after a day.
    """

    max_bytes: int = 16 << 30
    max_age_s: float = 86_400.0


@dataclass
class Stream:
    """One of them, as it was when it was looked at.

    Attributes:
        held: it is nearly full. replicas: of it. room: its bytes. used: of these.
        found: whether it was there. written: bytes from here since then.
        lost_at: when it was noticed last that messages are lost, on the clock of :func:`time.monotonic`.
    """

    name: str
    subjects: str
    held: bool = False
    replicas: int = 0
    room: int = 0
    used: int = 0
    found: bool = False
    written: int = 0
    lost_at: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Streams:
    """The streams, and the connection of this node to them.

    Args:
        nats: where it is. name: of this node. options: see there.
        has_last: whether a stream has the message that this node has written last, with none of others behind it.
        looked_at: told of each stream that was looked at.

    Attributes:
        counters: what has happened, for metrics. by_name: the streams.
    """

    def __init__(
        self,
        nats: NatsOptions,
        name: str,
        options: StreamOptions,
        has_last: Callable[[Stream, Connection], Awaitable[bool]],
        looked_at: Callable[[Stream], None],
    ) -> None:
        self.options = options
        self.counters: Counter[str] = Counter()
        self._streams = [Stream(f"{nats.bucket.upper()}-{k}", f"{nats.bucket}.{k}") for k in range(PARTITIONS)]
        self.by_name = {stream.name: stream for stream in self._streams}
        self._nats, self._name, self._has_last, self._looked_at = nats, name, has_last, looked_at
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._failed_at = 0.0  # when NATS could not be reached, by the event loop's time
        self._tasks: set[asyncio.Task[Any]] = set()
        self._logged_at: dict[str, float] = {}

    async def start(self) -> bool:
        """Make the streams; whether that has succeeded. If not, each is made when it is needed."""
        return all(await asyncio.gather(*map(self.look, self.by_name)))

    async def stop(self) -> None:
        """End all that is being done, and close the connection."""
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    @property
    def failing(self) -> bool:
        """Whether some channels cannot be written: a stream could not be made, or has no room left."""
        return any(stream.held or not stream.found for stream in self._streams)

    def of(self, channel: str) -> tuple[Stream, str]:
        """The stream and the subject of a channel."""
        stream = self._streams[crc32(channel.encode()) % PARTITIONS]
        return stream, f"{stream.subjects}.{to_token(channel)}"

    def soon(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do this beside, until :meth:`stop`."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def count(self, stream: Stream, size: int) -> None:
        """A message was stored."""
        self.counters["messages"] += 1
        self.counters["bytes"] += size
        stream.written += size
        if stream.written > stream.room // LOOK_PART > 0:
            stream.written = 0
            self.soon(self.look(stream.name))

    def trouble(self, error: Unreachable) -> None:
        """Count a failure, and log it once in a while."""
        kind, now = "full" if isinstance(error, Full) else "unreachable", asyncio.get_running_loop().time()
        self.counters[kind] += 1
        if now - self._logged_at.get(kind, -LOG_S) >= LOG_S:
            self._logged_at[kind] = now
            advice = ": give NATS more room, or ask it for less (--cluster-history-bytes)" if kind == "full" else ""
            logger.warning("the quorum history cannot be written, so publishers get 503: %s%s", error, advice)

    async def connected(self) -> Connection:
        """The connection, which is opened if there is none.

        Raises:
            Unreachable: it cannot be opened.
        """
        if (found := self._connection) is not None and not (found.closed.done() or found.unanswered):
            return found
        async with self._connecting:
            if (found := self._connection) is not None and (found.closed.done() or found.unanswered):
                await found.close()  # perhaps another server answers
                self._connection = None
            if self._connection is None:
                loop = asyncio.get_running_loop()
                if self._failed_at and loop.time() - self._failed_at < AGAIN_S:
                    raise Unreachable("NATS is out of reach")  # as somebody else has just found out
                try:
                    self._connection = await Connection.open(self._nats, self._name)
                except Unreachable:
                    self._failed_at = loop.time()
                    raise
            return self._connection

    async def persist(self, stream: Stream, attempt: Callable[[Connection], Awaitable[T]]) -> T:
        """Try until it succeeds, and make the stream if there is none. An attempt must do no harm if an earlier one has
        been effective without an answer.
        """
        for number in count():
            try:
                return await attempt(await self.connected())
            except Conflict:
                self.counters["conflicts"] += 1
            except NoStream:
                await self.look(stream.name)
            except Unreachable as error:
                self.trouble(error)
            await rest(number)
        raise AssertionError("it ends with a success only")

    async def look(self, name: str) -> bool:
        """Look at a stream, and make it if there is none. Whether that has succeeded."""
        stream = self.by_name[name]
        try:
            async with stream.lock:
                config = {
                    "name": stream.name,
                    "subjects": [f"{stream.subjects}.>"],
                    "storage": "file",
                    "discard": "new",
                    "max_bytes": self.options.max_bytes // PARTITIONS,
                    "max_age": round(self.options.max_age_s * 1e9),
                    "duplicate_window": round(min(120.0, self.options.max_age_s) * 1e9),
                    "allow_direct": True,
                }
                connection = await self.connected()
                info = await connection.find_or_make(config, within_s=MAKE_S)
                if not await self._has_last(stream, connection):
                    stream.lost_at = time.monotonic()
                self._found(stream, info)
        except Unreachable as error:
            self.trouble(error)
            return False
        return True

    async def look_at_all(self, used: Callable[[], Iterable[str]]) -> None:
        """Look at the streams that are used, or could not be made, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            missing = {name for name, stream in self.by_name.items() if not stream.found}
            await asyncio.gather(*map(self.look, missing.union(used())))

    async def purge(self, stream: Stream, subject: str, below: int) -> bool:
        """Remove the messages of a subject below this number; whether that has succeeded. The next one removes all."""
        try:
            await (await self.connected()).ask("STREAM.PURGE", stream.name, {"filter": subject, "seq": below})
        except Unreachable:
            return False
        return True

    def _found(self, stream: Stream, info: Mapping[str, Any]) -> None:
        state, config = info["state"], info["config"]
        stream.found = True
        stream.replicas, stream.room, stream.used = config["num_replicas"], config["max_bytes"], state["bytes"]
        is_held = stream.used > HOLD * stream.room
        if is_held and not stream.held:
            self.trouble(Full(f"the stream {stream.name} has {stream.used} of {stream.room} bytes"))
        stream.held = is_held
        self._looked_at(stream)


async def rest(attempt: int) -> None:
    """Pause after an attempt that has failed, the first one of which is 0."""
    await asyncio.sleep(min(BACKOFF_S[0] * 2 ** min(attempt, 20), BACKOFF_S[1]) * random.uniform(0.5, 1.0))
