"""Which clients publish to a channel, so that a publisher can ask not to be let in beside another one.

A client publishes while it holds a writer, with or without bytes, and for ``publisher_grace_s`` after the last time
that something was published: it may be between two requests, or about to reconnect. One that says that it leaves does
not publish from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Identity(NamedTuple):
    """Tells clients apart: requests with equal identities are one client's.

    Attributes:
        name: that the client gives itself (``Trickle-Client``); ``""`` if it gives none.
        address: for a client without a name: its address and user agent.
    """

    name: str = ""
    address: str = ""


class Presence:
    """One client that publishes to the channel, or did last.

    Attributes:
        since: when it began, in seconds; a break shorter than the grace does not count.
        writers: how many it holds.
        left: it has said that it leaves, and its writers are about to end.
    """

    __slots__ = ("client", "left", "since", "writers")

    def __init__(self, client: Identity, since: float) -> None:
        self.client = client
        self.since = since
        self.writers = 0
        self.left = False


class Occupied(NamedTuple):
    """Another client publishes to the channel.

    Attributes:
        client, for_s: which one, and for how long, in seconds.
        grace_left_s: how much longer it is waited for, if it holds no writer; ``None`` if it does.
    """

    client: Identity
    for_s: float
    grace_left_s: float | None


class Publishers:
    """The clients that publish to one channel. It has one entry for each client that holds a writer.

    Args:
        grace_s: how long after its last byte a client without a writer still counts.

    Attributes:
        last: the client that published last; the channel sets it with each byte.
    """

    __slots__ = ("_grace_s", "_present", "last")

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._present: dict[Identity, Presence] = {}
        self.last: Presence | None = None

    def __iter__(self) -> Iterator[Presence]:
        return iter(self._present.values())

    def join(self, client: Identity, now: float, active_at: float) -> Presence:
        """A client gets a writer. The channel gives what this returns to :meth:`leave` when the writer is stale."""
        presence = self._present.get(client)
        if presence is None:
            last = self.last
            goes_on = last is not None and last.client == client and now < active_at + self._grace_s
            presence = last if last is not None and goes_on else Presence(client, now)
            self._present[client] = presence
        presence.writers += 1
        presence.left = False
        return presence

    def leave(self, presence: Presence) -> None:
        """One of its writers has become stale."""
        presence.writers -= 1
        if not presence.writers:
            del self._present[presence.client]

    def dismiss(self, client: Identity) -> None:
        """A client says that it leaves: its place is free at once, whether or not it still holds writers."""
        if (presence := self._present.get(client)) is not None:
            presence.left = True
        if self.last is not None and self.last.client == client:
            self.last = None

    def other_than(self, client: Identity, now: float, active_at: float) -> Occupied | None:
        """A client other than this one that publishes, if there is one.

        Args:
            now: the time in seconds.
            active_at: when something was published last.
        """
        for presence in self._present.values():
            if presence.client != client and not presence.left:
                return Occupied(presence.client, now - presence.since, None)
        last = self.last
        if last is None or last.client == client or now >= active_at + self._grace_s:
            return None
        return Occupied(last.client, now - last.since, active_at + self._grace_s - now)
