"""The settings of access control, with their units in their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings

from tricklecast.trickle.amounts import parse_duration

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")

_NUMBER: Final = re.compile(r"[-+.0-9e]+|[-+]?(?:nan|inf|infinity)", re.ASCII | re.IGNORECASE)
"""A text without a unit. If it is wrong, pydantic says so."""


def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None


def is_duration(name: str) -> bool:
    """Whether the setting of this name is a time in seconds."""
    return name.endswith("_s") and not name.endswith("_per_s")


class AccessSettings(BaseSettings):
    """Access control. Everything is off by default: then every client may do everything."""

    jwt_secret_file: Path | None = Field(default=None, description="Check tokens (HS256) with the secret in this file.")
    jwt_key_file: Path | None = Field(default=None, description="Check tokens with the public key (PEM) in this file.")
    jwks_file: Path | None = Field(default=None, description="Check tokens with the public keys (JWKS) in this file.")
    jwks_url: str | None = Field(default=None, description="Check tokens with the public keys (JWKS) behind this URL.")
    jwks_refetch_s: float = Field(
        default=30.0,
        ge=1,
        description="Fetch the keys again for a token of an unknown key, at most this often.",
    )
    jwks_max_age_s: float = Field(default=3600.0, ge=1, description="Fetch the keys again after this time.")
    revoked_file: Path | None = Field(
        default=None, description="Refuse the tokens (jti ID) and clients (sub NAME) in this file, one a line."
    )
    jwt_audience: str | None = Field(
        default=None, description="A token's aud must contain this; off: it must have none."
    )
    jwt_issuer: str | None = Field(default=None, description="A token's iss must be this; off: any iss is valid.")
    jwt_leeway_s: float = Field(
        default=10.0,
        ge=0,
        le=300,
        description="Accept a token this long before its nbf and after its exp, because clocks differ.",
    )
    token_in_query: bool = Field(
        default=False, description="Also accept a token in ?token= if the request has no Authorization."
    )
    token_cache: int = Field(default=10_000, ge=1, description="Remember this many verified tokens.")
    control_token_file: Path | None = Field(
        default=None, description="Clients with the token in this file may do everything on the control plane."
    )
    control_host: str | None = Field(default=None, description="Address of the control plane; that of --host if unset.")
    control_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Serve the control plane only at this port, and not beside the channels.",
    )
    metrics_open: bool = Field(default=False, description="Allow /metrics without a token, even if the API needs one.")
    webhook_url: str | None = Field(
        default=None, description="Ask this URL whether a client may create, publish, subscribe or delete."
    )
    webhook_secret_file: Path | None = Field(
        default=None, description="Sign the requests to the webhook with the secret in this file."
    )
    webhook_timeout_s: float = Field(
        default=2.0, gt=0, le=60, description="How long the webhook's answer may take, the wait in the queue included."
    )
    webhook_fail_open: bool = Field(default=False, description="If the webhook does not answer, allow the request.")
    webhook_concurrency: int = Field(default=16, ge=1, le=1024, description="Simultaneous requests to the webhook.")
    webhook_cache_s: float = Field(
        default=5.0, ge=0, le=3600, description="Use an answer of the webhook without Cache-Control for this time."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _duration(cls, value: object, info: ValidationInfo) -> object:
        is_text = isinstance(value, str) and is_duration(str(info.field_name))
        return parse_duration(str(value), zero=True) if is_text and not is_number(str(value)) else value

    @field_validator("jwks_url", "webhook_url")
    @classmethod
    def _usable_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            host = parts.hostname
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise ValueError("must be a URL that begins with http:// or https:// and has a host")
        if parts.username is not None or parts.password is not None:
            raise ValueError("must not contain a user or password, because settings are shown and logged")
        return value

    @field_validator("jwks_url")
    @classmethod
    def _safe_key_server(cls, value: str | None) -> str | None:
        if value is not None and value.startswith("http:") and urlsplit(value).hostname not in LOOPBACK:
            raise ValueError("must be https, or on this machine: over http an attacker could replace the keys")
        return value

    @field_validator("webhook_url")
    @classmethod
    def _no_query(cls, value: str | None) -> str | None:
        if value is not None and urlsplit(value).query:
            raise ValueError("must not have a query, which settings would show and log; use webhook_secret_file")
        return value

    @model_validator(mode="after")
    def _complete_control_plane(self) -> AccessSettings:
        if self.control_host is not None and self.control_port is None:
            raise ValueError("control_host needs control_port")
        return self

    @model_validator(mode="after")
    def _complete_webhook(self) -> AccessSettings:
        if self.webhook_secret_file is not None and self.webhook_url is None:
            raise ValueError("webhook_secret_file needs webhook_url")
        if self.webhook_url is not None and not (self.has_tokens or self.control_token_file):
            raise ValueError("webhook_url needs control_token_file or keys: the control plane does not ask the webhook")
        return self

    @model_validator(mode="after")
    def _complete_tokens(self) -> AccessSettings:
        named = [name for name in ("jwt_audience", "jwt_issuer", "revoked_file") if getattr(self, name) is not None]
        if named and not self.has_tokens:
            raise ValueError(
                f"{' and '.join(named)} without a key: no token would be checked, and every client may do everything. "
                "Add jwt_secret_file, jwt_key_file, jwks_file or jwks_url"
            )
        return self

    @property
    def has_tokens(self) -> bool:
        return bool(self.jwt_secret_file or self.jwt_key_file or self.jwks_file or self.jwks_url)
