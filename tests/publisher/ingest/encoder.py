"""An RTMP client in small parts: messages as an encoder sends them, and an encoder on a socket."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from tests.support.waiting import WITHIN_S
from tricklecast.publisher.ingest.rtmp import encode_amf

AUDIO, VIDEO, METADATA, COMMAND = 8, 9, 18, 20

HANDSHAKE = b"\x03" + bytes(1536) + bytes(1536)
"""C0, C1 and C2."""

CONNECT = ("connect", 1.0, {"app": "live", "tcUrl": "rtmp://host/live"})
CREATE_STREAM = ("createStream", 2.0, None)
UNPUBLISH = ("FCUnpublish", 6.0, None, "key")


def chunks(type_: int, timestamp: int, payload: bytes, *, number: int = 3, size: int = 128) -> bytes:
    """A message with a whole header, in chunks of ``size`` bytes."""
    is_extended = timestamp >= 0xFFFFFF
    extended = timestamp.to_bytes(4, "big") if is_extended else b""
    head = min(timestamp, 0xFFFFFF).to_bytes(3, "big") + len(payload).to_bytes(3, "big") + bytes([type_]) + bytes(4)
    parts = [payload[at : at + size] for at in range(0, len(payload), size)] or [b""]
    return b"".join(
        bytes([number if index == 0 else 0xC0 | number]) + (head if index == 0 else b"") + extended + part
        for index, part in enumerate(parts)
    )


def command(*values: object) -> bytes:
    """A command."""
    return chunks(COMMAND, 0, b"".join(map(encode_amf, values)))


def publish(key: str) -> bytes:
    """All that an encoder sends before its media."""
    return HANDSHAKE + command(*CONNECT) + command(*CREATE_STREAM) + command("publish", 3.0, None, key, "live")


def flv_messages(clip: Path, *types: int) -> Iterator[bytes]:
    """The tags of an FLV file as messages: those of some types, or all."""
    data, at = clip.read_bytes(), 13
    while at < len(data):
        length = int.from_bytes(data[at + 1 : at + 4], "big")
        timestamp = int.from_bytes(data[at + 7 : at + 8] + data[at + 4 : at + 7], "big")
        if not types or data[at] in types:
            yield chunks(data[at], timestamp, data[at + 11 : at + 11 + length], number=4)
        at += 11 + length + 4


class Encoder:
    """Streams to a server over a socket.

    Args:
        port: of the server, on this machine.
        key: the stream key.
    """

    def __init__(self, port: int, key: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WITHIN_S)
        self.socket.settimeout(WITHIN_S)
        self.socket.sendall(publish(key))

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.socket.close()

    def send(self, clip: Path, *types: int) -> None:
        """Send an FLV file, or its messages of some types."""
        self.socket.sendall(b"".join(flv_messages(clip, *types)))

    def end(self) -> None:
        """End the stream in order, and wait until the server has closed the connection."""
        self.socket.sendall(command(*UNPUBLISH))
        self.answer()

    def answer(self) -> bytes:
        """All that the server sends until it closes the connection."""
        parts = []
        while data := self.socket.recv(65536):
            parts.append(data)
        return b"".join(parts)

    def break_off(self) -> None:
        """Close the connection as a crash does: with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
