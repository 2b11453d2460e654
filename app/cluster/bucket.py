"""The bucket: a key-value store of NATS JetStream, reached over one connection (:mod:`app.cluster.jetstream`).

The layout is that of every NATS key-value bucket: stream ``KV_<bucket>``, one subject per key, the last message of a
subject is the value of its key, and the sequence number of that message is its revision. So ``nats kv`` shows it.

**Watching.** nats-py's own watcher makes three objects and two queues of each message, and hides that its consumer was
replaced. Here a message is taken in the callback of its subscription. A consumer numbers its messages: a number that is
left out ends the connection, and the next one goes on behind the last revision that was seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final, Protocol

from nats import errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from tricklecast.app.cluster.jetstream import Connection, NatsOptions, Unreachable

logger = logging.getLogger("tricklecast.cluster")

WATCH_IDLE_S: Final = 5.0
"""A watch that brings no message for this time, although some are to come, is broken."""

Take = Callable[[str, bytes | None, int], None]
"""Takes a key, its value (``None``: it was deleted) and its revision."""


class AnyBucket(Protocol):
    """What a directory needs of its bucket.

    Attributes:
        instance: another one if the bucket was deleted and made again, or is reached through another start of a server:
            then it may not hold what it held. young_s: since how long it exists.
        closed: done when the connection is of no use any more; the result says why.
    """

    instance: str
    young_s: float
    closed: asyncio.Future[str]

    async def put(self, key: str, value: bytes, last: int, *, ttl_s: float = 0) -> int: ...
    async def get(self, key: str) -> tuple[bytes | None, int]: ...
    async def watch(self, after: int | None, take: Take, synced: Callable[[], None]) -> None: ...
    async def close(self) -> None: ...


class Bucket(Connection):
    """A connection to the bucket. :meth:`open` makes the bucket if there is none.

    Attributes:
        instance, young_s: as of :class:`AnyBucket`.
    """

    def __init__(self, options: NatsOptions) -> None:
        super().__init__(options)
        self.instance = ""
        self.young_s = 0.0
        self._next = 0  # the number of the next message of the watch
        self._watched: Subscription | None = None

    async def put(self, key: str, value: bytes, last: int, *, ttl_s: float = 0) -> int:
        """Write a value if the key has this revision; returns its new one.

        Args:
            last: the revision that is replaced; 0: the key does not exist.
            ttl_s: the server removes the value after this time; 0: never.

        Raises:
            Conflict: it has another revision. Nothing was written.
            Unreachable: there is no answer.
        """
        headers = {"Nats-TTL": f"{max(1, round(ttl_s))}s"} if ttl_s else {}
        return await self.publish(f"$KV.{self.options.bucket}.{key}", value, headers, last)

    async def get(self, key: str) -> tuple[bytes | None, int]:
        """The value and the revision of a key, asked of the leader of the stream.

        Returns:
            ``(None, 0)`` if there is none; ``(None, revision)`` if it was deleted.

        Raises:
            Unreachable: there is no answer.
        """
        message = await self.last(self._stream, f"$KV.{self.options.bucket}.{key}")
        if message is None:
            return None, 0
        return None if "KV-Operation" in message.headers else message.data, message.seq

    async def watch(self, after: int | None, take: Take, synced: Callable[[], None]) -> None:
        """Hear of all keys: first of each as it is now, then of every change. It returns at once. A second watch ends
        the first.

        Args:
            after: hear only of changes after this revision. synced: called once all that is there has been taken.
        """
        if self._watched is not None:
            with suppress(errors.Error):
                await self._watched.unsubscribe()
        prefix = len(f"$KV.{self.options.bucket}.")
        self._next, waiting = 1, True

        def is_synced() -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                synced()

        loop = asyncio.get_running_loop()
        silent = loop.call_later(WATCH_IDLE_S, self._break, "the watch is silent")
        self.closed.add_done_callback(lambda _: silent.cancel())

        async def message(msg: Msg) -> None:
            nonlocal silent
            silent.cancel()
            silent = loop.call_later(WATCH_IDLE_S, self._break, "the watch is silent")
            if msg.headers and msg.headers.get("Status") == "100":
                await self._control(msg)
                return
            revision, number, pending = _metadata(msg.reply)
            if number != self._next:
                self._break("a message of the watch is missing")
                return
            self._next += 1
            deleted = msg.headers is not None and ("KV-Operation" in msg.headers or "Nats-Marker-Reason" in msg.headers)
            try:
                take(msg.subject[prefix:], None if deleted else msg.data, revision)
            except Exception as error:  # nats-py would go on, and this change would be missing for ever
                logger.exception("a fault in what watches the bucket")
                self._break(f"a fault: {error!r}")
                return
            if not pending:
                is_synced()

        inbox = self._client.new_inbox()
        consumer = {
            "deliver_subject": inbox,
            "ack_policy": "none",
            "max_deliver": 1,
            "flow_control": True,  # or the server would hold all that this node has not read yet in its memory
            "idle_heartbeat": int(WATCH_IDLE_S / 4 * 1e9),
            "inactive_threshold": int(WATCH_IDLE_S * 2e9),
            "mem_storage": True,
            "num_replicas": 1,
            "filter_subject": f"$KV.{self.options.bucket}.>",
            "deliver_policy": "last_per_subject",
        }
        if after is not None:
            consumer |= {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
        try:
            self._watched = await self._client.subscribe(inbox, cb=message, pending_msgs_limit=0, pending_bytes_limit=0)
        except errors.Error as error:
            raise Unreachable(str(error)) from None
        made = await self.ask("CONSUMER.CREATE", self._stream, {"stream_name": self._stream, "config": consumer})
        if made is None:
            raise Unreachable("the bucket is gone")
        if not made["num_pending"]:
            is_synced()

    @property
    def _stream(self) -> str:
        return f"KV_{self.options.bucket}"

    async def _find(self) -> None:
        """Find the bucket, or make it."""
        config = {
            "name": self._stream,
            "subjects": [f"$KV.{self.options.bucket}.>"],
            "max_msgs_per_subject": 1,
            "storage": "file",
            "discard": "new",
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_msg_ttl": True,
        }
        info = await self.find_or_make(config)
        # A server that was restarted may have an older copy of its store. nats-py does not offer its id otherwise.
        self.instance = f"{info['created']} {self._client._server_info.get('server_id')}"
        self.young_s = (_time(info["ts"]) - _time(info["created"])) if "ts" in info else 0.0

    async def _control(self, msg: Msg) -> None:
        """Answer the flow control of the server; compare the number in its heartbeat."""
        assert msg.headers is not None
        answer_to = msg.reply or msg.headers.get("Nats-Consumer-Stalled")
        if answer_to:
            with suppress(errors.Error):
                await self._client.publish(answer_to)
        last = msg.headers.get("Nats-Last-Consumer")
        if last is not None and not msg.reply and int(last) >= self._next:
            self._break("a message of the watch is missing")


def _metadata(reply: str) -> tuple[int, int, int]:
    """Of a message: the sequence numbers of its stream and of its consumer, and how many are to come.

    ``$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>``; newer servers may put the
    domain and the account before the stream, and more behind.
    """
    tokens = reply.split(".")
    first = 5 if len(tokens) == 9 else 7
    return int(tokens[first]), int(tokens[first + 1]), int(tokens[first + 3])


def _time(text: str) -> float:
    """A time of NATS, which has nanoseconds: ``2026-11-27T21:00:00.123456789Z``."""
    whole, _, part = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{part or 0}")
