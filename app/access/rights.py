"""Rights: the channels that the holder of a token may publish to, subscribe to and manage.

A token carries them in its claim ``trickle``. This module needs no package that verifies tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from tricklecast.trickle.paths import MAX_NAME_BYTES, is_reserved
from tricklecast.trickle.records import Op

CLAIM: Final = "trickle"

MAX_PATTERNS: Final = 256
"""Patterns of one right: the server tries them one after the other, for every request."""

MAX_TOKEN_BYTES: Final = 8 << 10
"""The longest token that the server hashes or passes on. Most proxies allow no longer header."""

MAX_SUBJECT: Final = 256
"""Characters of a subject, and of a token's id, that are kept; any client's name in the access log has as many."""

ANY: Final = "*"

_SCHEME: Final = b"bearer "
_PARAMETER: Final = b"token="


class Right(StrEnum):
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    MANAGE = "manage"


RIGHTS_OF_OP: Final[Mapping[Op, tuple[Right, ...]]] = {
    Op.READ: (Right.SUBSCRIBE,),
    Op.CHANGES: (Right.SUBSCRIBE,),
    Op.STREAM: (Right.SUBSCRIBE,),
    Op.PLAYLIST: (Right.SUBSCRIBE,),
    Op.HLS: (Right.SUBSCRIBE,),
    Op.CLIP: (Right.SUBSCRIBE,),
    Op.FEED: (Right.SUBSCRIBE,),
    # A publisher asks for its position before it publishes.
    Op.NEXT: (Right.SUBSCRIBE, Right.PUBLISH),
    Op.PUBLISH: (Right.PUBLISH,),
    Op.CLOSE_SEGMENT: (Right.PUBLISH,),
    Op.CREATE: (Right.PUBLISH, Right.MANAGE),
    # A publisher ends its channel by deleting it (docs/reference/protocol.md, section 5).
    Op.DELETE: (Right.PUBLISH, Right.MANAGE),
}
"""The rights for each request; one of them is enough."""


class InvalidClaim(ValueError):
    """The claim ``trickle`` does not have the documented form."""


class InvalidToken(Exception):
    """A token that allows nothing.

    Attributes:
        why: one word for the access log: ``malformed signature key audience issuer early claim expired revoked``, or
            ``no_keys`` while the key server has not sent any. The client learns of ``expired`` and ``revoked`` only.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    @property
    def unknown_key(self) -> bool:
        """Whether a key that the server does not have yet may have signed the token."""
        return self.why in ("key", "no_keys")


@dataclass(frozen=True, slots=True)
class Rights:
    """Patterns of channel names for each right; ``*`` stands for any number of characters, also for none.

    Attributes:
        publish, subscribe, manage: the patterns of the channels for which the right is given.
    """

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    manage: tuple[str, ...] = ()

    @classmethod
    def parse(cls, claim: object) -> Rights:
        """Read the claim: an object with a list of patterns for each right. A missing list is empty.

        Raises:
            InvalidClaim: the claim has any other form, since a typing error must neither give nor take rights.
        """
        if not isinstance(claim, dict):
            raise InvalidClaim(f"the claim {CLAIM!r} is not an object")
        unknown = sorted(str(name) for name in claim if name not in set(Right))
        if unknown:
            raise InvalidClaim(f"unknown right {unknown[0][:40]!r}")
        return cls(**{str(right): _patterns(right, claim.get(right, [])) for right in Right})

    def has(self, right: Right, channel: str) -> bool:
        """Whether this right is given for this channel.

        The server's own channels (``_changes``) tell about all others: they need the pattern ``*`` itself.
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
        # Not any(): its generator would double the time that this takes for every request.
        for right in RIGHTS_OF_OP[op]:  # noqa: SIM110
            if self.has(right, channel):
                return True
        return False


EVERYTHING: Final = Rights((ANY,), (ANY,), (ANY,))


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a valid token.

    Attributes:
        subject: the client's name; ``None`` if the token has none.
        expires_at: the time of its expiry, leeway included, seconds since 1970.
        token_id: ``jti``, by which one token can be revoked; ``None`` if the token has none.
        key: the fingerprint of the key that signed it.
    """

    subject: str | None
    rights: Rights
    expires_at: float
    token_id: str | None = None
    key: bytes = field(default=b"", compare=False)


def matches(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern. One pass without backtracking: no pattern makes it slow."""
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


def matches_any(patterns: Iterable[str], name: str) -> bool:
    """Whether a name matches one of several patterns."""
    return any(matches(pattern, name) for pattern in patterns)


def _patterns(right: Right, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidClaim(f"the right {right!s} is not a list of names")
    if len(value) > MAX_PATTERNS:
        raise InvalidClaim(f"the right {right!s} has more than {MAX_PATTERNS} names")
    if any(not 0 < len(each) <= MAX_NAME_BYTES for each in value):
        raise InvalidClaim(f"the right {right!s} has a name that is empty, or longer than {MAX_NAME_BYTES} characters")
    return tuple(value)


def bearer_token(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The token of ``Authorization: Bearer`` (RFC 6750, section 2.1)."""
    value = headers.get(b"authorization")
    if value is None or value[: len(_SCHEME)].lower() != _SCHEME:
        return None
    return value[len(_SCHEME) :].strip() or None


def query_token(target: bytes) -> bytes | None:
    """The token of ``?token=`` (as RFC 6750, section 2.3, under a shorter name); of several the first."""
    for parameter in target.partition(b"?")[2].split(b"&"):
        if parameter.startswith(_PARAMETER):
            return unquote_to_bytes(parameter[len(_PARAMETER) :]) or None
    return None
