"""The historic fault, replayed: a client that asks for a dead segment again and again around a channel's end.

In the reference implementation a publisher that closed its preconnect before it deleted the channel left a segment
behind that was answered empty for ever, and subscribers that took "empty" for "try again" asked for it dozens to
thousands of times. This server moves past such a segment and says `Lp-Trickle-Closed`; the client below ignores both.
"""

from __future__ import annotations

import http.client
import time
from urllib.parse import urlsplit

NAIVE_CLIENT = "naive-subscriber"
REQUESTS = 300
PAUSE_S = 0.01
END_AFTER = 40
"""The channel ends when the client has asked so many times."""


def replay_fault(url: str) -> int:
    """Publish one segment, close the next one empty, and let a naive client ask for it while the channel ends.

    Args:
        url: a channel that does not exist yet.

    Returns:
        How many times the dead segment was asked for. Bounded, and about 100 times a second.
    """
    parts = urlsplit(url)
    publisher = http.client.HTTPConnection(parts.netloc, timeout=30)
    naive = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        _ask(publisher, "POST", f"{parts.path}/0", b"the only segment")
        _ask(publisher, "POST", f"{parts.path}/1", b"")  # the preconnect, closed before the DELETE
        for asked in range(REQUESTS):
            if asked == END_AFTER:
                _ask(publisher, "DELETE", parts.path)
            _ask(naive, "GET", f"{parts.path}/1", headers={"Trickle-Client": NAIVE_CLIENT, "User-Agent": "naive/1.0"})
            time.sleep(PAUSE_S)
    finally:
        publisher.close()
        naive.close()
    return REQUESTS


def _ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> None:
    connection.request(method, path, body, headers or {})
    connection.getresponse().read()
