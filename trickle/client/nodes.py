"""The nodes of a cluster as one client knows them, and requests that go on to the next node where one fails.

Theory of operation
===================

*The problem.* Each node of a cluster takes any request. So a client that knows several nodes survives the loss of one,
if it asks another one soon, and not all clients ask the same one. But a client that ran from node to node would make a
storm of a small fault, and its core would spend on one failure the retries that it has for many.

*The idea.* A client stands at one node until that fails (:class:`Nodes`). For its core, **a round of all nodes is one
attempt**: :func:`ask` goes from node to node, and the core hears of the first answer that helps, or that no node has
one. The core decides, as for a single server, how much that costs and how long to wait before the next round.

*Which failure sends a request on.* It goes to the next node in the same round if it has certainly changed nothing:

- No connection could be made: at once.
- The node answered 5xx or 421, and nothing of a body was taken from the client: after a random pause of up to
  :data:`PAUSE_S`, since all clients of a node may be refused at the same time.

Any other loss, of a connection that broke or of an answer that did not come, is for the core to judge. But the client
stands at another node by then, where the core's next attempt goes.

*Where to.* To the next node that has not failed since one last worked. The first URL is the first node; the others come
in an order that each client draws, so that the clients of a node that is lost spread over the rest.

*The owner of a channel.* A node that passes a request on says who owns the channel (``Lp-Trickle-Node``). A publisher
goes there, which saves a hop for each byte. It goes only to a node that it was given a URL of, so that no answer can
lead it, and its token, anywhere else; and only when the owner's name is news, so that it does not run back to an owner
that it cannot reach. A subscriber stays where it is: that node has a replica, and replicas would be useless if all
readers moved to the owner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import anyio

from tricklecast.trickle import wire
from tricklecast.trickle.client.exchange import Answer, ExchangeOutcome, Lost
from tricklecast.trickle.client.retry import MIN_DELAY_S
from tricklecast.trickle.errors import ConnectionLost, InvalidInput, TrickleError
from tricklecast.trickle.paths import ChannelURL

CONNECT_S: Final = 2.0
"""Where there is another node, a connection may take this many seconds to make: enough for one lost SYN."""

PAUSE_S: Final = 0.25
"""The longest pause before a request that was refused goes to another node."""

OnMove: TypeAlias = Callable[[TrickleError, float], None]
"""Called with the reason for which a request goes to another node, and the pause before that, in seconds."""


class Nodes:
    """The nodes that a client may ask, and the one where it stands. No I/O.

    Args:
        urls: of one channel, at each node; at least one.
        rng: draws the order of all but the first.
        follows: go to the owner of the channel, where it is one of these nodes.

    Attributes:
        current: the node that gets the next request.
        alone: there is only one.
        rng: draws pauses, too.
    """

    def __init__(self, urls: Sequence[ChannelURL], rng: Random, *, follows: bool = False) -> None:
        self.current = urls[0]
        self.rng = rng
        self._urls = (urls[0], *rng.sample(urls[1:], len(urls) - 1))
        self._by_place = {_place(f"{url.root}{url.base_path}"): url for url in urls} if follows else {}
        self.alone: Final = len(urls) == 1
        self._failed: set[ChannelURL] = set()  # since one last worked, or since all had failed
        self._owner: str | None = None  # the one that a node told last; None: the node that answered

    def connect_s(self, usual_s: float) -> float:
        """How long making a connection may take, in seconds, if it usually may take ``usual_s``."""
        return usual_s if self.alone else min(usual_s, CONNECT_S)

    def worked(self, owner: str | None = None) -> None:
        """A node has answered.

        Args:
            owner: the URL of the channel's owner, if the node has passed the request on.
        """
        self._failed.clear()
        if owner != self._owner:
            self._owner = owner
            if owner is not None and self._by_place:
                self.current = self._by_place.get(_place(owner), self.current)

    def failed(self, url: ChannelURL) -> bool:
        """A node has failed: if the client stands there, it goes to another one.

        Several requests may fail at the same time; they move the client once.

        Returns:
            Whether a node is left that has not failed since one last worked. If none is, all may be asked again.
        """
        self._failed.add(url)
        at = self._urls.index(url) + 1
        others = [*self._urls[at:], *self._urls[:at]]
        left = [other for other in others if other not in self._failed]
        if self.current in self._failed:
            self.current = (left or others)[0]
        if not left:
            self._failed.clear()
        return bool(left)


@lru_cache(maxsize=64)
def _place(url: str) -> tuple[str, str, int, str] | None:
    """Scheme, host, port and base path; ``None`` if it is no URL of a node."""
    try:
        parsed = ChannelURL.parse(f"{url}/channel")
    except InvalidInput:
        return None
    parts = urlsplit(parsed.root)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), parsed.base_path


def ask(
    nodes: Nodes,
    request: Callable[[ChannelURL], Awaitable[ExchangeOutcome]],
    *,
    seq: int | None = None,
    may_wait: bool = False,
    is_untouched: Callable[[], bool] = lambda: True,
    on_move: OnMove = lambda error, pause_s: None,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> Awaitable[ExchangeOutcome]:
    """Make a request at the node where the client stands, and at the next ones where that fails.

    Args:
        request: makes it at the node of this URL, by :func:`~tricklecast.trickle.client.exchange.exchange`.
        seq: the segment that it is about, for errors.
        may_wait: a node that lets the client wait in vain has not failed.
        is_untouched: whether nothing of the request's body was taken so far.
        on_move: called when the request goes to another node.

    Returns:
        The outcome. If all nodes have failed, the error names each of them, and ``Retry-After`` is that of the node
        that may be asked again first.
    """
    if nodes.alone:
        return request(nodes.current)
    return _round(nodes, request, seq, may_wait, is_untouched, on_move, sleep)


async def _round(
    nodes: Nodes,
    request: Callable[[ChannelURL], Awaitable[ExchangeOutcome]],
    seq: int | None,
    may_wait: bool,
    is_untouched: Callable[[], bool],
    on_move: OnMove,
    sleep: Callable[[float], Awaitable[None]],
) -> ExchangeOutcome:
    told: dict[ChannelURL, str] = {}  # why each node failed
    refusal: Answer | None = None  # of the node that may be asked again first
    while True:
        url = nodes.current
        found = await request(url)
        if isinstance(found, Lost):
            if found.waited_s and may_wait:
                return found
            error: TrickleError = found.error
            told[url], pause_s = found.error.detail, 0.0
        elif found.status < wire.Status.SERVER_ERROR and found.status != wire.Status.MISDIRECTED:
            nodes.worked(found.headers.get(wire.NODE))
            return found
        else:
            refusal = found if refusal is None else min(refusal, found, key=_asked_again)
            why = replace(found, detail=f"{_shown(url)}: {found.detail}".removesuffix(": "))
            error, pause_s = why.error(seq), max(MIN_DELAY_S, nodes.rng.uniform(0.0, PAUSE_S))
            told[url] = f"HTTP {found.status} {found.detail}".strip()
        is_left = nodes.failed(url)
        if isinstance(found, Lost) and found.connected:
            return found
        if not is_left or nodes.current in told or not is_untouched():
            break
        on_move(error, pause_s)
        await sleep(pause_s)
    if refusal is None:
        assert isinstance(found, Lost)
        return _unreachable(found, told)
    return _refused(refusal, told, is_left=is_left)


def _shown(url: ChannelURL) -> str:
    return shown(url.root)


@lru_cache(maxsize=64)
def shown(root: str) -> str:
    """The ``scheme://host:port`` of a node without its secrets, for errors."""
    return wire.redacted(root)


def _asked_again(found: Answer) -> tuple[bool, float]:
    """When a node that has refused may be asked again; one that does not say so comes last."""
    after_s = found.retry_after_s
    return after_s is None, after_s or 0.0


def _unreachable(lost: Lost, told: Mapping[ChannelURL, str]) -> Lost:
    detail = "; ".join(dict.fromkeys(told.values()))
    return lost._replace(error=ConnectionLost(seq=lost.error.seq, detail=detail, server=", ".join(map(_shown, told))))


def _refused(refusal: Answer, told: Mapping[ChannelURL, str], *, is_left: bool) -> Answer:
    detail = refusal.detail
    # One of these servers may be the other place that it names.
    headers = {name: value for name, value in refusal.headers.items() if name != wire.ELSEWHERE}
    if is_left and wire.RETRY_AFTER in headers:  # the next attempt goes to another node
        headers = {**headers, wire.RETRY_AFTER: "0"}
    if len(told) > 1:
        detail = "; ".join(f"{_shown(node)}: {why}" for node, why in told.items())
    return replace(refusal, headers=headers, detail=detail)
