"""Whether a token is believed: remembered, or checked, or checked again with newer keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from tricklecast.app.access.credentials import MAX_TOKEN_BYTES
from tricklecast.app.access.grants import Grant, Rejected
from tricklecast.app.access.lru import Lru

if TYPE_CHECKING:
    from tricklecast.app.access.jwks import KeyServer
    from tricklecast.app.access.tokens import Verifier

UNKNOWN_KEY: Final = "key"
"""Why a token was rejected whose key may become known."""

NO_KEYS: Final = "no_keys"
"""No token can be judged: the key server has not answered yet."""


class Judge:
    """Tells what a token allows.

    Args:
        verifier: checks signatures.
        key_server: where more keys may come from.
        size: how many tokens are remembered.
        wall: seconds since the epoch.

    Attributes:
        outcomes: ``remembered``, ``checked`` and ``rejected`` so far.
    """

    def __init__(
        self, verifier: Verifier, key_server: KeyServer | None, *, size: int, wall: Callable[[], float]
    ) -> None:
        self._verifier = verifier
        self._wall = wall
        # By their hash: what lies in memory for hours is no token, and how long a look-up takes tells nothing of one.
        self._known: Lru[Grant] = Lru(size)
        self.key_server = key_server
        self.outcomes: Counter[str] = Counter()

    def judge(self, token: bytes) -> Grant:
        """What it allows.

        Raises:
            Rejected: nothing. With :data:`UNKNOWN_KEY` it may be worth while to ask the key server.
        """
        if len(token) > MAX_TOKEN_BYTES:
            raise self._rejected("malformed")
        key = sha256(token).digest()
        grant = self._known.get(key)
        if grant is not None:
            if grant.expires_at <= self._wall():
                raise self._rejected("expired")
            self.outcomes["remembered"] += 1
            return grant
        try:
            grant = self._verifier.verify(token.decode("ascii"), self._wall())
        except UnicodeDecodeError:
            raise self._rejected("malformed") from None
        except Rejected as error:
            not_loaded = self.key_server is not None and not self.key_server.loaded
            raise self._rejected(NO_KEYS if error.why == UNKNOWN_KEY and not_loaded else error.why) from None
        self._known.put(key, grant)
        self.outcomes["checked"] += 1
        return grant

    def forget(self) -> None:
        """The keys have changed: a key that was withdrawn takes its tokens along."""
        self._known.clear()

    def _rejected(self, why: str) -> Rejected:
        self.outcomes["rejected"] += 1
        return Rejected(why)
