"""SRT, as the library libsrt of the system speaks it: a listener, and the connections of its callers.

The library is found when it is needed. It has a blocking interface, which Python calls without its lock held; a call
that blocks ends when its socket is closed, from any thread. Only functions and numbers are used that are the same in
all releases from 1.4 on.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
import struct
import sys
import time
from contextlib import suppress
from functools import cache
from typing import Any, Final

from tricklecast.trickle.errors import InvalidInput

NAMES: Final = ("srt-gnutls", "srt-openssl", "srt")
"""As Debian and others call it: the library is linked with GnuTLS or with OpenSSL."""

FILES: Final = ("libsrt-gnutls.so.1.5", "libsrt-openssl.so.1.5", "libsrt.so.1.5", "libsrt.dylib")
"""Where nothing can look for names, these are tried."""

MISSING: Final = (
    "many SRT streams on one port need the library libsrt, which is not installed;"
    " on Debian: apt-get install libsrt1.5-gnutls"
)

PACKET_BYTES: Final = 1456
"""The most that a message of live media has."""

BATCH: Final = 256
"""Messages that are taken at once."""

GATHER_S: Final = 0.01
"""A batch gathers them for this many seconds, since each costs a change of threads. SRT holds media back for longer."""

# Numbers of options (SRT_SOCKOPT).
_RCVTIMEO, _EVENT = 14, 18
_PASSPHRASE, _PBKEYLEN, _LATENCY, _STREAMID, _ENFORCED = 26, 27, 43, 46, 53
_READABLE: Final = 1
"""A bit of the option with a socket's events (SRT_EPOLL_IN)."""

MAX_STREAMID: Final = 512

BACKLOG: Final = 16
"""Callers that the library lets wait until they are accepted. It refuses more."""


class SrtError(Exception):
    """The library says no; the message is its own."""


@cache
def library() -> ctypes.CDLL:
    """The library, ready for use.

    Raises:
        InvalidInput: it is not installed.
    """
    for name in (*filter(None, map(ctypes.util.find_library, NAMES)), *FILES):
        with suppress(OSError):
            found = ctypes.CDLL(name)
            break
    else:
        raise InvalidInput(MISSING)
    found.srt_getlasterror_str.restype = ctypes.c_char_p
    found.srt_startup()
    found.srt_setloglevel(0)  # it writes to standard error
    return found


class SrtSocket:
    """A listener, or the connection of a caller.

    Args:
        number: by which the library knows it.
    """

    def __init__(self, number: int) -> None:
        self._srt = library()
        self._number = number
        self._buffer = ctypes.create_string_buffer(PACKET_BYTES)

    @classmethod
    def listening(cls, host: str, port: int, *, passphrase: str, key_bytes: int, latency_ms: int) -> SrtSocket:
        """Listen.

        Args:
            passphrase: callers have to know it; empty: the media is not encrypted.
            key_bytes: of the encryption: 16, 24 or 32; 0: the caller chooses.

        Raises:
            InvalidInput: that address or those options cannot be used.
        """
        try:
            family, *_, address = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_DGRAM)[0]
        except OSError as error:
            raise InvalidInput(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        listener = cls(library().srt_create_socket())
        try:
            listener._set(_LATENCY, latency_ms)
            if passphrase:
                listener._set(_PASSPHRASE, passphrase.encode())
                listener._set(_PBKEYLEN, key_bytes)
            listener._set(_ENFORCED, 1)
            packed = _packed(family, address)
            listener._checked(listener._srt.srt_bind(listener._number, packed, len(packed)))
            listener._checked(listener._srt.srt_listen(listener._number, BACKLOG))
        except SrtError as error:
            listener.close()
            raise InvalidInput(f"cannot listen on {host}:{port}: {error}") from None
        return listener

    def accept(self) -> tuple[SrtSocket, str]:
        """Wait for a caller: its connection, and its address.

        Raises:
            SrtError: the listener is closed, or has failed.
        """
        address, size = ctypes.create_string_buffer(128), ctypes.c_int(128)
        number = self._srt.srt_accept(self._number, address, ctypes.byref(size))
        self._checked(number)
        return SrtSocket(number), _peer(address.raw)

    def prepare(self, silence_s: float) -> str:
        """Begin to use the connection of a caller: its stream id.

        Args:
            silence_s: :meth:`receive` fails when nothing has come for this many seconds.
        """
        self._set(_RCVTIMEO, round(silence_s * 1000))
        text, size = ctypes.create_string_buffer(MAX_STREAMID + 1), ctypes.c_int(MAX_STREAMID)
        self._checked(self._srt.srt_getsockflag(self._number, _STREAMID, text, ctypes.byref(size)))
        return text.raw[: size.value].decode("utf-8", "replace")

    def receive(self) -> bytes:
        """Wait for bytes; several messages that are there already come together.

        Raises:
            SrtError: the connection is over, or nothing has come for too long.
        """
        parts = [self._message()]
        time.sleep(GATHER_S)
        while len(parts) < BATCH and self._has_more():
            parts.append(self._message())
        return b"".join(parts)

    def close(self) -> None:
        """End it. A thread that waits for something of it gets an :class:`SrtError`."""
        self._srt.srt_close(self._number)

    def _message(self) -> bytes:
        size = self._checked(self._srt.srt_recvmsg(self._number, self._buffer, PACKET_BYTES))
        if not size:
            raise SrtError("the connection is closed")
        return self._buffer.raw[:size]

    def _has_more(self) -> bool:
        events, size = ctypes.c_int(), ctypes.c_int(ctypes.sizeof(ctypes.c_int))
        self._srt.srt_getsockflag(self._number, _EVENT, ctypes.byref(events), ctypes.byref(size))
        return events.value & _READABLE != 0

    def _set(self, option: int, value: int | bytes) -> None:
        data: Any = ctypes.create_string_buffer(value) if isinstance(value, bytes) else ctypes.c_int(value)
        size = len(value) if isinstance(value, bytes) else ctypes.sizeof(data)
        self._checked(self._srt.srt_setsockflag(self._number, option, ctypes.byref(data), size))

    def _checked(self, result: int) -> int:
        if result < 0:
            raise SrtError(self._srt.srt_getlasterror_str().decode("utf-8", "replace"))
        return result


def _packed(family: int, address: tuple[Any, ...]) -> bytes:
    """An address as the system's functions take it (``struct sockaddr``)."""
    size = 16 if family == socket.AF_INET else 28
    head = struct.pack("BB", size, family) if sys.platform == "darwin" else struct.pack("=H", family)
    host = socket.inet_pton(family, address[0].partition("%")[0])
    if family == socket.AF_INET:
        return head + struct.pack("!H4s8x", address[1], host)
    return head + struct.pack("!HI16s", address[1], 0, host) + struct.pack("=I", address[3])


def _peer(raw: bytes) -> str:
    """The host of an address that the system's functions have filled in."""
    family = raw[1] if sys.platform == "darwin" else struct.unpack_from("=H", raw)[0]
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[4:8])
    return socket.inet_ntop(socket.AF_INET6, raw[8:24]).removeprefix("::ffff:")
