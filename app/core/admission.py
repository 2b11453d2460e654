"""Who may connect and ask: connections of the server; connections, exchanges and requests per second of a client."""

from __future__ import annotations

from math import ceil

from tricklecast.app.core.capacity import UNLIMITED, Capacity
from tricklecast.app.core.clients import Client, Clients
from tricklecast.app.core.limits import Limit, Limits


class Admission:
    """Decides before a request is looked at. What is refused has taken nothing.

    Args:
        limits: per client.
        connections: how many there are, and may be.

    Attributes:
        clients: who connections and requests belong to; ``None`` where no limit per client is set, and they need not
            be told apart.
    """

    def __init__(self, limits: Limits, connections: Capacity) -> None:
        self._connections = connections
        self.clients: Clients | None = None
        self._client_connections = limits.client_connections or UNLIMITED
        self._client_exchanges = limits.client_exchanges or UNLIMITED
        self._rate, self._burst = limits.client_requests_per_s, limits.client_burst
        if limits.tells_clients_apart:
            self.clients = Clients(limits.clients)

    def connect(self, client: Client | None) -> Limit | None:
        """Let a connection in, or name the limit that it would exceed. It may, and ought to, be told all the same."""
        if not self._connections.admits(join=False):
            return Limit.CONNECTIONS
        if client is not None:
            if client.connections >= self._client_connections:
                return Limit.CLIENT_CONNECTIONS
            client.connections += 1
        self._connections.take()
        return None

    def disconnect(self, client: Client | None) -> None:
        """A connection that was let in is gone."""
        self._connections.give_back()
        if client is not None:
            client.connections -= 1

    def begin(self, client: Client, now: float) -> Limit | None:
        """Let a request in, or name the limit that it would exceed."""
        if client.exchanges >= self._client_exchanges:
            return Limit.CLIENT_EXCHANGES
        if self._rate and not self._take_token(client, self._rate, now):
            return Limit.CLIENT_REQUESTS
        client.exchanges += 1
        return None

    def end(self, client: Client) -> None:
        """The exchange of a request that was let in is over."""
        client.exchanges -= 1

    def wait_s(self, limit: str) -> int:
        """Seconds after which a refused client may find room at the soonest; at least one."""
        return max(1, ceil(1 / self._rate)) if self._rate and limit == Limit.CLIENT_REQUESTS else 1

    def _take_token(self, client: Client, rate: float, now: float) -> bool:
        """A token bucket: ``rate`` tokens a second run in until it holds the burst; each request takes one out."""
        client.tokens = min(self._burst, client.tokens + (now - client.refilled_at) * rate)
        client.refilled_at = now
        if client.tokens < 1.0:
            return False
        client.tokens -= 1.0
        return True
