"""Nodes of one cluster: how they know each other, and how they know each other's requests.

**The problem.** A request may come to a node that does not own its channel. That node authorizes the client, and passes
the request on (:mod:`~tricklecast.app.cluster.forward`). The owner must know for whom it acts: the storm guard, limits
and the access log go by the client's address and name, and nobody may write what was not authorized.

**The idea.** Nodes speak plain HTTP/1.1, to each other's advertised URLs, with one header field more.
``Trickle-Cluster`` holds the nodes that the request has passed and its client, signed with the secret that all nodes
read in the cluster's bucket. The signature covers the method and the target, too, so it is good for this one request.
A request with a signature needs no token: whoever can sign is a member.

**What it does not do.** The signature has no time in it, since no two clocks need to agree, and the body is not signed.
So who reads the traffic between two nodes can repeat a request of it: where others may listen, advertise ``https``.

**Loops.** While a channel moves, nodes may disagree about its owner. A node that finds more than :data:`MAX_HOPS`
answers 508, and the client asks again. A request may come back to a node that it has passed: the channel has been moved
there meanwhile.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import time
from collections.abc import Callable
from hashlib import blake2b
from math import inf
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import orjson

from tricklecast.app.data_plane.request import CLUSTER, Request, Via
from tricklecast.app.data_plane.responses import FORGED, LOOP, Reply
from tricklecast.trickle.errors import InvalidInput

logger = logging.getLogger("tricklecast.cluster")

MAX_HOPS: Final = 2
"""Nodes that a request may have passed: the one that the client came to, and one that has just lost the channel."""

LEAST_SECRET: Final = 16
"""Bytes of a secret; an empty one would make everybody a member."""

MAX_SIGNED: Final = 8 << 10
"""Bytes of a ``Trickle-Cluster`` that are looked at. Names and addresses are far shorter."""

WARN_S: Final = 60.0
"""The log says at most once in this time that a request was forged, or went in a circle, or got a wrong answer."""

_PORTS: Final = {"http": 80, "https": 443}


class NodePlace(Protocol):
    """A node, as the directory knows it."""

    @property
    def node(self) -> str:
        """Its name."""

    @property
    def url(self) -> str:
        """Its advertised URL, base path included."""


class ChannelPlace(NodePlace, Protocol):
    """Where a channel is (:class:`~tricklecast.app.cluster.directory.Place`)."""

    @property
    def epoch(self) -> int:
        """Of the channel."""

    @property
    def reachable(self) -> bool:
        """Whether its owner has renewed its lease, as far as this node knows."""


class NodeUrl(NamedTuple):
    """An advertised URL, taken apart.

    Attributes:
        host, port: where to connect. tls: whether the node speaks TLS.
        authority: for the field ``Host``. base: the base path, without a slash at its end.
    """

    host: str
    port: int
    tls: bool
    authority: bytes
    base: bytes

    @classmethod
    def parse(cls, url: str) -> NodeUrl:
        """Take a URL apart.

        Raises:
            InvalidInput: it is not one of a node.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidInput(f"not the URL of a node: {url!r} ({error})") from None
        plain = url.isascii() and url.isprintable() and " " not in url
        if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None or not plain:
            raise InvalidInput(f"not the URL of a node, such as http://10.0.0.1:2939/trickle: {url!r}")
        if parts.query or parts.fragment:
            raise InvalidInput(f"the URL of a node has no query: {url!r}")
        return cls(
            parts.hostname,
            port or _PORTS[parts.scheme],
            parts.scheme == "https",
            parts.netloc.encode(),
            parts.path.rstrip("/").encode(),
        )


def sign(secret: bytes, method: bytes, target: bytes, via: Via) -> bytes:
    """The value of ``Trickle-Cluster`` for one request.

    Args:
        secret: of the cluster, 16 to 64 bytes.
        method, target: as they will be on the wire.
        via: its hops end with the name of this node.

    Raises:
        ValueError: there is no secret.
    """
    if len(secret) < LEAST_SECRET:
        raise ValueError("the cluster's secret is not known")
    payload = base64.urlsafe_b64encode(orjson.dumps(tuple(via)))
    return b"%b.%b" % (payload, _mac(secret, method, target, payload))


def verify(secret: bytes, method: bytes, target: bytes, value: bytes) -> Via | None:
    """The way of a request by the value of its ``Trickle-Cluster``; ``None`` if no node has signed it."""
    payload, _, mac = value[:MAX_SIGNED].partition(b".")
    if len(secret) < LEAST_SECRET:
        return None
    if not hmac.compare_digest(mac, _mac(secret, method, target, payload)):
        return None
    try:
        hops, ip, certified, subject = orjson.loads(base64.urlsafe_b64decode(payload))
        return Via(tuple(hops), ip, certified, subject) if hops else None
    except (ValueError, TypeError, binascii.Error):
        return None  # a node of another version


def _mac(secret: bytes, method: bytes, target: bytes, payload: bytes) -> bytes:
    # Neither a method nor a target has a space in it, so no two requests give the same text.
    text = b"%b %b %b" % (method, target, payload)
    return blake2b(text, key=secret, digest_size=16, person=b"trickle-cluster").hexdigest().encode()


class Peers:
    """What this node needs to know another node's requests, and to sign its own.

    Args:
        me: the name of this node.
        secret: gives the cluster's secret, which may change when the bucket is lost.

    Attributes:
        forged: requests that were refused, since no node had signed them.
        loops: requests that were refused, since they had passed too many nodes.
    """

    def __init__(self, me: str, secret: Callable[[], bytes]) -> None:
        self.me = me
        self.forged = self.loops = 0
        self._secret = secret
        self._warned_at: dict[str, float] = {}

    def sign(self, method: bytes, target: bytes, via: Via | None = None) -> bytes:
        """The value of ``Trickle-Cluster`` for a request of this node; without ``via`` it has no client.

        Raises:
            ValueError: the cluster's secret is not known.
        """
        return sign(self._secret(), method, target, via or Via((self.me,)))

    def sender(self, request: Request) -> Via | Reply:
        """The way of a request that has ``Trickle-Cluster``; or its refusal (:class:`.context.Elsewhere`)."""
        via = verify(self._secret(), request.method, request.target, request.headers[CLUSTER])
        if via is None:
            self.forged += 1
            self.warn("forged", f"a client at {request.ip} sent Trickle-Cluster, which only nodes may send")
            return FORGED
        return self.looped(via.hops) or via

    def looped(self, hops: tuple[str, ...]) -> Reply | None:
        """The refusal of a request that has passed too many nodes; ``None`` if it may go on."""
        if len(hops) <= MAX_HOPS:
            return None
        self.loops += 1
        self.warn("loop", f"the nodes disagree where a channel is: a request has passed {', '.join(hops)}")
        return LOOP

    def warn(self, kind: str, text: str) -> None:
        """Log a warning, at most one of its kind in :data:`WARN_S`: requests may come by the thousand."""
        now = time.monotonic()
        if now - self._warned_at.get(kind, -inf) > WARN_S:
            self._warned_at[kind] = now
            logger.warning("%s (said at most once a minute)", text)
