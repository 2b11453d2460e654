"""Tokens: the server verifies each one once, remembers its claims, and forgets them when the keys change.

To verify a signature is expensive, and a subscriber sends its token with every segment. So valid tokens are
remembered, by hash. Two rules keep that safe:

- *A token does not outlive its key.* Each time the keys or the revocations change, all remembered tokens are dropped,
  and ``generation`` grows, so that the data plane looks at running exchanges again.
- *Only the key chooses the algorithm* (:mod:`app.access.jwks`), and no invalid token is remembered: a flood of forged
  ones costs processor time, and no memory.

If a token names an unknown key, the operator may have added one. Then the caller can have the key set fetched
(:meth:`TokenVerifier.refetch`) and verify once more. A token whose key is known, and whose signature is wrong, is
forged: no fetch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final

import jwt
from cachetools import LRUCache
from jwt import PyJWK
from jwt.exceptions import (
    DecodeError,
    InvalidAudienceError,
    InvalidIssuerError,
    InvalidSignatureError,
    MissingRequiredClaimError,
    PyJWTError,
)

from tricklecast.app.access.jwks import KeySet, RemoteKeySet, fingerprint
from tricklecast.app.access.revocations import NOTHING_REVOKED, Revocations
from tricklecast.app.access.rights import (
    CLAIM,
    MAX_SUBJECT,
    MAX_TOKEN_BYTES,
    Claims,
    InvalidClaim,
    InvalidToken,
    Rights,
)

LATEST: Final = 253_402_300_799
"""The last second of the year 9999. A claim with a later time is invalid."""

_OPTIONS: Final[Any] = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "require": ["exp", CLAIM]}
"""PyJWT verifies no times: its clock is not an argument, and its leeway has other bounds."""

_REASONS: Final[Mapping[type[Exception], str]] = {
    DecodeError: "malformed",
    InvalidAudienceError: "audience",
    InvalidIssuerError: "issuer",
}


class TokenVerifier:
    """Verifies tokens, and remembers the valid ones.

    Args:
        keys: from files.
        remote: further keys, from a key server; ``None``: without one.
        audience: ``aud`` must contain it; ``None``: a token must have no ``aud``, since one that has is for another
            server (RFC 7519, section 4.1.3).
        issuer: ``iss`` must be this; ``None``: it may be anything.
        leeway_s: the difference that clocks may have, seconds.
        size: the number of valid tokens that are remembered.
        revocations: tokens and clients that are refused.
        wall: seconds since 1970.
    """

    def __init__(
        self,
        keys: KeySet,
        remote: RemoteKeySet | None = None,
        *,
        audience: str | None = None,
        issuer: str | None = None,
        leeway_s: float = 0.0,
        size: int = 1,
        revocations: Revocations = NOTHING_REVOKED,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._fixed_keys = keys
        self._remote_keys: KeySet = ()  # of the key server, as last seen
        self._fingerprints: dict[int, bytes] = {}  # of the keys, by the id of their objects
        self._generation = 0  # how often keys or revocations have changed
        self.revocations = revocations
        self._audience = audience
        self._issuer = issuer
        self._leeway_s = leeway_s
        self._wall = wall
        # By the token's hash: the memory of the process holds no token for hours, and the time of a look-up tells
        # nothing about one. Expired tokens stay, since to verify them again would cost a signature each time.
        self._remembered: LRUCache[bytes, Claims] = LRUCache(size)
        self.remote = remote
        self.outcomes: Counter[str] = Counter()  # tokens "checked", "remembered" and "rejected" since the start
        self._forget_all()

    def verify(self, token: bytes) -> Claims:
        """Return the claims of a token.

        Raises:
            InvalidToken: the token allows nothing. If its key is unknown, :meth:`refetch` may help.
        """
        self._take_remote_keys()
        outcome = "remembered"
        try:
            if len(token) > MAX_TOKEN_BYTES:
                raise InvalidToken("malformed")
            digest = sha256(token).digest()
            claims = self._remembered.get(digest)
            if claims is None:
                outcome = "checked"
                claims = self._remembered[digest] = self._check(token)
            elif claims.expires_at <= self._wall():
                raise InvalidToken("expired")
        except InvalidToken:
            self.outcomes["rejected"] += 1
            raise
        self.outcomes[outcome] += 1
        return claims

    def use(self, keys: KeySet, revocations: Revocations) -> None:
        """Replace the keys from files, and the revocations."""
        self._fixed_keys = keys
        self.revocations = revocations
        self._forget_all()

    @property
    def generation(self) -> int:
        """A number that changes whenever keys or revocations have changed."""
        self._take_remote_keys()
        return self._generation

    def holds(self, claims: Claims) -> bool:
        """Whether the key that signed a token is still in use, and the token is not revoked."""
        return claims.key in self._fingerprints.values() and not self.revocations.cover(claims)

    def _take_remote_keys(self) -> None:
        """Take over the key server's keys if they have changed."""
        if self.remote is not None and self.remote.keys is not self._remote_keys:
            self._remote_keys = self.remote.keys
            self._forget_all()

    def _forget_all(self) -> None:
        """Forget all tokens, since keys or revocations have changed."""
        self._fingerprints = {id(key): fingerprint(key) for key in self._fixed_keys + self._remote_keys}
        self._generation += 1
        self._remembered.clear()

    def refetch(self, then: Callable[[], None]) -> bool:
        """Fetch the key set because a token names an unknown key; see :meth:`RemoteKeySet.refetch`."""
        return self.remote is not None and self.remote.refetch(then)

    def _check(self, token: bytes) -> Claims:
        payload, key = self._payload(token)
        now = self._wall()
        expires_at = _time(payload["exp"]) + self._leeway_s
        if "nbf" in payload and _time(payload["nbf"]) > now + self._leeway_s:
            raise InvalidToken("early")
        if expires_at <= now:
            raise InvalidToken("expired")
        try:
            rights = Rights.parse(payload[CLAIM])
        except InvalidClaim:
            raise InvalidToken("claim") from None
        subject, token_id = _name(payload.get("sub")), _name(payload.get("jti"))
        claims = Claims(subject, rights, expires_at, token_id, self._fingerprints[id(key)])
        if self.revocations.cover(claims):
            raise InvalidToken("revoked")
        return claims

    def _payload(self, token: bytes) -> tuple[dict[str, Any], PyJWK]:
        """The claims of a token whose signature, audience and issuer are right, and the key that has signed it."""
        try:
            header = jwt.get_unverified_header(token)
        except (PyJWTError, ValueError, RecursionError):
            raise InvalidToken("malformed") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        keys = self._fixed_keys + self._remote_keys
        candidates = [
            key for key in keys if key.algorithm_name == algorithm and (kid is None or key.key_id in (None, kid))
        ]
        for key in candidates:
            try:
                return self._decode(token, key), key
            except InvalidSignatureError:
                continue
        # The token is forged if the server has the key that it names, or has tried its keys because it names none.
        # Otherwise its key may be one that the server does not have yet.
        forged = bool(candidates) if kid is None else any(key.key_id == kid for key in keys)
        if forged:
            raise InvalidToken("signature")
        raise InvalidToken("key" if self.remote is None or self.remote.loaded else "no_keys")

    def _decode(self, token: bytes, key: PyJWK) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=self._issuer,
                options=_OPTIONS,
            )
        except InvalidSignatureError:
            raise
        except MissingRequiredClaimError as error:
            raise InvalidToken({"aud": "audience", "iss": "issuer"}.get(error.claim, "claim")) from None
        except (PyJWTError, ValueError, RecursionError) as error:
            raise InvalidToken(_REASONS.get(type(error), "claim")) from None


def _name(value: str | None) -> str | None:
    # Logs and questions to the webhook are UTF-8, which has no half of a surrogate pair; JSON may have one.
    return value[:MAX_SUBJECT].encode("utf-8", "replace").decode() if value else None


def _time(value: object) -> float:
    """Read a NumericDate (RFC 7519, section 2)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LATEST:
        raise InvalidToken("claim")
    return float(value)
