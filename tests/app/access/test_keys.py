"""Keys: which files and sets hold some, and for what each is good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tests.app.access.signing import ALGORITHMS, private_key, public_jwk, public_pem
from tricklecast.app.access.keys import MAX_KEYS, InvalidKeys, parse_key_set, pem_key, secret_key
from tricklecast.app.access.secrets import MAX_BYTES, InvalidSecret, Secret, read_file, read_secret


def key_set(*entries: Any) -> bytes:
    return json.dumps({"keys": entries}).encode()


def pem(public: Any) -> bytes:
    data: bytes = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return data


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_kind_of_a_key_is_its_algorithm(algorithm: str) -> None:
    """As a file and in a set; it is good for nothing else."""
    key = pem_key(public_pem(algorithm), "the file")
    assert (key.algorithm, key.kid) == (algorithm, None)
    (other,) = parse_key_set(key_set(public_jwk(algorithm, kid="a")), "the set")
    assert (other.algorithm, other.kid) == (algorithm, "a")
    assert "PublicKey" not in repr(key)


def test_a_secret_shows_itself_to_nobody() -> None:
    """Not even by accident."""
    secret = Secret(b"visible")
    assert "visible" not in repr(secret) + repr(secret_key(secret)) + str(secret)


@pytest.mark.parametrize(
    ("given", "same"), [(b"a secret", True), (b"a secreT", False), (b"", False), (b"a secret ", False)]
)
def test_secrets_are_compared(given: bytes, same: bool) -> None:
    """All of it counts."""
    assert Secret(b"a secret").equals(given) is same


def test_a_secret_file(tmp_path: Path) -> None:
    """White space around it is none of it; at its least length it will do."""
    file = tmp_path / "secret"
    file.write_bytes(b"\n x23 \n")
    assert read_secret(file, least=3).reveal() == b"x23"
    with pytest.raises(InvalidSecret, match="holds 3 bytes, and a secret has at least 4") as error:
        read_secret(file, least=4)
    assert "x23" not in str(error.value)


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    """Missing, a folder, or too large by a byte."""
    with pytest.raises(InvalidSecret, match=r"cannot read .*: No such file"):
        read_file(tmp_path / "missing")
    with pytest.raises(InvalidSecret, match=r"cannot read .*: Is a directory"):
        read_file(tmp_path)
    file = tmp_path / "large"
    file.write_bytes(b"x" * MAX_BYTES)
    assert len(read_file(file)) == MAX_BYTES
    file.write_bytes(b"x" * (MAX_BYTES + 1))
    with pytest.raises(InvalidSecret, match="larger than 64 KiB"):
        read_file(file)


def private_pem() -> bytes:
    data: bytes = private_key("ES256").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return data


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (lambda: b"nonsense", "no public key"),
        (lambda: b"", "no public key"),
        (private_pem, "a private key"),
        (lambda: pem(rsa.generate_private_key(65537, 1024).public_key()), "1024 bits"),
        (lambda: pem(ec.generate_private_key(ec.SECP384R1()).public_key()), "none of RSA, P-256 and Ed25519"),
    ],
    ids=["nonsense", "nothing", "private", "short", "curve"],
)
def test_a_pem_file_that_will_not_do(data: Any, text: str) -> None:
    """The message says why, and names the file."""
    with pytest.raises(InvalidKeys, match=f"^key.pem .*{text}"):
        pem_key(data(), "key.pem")


def test_what_is_of_no_use_in_a_set_is_passed_over() -> None:
    """Encryption keys, secrets, other curves and algorithms, and what is broken."""
    good = public_jwk("RS256", kid="good", use="sig", alg="RS256")
    entries = [
        public_jwk("RS256", use="enc"),
        public_jwk("RS256", alg="RS512"),
        public_jwk("ES256", kid=7),
        {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"},
        {"kty": "EC", "crv": "P-384", "x": "AA", "y": "AA"},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        {"kty": "RSA"},
        {"kty": ["RSA"]},
        {},
        good,
    ]
    assert [key.kid for key in parse_key_set(key_set(*entries), "the set")] == ["good"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"nonsense", "no JSON Web Key Set"),
        (b"[]", "no JSON Web Key Set"),
        (b"{}", "no JSON Web Key Set"),
        (b'{"keys": {}}', "no JSON Web Key Set"),
        (b'{"keys": [1]}', "no JSON Web Key Set"),
        (key_set(), "no key for"),
        (key_set({"kty": "oct", "k": "x"}), "no key for"),
        (key_set(*[{}] * (MAX_KEYS + 1)), "more than 32 keys"),
        (key_set({"kty": "RSA", "d": "x"}), "a private key"),
    ],
)
def test_a_set_that_will_not_do(data: bytes, text: str) -> None:
    """The message says why."""
    with pytest.raises(InvalidKeys, match=text):
        parse_key_set(data, "the set")
