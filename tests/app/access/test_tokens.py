"""Tokens: whose signature counts, when, for whom, and that nothing else does."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.access.signing import ALGORITHMS, SECRET, claims, private_key, public_pem, token
from tricklecast.app.access.grants import Grant, Rejected
from tricklecast.app.access.keys import Key, pem_key, secret_key
from tricklecast.app.access.rules import Rights
from tricklecast.app.access.secrets import Secret
from tricklecast.app.access.tokens import LATEST, Verifier

NOW = 1_000_000.0


def verifier(*keys: Key, audience: str | None = None, issuer: str | None = None, leeway_s: float = 10.0) -> Verifier:
    return Verifier(lambda: keys or (HS256,), audience=audience, issuer=issuer, leeway_s=leeway_s)


HS256 = secret_key(Secret(SECRET))


def why(text: str, *keys: Key, now: float = NOW, **options: Any) -> str:
    """Why a token is rejected; ``""`` if it is not."""
    try:
        verifier(*keys, **options).verify(text, now)
    except Rejected as error:
        return error.why
    return ""


def signed(**more: Any) -> str:
    return token(**{"exp": NOW + 100, **more})


GENUINE = signed()


def test_a_token_is_what_it_says() -> None:
    """Subject, rights, and when it ends, leeway included."""
    text = signed(sub="cam 1", trickle={"publish": ["cam-*"]})
    assert verifier().verify(text, NOW) == Grant("cam 1", Rights(publish=("cam-*",)), NOW + 110)


def test_a_subject_is_cut_and_need_not_be() -> None:
    """It becomes the client key of the access log."""
    assert verifier().verify(signed(sub="x" * 1000), NOW).subject == "x" * 256
    assert verifier().verify(signed(sub=None), NOW).subject is None
    assert verifier().verify(signed(sub=""), NOW).subject is None
    assert verifier().verify(signed(sub="half \ud83d of a pair"), NOW).subject == "half ? of a pair"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm(algorithm: str) -> None:
    """RS256, ES256 and EdDSA with the public key; another key's signature is a forgery."""
    key = pem_key(public_pem(algorithm), "the file")
    assert why(signed(key=private_key(algorithm), algorithm=algorithm), key) == ""
    assert why(signed(key=private_key(algorithm, 1), algorithm=algorithm), key) == "signature"


def test_a_token_of_another_secret_is_forged() -> None:
    """HS256 with other bytes."""
    assert why(signed(key=b"another secret of thirty-two bytes")) == "signature"


def unsigned(header: dict[str, Any], payload: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(payload).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None, 1, ["HS256"], "HS512", "RS256"])
def test_the_token_does_not_choose_the_algorithm(algorithm: Any) -> None:
    """No key is good for ``none``, for another hash, or for another kind of key than it is."""
    assert why(unsigned({"alg": algorithm, "typ": "JWT"}, claims(exp=NOW + 100))) in ("key", "malformed", "signature")


def test_a_public_key_is_no_secret() -> None:
    """A token signed by HMAC with the text of the public key is a forgery (RFC 8725, section 2.1)."""
    import hashlib
    import hmac

    pem = public_pem("RS256")
    head = unsigned({"alg": "HS256"}, claims(exp=NOW + 100)).rpartition(".")[0]
    mac = hmac.new(pem, head.encode(), hashlib.sha256).digest()
    forged = f"{head}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    assert why(forged, pem_key(pem, "the file")) == "key"
    assert why(forged, pem_key(pem, "the file"), HS256) == "signature"


@pytest.mark.parametrize(
    ("after", "outcome"),
    [(109.0, ""), (110.0, "expired"), (111.0, "expired")],
    ids=["within the leeway", "at its end", "past it"],
)
def test_the_end_of_a_token(after: float, outcome: str) -> None:
    """It is good until ``exp`` and the leeway, not longer."""
    assert why(signed(), now=NOW + after) == outcome


@pytest.mark.parametrize(("nbf", "outcome"), [(9, ""), (10, ""), (11, "early")])
def test_the_beginning_of_a_token(nbf: int, outcome: str) -> None:
    """It is good from ``nbf`` on, less the leeway."""
    assert why(signed(nbf=NOW + nbf)) == outcome


@pytest.mark.parametrize("time", ["soon", None, True, [], {}, 1e400, -1e400, float("nan"), LATEST + 1, 10**400])
@pytest.mark.parametrize("name", ["exp", "nbf"])
def test_times_that_are_none(name: str, time: Any) -> None:
    """A token must say when it ends, as a number that is a time."""
    payload = {**claims(exp=NOW + 100), name: time}
    text = jwt.api_jws.PyJWS().encode(json.dumps(payload).encode(), SECRET, "HS256")
    assert why(text) == "claim"


def test_a_token_without_an_end() -> None:
    """It could never be taken back."""
    assert why(signed(exp=None)) == "claim"


@pytest.mark.parametrize(
    ("wanted", "said", "outcome"),
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
def test_whom_a_token_is_for(wanted: str | None, said: Any, outcome: str) -> None:
    """``aud`` must name this server if it has a name; a token for somebody is not for one without a name."""
    assert why(signed(aud=said), audience=wanted) == outcome


@pytest.mark.parametrize(
    ("wanted", "said", "outcome"),
    [("we", "we", ""), ("we", "they", "issuer"), ("we", None, "issuer"), (None, "they", "")],
)
def test_who_issued_a_token(wanted: str | None, said: str | None, outcome: str) -> None:
    """``iss`` must be the one that is trusted."""
    assert why(signed(iss=said), issuer=wanted) == outcome


@pytest.mark.parametrize("claim", [None, [], "*", {"publish": "*"}, {"read": ["*"]}, {"manage": [1]}])
def test_a_claim_that_cannot_be_understood(claim: Any) -> None:
    """A token must say what it allows, and nothing is guessed."""
    assert why(signed(trickle=claim)) == "claim"


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "a.b", "a.b.c", "a.b.c.d", "e30.e30.", "\x00", "é.é.é", "[" * 2000, "e30." + "W1tb" * 20000 + ".x"],
)
def test_what_is_no_token(text: str) -> None:
    """Nonsense is rejected, whatever it is."""
    assert why(text) in ("malformed", "key")


def test_a_payload_that_is_no_object() -> None:
    """It is signed, and still nonsense."""
    for payload in (b"[]", b"7", b"x", b"\xff", b"[" * 3000, b'{"exp":1e999}'):
        assert why(jwt.api_jws.PyJWS().encode(payload, SECRET, "HS256")) in ("malformed", "claim")


def test_critical_extensions_are_refused() -> None:
    """A header that must be understood is not passed over (RFC 7515, section 4.1.11)."""
    text = jwt.encode(claims(exp=NOW + 100), SECRET, "HS256", headers={"crit": ["x"], "x": 1})
    assert why(text) != ""


@given(st.text(max_size=60) | st.text("eyJh.IX0_-=", max_size=200))
def test_any_text_is_rejected(text: str) -> None:
    """And nothing but that happens."""
    assert why(text) != ""


@given(st.integers(0, 10_000), st.characters(codec="ascii"))
def test_a_token_that_was_changed_is_rejected(place: int, other: str) -> None:
    """Wherever, and to whatever; the last character of a part may hold bits that do not count."""
    genuine = GENUINE
    place %= len(genuine)
    changed = genuine[:place] + other + genuine[place + 1 :]
    is_last = place + 1 == len(genuine) or genuine[place + 1] == "."
    assert changed == genuine or is_last or why(changed) != ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["exp", "nbf", "aud", "iss", "sub", "iat", "jti", "trickle"]), JSON))
def test_whatever_a_signed_token_says(payload: dict[str, Any]) -> None:
    """It is taken, or rejected for one of the reasons."""
    text = jwt.api_jws.PyJWS().encode(json.dumps(payload).encode(), SECRET, "HS256")
    assert why(text) in ("", "malformed", "claim", "audience", "issuer", "early", "expired")


def named(kid: str | None, number: int) -> Key:
    key = pem_key(public_pem("ES256", number), "the file")
    return Key(key.algorithm, key.material, kid)


@pytest.mark.parametrize(
    ("kid", "outcome"), [("old", "signature"), ("new", ""), (None, ""), ("unknown", "key"), ("x" * 9, "key")]
)
def test_keys_by_name(kid: str | None, outcome: str) -> None:
    """A named key is looked for by its name; without a name all are tried. A name that is not known may become so."""
    text = signed(key=private_key("ES256", 1), algorithm="ES256", kid=kid)
    assert why(text, named("old", 0), named("new", 1)) == outcome


def test_a_key_without_a_name_is_tried_for_every_name() -> None:
    """One from a file has no name, and its tokens may."""
    text = signed(key=private_key("ES256"), algorithm="ES256", kid="whatever")
    assert why(text, named(None, 0)) == ""
    assert why(text, named(None, 1)) == "key"
    assert why(text, named(None, 1), named("whatever", 1)) == "signature"
