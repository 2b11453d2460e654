"""Keys and tokens for tests."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWK
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

SECRET = b"a secret of more than thirty-two bytes"
ALGORITHMS = ("RS256", "ES256", "EdDSA")


def private_key(algorithm: str, number: int = 0) -> Any:
    """A private key for an algorithm: the same one for the same number."""
    return _private_key(algorithm, number)


@cache
def _private_key(algorithm: str, number: int) -> Any:
    match algorithm:
        case "RS256":
            return rsa.generate_private_key(65537, 2048)
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case _:
            return ed25519.Ed25519PrivateKey.generate()


def public_pem(algorithm: str, number: int = 0) -> bytes:
    """The public part as a PEM file."""
    public: bytes = private_key(algorithm, number).public_key().public_bytes(
        Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip
    return public


def public_jwk(algorithm: str, number: int = 0, **more: Any) -> dict[str, Any]:
    """The public part as a JSON Web Key."""
    maker: Any = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}[algorithm]
    entry: dict[str, Any] = maker.to_jwk(private_key(algorithm, number).public_key(), as_dict=True)
    # PyJWT adds the key's operations; most key servers do not.
    entry.pop("key_ops", None)
    return {**entry, **more}


def public_key(algorithm: str, number: int = 0, **more: Any) -> PyJWK:
    """The public part as the server keeps it."""
    return PyJWK(public_jwk(algorithm, number, **more))


def claims(**more: Any) -> dict[str, Any]:
    """Claims that allow everything for an hour. An argument replaces a claim; ``None`` removes it."""
    everything = {"publish": ["*"], "subscribe": ["*"], "manage": ["*"]}
    values = {"sub": "somebody", "exp": int(time.time()) + 3600, "trickle": everything, **more}
    return {name: value for name, value in values.items() if value is not None}


def token(key: Any = SECRET, algorithm: str = "HS256", *, kid: str | None = None, **more: Any) -> str:
    """A token with these claims."""
    return jwt.encode(claims(**more), key, algorithm, headers={"kid": kid} if kid else None)


def bearer(text: str) -> dict[str, str]:
    """The header that carries it."""
    return {"Authorization": f"Bearer {text}"}
