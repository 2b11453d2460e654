"""Requests to the control plane, which reach FastAPI when they are whole, if they ever are."""

from __future__ import annotations

from typing import Any, Final

import httptools

from tricklecast.app.core.slow_readers import Cut
from tricklecast.app.data_plane.head import content_length, expects_continue
from tricklecast.app.data_plane.lean import LeanPipeline
from tricklecast.app.data_plane.replies import CONTINUE
from tricklecast.app.data_plane.turns import MAX_QUEUED, Turns
from tricklecast.trickle.records import AccessRecord, Reason
from tricklecast.trickle.wire import Status

BODY_BYTES: Final = 64 << 10
"""Longest body of a request to the control plane; the largest that makes sense there is 1 kB."""

CONNECTION: Final = "tricklecast.connection"
"""The key in a request's ASGI scope of the connection over which it came."""


class Delegating(Turns):
    """A connection on which some requests are for uvicorn, and so for FastAPI.

    Attributes:
        gone: why it is no more; ``None`` while it is there.
    """

    __slots__ = ("_body", "_untaken", "gone")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._body: bytearray | None = None
        self._untaken: AccessRecord | None = None
        self.gone: str | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = self.gone or Reason.CLIENT_GONE
        super().connection_lost(exc)

    def abort(self, reason: Reason = Reason.SHUTDOWN) -> None:
        self.gone = self.gone or reason
        super().abort(reason)

    def cut_off(self, why: Cut) -> None:
        if self.exchange is not None or (record := self._untaken) is None:
            super().cut_off(why)
            return
        self.plane.cut_offs[why] += 1
        record.detail = why
        record.bytes_out = max(0, (record.bytes_out or 0) - self.transport.get_write_buffer_size())
        self.abort(Reason.EVICTED)

    async def taken(self, record: AccessRecord) -> str | None:
        """FastAPI has given all of an answer: wait until the peer has taken it.

        Returns:
            Why it has not, if it is gone.
        """
        if self.gone is not None or not self.write_paused:
            return self.gone
        self._untaken = record
        await self.flow.drain()
        self._untaken = None
        return self.gone if self.write_paused else None

    def await_body(self, version: str, headers: dict[bytes, bytes]) -> None:
        """The head of a request to the control plane has arrived."""
        if self.exchange is not None or self.queue:
            # Behind an unfinished exchange of ours it cannot be answered in order: the connection closes after that
            # exchange, and the client sends it again (RFC 9112, section 9.3.2).
            self.deaf = True
        elif len(self.pipeline) >= MAX_QUEUED:
            self.reject_pipelined()
        elif (content_length(headers) or 0) > BODY_BYTES:
            self.reject(Status.TOO_LARGE, "Request body too large", Reason.TOO_LARGE)
        elif expects_continue(headers) and version == "1.1" and not self.asgi_in_progress():
            self.send(CONTINUE)

    def keep_body(self, body: bytes) -> None:
        """More of its body has arrived."""
        if self._body is None:
            self._body = bytearray()
        self._body += body
        if len(self._body) > BODY_BYTES:
            self._body = None
            self.reject(Status.TOO_LARGE, "Request body too large", Reason.TOO_LARGE)

    def delegate(self) -> None:
        """Hand a whole request to uvicorn, and so to FastAPI."""
        if not _has_path(self.url):
            self.reject(Status.BAD_REQUEST, "Malformed URL")
            return
        if not self.pipeline:
            self.pipeline = LeanPipeline()  # type: ignore[assignment]
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        self.headers += headers
        super().on_headers_complete()
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        if self._body is not None:
            super().on_body(bytes(self._body))
            self._body = None
        super().on_message_complete()


def _has_path(url: bytes) -> bool:
    """Whether uvicorn can take the URL apart, and finds what it looks for."""
    try:
        return httptools.parse_url(url).path is not None
    except httptools.HttpParserInvalidURLError:
        return False
