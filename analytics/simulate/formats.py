"""Forms of a line: our own, and those of the proxies that may stand in front of a server.

A proxy knows less: it has no lifecycle events, no seq as resolved, and writes down when a request ended. What it does
log is computed from the same line, so that each form tells of the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import orjson

from tricklecast.analytics.simulate.entries import Line
from tricklecast.analytics.simulate.truth import Storm
from tricklecast.trickle.records import Kind


class FormatName(StrEnum):
    """What a log is written as."""

    JSONL = "jsonl"
    """Our own (docs/reference/access-log.md)."""
    NGINX = "nginx"
    """nginx's ``combined`` with ``$request_time`` and ``$msec`` appended."""
    NGINX_JSON = "nginx-json"
    """nginx with ``escape=json`` and its variables under their own names."""
    ENVOY = "envoy"
    """Envoy's JSON access log."""
    CADDY = "caddy"
    """Caddy 2's JSON access log."""


@dataclass(frozen=True, slots=True)
class Format:
    """How lines become bytes.

    Attributes:
        suffix: of the files' names. encode: lines to bytes, each ended by a newline.
        events: whether it has lifecycle events. names: whether it has the clients' ``Trickle-Client``.
    """

    suffix: str
    encode: Callable[[Sequence[Line]], bytes]
    events: bool = False
    names: bool = True

    def tells(self, storm: Storm) -> Storm:
        """A storm as far as such a log can tell of it: what is not in the log is not part of the truth about it.

        A client that gives no name has another key in each log, since it is made of what the log has of it.
        """
        if self.events:
            return storm
        known = self.names and all(is_name(client) for client in storm.clients)
        return replace(storm, trigger=None, clients=storm.clients if known else ())


def _jsonl(lines: Sequence[Line]) -> bytes:
    dumps, newline = orjson.dumps, orjson.OPT_APPEND_NEWLINE
    return b"".join([dumps(line, option=newline) for line in lines])


def _exchanges(encode: Callable[[Line, int], bytes]) -> Callable[[Sequence[Line]], bytes]:
    """Encodes one exchange with the time of its end; events are not for proxies to know."""

    def all_of(lines: Sequence[Line]) -> bytes:
        return b"".join(
            [encode(line, line["ts_us"] + line.get("dur_us", 0)) for line in lines if line["kind"] == Kind.EXCHANGE]
        )

    return all_of


def _status(line: Line, gone: int) -> int:
    status: int = line.get("status", gone)
    return status


def _combined(line: Line, end: int) -> bytes:
    when = datetime.fromtimestamp(end // 1_000_000, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    request = f"{line['method']} {line['path']} HTTP/1.1"
    seconds, stamp = line.get("dur_us", 0) / 1e6, end / 1e6
    return (
        f'{line["ip"]} - - [{when}] "{request}" {_status(line, 499)} {line.get("bytes_out", 0)} "-" '
        f'"{line["ua"]}" {seconds:.3f} {stamp:.3f}\n'
    ).encode()


def is_name(key: str) -> bool:
    """Whether a key came in the ``Trickle-Client`` header: one that is a hash was made by the server."""
    return not (len(key) == 16 and key.isalnum())


def _named(line: Line) -> str | None:
    key: str | None = line.get("client")
    return key if key and is_name(key) else None


def _nginx_json(line: Line, end: int) -> bytes:
    found: dict[str, Any] = {
        "msec": f"{end / 1e6:.3f}",
        "remote_addr": line["ip"],
        "request_method": line["method"],
        "request_uri": line["path"],
        "status": str(_status(line, 499)),
        "body_bytes_sent": str(line.get("bytes_out", 0)),
        "request_time": f"{line.get('dur_us', 0) / 1e6:.3f}",
        "upstream_header_time": f"{line['wait_us'] / 1e6:.3f}" if "wait_us" in line else "",
        "http_user_agent": line["ua"],
        "connection": str(line["conn"]),
        "hostname": line["node"],
        "http_trickle_client": _named(line) or "",
        "http_trickle_attempt": str(line["attempt"]) if line["attempt"] > 1 else "",
        **{
            f"sent_http_{name.lower().replace('-', '_')}": "" if value is None else str(value)
            for name, value in _answered(line).items()
        },
    }
    return orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE)


def _answered(line: Line) -> dict[str, Any]:
    """The response's headers, as far as they are of interest."""
    told = line.get("retry_after_ms")
    return {
        "Lp-Trickle-Seq": line.get("rseq"),
        "Lp-Trickle-Latest": line.get("next_seq"),
        "Lp-Trickle-Closed": "terminated" if line.get("eos") else None,
        "Retry-After": max(1, told // 1000) if told else None,
    }


def _iso(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_us // 1000 % 1000:03d}Z"


def _envoy(line: Line, end: int) -> bytes:
    gone = "status" not in line
    found = {
        "start_time": _iso(line["ts_us"]),
        "duration": line.get("dur_us", 0) // 1000,
        "response_duration": line["wait_us"] // 1000 if "wait_us" in line else None,
        "method": line["method"],
        "path": line["path"],
        "protocol": "HTTP/1.1",
        "response_code": _status(line, 0),
        "response_flags": "DC" if gone else "-",
        "bytes_received": line.get("bytes_in", 0),
        "bytes_sent": line.get("bytes_out", 0),
        "downstream_remote_address": f"{line['ip']}:{1024 + line['conn'] % 64000}",
        "connection_id": line["conn"],
        "user_agent": line["ua"],
        "hostname": line["node"],
        "trickle_client": _named(line),
        "trickle_attempt": line["attempt"],
        **{name.lower().replace("-", "_"): value for name, value in _answered(line).items()},
    }
    return orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE)


def _caddy(line: Line, end: int) -> bytes:
    headers = {"User-Agent": [line["ua"]], "Trickle-Client": [_named(line)], "Trickle-Attempt": [str(line["attempt"])]}
    found = {
        "level": "info",
        "ts": end / 1e6,
        "logger": "http.log.access.log0",
        "msg": "handled request",
        "request": {
            "remote_ip": line["ip"],
            "remote_port": str(1024 + line["conn"] % 64000),
            "client_ip": line["ip"],
            "proto": "HTTP/1.1",
            "method": line["method"],
            "host": "live.example",
            "uri": line["path"],
            "headers": {name: value for name, value in headers.items() if value[0] is not None},
        },
        "bytes_read": line.get("bytes_in", 0),
        "duration": line.get("dur_us", 0) / 1e6,
        "size": line.get("bytes_out", 0),
        "status": _status(line, 0),
        "resp_headers": {name: [str(value)] for name, value in _answered(line).items() if value is not None},
    }
    return orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE)


FORMATS: Final = {
    FormatName.JSONL: Format(".jsonl", _jsonl, events=True),
    FormatName.NGINX: Format(".log", _exchanges(_combined), names=False),
    FormatName.NGINX_JSON: Format(".jsonl", _exchanges(_nginx_json)),
    FormatName.ENVOY: Format(".jsonl", _exchanges(_envoy)),
    FormatName.CADDY: Format(".jsonl", _exchanges(_caddy)),
}
