"""The keys that tokens are checked with. Each is good for one algorithm, whatever a token says about itself.

That is what keeps a public RSA key from being taken for an HMAC secret, and ``none`` from being an algorithm (RFC 8725,
section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

from tricklecast.app.access.secrets import InvalidSecret, Secret

MIN_RSA_BITS: Final = 2048
"""NIST SP 800-131A, section 3: shorter ones are no longer acceptable."""

MAX_KEYS: Final = 32
"""In one set: a token that does not name its key is tried with all of its algorithm."""


_READERS: Final[Mapping[str, Callable[[Any], object]]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "OKP": OKPAlgorithm.from_jwk,
}


class InvalidKeys(InvalidSecret):
    """No keys that tokens can be checked with."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        algorithm: the only one that it is used for.
        material: the key, or the secret's bytes.
        kid: its name; ``None``: it is tried for tokens of any name.
    """

    algorithm: str
    material: Any = field(repr=False)
    kid: str | None = None


def secret_key(secret: Secret) -> Key:
    """The key that a shared secret is."""
    return Key("HS256", secret.reveal())


def pem_key(data: bytes, name: object) -> Key:
    """The public key of a PEM file.

    Raises:
        InvalidKeys: it is none, or of another kind than RSA, P-256 and Ed25519. ``name`` is how the message calls it.
    """
    if b"PRIVATE KEY" in data:
        raise InvalidKeys(f"{name} holds a private key: who checks tokens needs only the public one")
    try:
        public = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidKeys(f"{name} holds no public key in PEM form") from None
    return Key(algorithm_of(public, name), public)


def parse_key_set(data: bytes, name: object) -> tuple[Key, ...]:
    """The keys of a JSON Web Key Set (RFC 7517). Keys for other uses, and of other kinds, are passed over.

    Raises:
        InvalidKeys: it is no such set, or has no usable key.
    """
    try:
        entries = orjson.loads(data)["keys"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise InvalidKeys(f"{name} holds no JSON Web Key Set") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidKeys(f"{name} holds no JSON Web Key Set")
    if len(entries) > MAX_KEYS:
        raise InvalidKeys(f"{name} has more than {MAX_KEYS} keys")
    keys = tuple(key for entry in entries if (key := _jwk(entry, name)) is not None)
    if not keys:
        raise InvalidKeys(f"{name} has no key for RS256, ES256 or EdDSA")
    return keys


def _jwk(entry: Mapping[str, Any], name: object) -> Key | None:
    kind, use, kid = str(entry.get("kty")), entry.get("use", "sig"), entry.get("kid")
    if use != "sig" or kind not in _READERS or not (kid is None or isinstance(kid, str)):
        return None
    if "d" in entry:
        raise InvalidKeys(f"{name} holds a private key: who checks tokens needs only the public one")
    try:
        public = _READERS[kind](dict(entry))
        algorithm = algorithm_of(public, name)
    except (PyJWTError, ValueError, TypeError, KeyError, InvalidKeys):
        return None
    return Key(algorithm, public, kid) if entry.get("alg", algorithm) == algorithm else None


def algorithm_of(public: object, name: object) -> str:
    """The one algorithm that a public key is used for.

    Raises:
        InvalidKeys: it is of another kind, or too short. ``name`` is how the message calls it.
    """
    match public:
        case RSAPublicKey() if public.key_size >= MIN_RSA_BITS:
            return "RS256"
        case RSAPublicKey():
            raise InvalidKeys(f"{name} holds an RSA key of {public.key_size} bits, and {MIN_RSA_BITS} is the least")
        case EllipticCurvePublicKey() if isinstance(public.curve, SECP256R1):
            return "ES256"
        case Ed25519PublicKey():
            return "EdDSA"
    raise InvalidKeys(f"{name} holds a key that is none of RSA, P-256 and Ed25519")
