"""Program tables of MPEG-TS (ISO/IEC 13818-1, 2.4.4): which PIDs carry what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tricklecast.subscriber.check.media import MAX_TRACKS, Kind

MAX_SECTION: Final = 1024
"""Longest section of a program table, with its head."""

_TYPES: Final[dict[int, tuple[Kind, str]]] = {
    0x01: (Kind.VIDEO, "mpeg1video"),
    0x02: (Kind.VIDEO, "mpeg2video"),
    0x03: (Kind.AUDIO, "mpegaudio"),
    0x04: (Kind.AUDIO, "mpegaudio"),
    0x0F: (Kind.AUDIO, "aac"),
    0x10: (Kind.VIDEO, "mpeg4"),
    0x11: (Kind.AUDIO, "aac_latm"),
    0x1B: (Kind.VIDEO, "h264"),
    0x21: (Kind.VIDEO, "jpeg2000"),
    0x24: (Kind.VIDEO, "hevc"),
    0x33: (Kind.VIDEO, "vvc"),
    0x42: (Kind.VIDEO, "cavs"),
    0x81: (Kind.AUDIO, "ac3"),
    0x82: (Kind.AUDIO, "dts"),
    0x83: (Kind.AUDIO, "truehd"),
    0x87: (Kind.AUDIO, "eac3"),
    0xD1: (Kind.VIDEO, "dirac"),
    0xEA: (Kind.VIDEO, "vc1"),
}
"""Stream types of table 2-34, and those that ATSC A/53 and Blu-ray added."""

_REGISTERED: Final[dict[bytes, tuple[Kind, str]]] = {
    b"Opus": (Kind.AUDIO, "opus"),
    b"AC-3": (Kind.AUDIO, "ac3"),
    b"EAC3": (Kind.AUDIO, "eac3"),
    b"BSSD": (Kind.AUDIO, "s302m"),
    b"HEVC": (Kind.VIDEO, "hevc"),
    b"drac": (Kind.VIDEO, "dirac"),
    b"VC-1": (Kind.VIDEO, "vc1"),
}
_DVB: Final[dict[int, tuple[Kind, str]]] = {
    0x6A: (Kind.AUDIO, "ac3"),
    0x7A: (Kind.AUDIO, "eac3"),
    0x7B: (Kind.AUDIO, "dts"),
}
_REGISTRATION: Final = 0x05
_UNKNOWN: Final = (Kind.DATA, "data")


class Sections:
    """Puts the sections on one PID together again."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._open = False

    def feed(self, payload: bytes, starts: bool) -> Iterator[bytes]:
        """Take a packet's payload; the sections that it completes.

        Args:
            payload: of one packet.
            starts: a section begins in it, at the place that its first byte points to.
        """
        if starts and payload:
            begin = 1 + payload[0]
            yield from self._add(payload[1:begin])
            self._data, self._open = bytearray(), True
            payload = payload[begin:]
        yield from self._add(payload)

    def _add(self, payload: bytes) -> Iterator[bytes]:
        if not self._open:
            return
        self._data += payload
        while len(self._data) >= 3 and self._data[0] != 0xFF:  # what follows the last section is stuffing
            size = 3 + (int.from_bytes(self._data[1:3]) & 0xFFF)
            if size > MAX_SECTION:
                self._open = False
                return
            if len(self._data) < size:
                return
            yield bytes(self._data[:size])
            del self._data[:size]
        self._open = len(self._data) < 3


def is_intact(section: bytes) -> bool:
    """Whether a section's check sum is right."""
    return len(section) >= 12 and crc32(section) == 0


def crc32(data: bytes) -> int:
    """The check sum of sections (annex A): over one that ends with its own it is 0."""
    value = 0xFFFFFFFF
    for byte in data:
        value = (value << 8 & 0xFFFFFFFF) ^ _CRC[(value >> 24) ^ byte]
    return value


def _crc_table() -> tuple[int, ...]:
    table = []
    for index in range(256):
        value = index << 24
        for _ in range(8):
            value = (value << 1 ^ 0x04C11DB7) & 0xFFFFFFFF if value & 0x80000000 else value << 1
        table.append(value)
    return tuple(table)


_CRC: Final = _crc_table()


def programs(section: bytes) -> list[int]:
    """The PIDs of the program tables that a program association table lists."""
    if section[0] != 0x00:
        return []
    entries = section[8:-4]
    pairs = (entries[at : at + 4] for at in range(0, len(entries) - 3, 4))
    return [int.from_bytes(pair[2:]) & 0x1FFF for pair in pairs if pair[:2] != b"\0\0"][:MAX_TRACKS]


def streams(section: bytes) -> dict[int, tuple[Kind, str]]:
    """The elementary streams of a program map table, by PID."""
    found: dict[int, tuple[Kind, str]] = {}
    if section[0] != 0x02:
        return found
    at, end = 12 + (int.from_bytes(section[10:12]) & 0xFFF), len(section) - 4
    while at + 5 <= end and len(found) < MAX_TRACKS:
        size = int.from_bytes(section[at + 3 : at + 5]) & 0xFFF
        found[int.from_bytes(section[at + 1 : at + 3]) & 0x1FFF] = _what(section[at], section[at + 5 : at + 5 + size])
        at += 5 + size
    return found


def _what(stream_type: int, descriptors: bytes) -> tuple[Kind, str]:
    if known := _TYPES.get(stream_type):
        return known
    at = 0
    while at + 2 <= len(descriptors):
        tag, body = descriptors[at], descriptors[at + 2 : at + 2 + descriptors[at + 1]]
        known = _REGISTERED.get(body[:4]) if tag == _REGISTRATION else _DVB.get(tag)
        if known is not None:
            return known
        at += 2 + descriptors[at + 1]
    return _UNKNOWN
