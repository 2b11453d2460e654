"""Tokens: which ones are valid, until when, and that the server remembers them for as long as their key is trusted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jwt import PyJWK
from jwt.utils import base64url_encode

from tests.app.access.signing import ALGORITHMS, SECRET, claims, private_key, public_key, public_pem, token
from tricklecast.app.access.jwks import RemoteKeySet
from tricklecast.app.access.rights import MAX_TOKEN_BYTES, Claims, InvalidToken, Rights
from tricklecast.app.access.tokens import LATEST, TokenVerifier

NOW = 1_000_000.0
HS256 = PyJWK({"kty": "oct", "k": base64url_encode(SECRET).decode()}, "HS256")


def verifier(*keys: PyJWK, now: float = NOW, leeway_s: float = 10.0, **options: Any) -> TokenVerifier:
    return TokenVerifier(keys or (HS256,), leeway_s=leeway_s, wall=lambda: now, **options)


def why(text: str | bytes, *keys: PyJWK, **options: Any) -> str:
    """Why a token is invalid; ``""`` if it is valid."""
    try:
        verifier(*keys, **options).verify(text.encode() if isinstance(text, str) else text)
    except InvalidToken as error:
        return error.why
    return ""


def signed(**more: Any) -> str:
    return token(**{"exp": NOW + 100, **more})


def signed_text(payload: bytes) -> str:
    return jwt.api_jws.PyJWS().encode(payload, SECRET, "HS256")


GENUINE = signed()


def test_the_claims_of_a_token() -> None:
    """The verifier returns the subject, the rights and the time of expiry, leeway included."""
    text = signed(sub="cam 1", trickle={"publish": ["cam-*"]}).encode()
    assert verifier().verify(text) == Claims("cam 1", Rights(publish=("cam-*",)), NOW + 110)


@pytest.mark.parametrize(
    ("subject", "kept"),
    [("x" * 1000, "x" * 256), (None, None), ("", None), ("half \ud83d of a pair", "half ? of a pair")],
    ids=["long", "missing", "empty", "surrogate"],
)
def test_the_subject_is_fit_for_the_access_log(subject: str | None, kept: str | None) -> None:
    """A subject is optional, is cut after 256 characters, and can be encoded."""
    assert verifier().verify(signed(sub=subject).encode()).subject == kept


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm(algorithm: str) -> None:
    """A token is valid by the public key of its private key, and by no other."""
    key = public_key(algorithm)
    assert why(signed(key=private_key(algorithm), algorithm=algorithm), key) == ""
    assert why(signed(key=private_key(algorithm, 1), algorithm=algorithm), key) == "signature"


def test_another_secret() -> None:
    """A token that was signed with another secret is invalid."""
    assert why(signed(key=b"another secret of thirty-two bytes")) == "signature"


def unsigned(header: dict[str, Any], payload: dict[str, Any]) -> str:
    parts = [json.dumps(header).encode(), json.dumps(payload).encode(), b""]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None, 1, ["HS256"], "HS512", "RS256"])
def test_a_token_cannot_choose_its_algorithm(algorithm: Any) -> None:
    """No key verifies ``none``, another hash, or the algorithm of another type of key."""
    assert why(unsigned({"alg": algorithm, "typ": "JWT"}, claims(exp=NOW + 100))) in ("key", "malformed", "signature")


def test_a_public_key_is_no_secret() -> None:
    """A token with an HMAC of the public key's text is invalid (RFC 8725, section 2.1)."""
    head = unsigned({"alg": "HS256"}, claims(exp=NOW + 100)).rpartition(".")[0]
    mac = hmac.new(public_pem("RS256"), head.encode(), hashlib.sha256).digest()
    forged = f"{head}.{base64url_encode(mac).decode()}"
    assert why(forged, public_key("RS256")) == "key"
    assert why(forged, public_key("RS256"), HS256) == "signature"


@pytest.mark.parametrize(("after", "outcome"), [(109.0, ""), (110.0, "expired"), (111.0, "expired")])
def test_the_end_of_a_token(after: float, outcome: str) -> None:
    """A token is valid until ``exp`` plus the leeway."""
    assert why(signed(), now=NOW + after) == outcome


@pytest.mark.parametrize(("nbf", "outcome"), [(9, ""), (10, ""), (11, "early")])
def test_the_beginning_of_a_token(nbf: int, outcome: str) -> None:
    """A token is valid from ``nbf`` minus the leeway."""
    assert why(signed(nbf=NOW + nbf)) == outcome


@pytest.mark.parametrize("time", ["soon", None, True, [], {}, 1e400, -1e400, float("nan"), LATEST + 1, 10**400])
@pytest.mark.parametrize("name", ["exp", "nbf"])
def test_a_time_must_be_a_number(name: str, time: Any) -> None:
    """A token whose ``exp`` or ``nbf`` is anything else, or after the year 9999, is invalid."""
    assert why(signed_text(json.dumps({**claims(exp=NOW + 100), name: time}).encode())) == "claim"


@pytest.mark.parametrize("missing", ["exp", "trickle"])
def test_required_claims(missing: str) -> None:
    """A token says when it ends and what it allows."""
    assert why(signed(**{missing: None})) == "claim"


@pytest.mark.parametrize(
    ("wanted", "given", "outcome"),
    [
        ("here", "here", ""),
        ("here", ["there", "here"], ""),
        ("here", "there", "audience"),
        ("here", None, "audience"),
        ("here", 7, "audience"),
        (None, None, ""),
        (None, "there", "audience"),
    ],
)
def test_the_audience(wanted: str | None, given: Any, outcome: str) -> None:
    """``aud`` names the server's audience; a server without one takes no token with ``aud``."""
    assert why(signed(aud=given), audience=wanted) == outcome


@pytest.mark.parametrize(
    ("wanted", "given", "outcome"),
    [("we", "we", ""), ("we", "they", "issuer"), ("we", None, "issuer"), (None, "they", "")],
)
def test_the_issuer(wanted: str | None, given: str | None, outcome: str) -> None:
    """``iss`` is the server's issuer, if it has one."""
    assert why(signed(iss=given), issuer=wanted) == outcome


def test_rights_in_a_wrong_form() -> None:
    """A token with rights that the server does not understand is invalid."""
    assert why(signed(trickle={"read": ["*"]})) == "claim"


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "a.b", "a.b.c", "a.b.c.d", "e30.e30.", "\x00", "é.é.é", "[" * 2000, "e30." + "W1tb" * 1500 + ".x"],
)
def test_text_that_is_no_token(text: str) -> None:
    """Any text is rejected, and nothing else happens."""
    assert why(text) in ("malformed", "key")


@pytest.mark.parametrize("payload", [b"[]", b"7", b"x", b"\xff", b"[" * 3000, b'{"exp":1e999}'])
def test_a_payload_that_is_no_object(payload: bytes) -> None:
    """The signature does not help a payload that is nonsense."""
    assert why(signed_text(payload)) in ("malformed", "claim")


def test_critical_extensions() -> None:
    """A token with a header that the server must understand and does not is invalid (RFC 7515, section 4.1.11)."""
    assert why(jwt.encode(claims(exp=NOW + 100), SECRET, "HS256", headers={"crit": ["x"], "x": 1})) != ""


@given(st.binary(max_size=60) | st.text("eyJh.IX0_-=", max_size=200))
def test_random_text(text: bytes | str) -> None:
    """The verifier rejects random text, and raises nothing else."""
    assert why(text) != ""


@given(st.integers(0, 10_000), st.characters(codec="ascii"))
def test_a_changed_token(place: int, other: str) -> None:
    """A token is invalid wherever it was changed; only a part's last character may hold bits without a meaning."""
    place %= len(GENUINE)
    changed = GENUINE[:place] + other + GENUINE[place + 1 :]
    is_last = place + 1 == len(GENUINE) or GENUINE[place + 1] == "."
    assert changed == GENUINE or is_last or why(changed) != ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["exp", "nbf", "aud", "iss", "sub", "iat", "jti", "trickle"]), JSON))
def test_random_claims(payload: dict[str, Any]) -> None:
    """A signed token is valid, or invalid for a documented reason."""
    outcomes = ("", "malformed", "claim", "audience", "issuer", "early", "expired")
    assert why(signed_text(json.dumps(payload).encode())) in outcomes


@pytest.mark.parametrize(
    ("kid", "outcome"), [("old", "signature"), ("new", ""), (None, ""), ("unknown", "key"), ("x" * 9, "key")]
)
def test_keys_with_names(kid: str | None, outcome: str) -> None:
    """The server verifies a token with the key that it names, or with all keys if it names none."""
    text = signed(key=private_key("ES256", 1), algorithm="ES256", kid=kid)
    assert why(text, public_key("ES256", 0, kid="old"), public_key("ES256", 1, kid="new")) == outcome


def test_keys_without_a_name() -> None:
    """A key from a file has no name: the server tries it for tokens that name any key."""
    text = signed(key=private_key("ES256"), algorithm="ES256", kid="k")
    assert why(text, public_key("ES256", 0)) == ""
    assert why(text, public_key("ES256", 1)) == "key"
    assert why(text, public_key("ES256", 1), public_key("ES256", 1, kid="k")) == "signature"


def test_the_longest_token() -> None:
    """The server does not look at a token of more than 8 KiB, valid or not."""
    texts = [signed(sub="x" * size) for size in range(5700, 6000)]
    assert {len(text) > MAX_TOKEN_BYTES for text in texts} == {False, True}
    for text in texts:
        assert why(text) == ("malformed" if len(text) > MAX_TOKEN_BYTES else "")


def test_a_valid_token_is_remembered() -> None:
    """The server verifies its signature once, and notices when it has expired. Invalid tokens are not remembered."""
    now = [NOW]
    tokens = TokenVerifier((HS256,), size=2, wall=lambda: now[0])
    first = tokens.verify(GENUINE.encode())
    assert tokens.verify(GENUINE.encode()) is first
    for _ in range(2):
        with pytest.raises(InvalidToken):
            tokens.verify(b"nonsense")
    assert tokens.outcomes == {"checked": 1, "remembered": 1, "rejected": 2}
    now[0] += 100
    with pytest.raises(InvalidToken) as error:
        tokens.verify(GENUINE.encode())
    assert error.value.why == "expired"
    assert tokens.outcomes == {"checked": 1, "remembered": 1, "rejected": 3}


def test_the_least_recent_token_is_forgotten() -> None:
    """The server remembers ``size`` tokens."""
    tokens = verifier(size=2)
    one, two, three = (signed(sub=name).encode() for name in "123")
    for text in (one, two, one, three, one):
        tokens.verify(text)
    assert tokens.outcomes == {"checked": 3, "remembered": 2}
    tokens.verify(two)
    assert tokens.outcomes["checked"] == 4


def remote(*keys: PyJWK) -> RemoteKeySet:
    """A key set as a fetch would leave it."""
    found = RemoteKeySet("https://keys/", refetch_s=30, max_age_s=3600)
    found.keys, found._document = keys, b""
    return found


def test_a_token_of_a_withdrawn_key() -> None:
    """When a key leaves the set, the tokens that it has signed are invalid at once, remembered or not."""
    keys = remote(public_key("ES256", 0, kid="a"), public_key("ES256", 1, kid="b"))
    tokens = verifier(HS256, remote=keys, size=9)
    old, new = (signed(key=private_key("ES256", n), algorithm="ES256", kid="ab"[n]).encode() for n in (0, 1))
    for text in (old, new, GENUINE.encode(), old):
        tokens.verify(text)
    assert tokens.outcomes == {"checked": 3, "remembered": 1}
    keys.keys = keys.keys[1:]
    with pytest.raises(InvalidToken) as error:
        tokens.verify(old)
    assert (error.value.why, error.value.unknown_key) == ("key", True)
    tokens.verify(new)
    keys.keys = ()
    with pytest.raises(InvalidToken):
        tokens.verify(new)
    tokens.verify(GENUINE.encode())  # its key does not come from the set


def test_before_the_first_key_set() -> None:
    """The server cannot tell whether a token of an unknown key is valid; a forged one stays forged."""
    keys = RemoteKeySet("https://keys/", refetch_s=30, max_age_s=3600)
    assert why(signed(key=private_key("ES256"), algorithm="ES256", kid="k"), HS256, remote=keys) == "no_keys"
    assert why(signed(key=b"x" * 32), HS256, remote=keys) == "signature"
    assert why(signed(), HS256, remote=keys) == ""


def test_newer_keys() -> None:
    """A verifier without a remote key set cannot look for newer keys."""
    assert not verifier().refetch(lambda: None)
    assert verifier(HS256, remote=remote()).refetch(lambda: None)
