"""A small HTTP service that answers as a test says, and remembers its requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.waiting import WITHIN_S

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Service:
    """A running service.

    Attributes:
        answer: makes the answer to a request from its path and body.
        may_answer: requests wait while this event is not set.
        asked: the bodies of requests so far, with their headers (names in lower case).
    """

    answer: Callable[[str, bytes], Answer] = lambda path, body: (200, {}, b"")
    url: str = ""
    may_answer: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[bytes, dict[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.may_answer.set()

    def says(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Answer all further requests with this."""
        self.answer = lambda path, asked: (status, headers or {}, body)


@contextmanager
def service() -> Iterator[Service]:
    """Run one until the block ends."""
    running = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            running.asked.append((body, {name.lower(): value for name, value in self.headers.items()}))
            running.may_answer.wait(WITHIN_S)
            status, headers, content = running.answer(self.path, body)
            try:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                self.close_connection = True  # the client has given up

        do_GET = do_POST = _answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    running.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()
