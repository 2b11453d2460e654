"""The most memory that a server may take by its settings: docs/explanation/memory.md as arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tricklecast.app.access.webhook import MAX_CACHED, MAX_WAITING
from tricklecast.app.core.storm_guard import BUCKETS
from tricklecast.app.data_plane.exchange import PARKED_BYTES
from tricklecast.app.data_plane.scheduling import TURN_BYTES
from tricklecast.app.http1.connection import QUEUE_BYTES, QUEUE_REQUESTS, SLICE_BYTES, UNSPLIT
from tricklecast.app.settings import Settings

CONNECTION_BYTES: Final = 8 << 10
"""A connection with its exchange and record: 4 to 6 kB measured, waiting, preconnected or stalled."""

CHANNEL_BYTES: Final = 4 << 10
"""A channel without its segments: 3.9 kB measured, with the longest name."""

REQUEST_BYTES: Final = 2 << 10
"""A pipelined request beside the bytes of its head."""

QUEUED_REQUESTS: Final = QUEUE_REQUESTS + SLICE_BYTES // len(b"HEAD /a HTTP/1.1\r\nHost:\r\n\r\n")
"""Pipelined requests, at most: the slice of input in which there are too many is parsed to its end."""

RECORD_BYTES: Final = 2304
"""An access record that waits to be written, with path, client and user agent as long as they may be."""

TOMBSTONE_BYTES: Final = 1 << 10
"""The memory of the tombstone of an ended channel with the longest name."""

BUCKET_BYTES: Final = 1 << 10
"""A bucket of the storm guard, with the longest name of a channel."""

ADDRESS_BYTES: Final = 512
"""An address that is told apart."""

TOKEN_BYTES: Final = 2 << 10
"""A remembered token, with the longest subject and a pattern or two; 17 kB with as many patterns as a token may have,
which is up to the operator who signs it."""

DECISION_BYTES: Final = 512
QUESTION_BYTES: Final = 3 << 10
"""An answer of the webhook that is remembered, and a question to it that waits: all of a request that it may need."""

CACHES_BYTES: Final = 24 << 20
"""All caches of names, header fields and user agents when they are full, and room for what is being worked on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many connections are in which state; each is at its worst in one of them.

    Attributes:
        connections: all of them.
        publishing: in the middle of a chunk.
        beginning: in the middle of a request's head.
        pipelining: with a full queue of requests behind one that waits.
        parked: with a POST that waits for its turn, for the storm guard or for a webhook, with what came with its head.
        copying: stalled readers that cannot share frames: TLS, or HTTP/1.0.
    """

    connections: int
    publishing: int = 0
    beginning: int = 0
    pipelining: int = 0
    parked: int = 0
    copying: int = 0


def bound(settings: Settings, load: Load) -> dict[str, int]:
    """The most memory that each kind of buffer may take, in bytes; the interpreter and its modules are not in it.

    Args:
        settings: the server's.
        load: what its connections do. The worst that ``max_connections`` allow is rarely what a server is sized for.
    """
    options, limits = settings.options(), settings.limits()
    return {
        "segments": limits.total_bytes + TURN_BYTES,
        "channels": limits.channels * CHANNEL_BYTES,
        "tombstones": limits.tombstones * TOMBSTONE_BYTES,
        "connections": load.connections * CONNECTION_BYTES,
        "partial chunks": load.publishing * 2 * UNSPLIT,
        "heads": load.beginning * 2 * (options.header_bytes + options.url_bytes),
        "pipelined requests": load.pipelining * (QUEUED_REQUESTS * REQUEST_BYTES + QUEUE_BYTES + TURN_BYTES),
        "parked requests": min(PARKED_BYTES, load.parked * TURN_BYTES),
        "copies for readers": load.copying * 3 * TURN_BYTES,
        "storm guard": BUCKETS * BUCKET_BYTES if options.storm_guard else 0,
        "addresses": limits.clients * ADDRESS_BYTES if limits.tells_clients_apart else 0,
        "tokens": settings.token_cache * TOKEN_BYTES if settings.has_tokens else 0,
        "webhook": MAX_CACHED * DECISION_BYTES + MAX_WAITING * QUESTION_BYTES if settings.webhook_url else 0,
        "access log": settings.access_log_queue * RECORD_BYTES if settings.access_log is not None else 0,
        "caches": CACHES_BYTES,
    }
