"""The settings of access control: what cannot be, in one line; and that they show no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tricklecast.app.access.access import Access
from tricklecast.app.settings import InvalidSettings, load
from tricklecast.trickle.errors import InvalidInput


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"webhook_url": "ftp://x/"}, "webhook_url: a URL begins with http:// or https:// and names a host"),
        ({"webhook_url": "http://"}, "webhook_url: a URL begins with http:// or https:// and names a host"),
        ({"jwks_url": "https://[x/"}, "jwks_url: a URL begins with http:// or https:// and names a host"),
        (
            {"webhook_url": "https://a:b@x/"},
            "webhook_url: a URL here holds no user and password: settings are shown and logged",
        ),
        (
            {"webhook_url": "https://x/?key=1"},
            "webhook_url: a query may hold a secret, and settings are shown and logged: use webhook_secret_file",
        ),
        (
            {"jwks_url": "http://x/"},
            "jwks_url: keys come by https, or from this machine: who changes them on the way is let in",
        ),
        ({"jwt_leeway_s": "301"}, "jwt_leeway_s: Input should be less than or equal to 300"),
        ({"jwks_refetch_s": "0.9"}, "jwks_refetch_s: Input should be greater than or equal to 1"),
        ({"token_cache": "0"}, "token_cache: Input should be greater than or equal to 1"),
        ({"webhook_timeout_s": "0"}, "webhook_timeout_s: Input should be greater than 0"),
        ({"webhook_concurrency": "0"}, "webhook_concurrency: Input should be greater than or equal to 1"),
    ],
)
def test_a_wrong_value(values: dict[str, Any], line: str) -> None:
    """The line names the setting and what is wrong with it."""
    with pytest.raises(InvalidSettings) as error:
        load(values)
    assert str(error.value) == f"{line} (command line)"
    assert "a:b" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"control_host": "::1"}, "control_host needs control_port"),
        ({"webhook_secret_file": "x"}, "webhook_secret_file needs webhook_url"),
        (
            {"webhook_url": "http://x/"},
            "webhook_url needs control_token_file, or the control plane would be a way around it",
        ),
    ],
)
def test_what_does_not_go_together(values: dict[str, Any], line: str) -> None:
    """One line, too."""
    with pytest.raises(InvalidSettings) as error:
        load(values)
    assert str(error.value) == line


def test_what_goes() -> None:
    """Keys of this machine by http, and a query that names them."""
    for url in ("http://localhost:1/", "http://127.0.0.1/?p=1", "http://[::1]/", "https://keys.example/?p=1"):
        assert load({"jwks_url": url}).settings.jwks_url == url
    assert load({"webhook_url": "http://x/", "jwks_url": "https://y/"}).settings.webhook_url == "http://x/"


def test_nothing_is_switched_on_by_default() -> None:
    """No gate, so that no request is looked at."""
    access = Access(load({}).settings, "here")
    assert (access.gate, access.judge, access.webhook, access.control_token) == (None, None, None, None)


@pytest.mark.parametrize("name", ["jwt_secret_file", "jwt_key_file", "jwks_file", "control_token_file"])
def test_a_file_that_is_missing(name: str, tmp_path: Path) -> None:
    """One line with its name."""
    path = tmp_path / "missing"
    with pytest.raises(InvalidInput, match=f"^{name}: cannot read {path}: No such file or directory$"):
        Access(load({name: str(path)}).settings, "here")


def test_a_control_token_that_is_too_short(tmp_path: Path) -> None:
    """One character."""
    file = tmp_path / "token"
    file.write_text("x" * 15)
    with pytest.raises(InvalidInput, match="holds 15 bytes, and a secret has at least 16"):
        Access(load({"control_token_file": str(file)}).settings, "here")
    file.write_text("x" * 16)
    assert Access(load({"control_token_file": str(file)}).settings, "here").gate is None
