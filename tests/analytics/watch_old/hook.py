"""A real HTTP receiver of alerts, which answers as a test wants it to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class Hook:
    """What was received.

    Attributes:
        url: where; requests: path, headers and body of each.
        answer: status and headers for the next request.
    """

    url: str = ""
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    answer: Callable[[], tuple[int, dict[str, str]]] = lambda: (200, {})

    @property
    def keys(self) -> list[str]:
        """The idempotency keys, in order."""
        return [headers["idempotency-key"] for _, headers, _ in self.requests]


@contextmanager
def listening() -> Iterator[Hook]:
    """A receiver, for as long as the context is open."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers = hook.answer()
            hook.requests.append(
                (self.path, {name.lower(): value for name, value in self.headers.items()}, json.loads(body))
            )
            self.send_response(status)
            for name, value in (headers | {"Content-Length": "0"}).items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
