"""Which channels somebody may publish to, subscribe to and manage: the claim ``trickle`` of a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tricklecast.trickle.paths import MAX_NAME_BYTES, is_reserved
from tricklecast.trickle.records import Op

CLAIM: Final = "trickle"

MAX_PATTERNS: Final = 256
"""Of one right: they are tried one after the other, for every request."""

ANY: Final = "*"


class Right(StrEnum):
    """What can be allowed."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    MANAGE = "manage"


RIGHTS_OF_OP: Final[Mapping[Op, tuple[Right, ...]]] = {
    Op.READ: (Right.SUBSCRIBE,),
    Op.CHANGES: (Right.SUBSCRIBE,),
    # A publisher asks for its position before it begins.
    Op.NEXT: (Right.SUBSCRIBE, Right.PUBLISH),
    Op.PUBLISH: (Right.PUBLISH,),
    Op.CLOSE_SEGMENT: (Right.PUBLISH,),
    Op.CREATE: (Right.PUBLISH, Right.MANAGE),
    # A publisher ends its channel by deleting it (docs/reference/protocol.md, section 5).
    Op.DELETE: (Right.PUBLISH, Right.MANAGE),
}
"""Any one of these rights is enough."""


class InvalidClaim(ValueError):
    """The claim is not of the documented form."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Names of channels, in which ``*`` stands for any characters, also for none.

    Attributes:
        publish, subscribe, manage: what may be done with the channels that match.
    """

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    manage: tuple[str, ...] = ()

    @classmethod
    def parse(cls, claim: object) -> Rights:
        """Read the claim: an object with a list of names for each right; one that is missing is not given.

        Raises:
            InvalidClaim: it is anything else, in whatever detail: a typing error must not give or take rights.
        """
        if not isinstance(claim, dict):
            raise InvalidClaim(f"the claim {CLAIM!r} is no object")
        unknown = sorted(str(name) for name in claim if name not in set(Right))
        if unknown:
            raise InvalidClaim(f"there is no right {unknown[0][:40]!r}")
        return cls(**{str(right): _patterns(right, claim.get(right, [])) for right in Right})

    def has(self, right: Right, channel: str) -> bool:
        """Whether this right is given for this channel.

        The server's own channels tell about all others: for them it takes the right for every channel.
        """
        patterns: tuple[str, ...] = getattr(self, right)
        if ANY in patterns:
            return True
        if is_reserved(channel):
            return False
        for pattern in patterns:  # noqa: SIM110
            if matches(pattern, channel):
                return True
        return False

    def allow(self, op: Op, channel: str) -> bool:
        """Whether this request may be made."""
        # A loop, since a generator takes as long as all the rest of it, for every request.
        for right in RIGHTS_OF_OP[op]:  # noqa: SIM110
            if self.has(right, channel):
                return True
        return False

    def as_claim(self) -> dict[str, list[str]]:
        """The claim that says this."""
        return {str(right): list(getattr(self, right)) for right in Right}


EVERYTHING: Final = Rights((ANY,), (ANY,), (ANY,))


def matches(pattern: str, name: str) -> bool:
    """Whether a name is what a pattern says. In one pass, without going back: a pattern cannot make it slow."""
    first, *others = pattern.split(ANY)
    if not others:
        return name == first
    *middle, last = others
    at, end = len(first), len(name) - len(last)
    if end < at or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _patterns(right: Right, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidClaim(f"the right {right!s} is no list of names")
    if len(value) > MAX_PATTERNS:
        raise InvalidClaim(f"the right {right!s} has more than {MAX_PATTERNS} names")
    if any(not 0 < len(each) <= MAX_NAME_BYTES for each in value):
        raise InvalidClaim(f"the right {right!s} has a name that is empty, or longer than {MAX_NAME_BYTES} characters")
    return tuple(value)
