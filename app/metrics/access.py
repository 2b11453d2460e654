"""The metrics of access control; without access control they are there, and empty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tricklecast.app.access.authorizer import Access
from tricklecast.app.metrics.families import counters, gauge


class AccessCollector(Collector):
    """Tokens, keys and the webhook.

    Args:
        access: ``None`` if the server has no access control.
    """

    def __init__(self, access: Access | None) -> None:
        self._tokens = access.tokens if access is not None else None
        self._webhook = access.webhook if access is not None else None

    def collect(self) -> Iterator[Metric]:
        """All metrics as of now."""
        verifier, webhook = self._tokens, self._webhook
        tokens: Mapping[str, float] = verifier.outcomes if verifier is not None else {}
        yield counters("tokens", "Tokens that came with requests, by what was found.", "outcome", tokens)
        keys = verifier.remote if verifier is not None else None
        fetches = {} if keys is None else {"done": keys.fetches - keys.failures, "failed": keys.failures}
        yield counters("key_fetches", "Fetches of the keys that tokens are checked with.", "outcome", fetches)
        answers = {str(status): n for status, n in webhook.outcomes.items()} if webhook is not None else {}
        yield counters("webhook_answers", "Answers of the webhook; 503 is none.", "status", answers)
        waiting = webhook.waiting if webhook is not None else 0
        yield gauge("webhook_waiting", "Questions that the webhook has not answered yet.", waiting)
