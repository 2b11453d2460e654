"""Keys: which files and sets hold usable ones, and how the key set behind a URL changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from tests.app.access.service import answering
from tests.app.access.signing import ALGORITHMS, SECRET, private_key, public_jwk, public_pem
from tests.support.waiting import WITHIN_S, until
from tricklecast.app.access.jwks import (
    MAX_KEYS,
    MAX_WAITING,
    RemoteKeySet,
    parse_key_set,
    read_key_set,
    read_public_key,
    read_secret_key,
)
from tricklecast.app.access.secrets import InvalidKey

SPOILT: list[Any] = [
    public_jwk("RS256", use="enc"),
    public_jwk("RS256", alg="RS512"),
    public_jwk("RS256", alg="HS256"),
    public_jwk("ES256", kid=7),
    {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"},
    {"kty": "oct", "k": "c2VjcmV0", "alg": "RS256"},
    {"kty": "AKP", "alg": "ML-DSA-44", "pub": "AA"},
    {"kty": "EC", "crv": "P-384", "x": "AA", "y": "AA"},
    {"kty": "OKP", "crv": "Ed448", "alg": "EdDSA", "x": "A" * 76},
    {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
    {"kty": "RSA", "n": 5, "e": []},
    {"kty": "RSA"},
    {"kty": ["RSA"]},
    {"kty": "RSA", "alg": ["RS256"]},
    {},
]
"""Keys that a set may have and that the server cannot use."""


def key_set(*entries: Any) -> bytes:
    return json.dumps({"keys": entries}).encode()


def named(*numbers: int) -> bytes:
    """A set with these keys: number 0 has the name k0."""
    return key_set(*(public_jwk("ES256", number, kid=f"k{number}") for number in numbers))


def names(keys: Any) -> list[Any]:
    return [key.key_id for key in keys]


def pem(public: Any) -> bytes:
    data: bytes = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return data


def private_pem() -> bytes:
    data: bytes = private_key("ES256").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return data


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_type_of_a_key_is_its_algorithm(algorithm: str, tmp_path: Path) -> None:
    """A PEM file has a key without a name; a set says the names of its keys."""
    (tmp_path / "pem").write_bytes(public_pem(algorithm))
    (tmp_path / "set").write_bytes(key_set(public_jwk(algorithm, kid="a")))
    for keys, kid in ((read_public_key(tmp_path / "pem"), None), (read_key_set(tmp_path / "set"), "a")):
        assert [(key.algorithm_name, key.key_id) for key in keys] == [(algorithm, kid)]


def test_a_secret_is_a_key_for_hs256(tmp_path: Path) -> None:
    """A secret's bytes sign and verify; no text shows them."""
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    (key,) = read_secret_key(tmp_path / "secret")
    assert (key.algorithm_name, key.key_id, key.key) == ("HS256", None, SECRET)
    assert SECRET.decode() not in f"{key} {key!r}"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (lambda: b"nonsense", "not contain a public key"),
        (lambda: b"", "not contain a public key"),
        (private_pem, "a private key"),
        (lambda: pem(rsa.generate_private_key(65537, 1024).public_key()), "1024 bits"),
        (lambda: pem(ec.generate_private_key(ec.SECP384R1()).public_key()), "not RSA, P-256 or Ed25519"),
        (lambda: pem(ed448.Ed448PrivateKey.generate().public_key()), "not RSA, P-256 or Ed25519"),
    ],
    ids=["nonsense", "nothing", "private", "short", "curve", "ed448"],
)
def test_an_unusable_pem_file(data: Any, text: str, tmp_path: Path) -> None:
    """The message names the file and says what is wrong."""
    file = tmp_path / "key.pem"
    file.write_bytes(data())
    with pytest.raises(InvalidKey, match=f"^{file} .*{text}"):
        read_public_key(file)


def test_unusable_keys_do_not_spoil_a_set(caplog: pytest.LogCaptureFixture) -> None:
    """The server ignores keys for encryption, secrets, other types and algorithms, and broken ones."""
    good = public_jwk("RS256", kid="good", use="sig", alg="RS256")
    nameless = public_jwk("ES256", kid=None)
    assert names(parse_key_set(key_set(*SPOILT, good, nameless), "the set")) == ["good", None]
    assert caplog.records == []


@pytest.mark.parametrize("entries", [[], SPOILT], ids=["empty", "unusable"])
def test_a_set_may_have_no_usable_key(entries: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """The set is valid and revokes all keys; the log says so."""
    assert parse_key_set(key_set(*entries), "the set") == ()
    assert [record.message for record in caplog.records] == [
        "the set has no key for RS256, ES256 or EdDSA, so no token is valid"
    ]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"nonsense", "not a JSON Web Key Set"),
        (b"", "not a JSON Web Key Set"),
        (b"[]", "not a JSON Web Key Set"),
        (b"{}", "not a JSON Web Key Set"),
        (b'{"keys": {}}', "not a JSON Web Key Set"),
        (b'{"keys": null}', "not a JSON Web Key Set"),
        (b'{"keys": [1]}', "not a JSON Web Key Set"),
        (key_set(*[{}] * (MAX_KEYS + 1)), "more than 32 keys"),
        (key_set({"kty": "RSA", "d": "x"}), "a private key"),
    ],
)
def test_an_invalid_set(data: bytes, text: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(InvalidKey, match=f"^the set .*{text}"):
        parse_key_set(data, "the set")


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
FIELDS = st.sampled_from(["kty", "alg", "crv", "kid", "use", "k", "n", "e", "x", "y"])


@given(st.sampled_from([public_jwk(algorithm) for algorithm in ALGORITHMS]), st.dictionaries(FIELDS, VALUES))
def test_random_changes_of_a_key(jwk: dict[str, Any], changes: dict[str, Any]) -> None:
    """The server uses or ignores a damaged key, and raises nothing else."""
    assert len(parse_key_set(key_set({**jwk, **changes}), "the set")) <= 1


# The key set behind a URL, on a clock of the test's.


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def running(
    answer: Callable[[], httpx.Response | Exception], test: Callable[[RemoteKeySet, Clock], Awaitable[None]]
) -> None:
    """Run a test beside a key set that is fetched from ``answer``."""

    def handle(request: httpx.Request) -> httpx.Response:
        outcome = answer()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def main() -> None:
        clock = Clock()
        keys = RemoteKeySet("https://keys/", refetch_s=30, max_age_s=3600, clock=clock)
        task = asyncio.create_task(keys.run())
        async with asyncio.timeout(WITHIN_S):
            await until(lambda: keys.fetches and not keys._fetching)
            await test(keys, clock)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with answering(handle):
        asyncio.run(main())


async def refetch(keys: RemoteKeySet, clock: Clock) -> None:
    """Let the time between two fetches pass, and fetch."""
    clock.now += 30
    fetched = asyncio.Event()
    assert keys.refetch(fetched.set)
    await fetched.wait()


def test_a_request_causes_a_fetch() -> None:
    """A token of an unknown key causes a fetch, but not within 30 s of the last one; all that wait learn of its end."""
    current = [named(0)]

    async def test(keys: RemoteKeySet, clock: Clock) -> None:
        assert (keys.loaded, names(keys.keys)) == (True, ["k0"])
        current[0] = named(0, 1)
        clock.now += 29.9
        assert not keys.refetch(lambda: None)
        clock.now += 0.1
        ended: list[int] = []
        assert keys.refetch(lambda: ended.append(1))
        assert keys.refetch(lambda: ended.append(2))
        await until(lambda: len(ended) == 2)
        assert names(keys.keys) == ["k0", "k1"]
        assert keys.fetches == 2
        assert not keys.refetch(lambda: None)

    running(lambda: httpx.Response(200, content=current[0]), test)


def test_the_same_set() -> None:
    """A set that has not changed is the same object, so that valid tokens stay remembered."""

    async def test(keys: RemoteKeySet, clock: Clock) -> None:
        before = keys.keys
        await refetch(keys, clock)
        assert keys.keys is before

    running(lambda: httpx.Response(200, content=named(0)), test)


@pytest.mark.parametrize("document", [b'{"keys": []}', key_set(*SPOILT)], ids=["empty", "unusable"])
def test_keys_can_be_revoked_to_none(document: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A valid set without a usable key is no failed fetch: it takes effect at once, and the next set does, too."""
    current = [named(0)]

    async def test(keys: RemoteKeySet, clock: Clock) -> None:
        current[0] = document
        await refetch(keys, clock)
        assert (keys.keys, keys.loaded, keys.fetches, keys.failures) == ((), True, 2, 0)
        current[0] = named(1)
        await refetch(keys, clock)
        assert names(keys.keys) == ["k1"]

    running(lambda: httpx.Response(200, content=current[0]), test)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda: httpx.Response(500), "status 500"),
        (lambda: httpx.Response(302, headers={"Location": "https://elsewhere/"}), "status 302"),
        (lambda: httpx.Response(204), "status 204"),
        (lambda: httpx.Response(200, content=b"nonsense"), "https://keys/ is not a JSON Web Key Set"),
        (lambda: httpx.Response(200, content=b"x" * (65 << 10)), "more than 64 KiB"),
        (lambda: httpx.ConnectError("no way"), "no way"),
        (lambda: TimeoutError(), "no answer within 5 s"),
        (lambda: UnicodeError("what is that"), "UnicodeError: what is that"),
    ],
    ids=["status", "redirect", "nothing", "nonsense", "large", "unreachable", "slow", "unforeseen"],
)
def test_an_outage_changes_nothing(answer: Any, problem: str, caplog: pytest.LogCaptureFixture) -> None:
    """The former keys stay, those that wait learn that the fetch has ended, and the log says why."""
    answers = iter([httpx.Response(200, content=named(0))])

    async def test(keys: RemoteKeySet, clock: Clock) -> None:
        await refetch(keys, clock)
        assert (names(keys.keys), keys.failures) == (["k0"], 1)

    running(lambda: next(answers, None) or answer(), test)
    assert [record.message for record in caplog.records] == [f"cannot fetch keys from https://keys/: {problem}"]


def test_old_keys_are_fetched_again() -> None:
    """The server fetches a set again after ``max_age_s``, or after ``refetch_s`` if the last fetch failed."""

    async def main() -> int:
        keys = RemoteKeySet("https://keys/", refetch_s=0.001, max_age_s=0.001)
        task = asyncio.create_task(keys.run())
        async with asyncio.timeout(WITHIN_S):
            await until(lambda: names(keys.keys) == ["k1"])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return keys.failures

    answers = iter([httpx.Response(200, content=named(0)), httpx.Response(500)])
    with answering(lambda request: next(answers, httpx.Response(200, content=named(1)))):
        assert asyncio.run(main()) == 1


def test_a_limited_number_of_requests_waits() -> None:
    """The server does not let further requests wait for a fetch."""

    async def main() -> None:
        keys = RemoteKeySet("https://keys/", refetch_s=1, max_age_s=1)
        assert not keys.loaded
        assert all(keys.refetch(lambda: None) for _ in range(MAX_WAITING))
        assert not keys.refetch(lambda: None)

    asyncio.run(main())
