"""The server's side of an RTMP connection, for publishing only and without I/O.

The caller passes the bytes that arrived to :meth:`Connection.receive`, handles the events that it returns, and sends
the bytes that :meth:`Connection.take_output` returns. An encoder such as OBS or ffmpeg goes through these steps:

=============================  ======================================================================
the client sends               :class:`Connection`
=============================  ======================================================================
C0, C1, C2                     answers with S0, S1, S2 (the handshake without a digest)
``connect``                    accepts, and announces its window and chunk size
``createStream``               answers with the number of the one stream that a connection has
``publish``                    returns :class:`PublishRequested`; the caller answers it with
                               :meth:`Connection.accept` or :meth:`Connection.refuse`
audio, video, metadata         returns :class:`MediaReceived`
``FCUnpublish``                returns :class:`Unpublished`
=============================  ======================================================================

Every size that the client chooses has a limit here. The caller limits the time. A client that has not shown its key
may send :data:`MAX_CHUNKS_BEFORE` chunks and :data:`MAX_MESSAGES_BEFORE` short messages: together these cost some
milliseconds. :meth:`Connection.receive` reads :data:`TURN_CHUNKS` chunks at most, so that a caller can serve other
connections in between.
The protocol is Adobe's "Real Time Messaging Protocol" 1.0; commands are encoded in AMF 0.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Final, TypeAlias
from urllib.parse import parse_qs

from tricklecast.trickle.errors import TrickleError

VERSION: Final = 3
HANDSHAKE_BYTES: Final = 1536

MAX_COMMAND_BYTES: Final = 64 * 1024
"""Size of a command or of metadata. OBS sends less than 1 KiB."""

MAX_MEDIA_BYTES: Final = 8 << 20
"""Size of one audio or video message: a keyframe of 8 MiB is far beyond the needs of 4K. It also limits the messages
that have arrived in part, all together."""

MAX_MESSAGES_BEFORE: Final = 64
MAX_CHUNKS_BEFORE: Final = 1024
"""Messages, and chunks of them, that a client may send until it is allowed to publish. OBS and ffmpeg send about 10
messages, in 20 chunks."""

TURN_CHUNKS: Final = 256
"""Chunks that one call of :meth:`Connection.receive` reads: about a millisecond."""

MAX_VALUES: Final = 256
"""Values of a command or of metadata, those inside of objects included. OBS sends about 20."""

MAX_CHUNK_STREAMS: Final = 16
"""Chunk streams of one connection. Encoders use up to 5."""

MAX_DEPTH: Final = 8
"""Depth to which AMF objects may be nested. ``connect`` has one object in the command."""

CHUNK_BYTES: Final = 4096
"""Size of the chunks that we send."""

WINDOW_BYTES: Final = 2_500_000
"""After this many bytes each side acknowledges the number that it has received."""

STREAM_ID: Final = 1
"""A connection publishes one stream, and its number is 1."""


class ProtocolError(TrickleError):
    """The client sent something that is not RTMP, that exceeds a limit, or that this server does not support."""


@dataclass(frozen=True, slots=True)
class PublishRequested:
    """The client wants to publish; the caller accepts or refuses.

    Attributes:
        key: the stream key, without its query.
        token: value of ``?token=`` behind the stream key; empty if there is none.
    """

    key: str
    token: str


@dataclass(frozen=True, slots=True)
class MediaReceived:
    """Audio, video or metadata.

    Attributes:
        data: the message as a tag of an FLV file; the first one has the file's header before it.
    """

    data: bytes


@dataclass(frozen=True, slots=True)
class Unpublished:
    """The client ended its stream in order; the caller closes the connection."""


Event: TypeAlias = PublishRequested | MediaReceived | Unpublished


class _State(Enum):
    HANDSHAKE = "handshake"
    """C0 and C1 have not arrived."""
    GREETED = "greeted"
    """C2 has not arrived."""
    CONNECTING = "connecting"
    """Commands are exchanged."""
    ASKED = "asked"
    """The client asked to publish, and the caller has not answered."""
    PUBLISHING = "publishing"
    OVER = "over"


class _Type:
    """Numbers of message types."""

    SET_CHUNK_SIZE = 1
    ABORT = 2
    ACKNOWLEDGEMENT = 3
    USER_CONTROL = 4
    WINDOW_SIZE = 5
    PEER_BANDWIDTH = 6
    AUDIO = 8
    VIDEO = 9
    COMMAND_AMF3 = 17
    METADATA = 18
    COMMAND = 20
    AGGREGATE = 22


_ANSWERED: Final = ("connect", "releaseStream", "FCPublish", "createStream")
"""Commands whose answer repeats their number."""

_STREAM_BEGIN: Final = 0
_PING_REQUEST: Final = 6
_PING_RESPONSE: Final = 7

_HEADER_BYTES: Final = (11, 7, 3, 0)
"""Length of a chunk's message header, by its format."""

_EXTENDED: Final = 0xFFFFFF
"""This timestamp in a header says that the timestamp itself follows, in 4 bytes."""


@dataclass(slots=True)
class _ChunkStream:
    """The state of a chunk stream: the last header, to which the next one refers, and the message that arrives."""

    timestamp: int = 0
    delta: int = 0
    length: int = 0
    type: int = 0
    is_extended: bool = False
    partial: bytearray = field(default_factory=bytearray)


class Connection:
    """One connection of a client that wants to publish.

    After a :class:`ProtocolError` the caller closes the connection. The bytes still to be sent are in
    :meth:`take_output`.
    """

    def __init__(self) -> None:
        self._state = _State.HANDSHAKE
        self._input = bytearray()
        self._output = bytearray()
        self._chunk_bytes = 128
        self._chunk_streams: dict[int, _ChunkStream] = {}
        self._partial_bytes = 0
        self._received = 0
        self._acknowledged = 0
        # Chunks and messages since the handshake; they are counted until the client may publish.
        self._chunks = 0
        self._messages = 0
        # Chunks that this call of receive() may still read.
        self._turn = 0
        self._has_header = False

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes that arrived.

        Returns:
            The events in them. :class:`PublishRequested` is the last event until the caller has answered it. While
            :attr:`has_more` is true, call this again with ``b""`` before more bytes are read.

        Raises:
            ProtocolError: the connection cannot go on.
        """
        self._input += data
        self._received += len(data)
        self._turn = TURN_CHUNKS
        events = list(self._events())
        if self._state is not _State.HANDSHAKE and self._received - self._acknowledged >= WINDOW_BYTES:
            self._acknowledged = self._received
            self._send(_Type.ACKNOWLEDGEMENT, struct.pack(">I", self._received & 0xFFFFFFFF))
        return events

    @property
    def has_more(self) -> bool:
        """Whether the last call of :meth:`receive` stopped before it had read everything."""
        return self._turn == 0 and self._state in (_State.CONNECTING, _State.PUBLISHING)

    def take_output(self) -> bytes:
        """Return the bytes that the caller must send to the client now."""
        output = bytes(self._output)
        self._output.clear()
        return output

    def accept(self) -> list[Event]:
        """Let the client publish.

        Returns:
            The events that have already arrived behind the request.
        """
        assert self._state is _State.ASKED
        self._state = _State.PUBLISHING
        self._send(_Type.USER_CONTROL, struct.pack(">HI", _STREAM_BEGIN, STREAM_ID))
        self._send_status("status", "NetStream.Publish.Start", "publishing")
        return self.receive(b"")

    def refuse(self, why: str) -> None:
        """Tell the client why its stream is not taken, or not any more. The caller then closes the connection."""
        can_be_told = self._state not in (_State.HANDSHAKE, _State.GREETED)
        self._state = _State.OVER
        if can_be_told:
            self._send_status("error", "NetStream.Publish.BadName", why)

    def _events(self) -> Iterator[Event]:
        if self._state in (_State.HANDSHAKE, _State.GREETED) and not self._shake_hands():
            return
        while self._state in (_State.CONNECTING, _State.PUBLISHING) and (message := self._next_message()):
            type_, timestamp, payload = message
            match type_:
                case _Type.AUDIO | _Type.VIDEO:
                    yield from self._media(type_, timestamp, payload)
                case _Type.METADATA:
                    yield from self._media(type_, timestamp, payload.removeprefix(_SET_DATA_FRAME))
                case _Type.COMMAND:
                    yield from self._command(payload)
                case _Type.COMMAND_AMF3:  # its values are AMF 0, behind one byte
                    yield from self._command(payload[1:])
                case _Type.AGGREGATE:
                    raise ProtocolError("the client sends aggregate messages, which are not supported")
                case _:
                    self._control(type_, payload)

    # The handshake.

    def _shake_hands(self) -> bool:
        """Whether the handshake is complete."""
        if self._state is _State.HANDSHAKE:
            if self._input[:1] == b"\x16":
                raise ProtocolError("the client speaks TLS (rtmps://), and this port is for rtmp://")
            if self._input and self._input[0] != VERSION:
                raise ProtocolError("not RTMP")
            if len(self._input) < 1 + HANDSHAKE_BYTES:
                return False
            echo = self._input[1 : 1 + HANDSHAKE_BYTES]
            # The zeros are a version: clients take them as "no digest", and do not check for one.
            self._output += bytes([VERSION]) + bytes(8) + os.urandom(HANDSHAKE_BYTES - 8) + echo
            del self._input[: 1 + HANDSHAKE_BYTES]
            self._state = _State.GREETED
        if len(self._input) < HANDSHAKE_BYTES:
            return False
        del self._input[:HANDSHAKE_BYTES]
        self._state = _State.CONNECTING
        return True

    # Chunks: a message is sent in pieces, so that a large one does not hold up the others.

    def _next_message(self) -> tuple[int, int, bytes] | None:
        """Type, timestamp in milliseconds and payload of the next complete message; ``None`` if bytes are missing."""
        is_trusted = self._state is _State.PUBLISHING
        while self._turn and (chunk := self._next_chunk()) is not None:
            self._turn -= 1
            stream, is_complete = chunk
            if not is_trusted:
                self._chunks += 1
                self._messages += is_complete
                if self._chunks > MAX_CHUNKS_BEFORE or self._messages > MAX_MESSAGES_BEFORE:
                    raise ProtocolError("the client sends too much before it asks to publish")
            if is_complete:
                payload = bytes(stream.partial)
                self._drop_partial(stream)
                return stream.type, stream.timestamp, payload
        return None

    def _next_chunk(self) -> tuple[_ChunkStream, bool] | None:
        """Take one chunk; its stream, and whether it completes a message. Nothing is changed if bytes are missing."""
        data, available = self._input, len(self._input)
        if not available:
            return None
        format_, number, at = data[0] >> 6, data[0] & 0x3F, 1
        if number < 2:  # the number of the chunk stream follows, in one byte or in two
            at += number + 1
            number = 64 + int.from_bytes(data[1:at], "little")
        end = at + _HEADER_BYTES[format_]
        if available < end:
            return None
        stream = self._chunk_streams.get(number) or _ChunkStream()
        is_extended, time, length, type_ = stream.is_extended, stream.delta, stream.length, stream.type
        if format_ < 3:
            time = int.from_bytes(data[at : at + 3], "big")
            is_extended = time == _EXTENDED
        if format_ < 2:
            length, type_ = int.from_bytes(data[at + 3 : at + 6], "big"), data[at + 6]
        if is_extended:
            if available < end + 4:
                return None
            if format_ < 3:
                time = int.from_bytes(data[end : end + 4], "big")
            end += 4
        is_media = type_ in (_Type.AUDIO, _Type.VIDEO) and self._state is _State.PUBLISHING
        if length > (MAX_MEDIA_BYTES if is_media else MAX_COMMAND_BYTES):
            raise ProtocolError(f"a message of {length} bytes is too long")
        begins = format_ < 3 or not stream.partial
        size = min(self._chunk_bytes, length - (0 if begins else len(stream.partial)))
        if available < end + size:
            return None
        if begins:
            self._begin(number, stream)
            stream.timestamp = (time if format_ == 0 else stream.timestamp + time) & 0xFFFFFFFF
            # After an absolute timestamp, a chunk without a header repeats it as the difference: so says the protocol.
            stream.is_extended, stream.delta, stream.length, stream.type = is_extended, time, length, type_
        stream.partial += data[end : end + size]
        self._partial_bytes += size
        if self._partial_bytes > MAX_MEDIA_BYTES:
            raise ProtocolError(f"unfinished messages have more than {MAX_MEDIA_BYTES} bytes")
        del data[: end + size]
        return stream, len(stream.partial) == length

    def _begin(self, number: int, stream: _ChunkStream) -> None:
        if number not in self._chunk_streams and len(self._chunk_streams) >= MAX_CHUNK_STREAMS:
            raise ProtocolError(f"more than {MAX_CHUNK_STREAMS} chunk streams")
        self._chunk_streams[number] = stream
        self._drop_partial(stream)

    def _drop_partial(self, stream: _ChunkStream) -> None:
        self._partial_bytes -= len(stream.partial)
        stream.partial.clear()

    # Messages.

    def _control(self, type_: int, payload: bytes) -> None:
        number = int.from_bytes(payload[:4], "big")
        if type_ == _Type.SET_CHUNK_SIZE:
            if not 0 < number < 1 << 31:
                raise ProtocolError(f"a chunk size of {number} bytes is not possible")
            self._chunk_bytes = min(number, MAX_MEDIA_BYTES)
        elif type_ == _Type.ABORT and number in self._chunk_streams:
            self._drop_partial(self._chunk_streams[number])
        elif type_ == _Type.USER_CONTROL and payload[:2] == struct.pack(">H", _PING_REQUEST):
            self._send(_Type.USER_CONTROL, struct.pack(">H", _PING_RESPONSE) + payload[2:6])

    def _command(self, payload: bytes) -> Iterator[Event]:
        values = [*islice(_AmfReader(payload).values(), _MAX_ARGUMENTS + 2), *[None] * 4]
        name, number, _, key = values[:4]
        if name in _ANSWERED and not isinstance(number, float | None):
            raise ProtocolError(f"the client's {name} has no number that it could be answered with")
        match name:
            case "connect":
                self._connect(number)
            case "releaseStream" | "FCPublish":
                self._send_command("_result", number, None, None)
            case "createStream":
                self._send_command("_result", number, None, float(STREAM_ID))
            case "publish":
                yield self._publish(key)
            case "FCUnpublish" | "deleteStream" | "closeStream":
                if self._state is _State.PUBLISHING:
                    self._state = _State.OVER
                    yield Unpublished()
            case "play" | "play2":
                raise ProtocolError("the client wants to play a stream, and this port only takes streams")

    def _connect(self, number: object) -> None:
        self._send(_Type.WINDOW_SIZE, struct.pack(">I", WINDOW_BYTES))
        self._send(_Type.PEER_BANDWIDTH, struct.pack(">IB", WINDOW_BYTES, 2))  # 2: the limit may be changed
        self._send(_Type.SET_CHUNK_SIZE, struct.pack(">I", CHUNK_BYTES))
        answer = {
            "level": "status",
            "code": "NetConnection.Connect.Success",
            "description": "connected",
            "objectEncoding": 0.0,
        }
        self._send_command("_result", number, {"fmsVer": "FMS/3,0,1,123", "capabilities": 31.0}, answer)

    def _publish(self, name: object) -> PublishRequested:
        if self._state is not _State.CONNECTING:
            raise ProtocolError("the client publishes a second stream over one connection")
        self._state = _State.ASKED
        key, _, query = name.partition("?") if isinstance(name, str) else ("", "", "")
        try:
            token = parse_qs(query, max_num_fields=16).get("token", [""])[0]
        except ValueError:
            raise ProtocolError("the stream key has too many parameters") from None
        return PublishRequested(key, token)

    def _media(self, type_: int, timestamp: int, payload: bytes) -> Iterator[Event]:
        if self._state is not _State.PUBLISHING or not payload:
            return
        if type_ != _Type.METADATA:
            _check_enhanced(type_, payload)
        header = b""
        if not self._has_header:
            self._has_header = True
            header = flv_header(payload if type_ == _Type.METADATA else b"")
        yield MediaReceived(header + flv_tag(type_, timestamp, payload))

    def _send_status(self, level: str, code: str, description: str) -> None:
        self._send_command("onStatus", 0.0, None, {"level": level, "code": code, "description": description})

    def _send_command(self, *values: object) -> None:
        self._send(_Type.COMMAND, b"".join(map(encode_amf, values)))

    def _send(self, type_: int, payload: bytes) -> None:
        """Send a message; ours are short enough for one chunk."""
        is_command = type_ == _Type.COMMAND
        header = struct.pack(">B3x", 3 if is_command else 2) + len(payload).to_bytes(3, "big") + bytes([type_])
        self._output += header + bytes(4) + payload


def flv_header(metadata: bytes = b"") -> bytes:
    """Make the header of an FLV file.

    It announces audio and video as the metadata does. A demuxer waits for every kind that is announced, and begins
    as soon as it has seen them.

    Args:
        metadata: payload of the metadata message; without it, both are announced.
    """
    described = next((value for value in _AmfReader(metadata).values() if isinstance(value, dict)), None)
    flags = 5 if described is None else 4 * ("audiocodecid" in described) + ("videocodecid" in described)
    return b"FLV\x01" + bytes([flags]) + b"\x00\x00\x00\x09" + bytes(4)


def flv_tag(type_: int, timestamp: int, payload: bytes) -> bytes:
    """Make a message a tag of an FLV file.

    Args:
        timestamp: in milliseconds.
    """
    time = (timestamp & 0xFFFFFF).to_bytes(3, "big") + bytes([timestamp >> 24])
    head = bytes([type_]) + len(payload).to_bytes(3, "big") + time + bytes(3)
    return head + payload + (len(head) + len(payload)).to_bytes(4, "big")


# Enhanced RTMP: codecs by four characters, and several tracks of a kind.

CODECS: Final = frozenset({b"avc1", b"hvc1", b"av01", b"vp09", b"mp4a", b".mp3", b"Opus", b"fLaC", b"ac-3", b"ec-3"})
"""Codecs of enhanced RTMP that libavformat reads, and some container of segments carries."""

_MULTITRACK: Final = {_Type.AUDIO: 5, _Type.VIDEO: 6}
_MODIFIED: Final = 7
"""Kinds of packets. Behind a modified one's additions, the next byte names the kind."""

_WITH_CODEC: Final = frozenset({0, 1, 3})
"""Kinds that begin with their codec: the decoder's parameters, and coded frames, with and without an own time."""


def _check_enhanced(type_: int, payload: bytes) -> None:
    """Refuse media that one channel cannot carry. The message of an older encoder, and one that is cut off, passes.

    Raises:
        ProtocolError: it has several tracks of a kind, or a codec that nobody here knows.
    """
    first = payload[0]
    if not (first & 0x80 if type_ == _Type.VIDEO else first >> 4 == 9):
        return
    kind, at = first & 0x0F, 1
    while kind == _MODIFIED and at + 1 < len(payload):
        size, at = payload[at] + 1, at + 1
        if size == 256:  # the size itself follows
            size, at = int.from_bytes(payload[at : at + 2], "big") + 1, at + 2
        at += size
        if at >= len(payload):
            return
        kind, at = payload[at] & 0x0F, at + 1
    media = "video" if type_ == _Type.VIDEO else "audio"
    if kind == _MULTITRACK[type_]:
        raise ProtocolError(
            f"the encoder sends several {media} tracks over one connection (multitrack), and a channel has one: switch "
            "multitrack off (OBS: Settings, Stream), or send each to a stream key of its own"
        )
    codec = payload[at : at + 4]
    is_command = type_ == _Type.VIDEO and first >> 4 & 7 == 5  # a seek begins or ends; it has no codec
    if kind in _WITH_CODEC and not is_command and len(codec) == 4 and codec not in CODECS:
        name = codec.decode("ascii", "replace")
        raise ProtocolError(f"the encoder sends {media} in a codec that channels do not carry: {name!r}")


# AMF 0, the encoding of commands.

_SET_DATA_FRAME: Final = b"\x02\x00\x0d@setDataFrame"
_OBJECT_END: Final = b"\x00\x00\x09"
_MAX_ARGUMENTS: Final = 8


class _AmfReader:
    """Reads the values of a command.

    Raises:
        ProtocolError: they are cut off, nested too deeply, too many, or of a type that commands do not have.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._left = MAX_VALUES

    def values(self) -> Iterator[object]:
        while self._at < len(self._data):
            yield self._value(0)

    def _value(self, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise ProtocolError("a command's values are nested too deeply")
        if not self._left:
            raise ProtocolError(f"a command has more than {MAX_VALUES} values")
        self._left -= 1
        match self._number(1):
            case 0:  # number
                return struct.unpack(">d", self._take(8))[0]
            case 1:  # boolean
                return bool(self._number(1))
            case 2:  # string
                return self._text(2)
            case 3:  # object
                return self._members(depth)
            case 5 | 6:  # null, undefined
                return None
            case 8:  # ECMA array: an object behind the number of its members
                self._take(4)
                return self._members(depth)
            case 10:  # strict array
                return [self._value(depth + 1) for _ in range(self._number(4))]
            case 11:  # date
                return self._take(10)
            case 12:  # long string
                return self._text(4)
            case other:
                raise ProtocolError(f"a command has a value of the unknown type {other}")

    def _members(self, depth: int) -> dict[str, object]:
        members: dict[str, object] = {}
        while self._data[self._at : self._at + 3] != _OBJECT_END:
            name = self._text(2)
            members[name] = self._value(depth + 1)
        self._at += len(_OBJECT_END)
        return members

    def _text(self, length_bytes: int) -> str:
        return self._take(self._number(length_bytes)).decode("utf-8", "replace")

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def _take(self, size: int) -> bytes:
        data = self._data[self._at : self._at + size]
        if len(data) < size:
            raise ProtocolError("a command is cut off")
        self._at += size
        return data


def encode_amf(value: object) -> bytes:
    """Encode a number, a text, an object or ``None`` for a command."""
    match value:
        case float():
            return struct.pack(">Bd", 0, value)
        case str():
            return b"\x02" + _amf_text(value)
        case dict():
            members = (_amf_text(name) + encode_amf(member) for name, member in value.items())
            return b"\x03" + b"".join(members) + _OBJECT_END
    return b"\x05"


def _amf_text(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data
