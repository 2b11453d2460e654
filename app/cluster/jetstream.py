"""A connection to NATS JetStream for streams that hold much: publish, read, ask.

**One object is one connection.** When it breaks, or a request was not answered in time, it is of no use any more, and
its owner opens another one, perhaps to another server. Nothing is buffered while there is none: a request is sent now,
or fails. It may take effect after its sender has given up, since the network may deliver late; that is why every
message names the sequence number that it must follow.

It is not the connection of the directory: a lease must not wait behind a megabyte.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from tricklecast.trickle.errors import TrickleError

OPEN_S: Final = 3.0
"""To reach one of the servers."""

ANSWER_S: Final = 2.0
"""Until an answer is given up, and the connection with it."""

ASK_S: Final = 5.0
"""The same for questions about streams: three servers that have just started take some time to make sixteen of them."""

CLOSE_S: Final = 0.5
"""Until a connection that does not close is broken."""

BATCH_BYTES: Final = 4 << 20
"""Asked for at a time by a reader: the server sends them as fast as it can, and they wait in memory."""

EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
"""The header by which a message names the one that it must follow; it is stored with the message."""

_CONFLICT: Final = (10071, 10164)  # error codes of JetStream
_FULL: Final = (10023, 10047, 10077)  # of the machine, of the account, of the stream
_NO_STREAM: Final = 10059
_NO_MESSAGE: Final = 10037
_TOO_FEW_SERVERS: Final = (10005, 10074)


class Unreachable(TrickleError):
    """No answer came, or JetStream cannot do it now. If a message was published, it may be stored, or may still be."""


class Conflict(TrickleError):
    """The last message of the subject is another one. Nothing was stored."""


class Full(Unreachable):
    """The stream, or the server, has no room. Nothing was stored."""


class TooFewServers(Unreachable):
    """There are fewer servers than replicas are asked for."""


class NoStream(Unreachable):
    """The stream does not exist."""


class Message(NamedTuple):
    """A message of a stream.

    Attributes:
        seq: its sequence number in the stream. headers: all of them.
    """

    seq: int
    headers: Mapping[str, str]
    data: bytes


class Servers(NamedTuple):
    """Where NATS is.

    Attributes:
        urls: ``nats://[user:password@]host:port`` or ``tls://…``; more are found through the first.
        credentials: a ``.creds`` file. tls: replaces the system's certificates.
    """

    urls: tuple[str, ...]
    credentials: Path | None = None
    tls: ssl.SSLContext | None = None


class Connection:
    """Use :meth:`open`.

    Attributes:
        broken: whether it is of no use any more.
    """

    def __init__(self) -> None:
        self.broken = False
        self._client = Client()
        self._why = ""

    @classmethod
    async def open(cls, servers: Servers, name: str) -> Connection:
        """Connect.

        Args:
            name: of the connection, for people who look at the server.

        Raises:
            Unreachable: no server can be reached, or refuses this client.
        """
        made = cls()
        more: dict[str, Any] = {}
        if servers.credentials is not None:
            more["user_credentials"] = servers.credentials
        if servers.tls is not None:
            more["tls"] = servers.tls
        try:
            async with asyncio.timeout(OPEN_S):
                await made._client.connect(
                    list(servers.urls),
                    name=name,
                    error_cb=made._failed,
                    closed_cb=made._gone,
                    disconnected_cb=made._gone,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,  # the fewest that nats-py counts: each server is tried twice
                    reconnect_time_wait=0,
                    connect_timeout=1,
                    pending_size=0,
                    **more,
                )
        except BaseException as error:
            await made.close()
            if isinstance(error, OSError | errors.Error | ValueError):  # TimeoutError is an OSError
                raise Unreachable(made._why or str(error) or type(error).__name__) from None
            raise
        return made

    async def _failed(self, error: Exception) -> None:
        self._why = str(error) or type(error).__name__

    async def _gone(self) -> None:
        self.broken = True

    async def close(self) -> None:
        """Close the connection. It takes :data:`CLOSE_S` at most, whatever the other side does."""
        self.broken = True
        with suppress(OSError, errors.Error):
            async with asyncio.timeout(CLOSE_S):
                await self._client.close()
        # nats-py waits for bytes that nobody takes any more, and keeps the connection.
        with suppress(AttributeError):
            self._client._transport._io_writer.transport.abort()  # type: ignore[union-attr]

    @property
    def servers(self) -> int:
        """Servers of NATS that are known."""
        return len(self._client.servers)

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
            raise self._unanswered(error) from None

    async def ask(self, verb: str, stream: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Ask JetStream's API about a stream; ``None`` if there is no such stream or message."""
        payload = b"" if body is None else orjson.dumps(body)
        with suppress(NoStream):
            return await self._request(f"$JS.API.{verb}.{stream}", payload, None, ASK_S)
        return None

    async def _request(
        self, subject: str, payload: bytes, headers: dict[str, str] | None, within_s: float
    ) -> dict[str, Any]:
        try:
            reply: Msg = await self._client.request(subject, payload, timeout=within_s, headers=headers)
            answer: dict[str, Any] = orjson.loads(reply.data)
        except errors.NoRespondersError:
            raise NoStream("no server of NATS answers for it") from None
        except (OSError, errors.Error, ValueError) as error:
            raise self._unanswered(error) from None
        if (fault := answer.get("error")) is None:
            return answer
        code, text = fault.get("err_code"), f"JetStream: {fault.get('description')} ({fault.get('err_code')})"
        if code in _CONFLICT:
            raise Conflict(text)
        if code in _FULL:
            raise Full(text)
        if code in (_NO_STREAM, _NO_MESSAGE):
            raise NoStream(text)
        raise (TooFewServers if code in _TOO_FEW_SERVERS else Unreachable)(text)

    def _unanswered(self, error: Exception) -> Unreachable:
        """Whoever gets no answer asks another server the next time."""
        self.broken = True
        return Unreachable(self._why or str(error) or type(error).__name__)


def _headers(data: bytes) -> dict[str, str]:
    """The headers of a message: a first line ``NATS/1.0``, then ``Name: value`` each."""
    lines = data.decode("utf-8", "replace").split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines if ": " in line)
