"""`tricklecast token`: a server takes the tokens that it makes, and it explains tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from typer.testing import CliRunner, Result

from tests.app.access.signing import ALGORITHMS, SECRET, private_key, public_pem, token
from tricklecast.app.access.authorizer import Access
from tricklecast.app.access.rights import Rights
from tricklecast.app.cli import cli
from tricklecast.app.settings import load


def run(*arguments: str | Path, **options: Any) -> Result:
    return CliRunner().invoke(cli, ["token", *map(str, arguments)], **options)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    return file


def test_first_steps(tmp_path: Path) -> None:
    """The command writes a secret that only its owner can read, and a token that a server with the secret takes."""
    file = tmp_path / "secret"
    made = run(
        "create", "--key", file, "--make-key", "--publish", "cam-*", "--subscribe", "*", "--subscribe", "x",
        "--subject", "me", "--expires", "10m",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    assert file.stat().st_mode & 0o777 == 0o600
    tokens = Access(load({"jwt_secret_file": str(file)}).settings, None).tokens
    assert tokens is not None
    claims = tokens.verify(made.output.strip().encode())
    assert claims.subject == "me"
    assert claims.rights == Rights(("cam-*",), ("*", "x"), ())
    again = run("create", "--key", file, "--make-key", "--publish", "x")
    assert str(again.exception) == f"cannot create {file}: File exists"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_private_keys(tmp_path: Path, algorithm: str) -> None:
    """A token of each type of private key is valid by the public key."""
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(private_key(algorithm).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(public_pem(algorithm))
    made = run("create", "--key", private, "--manage", "*", "--audience", "here", "--issuer", "me", "--kid", "k")
    text = made.output.strip()
    assert made.exit_code == 0, made.output
    shown = run("inspect", text, "--key", public, "--audience", "here", "--issuer", "me")
    assert (shown.exit_code, json.loads(shown.output)["header"]) == (
        0, {"alg": algorithm, "kid": "k", "typ": "JWT"}
    )  # fmt: skip
    wrong = run("inspect", text, "--key", public, "--audience", "there")
    assert (wrong.exit_code, json.loads(wrong.output)["problems"]) == (1, ["it is for another audience"])


def test_keys_that_cannot_sign(tmp_path: Path) -> None:
    """The message is one line and says why."""
    file = tmp_path / "key"
    locked = private_key("ES256").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    for data, text in (
        (b"short", "has 5 bytes; a secret needs at least 32 (openssl rand -hex 32)"),
        (public_pem("ES256"), "does not contain a private key (PEM) without a password"),
        (locked, "does not contain a private key (PEM) without a password"),
    ):
        file.write_bytes(data)
        assert str(run("create", "--key", file, "--publish", "x").exception) == f"{file} {text}"


@pytest.mark.parametrize(
    "arguments",
    [[], ["--publish", "x", "--expires", "soon"], ["--publish", ""], ["--subscribe", "x" * 256]],
    ids=["nothing", "time", "empty", "long"],
)
def test_wrong_usage(secret: Path, arguments: list[str]) -> None:
    """Wrong usage is exit code 2."""
    assert run("create", "--key", secret, *arguments).exit_code == 2


def test_a_valid_token(secret: Path) -> None:
    """The command shows its claims and readable times, and says whether it verified it; it reads standard input."""
    text = token(nbf=0)
    for shown, checked in (
        (run("inspect", input=text + "\n"), False),
        (run("inspect", text), False),
        (run("inspect", text, "--key", secret), True),
    ):
        report = json.loads(shown.output)
        assert (shown.exit_code, report["problems"], report["checked"]) == (0, [], checked)
        assert report["claims"]["sub"] == "somebody"
        assert report["nbf"] == "1970-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (lambda: "nonsense", "this is not a token"),
        (lambda: token(exp=1), "it has expired"),
        (lambda: token(exp=None), "exp is missing, or no time"),
        (lambda: token(exp="9" * 30), "exp is missing, or no time"),
        (lambda: token(trickle="*"), "the claim 'trickle' is not an object"),
    ],
)
def test_an_invalid_token(text: Any, problem: str) -> None:
    """The command sees most problems without a key."""
    shown = run("inspect", text())
    assert (shown.exit_code, json.loads(shown.output)["problems"]) == (1, [problem])


def test_the_name_of_a_file_is_no_token(secret: Path) -> None:
    """The user is told how to show the token in it."""
    shown = run("inspect", str(secret))
    assert shown.exit_code == 2
    assert "this is a file" in shown.output


def test_a_forged_token(secret: Path) -> None:
    """The command needs the key to see that it is forged."""
    shown = run("inspect", token(b"x" * 32), "--key", secret)
    assert (shown.exit_code, json.loads(shown.output)["problems"]) == (1, ["it was not signed with the key"])
