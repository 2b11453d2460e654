"""``tricklecast token``: sign a token for tests and first steps, and look into one.

Functions import what they need of cryptography, so that ``--help`` is quick.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tricklecast.app.access.rights import CLAIM, InvalidClaim, InvalidToken, Rights
from tricklecast.trickle.amounts import parse_duration
from tricklecast.trickle.errors import InvalidInput

ChannelPatterns = list[str] | None

PROBLEMS: Final = {
    "malformed": "this is not a token",
    "signature": "it was not signed with the key",
    "key": "it was signed with a key of another type or name",
    "audience": "it is for another audience",
    "issuer": "it is from another issuer",
    "early": "it is not valid yet",
    "claim": f"exp or {CLAIM} is missing, or does not have the documented form",
    "expired": "it has expired",
    "revoked": "it was revoked",
}
"""The message of ``inspect`` for each reason. The user has the token, so it can be exact."""


_CLAIMS: Final = "Further claims"
_Audience = Annotated[
    str | None, typer.Option(metavar="TEXT", help="The server's --jwt-audience.", rich_help_panel=_CLAIMS)
]
_Issuer = Annotated[
    str | None, typer.Option(metavar="TEXT", help="The server's --jwt-issuer.", rich_help_panel=_CLAIMS)
]


def create(
    key: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Secret (HS256) or private key (PEM: RS256, ES256, EdDSA).", dir_okay=False),
    ],
    publish: Annotated[
        ChannelPatterns,
        typer.Option(metavar="CHANNEL", help="Allow publishing to this channel; * matches any characters."),
    ] = None,
    subscribe: Annotated[ChannelPatterns, typer.Option(metavar="CHANNEL", help="Allow reading this channel.")] = None,
    manage: Annotated[
        ChannelPatterns,
        typer.Option(metavar="CHANNEL", help="Allow listing, creating and ending this channel over the API."),
    ] = None,
    expires: Annotated[str, typer.Option(metavar="TIME", help="Time until it expires: 30s, 10m, 12h.")] = "1h",
    make_key: Annotated[
        bool, typer.Option("--make-key", help="First write a new secret to the key file. The file must not exist.")
    ] = False,
    subject: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The client's name in the access log.", rich_help_panel=_CLAIMS),
    ] = None,
    audience: _Audience = None,
    issuer: _Issuer = None,
    kid: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the key in the server's key set.", rich_help_panel=_CLAIMS),
    ] = None,
) -> None:
    """Sign an access token, and print it.

    Each of --publish, --subscribe and --manage may be repeated. A server verifies the token with the same secret
    (--jwt-secret-file) or the public key (--jwt-key-file).

    Examples:

    \b
      tricklecast token create --key secret --make-key --publish 'cam-*' --subscribe '*'
      tricklecast token create --key private.pem --subscribe cam --expires 12h > token
    """
    claim = {"publish": publish or [], "subscribe": subscribe or [], "manage": manage or []}
    if not any(claim.values()):
        raise typer.BadParameter("give at least one right: --publish, --subscribe or --manage")
    try:
        Rights.parse(claim)
    except InvalidClaim as error:
        raise typer.BadParameter(str(error)) from None
    try:
        duration_s = parse_duration(expires)
    except InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint="--expires") from None
    if make_key:
        _make_key(key)
    now = int(time.time())
    claims: dict[str, Any] = {
        "jti": secrets.token_hex(8),
        "iat": now,
        "exp": now + max(1, round(duration_s)),
        CLAIM: claim,
    }
    claims |= {name: value for name, value in (("sub", subject), ("aud", audience), ("iss", issuer)) if value}
    typer.echo(_sign(key, claims, kid))


def inspect(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="A token, or - for standard input.")] = "-",
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Verify it with this secret or public key (PEM).", dir_okay=False),
    ] = None,
    audience: _Audience = None,
    issuer: _Issuer = None,
) -> None:
    """Show the claims of an access token, and whether it is valid.

    Without --key the command does not verify the signature.

    Exit codes: 0 no problem was found; 1 there are problems; 2 wrong usage.

    Examples:

    \b
      tricklecast token inspect "$TOKEN" --key secret
      tricklecast token inspect < token
    """
    if token != "-" and os.path.isfile(token):
        raise typer.BadParameter(f"this is a file: tricklecast token inspect < {token}", param_hint="TOKEN")
    text = sys.stdin.read().strip() if token == "-" else token
    report = _inspect(text, key, audience, issuer)
    typer.echo(json.dumps(report, indent=2))
    if report["problems"]:
        raise typer.Exit(1)


def _make_key(path: Path) -> None:
    try:
        with open(path, "x", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(secrets.token_urlsafe(48) + "\n")
    except OSError as error:
        raise InvalidInput(f"cannot create {path}: {error.strerror or error}") from None


def _is_pem(path: Path) -> bool:
    from tricklecast.app.access.secrets import read_file

    return b"-----BEGIN" in read_file(path)


def _sign(path: Path, claims: dict[str, Any], kid: str | None) -> str:
    """Sign a token with the secret or private key in a file.

    Raises:
        InvalidKey: the file holds neither.
    """
    import jwt
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    from tricklecast.app.access.jwks import algorithm_of
    from tricklecast.app.access.secrets import InvalidKey, read_file, read_secret

    headers = {"kid": kid} if kid else None
    if not _is_pem(path):
        return jwt.encode(claims, read_secret(path).get_secret_value(), "HS256", headers=headers)
    try:
        private: Any = load_pem_private_key(read_file(path), password=None)
    except (ValueError, TypeError):
        raise InvalidKey(f"{path} does not contain a private key (PEM) without a password") from None
    return jwt.encode(claims, private, algorithm_of(private.public_key(), path), headers=headers)


def _inspect(text: str, path: Path | None, audience: str | None, issuer: str | None) -> dict[str, Any]:
    """Take a token apart; its signature counts if there is a key file."""
    import jwt

    try:
        parts = jwt.decode_complete(text, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        return {"problems": [PROBLEMS["malformed"]]}
    payload = parts["payload"]
    report: dict[str, Any] = {"header": parts["header"], "claims": payload}
    report |= {name: _readable(payload[name]) for name in ("iat", "nbf", "exp") if name in payload}
    report["checked"] = path is not None
    report["problems"] = _visible_problems(payload) if path is None else _problems(text, path, audience, issuer)
    return report


def _problems(text: str, path: Path, audience: str | None, issuer: str | None) -> list[str]:
    from tricklecast.app.access.jwks import read_public_key, read_secret_key
    from tricklecast.app.access.tokens import TokenVerifier

    keys = read_public_key(path) if _is_pem(path) else read_secret_key(path)
    try:
        TokenVerifier(keys, audience=audience, issuer=issuer).verify(text.encode())
    except InvalidToken as error:
        return [PROBLEMS[error.why]]
    return []


def _visible_problems(payload: dict[str, Any]) -> list[str]:
    """The problems that show without a key."""
    problems = []
    try:
        Rights.parse(payload.get(CLAIM))
    except InvalidClaim as error:
        problems.append(str(error))
    end = payload.get("exp")
    if not isinstance(end, int | float):
        problems.append("exp is missing, or no time")
    elif end <= time.time():
        problems.append(PROBLEMS["expired"])
    return problems


def _readable(value: object) -> str:
    try:
        return datetime.fromtimestamp(float(str(value)), UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return "no time"
