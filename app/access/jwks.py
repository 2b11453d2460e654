"""The keys that verify tokens: from files, and from a key server whose key set changes.

The type of a key decides its one algorithm; a token cannot choose another one. So an attacker cannot use a public RSA
key as an HMAC secret, and ``none`` is no algorithm (RFC 8725, section 3.1).

A key server is fetched at the start, once in ``max_age_s``, and when a token names an unknown key. Forged tokens may
name any key, so requests cause at most one fetch in ``refetch_s``, and those that come meanwhile wait for the same one.
A failed fetch changes nothing: while the key server is down, the last keys stay valid.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWK, PyJWTError, get_algorithm_by_name
from jwt.utils import base64url_encode

from tricklecast.app.access.secrets import MAX_BYTES, InvalidKey, read_file, read_secret
from tricklecast.app.access.service_client import problem_of, service_client

MIN_RSA_BITS: Final = 2048
"""NIST SP 800-131A, section 3: shorter keys are no longer acceptable."""

MAX_KEYS: Final = 32
"""Keys of one set: the server tries a token that names no key with all keys of its algorithm."""

TIMEOUT_S: Final = 5.0
"""The deadline of one fetch: requests with a token of an unknown key wait for it."""

MAX_WAITING: Final = 1024
"""Requests that wait for a fetch, each with its connection; the server refuses further ones at once."""

logger = logging.getLogger("tricklecast.jwks")

KeySet = tuple[PyJWK, ...]


def read_secret_key(path: Path) -> KeySet:
    """Read a secret, which is a key for HS256.

    Raises:
        InvalidKey: the file cannot be read, or its secret is too short.
    """
    secret = read_secret(path).get_secret_value()
    return (PyJWK({"kty": "oct", "k": base64url_encode(secret).decode()}, "HS256"),)


def read_public_key(path: Path) -> KeySet:
    """Read a public key in PEM form.

    Raises:
        InvalidKey: the file cannot be read, or holds anything but a public RSA, P-256 or Ed25519 key.
    """
    data = read_file(path)
    if b"PRIVATE KEY" in data:
        raise _private(path)
    try:
        public = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidKey(f"{path} does not contain a public key (PEM)") from None
    algorithm = algorithm_of(public, path)
    jwk: Any = get_algorithm_by_name(algorithm).to_jwk(public, as_dict=True)
    return (PyJWK(jwk, algorithm),)


def read_key_set(path: Path) -> KeySet:
    return parse_key_set(read_file(path), path)


def parse_key_set(data: bytes, source: object) -> KeySet:
    """Read a JSON Web Key Set (RFC 7517).

    The server ignores keys for other uses, of other types and for other algorithms. A set without a usable key is
    valid, since this is how an operator revokes all keys; the log gets a warning.

    Args:
        data: the JSON text.
        source: the file or URL that it came from, for messages.

    Raises:
        InvalidKey: the text is no key set, or the set has more than :data:`MAX_KEYS` keys or a private one.
    """
    try:
        entries = orjson.loads(data)["keys"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        entries = None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidKey(f"{source} is not a JSON Web Key Set")
    if len(entries) > MAX_KEYS:
        raise InvalidKey(f"{source} has more than {MAX_KEYS} keys")
    keys = tuple(key for entry in entries if (key := _usable(entry, source)) is not None)
    if not keys:
        logger.warning("%s has no key for RS256, ES256 or EdDSA, so no token is valid", source)
    return keys


def _usable(entry: Mapping[str, Any], source: object) -> PyJWK | None:
    """Return the key if it can verify tokens."""
    if entry.get("use", "sig") != "sig" or not isinstance(entry.get("kid"), str | None):
        return None
    if "d" in entry:
        raise _private(source)
    try:
        key = PyJWK(dict(entry))
        algorithm = algorithm_of(key.key, source)
    except (PyJWTError, InvalidKey, UnsupportedAlgorithm, ValueError, TypeError, KeyError, AttributeError):
        return None
    return key if key.algorithm_name == algorithm else None


def algorithm_of(public: object, source: object) -> str:
    """The one algorithm of a public key.

    Args:
        public: a key of the package cryptography.
        source: the file or URL that it came from, for messages.

    Raises:
        InvalidKey: the key has another type, or is too short.
    """
    match public:
        case RSAPublicKey() if public.key_size >= MIN_RSA_BITS:
            return "RS256"
        case RSAPublicKey():
            raise InvalidKey(f"{source} has an RSA key of {public.key_size} bits; at least {MIN_RSA_BITS} are needed")
        case EllipticCurvePublicKey() if isinstance(public.curve, SECP256R1):
            return "ES256"
        case Ed25519PublicKey():
            return "EdDSA"
    raise InvalidKey(f"{source} has a key that is not RSA, P-256 or Ed25519")


def fingerprint(key: PyJWK) -> bytes:
    """A hash of a key's name, algorithm and numbers: two keys never share one, and no secret can be found from it."""
    numbers: Any = key.Algorithm.to_jwk(key.key, as_dict=True)
    named = [key.key_id, key.algorithm_name, numbers]
    return sha256(orjson.dumps(named, option=orjson.OPT_SORT_KEYS)).digest()


def _private(source: object) -> InvalidKey:
    return InvalidKey(f"{source} has a private key; a server needs only the public one to verify tokens")


class RemoteKeySet:
    """The key set behind a URL. A fetched set replaces the former one at once, even if it is empty.

    Args:
        refetch_s: least time between two fetches that requests cause, and until a failed fetch is repeated.
        max_age_s: time after which the server fetches the set in any case.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        url: str,
        *,
        refetch_s: float,
        max_age_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._refetch_s = refetch_s
        self._max_age_s = max_age_s
        self._clock = clock
        self._wanted = asyncio.Event()  # fetch before max_age_s is over
        self._next_at = clock()  # requests cause no fetch before this time
        self._fetching = False
        self._waiting: list[Callable[[], None]] = []  # called when the present or next fetch has ended
        self._document: bytes | None = None  # the last valid set
        self.keys: KeySet = ()  # of that set; another object whenever the set has changed
        self.fetches = 0
        self.failures = 0

    @property
    def loaded(self) -> bool:
        """Whether a valid set was fetched; before that, the server cannot tell whether a token is valid."""
        return self._document is not None

    def refetch(self, then: Callable[[], None]) -> bool:
        """Fetch the set because a token names an unknown key.

        Args:
            then: called from the event loop when the fetch has ended, whether it succeeded or not.

        Returns:
            ``False`` if the last fetch is too recent, or too many requests wait already; ``then`` is not called.
        """
        may_fetch = self._fetching or self._clock() >= self._next_at
        if not may_fetch or len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting.append(then)
        self._wanted.set()
        return True

    def refresh(self) -> None:
        """Fetch the set now, since the operator asks for it (SIGHUP)."""
        self._wanted.set()

    async def run(self) -> None:
        """Keep the keys up to date, until cancelled."""
        headers = {"Accept": "application/json"}
        async with service_client(self._url, headers, timeout_s=TIMEOUT_S) as client:
            while True:
                self._fetching = True
                succeeded = await self._fetch(client)
                self._fetching = False
                self._next_at = self._clock() + self._refetch_s
                self._wanted.clear()
                waiting, self._waiting = self._waiting, []
                # call_soon: an exception in a callback must not end this task.
                for then in waiting:
                    asyncio.get_running_loop().call_soon(then)
                try:
                    async with asyncio.timeout(self._max_age_s if succeeded else self._refetch_s):
                        await self._wanted.wait()
                except TimeoutError:
                    pass

    async def _fetch(self, client: httpx.AsyncClient) -> bool:
        self.fetches += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                document = await self._get(client)
            if document != self._document:
                self.keys = parse_key_set(document, self._url)
                self._document = document
            return True
        except TimeoutError:
            problem = f"no answer within {TIMEOUT_S:g} s"
        except InvalidKey as error:
            problem = str(error)
        except Exception as error:
            problem = problem_of(error)
        self.failures += 1
        logger.warning("cannot fetch keys from %s: %s", self._url, problem)
        return False

    async def _get(self, client: httpx.AsyncClient) -> bytes:
        async with client.stream("GET", self._url) as response:
            if response.status_code != 200:
                raise InvalidKey(f"status {response.status_code}")
            document = b""
            async for chunk in response.aiter_bytes():
                document += chunk
                if len(document) > MAX_BYTES:
                    raise InvalidKey(f"more than {MAX_BYTES >> 10} KiB")
            return document
