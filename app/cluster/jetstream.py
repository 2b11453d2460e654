"""A connection to NATS JetStream: publish behind a message, read, and ask about streams.

**One object is one connection.** When it breaks, :attr:`Connection.closed` is done and the object is of no use;
its owner opens another. nats-py can reconnect by itself, but then requests wait in its buffer and are sent when nobody
remembers them, and its close may wait for a peer that is gone. Nothing is buffered here: a request is sent now, or
fails. It may still take effect after its sender has given up, since the network may deliver late. That is why every
write names the message that it follows.

**Numbers never come back.** A stream that was deleted, or lost, is made again. If its messages were numbered from 1
again, the one that a late write names could be there by chance: another one with the same number. So the first number
of each new stream is the time at which it is made, in microseconds since 1970. Less than a million messages are written
in a second, so the stream before has not come as far. A stream that was put back to an older copy of itself is the one
case in which numbers come back.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import orjson
from nats import errors
from nats.aio.client import Client

from tricklecast.app.clock import wall_us
from tricklecast.trickle.errors import TrickleError

OLDEST: Final = (2, 11, 2)
"""The oldest NATS. Before 2.11 no message has a time to live of its own; before 2.11.2 a server that starts again
empties a stream that has its first message still, unless its numbers begin at 1."""

OPEN_S: Final = 5.0
"""To reach one of the servers, and to find or make what the connection is for."""

ANSWER_S: Final = 2.0
"""Until an answer to a request is given up."""

INFO_S: Final = (0.2, 0.4, 0.8, ANSWER_S)
"""The same for the attempts to hear of a stream. While a new one has no leader, nobody answers, not even later."""

CLOSE_S: Final = 0.5
"""Until a connection that does not close is broken."""

BATCH_BYTES: Final = 4 << 20
"""Asked for at a time by a reader: the server sends them as fast as it can, and they wait in memory."""

EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
"""The header by which a message names the one that it must follow; it is stored with the message."""


class Conflict(TrickleError):
    """The last message of the subject is another one than the one that was named. Nothing was stored."""


class Unreachable(TrickleError):
    """No answer came, or it cannot be done now. If a write was asked for, it may have happened, or may still happen."""


class Full(Unreachable):
    """The stream, or the server, has no room. Nothing was stored."""


class TooFewServers(Unreachable):
    """There are fewer servers than replicas are asked for."""


class NoStream(Unreachable):
    """No stream takes messages of the subject. Nothing was stored."""


class _Missing(Unreachable):
    """There is no such stream or message."""


class _Exists(Unreachable):
    """There is such a stream, with other settings."""


_FAULTS: Final[dict[int, type[TrickleError]]] = {
    **dict.fromkeys((10071, 10164), Conflict),
    **dict.fromkeys((10023, 10047, 10077), Full),  # of the machine, of the account, of the stream
    **dict.fromkeys((10037, 10059), _Missing),  # a message, a stream
    **dict.fromkeys((10005, 10074), TooFewServers),  # replicas need a cluster of servers
    10058: _Exists,
}
"""By the error codes of JetStream."""


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """Where NATS is.

    Attributes:
        servers: URLs, ``nats://[user:password@]host:port`` or ``tls://…``; more are found through the first.
        credentials: a ``.creds`` file. tls: replaces the system's certificates.
        bucket: its name, of which those of other streams are made; clusters that share servers have one each.
        replicas: of the bucket and all streams; 0: three if there are three servers or more, else one.
    """

    servers: tuple[str, ...]
    credentials: Path | None = None
    tls: ssl.SSLContext | None = None
    bucket: str = "trickle"
    replicas: int = 0

    @property
    def named(self) -> str:
        """The servers as a log may name them: without users and passwords."""
        return ", ".join(url.partition("://")[2].rpartition("@")[2].rstrip("/") for url in self.servers)


class Message(NamedTuple):
    """A message of a stream.

    Attributes:
        seq: its sequence number in the stream. headers: all of them.
    """

    seq: int
    headers: Mapping[str, str]
    data: bytes


class Connection:
    """Use :meth:`open`.

    Attributes:
        options: as given. closed: done when the connection is of no use any more; the result says why.
        unanswered: whether a request was not answered in time.
    """

    def __init__(self, options: NatsOptions) -> None:
        self.options = options
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.unanswered = False
        self._client = Client()
        self._last_error = ""

    @classmethod
    async def open(cls, options: NatsOptions, name: str) -> Self:
        """Connect.

        Args:
            name: of the connection, for people who look at the server.

        Raises:
            Unreachable: no server can be reached, or it has no JetStream, or refuses this client.
        """
        made = cls(options)
        try:
            async with asyncio.timeout(OPEN_S):
                await made._connect(name)
                await made._find()
        except BaseException as error:
            await made.close()
            if isinstance(error, OSError | errors.Error | ValueError):  # TimeoutError is an OSError
                raise Unreachable(made._last_error or _text(error)) from None
            raise
        return made

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
    def replicas(self) -> int:
        """How many replicas a stream is to have."""
        return self.options.replicas or (3 if len(self._client.servers) >= 3 else 1)

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str], last: int) -> int:
        """Store a message behind the one of this number; returns its own number.

        Args:
            last: the last message of the subject; 0: there is none.

        Raises:
            Conflict: another message is the last one.
            Full: there is no room. Unreachable: there is no answer.
        """
        answer = await self._request(subject, payload, {EXPECTED: str(last), **headers}, ANSWER_S)
        seq: int = answer["seq"]
        return seq

    async def last(self, stream: str, subject: str) -> Message | None:
        """The last message of a subject, asked of the leader of the stream."""
        answer = await self.ask("STREAM.MSG.GET", stream, {"last_by_subj": subject})
        if answer is None:
            return None
        message = answer["message"]
        headers = _headers(b64decode(message.get("hdrs", "")))
        return Message(message["seq"], headers, b64decode(message.get("data", "")))

    async def read(self, stream: str, subject: str, first: int, last: int) -> AsyncGenerator[Message, None]:
        """The messages of a subject with these numbers. Any replica of the stream may answer, so some may be missing.

        Raises:
            Unreachable: they stop coming.
        """
        inbox = self._client.new_inbox()
        try:
            took = await self._client.subscribe(inbox)
            try:
                while first <= last:
                    body = {"seq": first, "next_by_subj": subject, "batch": 1000, "max_bytes": BATCH_BYTES}
                    await self._client.publish(f"$JS.API.DIRECT.GET.{stream}", orjson.dumps(body), reply=inbox)
                    begun = first
                    while "Status" not in (headers := (msg := await took.next_msg(ANSWER_S)).headers or {}):
                        if (seq := int(headers["Nats-Sequence"])) > last:
                            first = last + 1
                            continue  # the rest of the batch
                        first = seq + 1
                        yield Message(seq, headers, msg.data)
                    if first == begun or headers.get("Nats-Num-Pending") == "0":
                        return
            finally:
                with suppress(errors.Error):
                    await took.unsubscribe()
        except (OSError, errors.Error, ValueError, KeyError) as error:
            raise self._no_answer(error) from None

    async def ask(
        self, verb: str, stream: str, body: Mapping[str, Any] | None = None, *, within_s: float = ANSWER_S
    ) -> dict[str, Any] | None:
        """Ask JetStream's API about a stream; ``None`` if there is no such stream or message."""
        payload = b"" if body is None else orjson.dumps(body)
        try:
            return await self._request(f"$JS.API.{verb}.{stream}", payload, None, within_s)
        except _Missing:
            return None
        except NoStream:  # nobody answers questions about streams
            raise Unreachable("JetStream does not answer: was NATS started with it (-js)?") from None

    async def find_or_make(self, config: dict[str, Any], *, within_s: float = ANSWER_S) -> dict[str, Any]:
        """Find a stream, or make it, with as many replicas as there are servers for, and numbers that no stream had
        before. Returns what JetStream says of it.

        Args:
            config: its settings. A stream that has other ones gets these, if that can be; but never fewer replicas:
                this node may not know all servers.
            within_s: to make it.
        """
        name = config["name"]
        if (found := await self._info(name)) is not None:
            present = found["config"]
            wanted = present | config | {"num_replicas": max(self.replicas, present["num_replicas"])}
            if wanted != present:
                with suppress(Unreachable):  # it is of use as it is
                    found = await self.ask("STREAM.UPDATE", name, wanted)
        else:
            for replicas in (self.replicas, 1):
                made = config | {"num_replicas": replicas, "first_seq": wall_us()}
                with suppress(TooFewServers):
                    try:
                        found = await self.ask("STREAM.CREATE", name, made, within_s=within_s)
                    except _Exists:  # another node was faster
                        found = await self._info(name, being_made=True)
                    break
        if found is None:
            raise Unreachable(f"the stream {name} was deleted while it was looked for")
        return found

    async def _info(self, name: str, *, being_made: bool = False) -> dict[str, Any] | None:
        """What JetStream says of a stream; ``None`` if there is none.

        Args:
            being_made: there will be one in a moment.
        """
        for within_s in INFO_S:
            try:
                found = await self.ask("STREAM.INFO", name, within_s=within_s)
            except Unreachable:
                if within_s == INFO_S[-1]:
                    raise
            else:
                if found is not None or not being_made:
                    return found
                await asyncio.sleep(within_s / 4)
        return None

    async def _request(
        self, subject: str, payload: bytes, headers: dict[str, str] | None, within_s: float
    ) -> dict[str, Any]:
        try:
            reply = await self._client.request(subject, payload, timeout=within_s, headers=headers)
            answer: dict[str, Any] = orjson.loads(reply.data)
        except errors.NoRespondersError as error:
            raise NoStream(str(error)) from None
        except (OSError, errors.Error, ValueError) as error:
            raise self._no_answer(error, is_sign=within_s >= ANSWER_S) from None
        if (fault := answer.get("error")) is None:
            return answer
        code = fault.get("err_code")
        raise _FAULTS.get(code, Unreachable)(f"JetStream: {fault.get('description')} ({code})")

    def _no_answer(self, error: Exception, *, is_sign: bool = True) -> Unreachable:
        self.unanswered |= is_sign
        return Unreachable(_text(error))

    async def _find(self) -> None:
        """Find or make what the connection is for."""

    def _break(self, why: str) -> None:
        if not self.closed.done():
            self.closed.set_result(why)
            asyncio.get_running_loop().call_soon(self._fail)  # behind tasks that have just been cancelled

    def _fail(self) -> None:
        """End the requests under way: nats-py would wait until their time is over."""
        for answer in list(self._client._resp_map.values()):
            if not answer.done():
                answer.set_exception(errors.ConnectionClosedError)
                answer.exception()  # its sender may have failed before it waited: nothing is to be logged then

    async def _connect(self, name: str) -> None:
        options = self.options
        more: dict[str, Any] = {}
        if options.credentials is not None:
            more["user_credentials"] = options.credentials
        if options.tls is not None:
            more["tls"] = options.tls

        async def failed(error: Exception) -> None:
            self._last_error = _text(error)

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
        url, about = self._client.connected_url, self._client._server_info
        host = "" if url is None else url.hostname
        # nats-py would speak plainly with a server that offers no TLS.
        if url is not None and url.scheme == "tls" and not about.get("tls_required"):
            raise Unreachable(f"{host} offers no TLS, which tls:// asks for")
        version = self._client.connected_server_version
        if (version.major, version.minor, version.patch) < OLDEST:
            raise Unreachable(f"{host} has NATS {about['version']}: {'.'.join(map(str, OLDEST))} or newer is needed")


def _text(error: Exception) -> str:
    """The problem of this connection, in one line for the operator."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    if "authorization" in text.lower():
        return f"it refuses this node ({text}): check user and password in --cluster, or the file of --cluster-creds"
    return text


def _headers(data: bytes) -> dict[str, str]:
    """The headers of a message: a first line ``NATS/1.0``, then ``Name: value`` each."""
    lines = data.decode("utf-8", "replace").split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines if ": " in line)
