"""The limits of the core."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MiB = 1 << 20
GiB = 1 << 30


class Limit(StrEnum):
    """What somebody can be refused at. The value is the name of the setting, without its ``max_``."""

    READERS = "readers"
    PUBLISHERS = "publishers"
    CHANNELS = "channels"
    CONNECTIONS = "connections"
    TOTAL_BYTES = "total_bytes"
    CHANNEL_READERS = "readers_per_channel"
    CLIENT_EXCHANGES = "per_ip_limit"
    CLIENT_CONNECTIONS = "per_ip_connections"
    CLIENT_REQUESTS = "per_ip_requests_per_s"


SERVER_WIDE: Final = frozenset({Limit.READERS, Limit.PUBLISHERS, Limit.CHANNELS, Limit.CONNECTIONS, Limit.TOTAL_BYTES})
"""Limits that all clients share: another server may have room. The others are a channel's or a client's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be held, and for how long. Bytes, counts and seconds; ``None`` where there is no limit.

    Attributes:
        segment_bytes: body bytes of one segment.
        window_segments, window_bytes, window_age_s: closed segments kept per channel for catching up; whichever
            is smallest rules, and the newest closed segment is kept whatever they say.
        total_bytes: memory of all segments of all channels, by what they really cost
            (:mod:`app.core.segment`).
        channels: channels that exist at a time, those in their drain included.
        readers: readers at a time, waiting ones included; readers_per_channel: of one channel.
        publishers: publishing requests at a time, preconnects included: a publisher has two.
        connections: connections at a time.
        client_exchanges, client_connections: of one client address at a time.
        client_requests_per_s, client_burst: how many requests a client address may make per second in the long run, and
            how many at once.
        clients: client addresses that are told apart.
        publisher_grace_s: how long a segment whose publisher disconnected stays open for it to resume.
        skip_grace_s: how long a preconnected writer that was overtaken by a later seq may still begin.
        overtaking_segments: how far beyond the head a POST may lie that has only overtaken others, as happens where
            a client sends without waiting for answers; one that falls silent for 0.1 s at 500 segments/s needs 50.
        overtaking_grace_s: how long one that was overtaken may take to arrive.
        first_byte_timeout_s: how long a preconnect may wait for its first byte (``None``: for ever).
        channel_drain_s: how long an ended channel's segments stay readable.
        idle_timeout_s: a channel to which nothing was published for so long ends.
        tombstone_s, tombstones: how long, and of how many channels, it is remembered that they have ended.
    """

    segment_bytes: int = 64 * MiB
    window_segments: int = 256
    window_bytes: int = 64 * MiB
    window_age_s: float = 60.0
    total_bytes: int = GiB
    channels: int = 10_000
    readers: int = 50_000
    readers_per_channel: int | None = None
    publishers: int | None = 20_000
    connections: int | None = 80_000
    client_exchanges: int | None = None
    client_connections: int | None = None
    client_requests_per_s: float | None = None
    client_burst: int = 50
    clients: int = 100_000
    publisher_grace_s: float = 5.0
    skip_grace_s: float = 2.0
    overtaking_segments: int = 64
    overtaking_grace_s: float = 0.2
    first_byte_timeout_s: float | None = None
    channel_drain_s: float = 10.0
    idle_timeout_s: float = 300.0
    tombstone_s: float = 300.0
    tombstones: int = 10_000

    @property
    def tells_clients_apart(self) -> bool:
        """Whether there is a limit for each client address."""
        return bool(self.client_connections or self.client_exchanges or self.client_requests_per_s)
