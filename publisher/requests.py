"""The requests that one publisher makes: to publish, ask, end, give up and leave.

Each goes to the node that answers, and to the next one if that is lost before it has had anything of a body.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from operator import methodcaller
from typing import Final

from tricklecast.publisher.body import Body, Sending
from tricklecast.publisher.core import Ticket
from tricklecast.publisher.events import PublisherReporter, Retrying
from tricklecast.trickle import wire
from tricklecast.trickle.client import faults
from tricklecast.trickle.client.exchange import Answer, ExchangeOutcome, TrickleClient, exchange
from tricklecast.trickle.client.nodes import Nodes, ask, shown
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.paths import ChannelURL


class Requests:
    """Makes the requests about one channel; :class:`~tricklecast.publisher.client.Publisher` has the arguments.

    Attributes:
        alone: there is one node only.
    """

    def __init__(
        self, http: TrickleClient, nodes: Nodes, content_type: str, report: PublisherReporter, *, takeover: bool
    ) -> None:
        self._http = http
        self._nodes = nodes
        self._report = report
        self._content_type = content_type
        self._polite = {} if takeover else {wire.IF_IDLE: "1"}
        self.alone: Final = nodes.alone

    def post(self, ticket: Ticket, body: Sending) -> Awaitable[ExchangeOutcome]:
        """Publish a segment. Returns early if the server answers early."""
        headers = {"Content-Type": self._content_type, **self._polite}
        if ticket.reset:
            headers[wire.RESET] = "1"
        if ticket.numbering:
            headers[wire.LIFE] = ticket.numbering
        if ticket.epoch is not None:
            headers[wire.EPOCH] = str(ticket.epoch)
        target = methodcaller("segment", ticket.seq)
        return self._send("POST", target, headers, ticket.attempt, ticket.seq, body, ticket.key)

    def next(self, attempt: int) -> Awaitable[ExchangeOutcome]:
        """Ask where the head is."""
        return self._send("GET", ChannelURL.next, {}, attempt)

    def delete(self, attempt: int, epoch: int | None) -> Awaitable[ExchangeOutcome]:
        """End the channel, if it is in that epoch."""
        return self._send("DELETE", str, self._polite | _pinned(epoch), attempt)

    def give_up(self, seq: int, epoch: int | None) -> Awaitable[ExchangeOutcome]:
        """Tell the server that no more will come of a segment: the bytes it has are a part."""
        headers = {wire.TRUNCATED: "dropped"} | _pinned(epoch)
        return self._send("DELETE", methodcaller("segment", seq), headers, seq=seq)

    async def has(self, seq: int, body: Body) -> bool:
        """Whether the server has exactly this body as a finished segment: reads it back."""
        found = await self._send("GET", methodcaller("segment", seq), {}, seq=seq, stays_open=_is_whole)
        if not (isinstance(found, Answer) and _is_whole(found)):
            return False
        from hashlib import sha256  # after a crash of the server only

        mine, theirs = sha256(), sha256()
        try:
            while chunk := await found.body.receive():
                theirs.update(chunk)
        except faults.TransportError:
            return False
        finally:
            await found.body.aclose()
        for at in range(body.count):
            mine.update(body.chunk(at))
        return mine.digest() == theirs.digest()

    def leave(self, seq: int, epoch: int | None) -> Awaitable[ExchangeOutcome]:
        """Tell the server that this client publishes no more. ``seq`` is its newest segment, which is over."""
        headers = {wire.TRUNCATED: "left", wire.LEAVE: "1"} | _pinned(epoch)
        return self._send("DELETE", methodcaller("segment", seq), headers, seq=seq)

    def _send(
        self,
        method: str,
        target: Callable[[ChannelURL], str],
        headers: dict[str, str],
        attempt: int = 1,
        seq: int | None = None,
        body: Sending | None = None,
        key: str = "",
        stays_open: Callable[[Answer], bool] | None = None,
    ) -> Awaitable[ExchangeOutcome]:
        if attempt > 1:
            headers[wire.ATTEMPT] = str(attempt)

        def request(url: ChannelURL) -> Awaitable[ExchangeOutcome]:
            place = "" if self._nodes.alone else f"{shown(url.root)}: "
            return exchange(
                *(self._http, method, target(url), headers),
                body=body,
                seq=seq,
                place=place,
                key=key,
                stays_open=stays_open,
            )

        if self.alone:
            return request(self._nodes.current)

        def moved(error: TrickleError, pause_s: float) -> None:
            self._report.counts["retries"] += 1
            self._report(Retrying(error, pause_s, attempt + 1, seq))

        return ask(
            self._nodes,
            request,
            seq=seq,
            is_untouched=lambda: body is None or not (body.taken or body.ended),
            on_move=moved,
        )


def _is_whole(answer: Answer) -> bool:
    """Whether the bytes of a segment follow the head of an answer that was not cut short."""
    return answer.status == wire.Status.OK and wire.TRUNCATED not in answer.headers


def _pinned(epoch: int | None) -> dict[str, str]:
    """The header of a request that is for one epoch only, if that is known."""
    return {} if epoch is None else {wire.EPOCH: str(epoch)}
