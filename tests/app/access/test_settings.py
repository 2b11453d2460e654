"""The settings of access control: the message about a wrong value is one line, and shows no secret."""

from __future__ import annotations

from typing import Any

import pytest

from tricklecast.app.settings import InvalidSettings, load


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"webhook_url": "ftp://x/"},
            "--webhook-url: must be a URL that begins with http:// or https:// and has a host",
        ),
        (
            {"webhook_url": "http://"},
            "--webhook-url: must be a URL that begins with http:// or https:// and has a host",
        ),
        ({"jwks_url": "https://[x/"}, "--jwks-url: must be a URL that begins with http:// or https:// and has a host"),
        (
            {"webhook_url": "https://a:b@x/"},
            "--webhook-url: must not contain a user or password, because settings are shown and logged",
        ),
        (
            {"webhook_url": "https://x/?key=1"},
            "--webhook-url: must not have a query, which settings would show and log; use webhook_secret_file",
        ),
        (
            {"jwks_url": "http://x/"},
            "--jwks-url: must be https, or on this machine: over http an attacker could replace the keys",
        ),
        ({"jwt_leeway_s": "301"}, "--jwt-leeway-s: must be less than or equal to 300"),
        ({"jwks_refetch_s": "0.9"}, "--jwks-refetch-s: must be greater than or equal to 1"),
        ({"token_cache": "0"}, "--token-cache: must be greater than or equal to 1"),
        ({"webhook_timeout_s": "0"}, "--webhook-timeout-s: must be greater than 0"),
        ({"webhook_concurrency": "0"}, "--webhook-concurrency: must be greater than or equal to 1"),
    ],
)
def test_a_wrong_value(values: dict[str, Any], line: str) -> None:
    """The message names the setting and says what is wrong with it."""
    with pytest.raises(InvalidSettings) as error:
        load(values)
    assert str(error.value) == line
    assert "a:b" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"control_host": "::1"}, "control_host needs control_port"),
        ({"webhook_secret_file": "x"}, "webhook_secret_file needs webhook_url"),
        (
            {"webhook_url": "http://x/"},
            "webhook_url needs control_token_file or keys: the control plane does not ask the webhook",
        ),
    ],
)
def test_settings_that_need_others(values: dict[str, Any], line: str) -> None:
    """The message names the setting that is there and the one that it needs."""
    with pytest.raises(InvalidSettings) as error:
        load(values)
    assert str(error.value) == line


def test_valid_urls() -> None:
    """A key server on this machine may use http, and a key server's URL may have a query."""
    for url in ("http://localhost:1/", "http://127.0.0.1/?p=1", "http://[::1]/", "https://keys.example/?p=1"):
        assert load({"jwks_url": url}).settings.jwks_url == url
    assert load({"webhook_url": "http://x/", "jwks_url": "https://y/"}).settings.webhook_url == "http://x/"
