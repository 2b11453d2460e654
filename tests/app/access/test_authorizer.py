"""Decisions about requests: the token first, then the webhook; and access control as it is made from the settings."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jwt import PyJWK
from jwt.utils import base64url_encode

from tests.app.access.signing import SECRET, bearer, private_key, public_jwk, public_key, public_pem, token
from tricklecast.app.access.authorizer import Access, RequestAuthorizer
from tricklecast.app.access.revocations import Revocations
from tricklecast.app.access.rights import MAX_TOKEN_BYTES, bearer_token, query_token
from tricklecast.app.access.tokens import TokenVerifier
from tricklecast.app.access.webhook import FAILED
from tricklecast.app.data_plane.authorization import Granted, Pending, Refused
from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.responses import EXPIRED
from tricklecast.app.data_plane.routing import Route
from tricklecast.app.settings import load
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.records import Op

NOW = 1_000_000.0
HS256 = PyJWK({"kty": "oct", "k": base64url_encode(SECRET).decode()}, "HS256")
CHALLENGE = 'Bearer realm="tricklecast"'


class FakeKeys:
    """A remote key set; ``arrive`` ends the fetch that requests wait for."""

    def __init__(self, *keys: PyJWK, loaded: bool = True, recent: bool = False) -> None:
        self.keys = keys
        self.loaded = loaded
        self.recent = recent
        self.waiting: list[Callable[[], None]] = []

    def refetch(self, then: Callable[[], None]) -> bool:
        if not self.recent:
            self.waiting.append(then)
        return not self.recent

    def arrive(self, *keys: PyJWK) -> None:
        self.keys, self.loaded, self.recent = keys, True, True
        for then in self.waiting:
            then()


class FakeWebhook:
    """A webhook that remembers ``known``, and takes no further question when it is ``full``."""

    def __init__(self, known: int | None = None, *, full: bool = False) -> None:
        self.known = known
        self.full = full
        self.asked: list[dict[str, Any]] = []
        self.waiting: list[Callable[[int], None]] = []

    def remembered(self, body: bytes) -> int | None:
        self.asked.append(json.loads(body))
        return self.known

    def ask(self, body: bytes, then: Callable[[int], None]) -> bool:
        assert json.loads(body) == self.asked[-1]
        if not self.full:
            self.waiting.append(then)
        return not self.full


def authorizer(keys: FakeKeys | None = None, webhook: FakeWebhook | None = None, **options: Any) -> RequestAuthorizer:
    """An authorizer that wants tokens."""
    fixed = (HS256,)
    tokens: Any = TokenVerifier(fixed, keys, leeway_s=10, wall=lambda: NOW)  # type: ignore[arg-type]
    hook: Any = webhook
    return RequestAuthorizer(tokens, hook, **options)


def without_tokens(webhook: FakeWebhook, **options: Any) -> RequestAuthorizer:
    hook: Any = webhook
    return RequestAuthorizer(None, hook, node="here", **options)


def request(text: str | None = None, op: Op = Op.READ, channel: str = "cam-1", target: bytes = b"/") -> Request:
    headers = {} if text is None else {b"authorization": f"Bearer {text}".encode("latin-1")}
    made = Request(b"GET", target, Route(op, channel, 0), headers, http10=False, keep_alive=True)
    made.ip = "192.0.2.1"
    return made


def signed(**more: Any) -> str:
    return token(**{"exp": NOW + 100, **more})


def refusal(decision: Granted | Refused | Pending) -> tuple[int, bytes, str]:
    """Status, body and reason of a refusal."""
    assert isinstance(decision, Refused)
    reply = decision.reply
    assert reply.close
    assert (reply.retry_after_s is not None) == (reply.status == 503)
    return reply.status, reply.body, reply.reason


def permission(decision: Granted | Refused | Pending) -> tuple[str | None, float]:
    """Subject and end of a permission."""
    assert isinstance(decision, Granted)
    return decision.subject, decision.expires_at


def challenge(decision: Granted | Refused | Pending) -> str | None:
    assert isinstance(decision, Refused)
    return dict(decision.reply.headers).get("WWW-Authenticate")  # type: ignore[return-value]


def wait_for(decision: Granted | Refused | Pending) -> list[Granted | Refused]:
    """A list into which a pending decision comes."""
    assert isinstance(decision, Pending)
    came: list[Granted | Refused] = []
    decision.then(came.append)
    return came


def test_a_valid_token() -> None:
    """The client gets its name and the end of its permission, leeway included."""
    assert permission(authorizer().authorize(request(signed(sub="me")))) == ("me", NOW + 110)
    assert permission(authorizer().authorize(request(signed(sub=None)))) == (None, NOW + 110)


def test_no_token() -> None:
    """The answer says how to get in."""
    decision = authorizer().authorize(request())
    assert refusal(decision) == (401, b"Token required", "token:missing")
    assert challenge(decision) == CHALLENGE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonsense", "malformed"),
        ("é", "malformed"),
        ("x" * (MAX_TOKEN_BYTES + 1), "malformed"),
        (signed(key=b"x" * 32), "signature"),
        (signed(nbf=NOW + 60), "early"),
        (signed(aud="another server"), "audience"),
        (signed(trickle="*"), "claim"),
    ],
    ids=["malformed", "latin", "long", "signature", "early", "audience", "claim"],
)
def test_invalid_tokens_get_the_same_answer(text: str, why: str) -> None:
    """The client learns nothing; the reason in the access log says what is wrong."""
    decision = authorizer().authorize(request(text))
    assert refusal(decision) == (401, b"Token invalid", f"token:{why}")
    assert challenge(decision) == f'{CHALLENGE}, error="invalid_token"'


def test_an_expired_token() -> None:
    """The holder of an expired token learns that it needs a new one."""
    assert authorizer().authorize(request(signed(exp=NOW - 10))) == Refused(EXPIRED)
    assert EXPIRED[:4] == (
        401,
        "expired",
        (("WWW-Authenticate", f'{CHALLENGE}, error="invalid_token"'),),
        b"Token expired",
    )


def test_rights_that_do_not_suffice() -> None:
    """The refusal carries the client's name, for the access log."""
    text = signed(sub="me", trickle={"subscribe": ["cam-*"]})
    decisions = authorizer()
    assert isinstance(decisions.authorize(request(text)), Granted)
    for other, why in (
        (request(text, Op.PUBLISH), b"publish to cam-1"),
        (request(text, Op.DELETE), b"publish to or manage cam-1"),
        (request(text, channel="other"), b"subscribe to other"),
    ):
        decision = decisions.authorize(other)
        assert refusal(decision) == (403, b"The token gives no right to " + why, "forbidden")
        assert challenge(decision) == f'{CHALLENGE}, error="insufficient_scope"'
        assert isinstance(decision, Refused)
        assert decision.subject == "me"


def test_a_token_in_the_query() -> None:
    """A token in ``?token=`` counts if the setting allows it and no header has one."""
    good = signed()
    target = f"/?x=1&token={good}".encode()
    assert isinstance(authorizer(token_in_query=True).authorize(request(target=target)), Granted)
    assert refusal(authorizer(token_in_query=True).authorize(request("bad", target=target)))[2] == "token:malformed"
    assert refusal(authorizer().authorize(request(target=target)))[2] == "token:missing"


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, None),
        ({b"authorization": b"Bearer abc"}, b"abc"),
        ({b"authorization": b"bEARER  abc "}, b"abc"),
        ({b"authorization": b"Bearer "}, None),
        ({b"authorization": b"Basic abc"}, None),
        ({b"cookie": b"token=abc"}, None),
    ],
)
def test_the_header_with_the_token(headers: dict[bytes, bytes], found: bytes | None) -> None:
    """The scheme is Bearer, in upper or lower case."""
    assert bearer_token(headers) == found


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (b"/c/0", None),
        (b"/c/0?token=abc", b"abc"),
        (b"/c/0?x=1&token=a%2Bc&token=other", b"a+c"),
        (b"/c/0?token=", None),
        (b"/c/0?mytoken=abc", None),
        (b"/token=abc", None),
    ],
)
def test_the_parameter_with_the_token(target: bytes, found: bytes | None) -> None:
    """The first ``token`` of a query counts, percent-decoded."""
    assert query_token(target) == found


# Keys that arrive while a request waits


def new_token(**more: Any) -> str:
    return signed(key=private_key("ES256"), algorithm="ES256", kid="new", **more)


def test_a_token_of_a_new_key() -> None:
    """The request waits for the fetch of the keys, and is granted if they have the key."""
    keys = FakeKeys(public_key("ES256", 1, kid="old"))
    came = wait_for(authorizer(keys).authorize(request(new_token(sub="me"))))
    assert came == []
    keys.arrive(public_key("ES256", kid="new"))
    assert list(map(permission, came)) == [("me", NOW + 110)]


def test_a_key_that_stays_unknown() -> None:
    """The request is refused after one fetch, and at once if the last one was a short time ago."""
    keys = FakeKeys()
    decisions = authorizer(keys)
    came = wait_for(decisions.authorize(request(new_token())))
    keys.arrive()
    assert [refusal(decision) for decision in came] == [(401, b"Token invalid", "token:key")]
    assert refusal(decisions.authorize(request(new_token()))) == (401, b"Token invalid", "token:key")


def test_no_keys_yet() -> None:
    """The server cannot tell whether the token is valid: 503, not 401."""
    assert refusal(authorizer(FakeKeys(loaded=False, recent=True)).authorize(request(new_token()))) == (
        503, b"Access cannot be checked", "token:no_keys"
    )  # fmt: skip


def test_a_key_that_came_does_not_give_rights() -> None:
    """A token whose key was fetched is still refused if its rights do not suffice."""
    keys = FakeKeys()
    came = wait_for(authorizer(keys).authorize(request(new_token(trickle={}))))
    keys.arrive(public_key("ES256", kid="new"))
    assert [refusal(decision)[0] for decision in came] == [403]


def test_a_cancelled_request_is_not_decided() -> None:
    """The server neither verifies its token again, nor asks the webhook, nor calls back."""
    keys, hook = FakeKeys(), FakeWebhook()
    pending = authorizer(keys, hook).authorize(request(new_token()))
    came = wait_for(pending)
    assert isinstance(pending, Pending)
    pending.cancel()
    keys.arrive(public_key("ES256", kid="new"))
    assert (came, hook.asked) == ([], [])


def test_new_keys_and_then_the_webhook() -> None:
    """A request may wait for both; a client that leaves meanwhile is not told."""
    for cancels in (False, True):
        keys, hook = FakeKeys(), FakeWebhook()
        pending = authorizer(keys, hook).authorize(request(new_token(sub="me")))
        came = wait_for(pending)
        keys.arrive(public_key("ES256", kid="new"))
        assert (came, len(hook.waiting)) == ([], 1)
        assert isinstance(pending, Pending)
        if cancels:
            pending.cancel()
        hook.waiting[0](200)
        assert list(map(permission, came)) == ([] if cancels else [("me", NOW + 110)])


def test_a_key_that_goes_while_the_webhook_is_asked() -> None:
    """The request is refused: it would run under a key that is not there any more."""
    keys, hook = FakeKeys(public_key("ES256", kid="new")), FakeWebhook()
    decisions = authorizer(keys, hook)
    came = wait_for(decisions.authorize(request(new_token(sub="me"))))
    before = decisions.generation
    keys.arrive(public_key("ES256", 1, kid="other"))
    assert decisions.generation != before
    hook.waiting[0](200)
    assert [refusal(decision) for decision in came] == [(401, b"Token revoked", "token:revoked")]


def test_what_is_revoked() -> None:
    """A permission holds until its token, its client or its key is revoked; one of the webhook alone holds on."""
    keys = FakeKeys(public_key("ES256", kid="new"))
    tokens: Any = TokenVerifier((HS256,), keys, wall=lambda: NOW)  # type: ignore[arg-type]
    decisions = RequestAuthorizer(tokens)
    granted = [
        decisions.authorize(request(text))
        for text in (signed(sub="me", jti="7"), signed(sub="other", jti="8"), new_token(sub="third"))
    ]
    held = [grant for grant in granted if isinstance(grant, Granted)]

    def holding() -> list[str | None]:
        return [grant.subject for grant in held if decisions.holds(grant)]

    assert holding() == ["me", "other", "third"]
    tokens.use((HS256,), Revocations(frozenset({"7"}), frozenset()))
    assert holding() == ["other", "third"]
    assert refusal(decisions.authorize(request(signed(sub="me", jti="7"))))[2] == "token:revoked"
    assert permission(decisions.authorize(request(signed(sub="me", jti="9")))) == ("me", NOW + 100)
    tokens.use((HS256,), Revocations(frozenset(), frozenset({"other"})))
    assert holding() == ["me", "third"]
    keys.arrive()
    assert decisions.generation == 5
    assert holding() == ["me"]
    tokens.use((), Revocations(frozenset(), frozenset()))
    assert holding() == []
    hook = FakeWebhook(200)
    grant = without_tokens(hook).authorize(request())
    assert isinstance(grant, Granted)
    assert without_tokens(hook).holds(grant)
    assert without_tokens(hook).generation == 0


# The webhook


def test_the_question() -> None:
    """A question holds the token only if the server does not verify tokens itself."""
    common = {"v": 1, "operation": "publish", "channel": "cam-1", "ip": "192.0.2.1"}
    hook = FakeWebhook()
    without_tokens(hook).authorize(request("stream-key", Op.PUBLISH))
    authorizer(webhook=hook).authorize(request(signed(sub="me"), Op.PUBLISH))
    assert hook.asked == [
        {**common, "node": "here", "subject": None, "token": "stream-key"},
        {**common, "node": None, "subject": "me", "token": None},
    ]


@pytest.mark.parametrize(
    ("op", "operation"),
    [
        (Op.CREATE, "create"), (Op.PUBLISH, "publish"), (Op.CLOSE_SEGMENT, "publish"), (Op.READ, "subscribe"),
        (Op.STREAM, "subscribe"), (Op.PLAYLIST, "subscribe"), (Op.HLS, "subscribe"), (Op.CLIP, "subscribe"),
        (Op.FEED, "subscribe"), (Op.CHANGES, "subscribe"), (Op.NEXT, "next"), (Op.DELETE, "delete"),
    ],
)  # fmt: skip
def test_operations(op: Op, operation: str) -> None:
    """The question names each kind of request by a word."""
    hook = FakeWebhook(200)
    assert without_tokens(hook).authorize(request(op=op)) == Granted(None, math.inf)
    assert hook.asked[0]["operation"] == operation


@pytest.mark.parametrize(
    ("status", "answer", "challenged"),
    [
        (401, (401, b"Not allowed", "webhook:refused"), CHALLENGE),
        (403, (403, b"Not allowed", "webhook:refused"), None),
        (404, (404, b"Stream not found", "webhook:refused"), None),
        (FAILED, (503, b"Access cannot be checked", "webhook:failed"), None),
    ],
)
@pytest.mark.parametrize("remembered", [False, True])
def test_refusals_of_the_webhook(
    status: int, answer: tuple[int, bytes, str], challenged: str | None, remembered: bool
) -> None:
    """A refusal has the webhook's status, also a remembered one; without an answer it is 503."""
    hook = FakeWebhook(status if remembered else None)
    decision = authorizer(webhook=hook).authorize(request(signed(sub="me")))
    if not remembered:
        came = wait_for(decision)
        hook.waiting[0](status)
        (decision,) = came
    assert refusal(decision) == answer
    assert challenge(decision) == challenged
    assert isinstance(decision, Refused)
    assert decision.subject == "me"


def test_too_many_questions() -> None:
    """The server refuses a request about which it cannot ask."""
    assert refusal(without_tokens(FakeWebhook(full=True)).authorize(request())) == (
        503, b"Access cannot be checked", "limit:webhook"
    )  # fmt: skip


def test_fail_open() -> None:
    """With ``webhook_fail_open`` a request without an answer is granted; a refusal stays one."""
    granted = Granted(None, math.inf)
    assert without_tokens(FakeWebhook(full=True), fail_open=True).authorize(request()) == granted
    assert without_tokens(FakeWebhook(FAILED), fail_open=True).authorize(request()) == granted
    assert refusal(without_tokens(FakeWebhook(403), fail_open=True).authorize(request()))[0] == 403


def test_a_token_that_is_too_long_to_pass_on() -> None:
    """The webhook gets tokens of up to 8 KiB."""
    hook = FakeWebhook(200)
    assert isinstance(without_tokens(hook).authorize(request("x" * MAX_TOKEN_BYTES)), Granted)
    decision = without_tokens(hook).authorize(request("x" * (MAX_TOKEN_BYTES + 1)))
    assert refusal(decision) == (401, b"Token invalid", "token:malformed")
    assert len(hook.asked) == 1


def test_the_webhook_is_not_asked_about_refused_tokens() -> None:
    """The server refuses an invalid token without asking the webhook."""
    hook = FakeWebhook()
    authorizer(webhook=hook).authorize(request("bad"))
    authorizer(webhook=hook).authorize(request(signed(trickle={})))
    assert hook.asked == []


# Access control, made from the settings


def access(**settings: Any) -> Access:
    return Access(load({name: str(value) for name, value in settings.items()}).settings, "here")


def test_nothing_is_switched_on_by_default() -> None:
    """A server without settings has no authorizer, so that access control costs nothing."""
    made = access()
    assert (made.authorizer, made.tokens, made.webhook, made.control_token) == (None, None, None, None)


def test_every_source_of_keys(tmp_path: Path) -> None:
    """A server may have several sources of keys; a token of any of them is valid."""
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "pem").write_bytes(public_pem("RS256"))
    (tmp_path / "set").write_text(json.dumps({"keys": [public_jwk("ES256", kid="k")]}))
    tokens = access(
        jwt_secret_file=tmp_path / "secret", jwt_key_file=tmp_path / "pem", jwks_file=tmp_path / "set",
        jwks_url="https://keys.example/", jwt_audience="us", jwt_issuer="them",
    ).tokens  # fmt: skip
    assert tokens is not None
    assert tokens.remote is not None
    more = {"aud": "us", "iss": "them"}
    for text in (
        token(**more),
        token(private_key("RS256"), "RS256", **more),
        token(private_key("ES256"), "ES256", kid="k", **more),
    ):
        assert tokens.verify(text.encode()).subject == "somebody"


def test_an_empty_key_set_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server starts, warns, and takes no token: an operator revokes all keys this way."""
    (tmp_path / "set").write_text('{"keys": []}')
    made = access(jwks_file=tmp_path / "set")
    assert made.authorizer is not None
    text = bearer(token(private_key("ES256"), "ES256"))["Authorization"].removeprefix("Bearer ")
    assert refusal(made.authorizer.authorize(request(text))) == (401, b"Token invalid", "token:key")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("name", ["jwt_secret_file", "jwt_key_file", "jwks_file", "control_token_file"])
def test_an_unusable_file(name: str, tmp_path: Path) -> None:
    """The message names the setting."""
    path = tmp_path / "missing"
    with pytest.raises(InvalidInput, match=f"^{name}: cannot read {path}: No such file or directory$"):
        access(**{name: path})


def test_the_control_token_has_at_least_16_characters(tmp_path: Path) -> None:
    """The server refuses a shorter one; a control token alone makes no authorizer."""
    file = tmp_path / "token"
    file.write_text("x" * 15)
    with pytest.raises(InvalidInput, match="has 15 bytes; a secret needs at least 16"):
        access(control_token_file=file)
    file.write_text("x" * 16)
    made = access(control_token_file=file)
    assert (made.control_token is not None, made.authorizer) == (True, None)


def test_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to install what tokens need."""
    for name in ("jwks", "tokens"):
        monkeypatch.delitem(sys.modules, f"tricklecast.app.access.{name}", raising=False)
        monkeypatch.delattr(f"tricklecast.app.access.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(InvalidInput, match=r"^access control needs jwt: pip install '\.\[tokens\]' in a clone"):
        access(jwt_secret_file=tmp_path / "secret")
