"""A refusal of the data plane's kind, as an answer of the control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tricklecast.app.control_plane.scope import RECORD
from tricklecast.trickle import wire

if TYPE_CHECKING:
    from tricklecast.app.data_plane.responses import Reply
    from tricklecast.trickle.records import AccessRecord


async def refuse(reply: Reply, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with this reply, and say why in its access record."""
    record: AccessRecord = scope[RECORD]
    record.reason = reply.reason
    headers = {name: str(value) for name, value in reply.headers}
    if reply.retry_after_s is not None:
        headers[wire.RETRY_AFTER] = str(reply.retry_after_s)
        record.retry_after_ms = reply.retry_after_s * 1000
    await PlainTextResponse(reply.body, reply.status, headers)(scope, receive, send)
