"""Services that answer as a test says: a small one that remembers its requests, and one without a network."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from unittest.mock import patch

import httpx

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


class _Body(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


@contextmanager
def answering(handler: Callable[[httpx.Request], Any]) -> Iterator[None]:
    """Let a function, async or not, answer all requests of httpx's clients until the block ends; it may raise."""

    async def handle(_: object, request: httpx.Request) -> httpx.Response:
        await request.aread()
        answer = handler(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if not answer.is_stream_consumed:
            return cast(httpx.Response, answer)
        return httpx.Response(answer.status_code, headers=answer.headers.raw, stream=_Body(answer.content))

    with patch.object(httpx.AsyncHTTPTransport, "handle_async_request", handle):
        yield


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
