"""Tokens from the other side: made with a secret or a private key, and taken apart for people."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

try:
    import jwt
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
except ModuleNotFoundError as error:
    from tricklecast.trickle.errors import TrickleError

    raise TrickleError(f'tokens need {error.name}: pip install "tricklecast[tokens]"') from None

from tricklecast.app.access.grants import Rejected
from tricklecast.app.access.keys import Key, algorithm_of, pem_key, secret_key
from tricklecast.app.access.rules import CLAIM, InvalidClaim, Rights
from tricklecast.app.access.secrets import InvalidSecret, read_file, read_secret
from tricklecast.app.access.tokens import Verifier

WORDS: Final = {
    "malformed": "it is no token",
    "signature": "its signature is not that of the key",
    "key": "it was signed with a key of another kind, or of another name",
    "audience": "it is for another audience",
    "issuer": "it is from another issuer",
    "early": "it is not good yet",
    "claim": f"exp or {CLAIM} is missing, or not of the form that the documentation gives",
    "expired": "it has expired",
}
"""What a person is told, who has the token anyway."""


def sign_token(file: Path, claims: dict[str, Any], kid: str | None) -> str:
    """A token with these claims.

    Args:
        file: the secret, or a private key in PEM form.

    Raises:
        InvalidSecret: it is none that tokens can be signed with.
    """
    data = read_file(file)
    headers = {"kid": kid} if kid else None
    if b"-----BEGIN" not in data:
        return jwt.encode(claims, read_secret(file).reveal(), "HS256", headers=headers)
    try:
        private: Any = load_pem_private_key(data, password=None)
    except (ValueError, TypeError):
        raise InvalidSecret(f"{file} holds no private key in PEM form that is open") from None
    return jwt.encode(claims, private, algorithm_of(private.public_key(), file), headers=headers)


def read_token(text: str, file: Path | None, now: float, *, audience: str | None, issuer: str | None) -> dict[str, Any]:
    """What a token says, and what is wrong with it.

    Args:
        file: the key to check it with; ``None``: it is believed.
        now: seconds since the epoch.
        audience, issuer: as the server has them.

    Raises:
        InvalidSecret: the file holds no key.
    """
    try:
        parts = jwt.decode_complete(text, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        return {"problems": [WORDS["malformed"]]}
    payload = parts["payload"]
    report: dict[str, Any] = {"header": parts["header"], "claims": payload}
    for name in ("iat", "nbf", "exp"):
        report |= {name: _as_text(payload[name])} if name in payload else {}
    report["checked"] = file is not None
    report["problems"] = _checked(text, file, now, audience, issuer) if file is not None else _looked_at(payload, now)
    return report


def _checked(text: str, file: Path, now: float, audience: str | None, issuer: str | None) -> list[str]:
    data = read_file(file)
    key: Key = pem_key(data, file) if b"-----BEGIN" in data else secret_key(read_secret(file))
    try:
        Verifier(lambda: [key], audience=audience, issuer=issuer, leeway_s=0).verify(text, now)
    except Rejected as error:
        return [WORDS[error.why]]
    return []


def _looked_at(payload: dict[str, Any], now: float) -> list[str]:
    problems = []
    try:
        Rights.parse(payload.get(CLAIM))
    except InvalidClaim as error:
        problems.append(str(error))
    end = payload.get("exp")
    if not isinstance(end, int | float):
        problems.append("exp is missing, or no time")
    elif end <= now:
        problems.append(WORDS["expired"])
    return problems


def _as_text(value: object) -> str:
    try:
        return datetime.fromtimestamp(float(str(value)), UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return "no time"
