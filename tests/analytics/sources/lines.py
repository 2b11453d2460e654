"""One line of each format, about the same request."""

from __future__ import annotations

import json
from typing import Any

TS_US = 1_760_000_000_250_000
"""2025-10-09 08:53:20.250 UTC, the request's arrival; it took half a second."""

OWN: dict[str, Any] = {"v": 1, "ts_us": TS_US, "kind": "exchange", "op": "read", "method": "GET", "status": 404}

NGINX: dict[str, Any] = {
    "msec": 1760000000.75,
    "remote_addr": "192.0.2.7",
    "connection": 17,
    "request_method": "GET",
    "request_uri": "/trickle/film/12?x=1",
    "status": 404,
    "body_bytes_sent": 17,
    "request_time": 0.5,
    "upstream_header_time": "0.250",
    "http_user_agent": "player/2.1 (Linux)",
}

COMBINED = (
    b'192.0.2.7 - - [09/Oct/2025:08:53:20 +0000] "GET /trickle/film/12?x=1 HTTP/1.1" 404 17 "-" "player/2.1 (Linux)"'
)

ENVOY: dict[str, Any] = {
    "start_time": "2025-10-09T08:53:20.250Z",
    "method": "GET",
    "path": "/trickle/film/12?x=1",
    "protocol": "HTTP/1.1",
    "response_code": 404,
    "response_flags": "-",
    "bytes_received": 0,
    "bytes_sent": 17,
    "duration": 500,
    "upstream_service_time": "250",
    "downstream_remote_address": "192.0.2.7:40000",
    "user_agent": "player/2.1 (Linux)",
}

CADDY: dict[str, Any] = {
    "level": "info",
    "ts": 1760000000.75,
    "logger": "http.log.access.log0",
    "msg": "handled request",
    "request": {
        "remote_ip": "192.0.2.7",
        "remote_port": "40000",
        "proto": "HTTP/1.1",
        "method": "GET",
        "host": "example.com",
        "uri": "/trickle/film/12?x=1",
        "headers": {"User-Agent": ["player/2.1 (Linux)"]},
    },
    "duration": 0.5,
    "size": 17,
    "status": 404,
    "resp_headers": {"Server": ["Caddy"]},
}


def as_line(record: dict[str, Any]) -> bytes:
    """A record as a line of a log."""
    return json.dumps(record, separators=(",", ":")).encode()
