"""Servers that mirror each other in a circle: none of them would take publishers, and one that makes way for copies
would lose its channels to copies of them.

A server may mirror one that is a mirror itself. So who sets a mirror asks the source for its *origins*: the source, the
server that the source mirrors, and so on. If this server is among them, and a channel could come all the way round, the
mirror is refused. Each server answers with its own setting and asks the next one, so the server that closes a circle
sees it, whatever is up to date elsewhere. A server that does not answer ends the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pydantic import BaseModel, Field

from tricklecast.app.access.rights import ANY, matches

HOPS: Final = 8
"""The longest way to a first source that is looked at."""


class OriginModel(BaseModel):
    """A server on the way of a channel."""

    instance: str = Field(description="The start of the server; empty if it can mirror nothing.", max_length=1024)
    channels: list[str] = Field(
        description="Patterns of the names that it copies from the next one; none if it copies nothing.", max_length=256
    )


class OriginsModel(BaseModel):
    """A server, the one that it mirrors, and so on."""

    origins: list[OriginModel] = Field(max_length=HOPS + 1)


def circle(origins: Sequence[OriginModel], instance: str, channels: Iterable[str], *, replaces: bool) -> str:
    """Why this server must not mirror a source; ``""``: it may.

    Args:
        origins: of the source. instance: of this server. channels: patterns of what it would copy.
        replaces: whether its own channels would make way for the copies.
    """
    for place, one in enumerate(origins):
        if not one.instance or one.instance != instance:
            continue
        if not place:
            return "a server does not mirror itself"
        copied = origins[place - 1].channels
        if replaces or any(overlap(mine, theirs) for mine in channels for theirs in copied):
            by = "" if place == 1 else f", by way of {place - 1} other server{'s' * (place > 2)}"
            text = f"the source copies this server{by}: neither would take publishers"
            return f"{text}. Promote it first (tricklecast mirror promote), or choose channels that it does not copy"
    return ""


def overlap(one: str, other: str) -> bool:
    """Whether a name can match both patterns."""
    if ANY not in one:
        return matches(other, one)
    if ANY not in other:
        return matches(one, other)
    begin, end = one.partition(ANY)[0], one.rpartition(ANY)[2]
    first, last = other.partition(ANY)[0], other.rpartition(ANY)[2]
    return (begin.startswith(first) or first.startswith(begin)) and (end.endswith(last) or last.endswith(end))
