"""Forms of a line: our own, and those of the proxies that may stand in front of a server.

A proxy knows less: it has no lifecycle events, no seq as resolved, and writes down when a request ended. What it does
log is computed from the same line, so that each form tells of the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
import orjson

from tricklecast.analytics.simulate.clients import is_name
from tricklecast.analytics.simulate.lines import Line
from tricklecast.analytics.simulate.truth import Planted
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

    @property
    def suffix(self) -> str:
        """That of the files' names."""
        return ".log" if self is FormatName.NGINX else ".jsonl"

    def render(self, lines: Sequence[Line]) -> bytes:
        """Lines as bytes; those that the form does not have are left out."""
        if self is FormatName.JSONL:
            written: list[Any] = list(lines)
        else:
            written = [_PROXIES[self](_known(line)) for line in lines if line["kind"] == Kind.EXCHANGE]
        return b"".join(
            one.encode() if isinstance(one, str) else orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE)
            for one in written
        )

    def tells(self, planted: Planted) -> Planted:
        """A storm as such a log can tell of it: what is not in the log is not part of the truth about it.

        A client that gives no name has another key in each log, since it is made of what the log has of it.
        """
        if self is FormatName.JSONL:
            return planted
        named = self is not FormatName.NGINX and all(is_name(client) for client in planted.clients)
        return msgspec.structs.replace(planted, trigger=None, clients=planted.clients if named else ())


def _known(line: Line) -> Line:
    """A line with what a proxy may write of it.

    Its fields are those of our own, and ``end_us``: when the request ended; ``name``: what the client calls itself;
    ``told``: the response's headers of interest; ``port``: the client's.
    """
    absent = {"status": 0, "bytes_in": 0, "bytes_out": 0, "dur_us": 0, "wait_us": None}
    client, wait_ms = line.get("client"), line.get("retry_after_ms")
    return {
        **absent,
        **line,
        "end_us": line["ts_us"] + line.get("dur_us", 0),
        "name": client if client and is_name(client) else None,
        "port": 1024 + line["conn"] % 64000,
        "told": {
            "Lp-Trickle-Seq": line.get("rseq"),
            "Lp-Trickle-Latest": line.get("next_seq"),
            "Lp-Trickle-Closed": "terminated" if line.get("eos") else None,
            "Retry-After": max(1, wait_ms // 1000) if wait_ms else None,
        },
    }


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _combined(line: Line) -> str:
    when = datetime.fromtimestamp(line["end_us"] // 1_000_000, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    request = f"{line['method']} {line['path']} HTTP/1.1"
    return (
        f'{line["ip"]} - - [{when}] "{request}" {line["status"] or 499} {line["bytes_out"]} "-" '
        f'"{line["ua"]}" {line["dur_us"] / 1e6:.3f} {line["end_us"] / 1e6:.3f}\n'
    )


def _nginx_json(line: Line) -> dict[str, str]:
    return {
        "msec": f"{line['end_us'] / 1e6:.3f}",
        "remote_addr": line["ip"],
        "request_method": line["method"],
        "request_uri": line["path"],
        "status": str(line["status"] or 499),
        "body_bytes_sent": str(line["bytes_out"]),
        "request_time": f"{line['dur_us'] / 1e6:.3f}",
        "upstream_header_time": "" if line["wait_us"] is None else f"{line['wait_us'] / 1e6:.3f}",
        "http_user_agent": line["ua"],
        "connection": str(line["conn"]),
        "hostname": line["node"],
        "http_trickle_client": _text(line["name"]),
        "http_trickle_attempt": str(line["attempt"]) if line["attempt"] > 1 else "",
        **{f"sent_http_{name.lower().replace('-', '_')}": _text(value) for name, value in line["told"].items()},
    }


def _envoy(line: Line) -> dict[str, Any]:
    arrived, ip = datetime.fromtimestamp(line["ts_us"] / 1e6, UTC), line["ip"]
    return {
        "start_time": f"{arrived:%Y-%m-%dT%H:%M:%S}.{line['ts_us'] // 1000 % 1000:03d}Z",
        "duration": line["dur_us"] // 1000,
        "response_duration": None if line["wait_us"] is None else line["wait_us"] // 1000,
        "method": line["method"],
        "path": line["path"],
        "protocol": "HTTP/1.1",
        "response_code": line["status"],
        "response_flags": "-" if line["status"] else "DC",
        "bytes_received": line["bytes_in"],
        "bytes_sent": line["bytes_out"],
        "downstream_remote_address": f"[{ip}]:{line['port']}" if ":" in ip else f"{ip}:{line['port']}",
        "connection_id": line["conn"],
        "user_agent": line["ua"],
        "hostname": line["node"],
        "trickle_client": line["name"],
        "trickle_attempt": line["attempt"],
        **{name.lower().replace("-", "_"): value for name, value in line["told"].items()},
    }


def _caddy(line: Line) -> dict[str, Any]:
    headers = {"User-Agent": [line["ua"]], "Trickle-Attempt": [str(line["attempt"])]}
    return {
        "level": "info",
        "ts": line["end_us"] / 1e6,
        "logger": "http.log.access.log0",
        "msg": "handled request",
        "request": {
            "remote_ip": line["ip"],
            "remote_port": str(line["port"]),
            "client_ip": line["ip"],
            "proto": "HTTP/1.1",
            "method": line["method"],
            "host": "live.example",
            "uri": line["path"],
            "headers": headers | ({"Trickle-Client": [line["name"]]} if line["name"] else {}),
        },
        "bytes_read": line["bytes_in"],
        "duration": line["dur_us"] / 1e6,
        "size": line["bytes_out"],
        "status": line["status"],
        "resp_headers": {name: [str(value)] for name, value in line["told"].items() if value is not None},
    }


_PROXIES: Final[dict[FormatName, Callable[[Line], str | dict[str, Any]]]] = {
    FormatName.NGINX: _combined,
    FormatName.NGINX_JSON: _nginx_json,
    FormatName.ENVOY: _envoy,
    FormatName.CADDY: _caddy,
}
"""A line of each form: its text, or a JSON object."""
