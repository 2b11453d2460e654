"""The bucket: a key-value store of NATS JetStream, reached over one connection.

The layout is that of every NATS key-value bucket: stream ``KV_<bucket>``, one subject per key, the last message of a
subject is the value of its key, and the sequence number of that message is its revision. So ``nats kv`` shows it.

**One object is one connection.** When it breaks, :attr:`Bucket.closed` is done and the object is of no use any more:
its owner opens another. nats-py can reconnect by itself, but then requests wait in its buffer and are sent when nobody
remembers them, and its close may wait for a peer that is gone. Nothing is buffered here: a request is sent now, or
fails. It may still take effect after its sender has given up, since the network may deliver late. That is why every
write names the revision that it replaces.

**Watching.** nats-py's own watcher makes three objects and two queues of each message, and hides that its consumer was
replaced. Here a message is taken in the callback of its subscription. A consumer numbers its messages: a number that is
left out ends the connection, and the next one goes on behind the last revision that was seen.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

import orjson
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from tricklecast.trickle.errors import TrickleError

OPEN_S: Final = 5.0
"""To reach one of the servers, and to find or make the bucket."""

ANSWER_S: Final = 2.0
"""Until an answer to a request is given up."""

CLOSE_S: Final = 0.5
"""Until a connection that does not close is broken."""

WATCH_IDLE_S: Final = 5.0
"""A watch that brings no message for this time, although some are to come, is broken."""

_WRONG_REVISION: Final = (10071, 10164)
"""Error codes of JetStream: the last message of the subject is another one."""
_NO_STREAM: Final = 10059
_NO_MESSAGE: Final = 10037
_TOO_FEW_SERVERS: Final = (10005, 10074)
"""Fewer servers can take the stream than it should have replicas; replicas need a cluster of servers."""

Take = Callable[[str, bytes | None, int], None]
"""Takes a key, its value (``None``: it was deleted) and its revision."""


class Conflict(TrickleError):
    """The key has another revision than the one that was to be replaced."""


class Unreachable(TrickleError):
    """No answer came, or the bucket is gone. If a write was asked for, it may have happened, or may still happen."""


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """Where NATS is.

    Attributes:
        servers: URLs, ``nats://[user:password@]host:port`` or ``tls://…``; more are found through the first.
        credentials: a ``.creds`` file. tls: replaces the system's certificates.
        bucket: its name; clusters that share servers have one each. replicas: of the bucket; 0: three if there are
            three servers or more, else one.
    """

    servers: tuple[str, ...]
    credentials: Path | None = None
    tls: ssl.SSLContext | None = None
    bucket: str = "trickle"
    replicas: int = 0


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


@dataclass
class Bucket:
    """A connection to the bucket. Use :meth:`open`.

    Attributes:
        errors: what NATS has complained of, the last ones.
    """

    options: NatsOptions
    instance: str = ""
    young_s: float = 0.0
    closed: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _client: Client = field(default_factory=Client)
    _last_error: str = ""
    _next: int = 0  # the number of the next message of the watch
    _watched: Subscription | None = None

    @classmethod
    async def open(cls, options: NatsOptions, name: str) -> Bucket:
        """Connect, and make the bucket if there is none.

        Args:
            name: of the connection, for people who look at the server.

        Raises:
            Unreachable: no server can be reached, or it has no JetStream, or refuses this client.
        """
        bucket = cls(options)
        try:
            async with asyncio.timeout(OPEN_S):
                await bucket._connect(name)
                await bucket._find()
        except BaseException as error:
            await bucket.close()
            if isinstance(error, OSError | errors.Error | ValueError):  # TimeoutError is an OSError
                raise Unreachable(bucket._last_error or str(error) or type(error).__name__) from None
            raise
        return bucket

    async def put(self, key: str, value: bytes, last: int, *, ttl_s: float = 0) -> int:
        """Write a value if the key has this revision; returns its new one.

        Args:
            last: the revision that is replaced; 0: the key does not exist.
            ttl_s: the server removes the value after this time; 0: never.

        Raises:
            Conflict: it has another revision. Nothing was written.
            Unreachable: there is no answer.
        """
        headers = {"Nats-Expected-Last-Subject-Sequence": str(last)}
        if ttl_s:
            headers["Nats-TTL"] = f"{max(1, round(ttl_s))}s"
        answer = await self._request(f"$KV.{self.options.bucket}.{key}", value, headers)
        revision: int = answer["seq"]
        return revision

    async def get(self, key: str) -> tuple[bytes | None, int]:
        """The value and the revision of a key, asked of the leader of the stream.

        Returns:
            ``(None, 0)`` if there is none; ``(None, revision)`` if it was deleted.

        Raises:
            Unreachable: there is no answer.
        """
        answer = await self._api("STREAM.MSG.GET", {"last_by_subj": f"$KV.{self.options.bucket}.{key}"})
        if answer is None:
            return None, 0
        message = answer["message"]
        deleted = b"KV-Operation" in b64decode(message.get("hdrs", ""))
        return None if deleted else b64decode(message.get("data", "")), message["seq"]

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
        ready = asyncio.Event()

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
            take(msg.subject[prefix:], None if deleted else msg.data, revision)
            if pending == 0 and waiting:
                await ready.wait()
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
        made = await self._api("CONSUMER.CREATE", {"stream_name": self._stream, "config": consumer})
        if made is None:
            raise Unreachable("the bucket is gone")
        if not made["num_pending"]:
            is_synced()
        ready.set()

    async def close(self) -> None:
        """Close the connection. It takes :data:`CLOSE_S` at most, whatever the other side does."""
        self._break("closed")
        client = self._client
        try:
            async with asyncio.timeout(CLOSE_S):
                await client.close()
        except (OSError, errors.Error):
            pass
        # nats-py waits for bytes that nobody takes any more, and keeps the connection.
        with suppress(AttributeError):
            client._transport._io_writer.transport.abort()  # type: ignore[union-attr]

    @property
    def _stream(self) -> str:
        return f"KV_{self.options.bucket}"

    def _break(self, why: str) -> None:
        if not self.closed.done():
            self.closed.set_result(why)

    async def _connect(self, name: str) -> None:
        options = self.options
        more: dict[str, Any] = {}
        if options.credentials is not None:
            more["user_credentials"] = options.credentials
        if options.tls is not None:
            more["tls"] = options.tls

        async def failed(error: Exception) -> None:
            self._last_error = str(error) or type(error).__name__

        async def gone() -> None:
            self._break(self._last_error or "the connection is closed")

        await self._client.connect(
            list(options.servers),
            name=name,
            error_cb=failed,
            closed_cb=gone,
            disconnected_cb=gone,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # the fewest that nats-py counts: each server is tried twice
            reconnect_time_wait=0,
            connect_timeout=1,
            pending_size=0,
            **more,
        )

    async def _find(self) -> None:
        """Find the bucket, or make it; give it as many replicas as the servers can hold."""
        client = self._client
        replicas = self.options.replicas or (3 if len(client.servers) >= 3 else 1)
        info = await self._api("STREAM.INFO", None)
        if info is None or info["config"]["num_replicas"] < replicas:
            config = {
                "name": self._stream,
                "subjects": [f"$KV.{self.options.bucket}.>"],
                "max_msgs_per_subject": 1,
                "max_bytes": -1,
                "max_age": 0,
                "max_msgs": -1,
                "max_consumers": -1,
                "storage": "file",
                "retention": "limits",
                "discard": "new",
                "allow_direct": True,
                "allow_rollup_hdrs": True,
                "deny_delete": True,
                "allow_msg_ttl": True,
                "num_replicas": replicas,
            }
            verb = "CREATE" if info is None else "UPDATE"
            try:
                made = await self._api(f"STREAM.{verb}", config)
            except _TooFewServers:
                made = await self._api("STREAM.CREATE", config | {"num_replicas": 1}) if info is None else info
            info = made
        if info is None:
            raise Unreachable("the bucket was deleted while it was looked for")
        # A server that was restarted may have an older copy of its store. nats-py does not offer its id otherwise.
        self.instance = f"{info['created']} {client._server_info.get('server_id')}"
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

    async def _api(self, verb: str, body: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Ask JetStream's API about the stream; ``None`` if there is no such stream or message."""
        payload = b"" if body is None else orjson.dumps(body)
        answer: dict[str, Any] | None = await self._request(
            f"$JS.API.{verb}.{self._stream}", payload, None, missing=True
        )
        return answer

    async def _request(
        self, subject: str, payload: bytes, headers: dict[str, str] | None, *, missing: bool = False
    ) -> Any:
        try:
            reply = await self._client.request(subject, payload, timeout=ANSWER_S, headers=headers)
            answer = orjson.loads(reply.data)
        except (OSError, errors.Error, ValueError) as error:
            raise Unreachable(str(error) or type(error).__name__) from None
        if (fault := answer.get("error")) is None:
            return answer
        code = fault.get("err_code")
        if missing and code in (_NO_STREAM, _NO_MESSAGE):
            return None
        if code in _WRONG_REVISION:
            raise Conflict(fault.get("description", ""))
        if code in _TOO_FEW_SERVERS:
            raise _TooFewServers(fault.get("description", ""))
        raise Unreachable(f"JetStream: {fault.get('description')} ({code})")


class _TooFewServers(Unreachable):
    """There are fewer servers than replicas are asked for."""


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
