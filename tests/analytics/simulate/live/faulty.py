"""A server that is wrong on purpose, and writes the access log of it.

An empty segment does not move its head, a lower seq moves it back, and one kind of channel makes it fail. Real sockets,
a thread per connection; as little of the protocol as the misbehaving clients need.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

from tricklecast.trickle.records import AccessRecord, Event, Kind, Op, Reason
from tricklecast.trickle.wire import CLIENT, CLOSED, LATEST, SEQ, SEQ_NEXT

PREFIX = "/trickle/"
NODE = "faulty"


@dataclass
class _Channel:
    segments: dict[int, bytes] = field(default_factory=dict)
    head: int = 0

    def publish(self, seq: int, body: bytes) -> None:
        self.segments[seq] = body
        self.head = seq + 1 if body else seq


class _State:
    def __init__(self, log: IO[str]) -> None:
        self.channels: dict[str, _Channel] = {}
        self.lock = threading.Lock()
        self._log = log

    def write(self, record: AccessRecord) -> None:
        self._log.write(json.dumps(record.as_dict()) + "\n")
        self._log.flush()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: _State

    def do_GET(self) -> None:
        self._exchange(Op.READ, self._read)

    def do_POST(self) -> None:
        self._exchange(Op.PUBLISH, self._publish)

    def do_DELETE(self) -> None:
        self._exchange(Op.DELETE, self._delete)

    def log_message(self, format: str, *args: Any) -> None:
        """Its log is the access log."""

    def _exchange(self, op: Op, answer: Any) -> None:
        arrived = time.time_ns() // 1000
        name, _, seq = self.path.removeprefix(PREFIX).partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = int(seq) if seq else None
        with self.state.lock:
            status, reason, sent, resolved, headers = answer(name, asked, body)
            channel = self.state.channels.get(name)
            self.state.write(
                AccessRecord(
                    ts_us=arrived,
                    node=NODE,
                    op=op,
                    method=self.command,
                    path=self.path,
                    status=status,
                    channel=name,
                    epoch=1,
                    seq=asked,
                    rseq=resolved,
                    next_seq=channel.head if channel else None,
                    reason=reason,
                    bytes_in=len(body),
                    bytes_out=len(sent),
                    wait_us=100,
                    dur_us=time.time_ns() // 1000 - arrived,
                    eos=CLOSED in headers,
                    client=self.headers.get(CLIENT),
                    ip=self.client_address[0],
                    conn=self.client_address[1],
                    release=self.headers.get("User-Agent"),
                    attempt=1,
                )
            )
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def _publish(self, name: str, seq: int, body: bytes) -> Any:
        if name not in self.state.channels:
            self.state.channels[name] = _Channel()
            self._event(Event.CHANNEL_CREATE, name)
        self.state.channels[name].publish(seq, body)
        return 200, Reason.COMPLETE if body else Reason.EMPTY, b"", seq, {}

    def _read(self, name: str, seq: int, body: bytes) -> Any:
        if name.endswith("server_error_loop"):
            return 500, Reason.ERROR, b"", None, {}
        if name not in self.state.channels:
            return 404, Reason.NOT_FOUND, b"", None, {}
        channel = self.state.channels[name]
        found = channel.head if seq == SEQ_NEXT else seq
        if found not in channel.segments:
            return 470, Reason.AHEAD, b"", None, {LATEST: str(channel.head - 1)}
        sent = channel.segments[found]
        return 200, Reason.COMPLETE if sent else Reason.EMPTY, sent, found, {SEQ: str(found)}

    def _delete(self, name: str, seq: None, body: bytes) -> Any:
        if self.state.channels.pop(name, None) is not None:
            self._event(Event.CHANNEL_END, name)
        return 200, Reason.COMPLETE, b"", None, {}

    def _event(self, event: Event, name: str) -> None:
        now = time.time_ns() // 1000
        self.state.write(AccessRecord(ts_us=now, kind=Kind.EVENT, node=NODE, event=event, channel=name))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


@contextmanager
def faulty_server(log: Path) -> Iterator[str]:
    """Run it until the block ends; gives the URL below which its channels are."""
    with log.open("w", encoding="utf-8") as stream:
        state = _State(stream)
        handler = type("Handler", (_Handler,), {"state": state})
        with _Server(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}{PREFIX.rstrip('/')}"
            finally:
                server.shutdown()
                thread.join()
