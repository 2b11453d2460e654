"""Client addresses, each with what it has in use: as many are told apart as fit into a bounded table."""

from __future__ import annotations

from collections import OrderedDict


class Client:
    """One client address.

    Attributes:
        address: its key; ``""`` for the one that stands for all that do not fit.
        holders: connections and exchanges that know it; while there are any it stays in the table.
        connections, exchanges: how many of each it has, of those that were let in.
        tokens: requests that it might make at once at the time ``refilled_at``, which for a new one is long ago.
    """

    __slots__ = ("address", "connections", "exchanges", "holders", "refilled_at", "tokens")

    def __init__(self, address: str) -> None:
        self.address = address
        self.holders = self.connections = self.exchanges = 0
        self.tokens, self.refilled_at = 0.0, float("-inf")

    def __repr__(self) -> str:
        return f"<Client {self.address!r} {self.connections} connections, {self.exchanges} exchanges>"


class Clients:
    """The clients that are told apart: those that are here, and those that were here last.

    Who has gone longest makes room for who is new. Who is here stays; if all are, new addresses share one client, and
    so what one client may have: a table that grew with the addresses could be blown up from a single IPv6 network.

    Args:
        limit: addresses that are kept.

    Attributes:
        others: stands for all that do not fit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._here: dict[str, Client] = {}
        self._gone: OrderedDict[str, Client] = OrderedDict()
        self.others = Client("")

    def __len__(self) -> int:
        return len(self._here) + len(self._gone)

    def hold(self, address: str) -> Client:
        """The client of an address; to be given to :meth:`release` once."""
        client = self._here.get(address) or self._enter(address)
        client.holders += 1
        return client

    def release(self, client: Client) -> None:
        """One connection or exchange knows it no longer."""
        client.holders -= 1
        if not client.holders and client is not self.others:
            del self._here[client.address]
            self._gone[client.address] = client

    def _enter(self, address: str) -> Client:
        client = self._gone.pop(address, None)
        if client is None:
            if len(self._here) >= self._limit:
                return self.others
            if len(self) >= self._limit:
                self._gone.popitem(last=False)
            client = Client(address)
        self._here[address] = client
        return client
