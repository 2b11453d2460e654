"""``tricklecast token``: make a token for a test or for first steps, and look into one."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from tricklecast.app.access.rules import CLAIM, InvalidClaim, Rights
from tricklecast.trickle.errors import InvalidInput

T = TypeVar("T")

Channels = list[str] | None


def create(
    key: Annotated[
        Path, typer.Option(help="Secret (HS256) or private key (PEM: RS256, ES256, EdDSA).", dir_okay=False)
    ],
    publish: Annotated[Channels, typer.Option(metavar="CHANNEL", help="May publish to it; * stands for any.")] = None,
    subscribe: Annotated[Channels, typer.Option(metavar="CHANNEL", help="May read it.")] = None,
    manage: Annotated[
        Channels, typer.Option(metavar="CHANNEL", help="May list, create and end it over the API.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Whom it is for: the client's name in the access log.")] = None,
    expires: Annotated[str, typer.Option(metavar="TIME", help="How long it is good: 30s, 10m, 12h.")] = "1h",
    audience: Annotated[str | None, typer.Option(help="Which server it is for, as its --jwt-audience says.")] = None,
    issuer: Annotated[str | None, typer.Option(help="Who gives it, as the server's --jwt-issuer says.")] = None,
    kid: Annotated[str | None, typer.Option(help="Name of the key, as in the server's key set.")] = None,
    make_key: Annotated[
        bool, typer.Option("--make-key", help="Write a new secret to the key file first, which must not exist.")
    ] = False,
) -> None:
    """Sign an access token, and print it.

    Each of --publish, --subscribe and --manage may be repeated. A server checks
    the token with the same secret (--jwt-secret-file) or the public key (--jwt-key-file).

    \b
    tricklecast token create --key secret --make-key --publish 'cam-*' --subscribe '*'
    """
    from tricklecast.app.access.signing import sign_token
    from tricklecast.trickle.terminal import parse_duration

    claim = {"publish": publish or [], "subscribe": subscribe or [], "manage": manage or []}
    if not any(claim.values()):
        raise typer.BadParameter("a token that allows nothing helps nobody: --publish, --subscribe or --manage")
    try:
        rights = Rights.parse(claim)
    except InvalidClaim as error:
        raise typer.BadParameter(str(error)) from None
    lasts_s = _checked(parse_duration, expires, "--expires")
    if make_key:
        _make_key(key)
    now = int(time.time())
    claims: dict[str, Any] = {"iat": now, "exp": now + max(1, round(lasts_s)), CLAIM: rights.as_claim()}
    claims |= {name: value for name, value in (("sub", subject), ("aud", audience), ("iss", issuer)) if value}
    typer.echo(sign_token(key, claims, kid))


def inspect(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="A token, or - for standard input.")] = "-",
    key: Annotated[
        Path | None, typer.Option(help="Check it with this secret or public key (PEM).", dir_okay=False)
    ] = None,
    audience: Annotated[str | None, typer.Option(help="As the server's --jwt-audience.")] = None,
    issuer: Annotated[str | None, typer.Option(help="As the server's --jwt-issuer.")] = None,
) -> None:
    """Show what a token says, and whether it is good.

    Without --key its signature is not checked. Exit code: 0 as far as could be seen it is good, 1 it is not.
    """
    from tricklecast.app.access.signing import read_token

    text = sys.stdin.read().strip() if token == "-" else token
    report = read_token(text, key, time.time(), audience=audience, issuer=issuer)
    typer.echo(json.dumps(report, indent=2))
    if report["problems"]:
        raise typer.Exit(1)


def _make_key(path: Path) -> None:
    try:
        with open(path, "x", encoding="ascii", opener=_private) as file:
            file.write(secrets.token_urlsafe(48) + "\n")
    except OSError as error:
        raise InvalidInput(f"cannot make {path}: {error.strerror or error}") from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _checked(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
