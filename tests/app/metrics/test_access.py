"""What access control counts, as metrics."""

from __future__ import annotations

from pathlib import Path

from tests.app.access.service import service
from tests.app.access.signing import SECRET, bearer, token
from tests.support.local import local_server
from tricklecast.app.access.authorizer import Access
from tricklecast.app.metrics.access import AccessCollector
from tricklecast.app.settings import load


def test_without_access_control() -> None:
    """The names are there."""
    for access in (None, Access(load({}).settings, "here")):
        families = {family.name: family.samples for family in AccessCollector(access).collect()}
        assert sorted(families) == [f"tricklecast_{name}" for name in (
            "key_fetches", "tokens", "webhook_answers", "webhook_waiting")]  # fmt: skip
        assert [sample.value for sample in families["tricklecast_webhook_waiting"]] == [0]


def test_tokens_and_the_webhook(tmp_path: Path) -> None:
    """Each token by what was found, each answer by its status."""
    (tmp_path / "secret").write_bytes(SECRET)
    with service() as hook:
        hook.says(403)
        settings = {"jwt_secret_file": tmp_path / "secret", "webhook_url": hook.url}
        with local_server(**settings) as server, server.client() as target:
            good = bearer(token(sub="s"))  # once: made in another second it would be another one
            for headers in (good, good, bearer("x"), bearer(token(exp=1))):
                target.ask("GET", f"{target.base}/c/next", headers)
            lines = target.ask("GET", "/metrics", good).body.decode().splitlines()
    assert 'tricklecast_tokens_total{outcome="checked"} 1.0' in lines
    assert 'tricklecast_tokens_total{outcome="remembered"} 2.0' in lines
    assert 'tricklecast_tokens_total{outcome="rejected"} 2.0' in lines
    assert 'tricklecast_webhook_answers_total{status="403"} 1.0' in lines
    assert 'tricklecast_exchanges_total{op="next",reason="expired",status="401"} 1.0' in lines
    assert 'tricklecast_exchanges_total{op="next",reason="webhook:refused",status="403"} 2.0' in lines
