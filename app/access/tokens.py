"""What a token says, if it can be believed: its signature, its times, whom it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import jwt
from jwt.exceptions import (
    DecodeError,
    InvalidAudienceError,
    InvalidIssuerError,
    InvalidSignatureError,
    MissingRequiredClaimError,
    PyJWTError,
)

from tricklecast.app.access.grants import MAX_SUBJECT, Grant, Rejected
from tricklecast.app.access.keys import Key
from tricklecast.app.access.rules import CLAIM, InvalidClaim, Rights

LATEST: Final = 253_402_300_799
"""The last second of the year 9999: what claims to be later, or is no number, is no time."""

_TIMES_ARE_CHECKED_HERE: Final[Any] = {
    "verify_exp": False, "verify_nbf": False, "verify_iat": False, "require": ["exp", CLAIM]
}  # fmt: skip
"""By an argument, that is, and not by PyJWT's clock."""


class Verifier:
    """Checks tokens.

    Args:
        keys: gives the keys of this moment.
        audience, issuer: what ``aud`` must contain and ``iss`` must be; ``None``: a token is for nobody in particular,
            so that one with an ``aud`` is for somebody else (RFC 7519, section 4.1.3); any issuer.
        leeway_s: by how many seconds clocks may differ.
    """

    def __init__(
        self, keys: Callable[[], Iterable[Key]], *, audience: str | None, issuer: str | None, leeway_s: float
    ) -> None:
        self._keys = keys
        self._audience = audience
        self._issuer = issuer
        self._leeway_s = leeway_s

    def verify(self, token: str, now: float) -> Grant:
        """What a token allows.

        Args:
            token: as it was sent.
            now: seconds since the epoch.

        Raises:
            Rejected: it allows nothing.
        """
        payload = self._payload(token)
        expires_at = _time(payload["exp"]) + self._leeway_s
        if "nbf" in payload and _time(payload["nbf"]) > now + self._leeway_s:
            raise Rejected("early")
        if expires_at <= now:
            raise Rejected("expired")
        try:
            return Grant(_subject(payload.get("sub")), Rights.parse(payload[CLAIM]), expires_at)
        except InvalidClaim:
            raise Rejected("claim") from None

    def _payload(self, token: str) -> dict[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
        except (PyJWTError, ValueError, RecursionError):
            raise Rejected("malformed") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        keys = list(self._keys())
        fitting = [key for key in keys if key.algorithm == algorithm and (kid is None or key.kid in (None, kid))]
        for key in fitting:
            try:
                return self._believed(token, key)
            except InvalidSignatureError:
                continue
        # A key of that name, or one that was tried without a name, says that this token is forged. Any other name may
        # be that of a key which is not known yet.
        if any(key.kid == kid for key in keys) and kid is not None:
            raise Rejected("signature")
        raise Rejected("signature" if kid is None and fitting else "key")

    def _believed(self, token: str, key: Key) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key.material,
                algorithms=[key.algorithm],
                audience=self._audience,
                issuer=self._issuer,
                options=_TIMES_ARE_CHECKED_HERE,
            )
        except InvalidSignatureError:
            raise
        except InvalidAudienceError:
            raise Rejected("audience") from None
        except InvalidIssuerError:
            raise Rejected("issuer") from None
        except MissingRequiredClaimError as error:
            why = {"aud": "audience", "iss": "issuer"}.get(error.claim, "claim")
            raise Rejected(why) from None
        except DecodeError:
            raise Rejected("malformed") from None
        except (PyJWTError, ValueError, RecursionError):
            raise Rejected("claim") from None


def _subject(value: str | None) -> str | None:
    """It goes into logs and questions, where half a character pair of JSON has no place."""
    return value[:MAX_SUBJECT].encode("utf-8", "replace").decode() if value else None


def _time(value: object) -> float:
    """A NumericDate (RFC 7519, section 2)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LATEST:
        raise Rejected("claim")
    return float(value)
