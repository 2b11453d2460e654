"""Functions that read what strangers have written: any bytes give a value or the error that they document."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import orjson

from tricklecast.analytics.lines import LINE
from tricklecast.analytics.lines.records import DETAILS
from tricklecast.analytics.logs.lines import readable
from tricklecast.app.data_plane.request import Request, content_length, expects_continue
from tricklecast.app.data_plane.routing import Route, Router
from tricklecast.app.http1.framing import objection
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.paths import MAX_NAME_BYTES, ChannelURL, parse_channel, parse_seq

_ROUTERS: Final = (Router("/trickle"), Router(""), Router("/a/b"))


def channel(data: bytes) -> None:
    """A channel's name survives its URL."""
    with suppress(InvalidInput):
        name = parse_channel(data.decode("utf-8", "surrogateescape"))
        assert 0 < len(name.encode()) <= MAX_NAME_BYTES
        assert ChannelURL.parse(str(ChannelURL("http://x", "/trickle", name))).channel == name


def seq(data: bytes) -> None:
    """A seq is a number of at most 15 digits."""
    with suppress(InvalidInput):
        assert abs(parse_seq(data.decode("latin-1"))) < 10**15


def url(data: bytes) -> None:
    """A channel's URL, taken apart and put together again, is the same."""
    with suppress(InvalidInput):
        found = ChannelURL.parse(data.decode("utf-8", "replace"))
        assert ChannelURL.parse(str(found)) == found


def route(data: bytes) -> None:
    """Every target is somebody's; one of ours names an operation or what is wrong with it."""
    method, _, target = data.partition(b" ")
    for router in _ROUTERS:
        found = router.find(method, target)
        if found is not None:
            assert found.op or found.error or found.allow


def head(data: bytes) -> None:
    """Any header fields can be judged, and put into the access log."""
    lines = (line.partition(b":") for line in data.split(b"\n"))
    fields = [(name.strip().lower(), value.strip()) for name, _, value in lines]
    headers = dict(fields)
    for version in ("1.1", "1.0", "0.9"):
        objection(version, data[:40], fields, headers)
    assert (content_length(headers) or 0) >= 0
    expects_continue(headers)
    request = Request(b"GET", data, Route(None), headers, http10=False, keep_alive=True)
    record = request.begin_record(ts_us=1, node="n", ip="192.0.2.1", conn=1).as_dict()
    assert json.loads(orjson.dumps(record)) == record


def record(data: bytes) -> None:
    """Whatever the texts and numbers of a log's record are, it can be shown, and only plain characters are."""
    texts = [*data.decode("utf-8", "replace").split("\x1f"), None]
    numbers = [*data[:8], None, 2**40]
    named: dict[str, Any] = {"bad": None, "line": data}
    for at, (name, kind) in enumerate((*LINE, *DETAILS)):
        values: list[Any] = texts if kind == "VARCHAR" else numbers
        named[name] = values[(at * 7 + len(data)) % len(values)]
    named["ts_us"] = named["ts_us"] or 1
    assert readable(named, colour=False).isprintable()
    assert readable(named | {"bad": "unreadable"}, colour=False).isprintable()


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    function.__name__: function for function in (channel, seq, url, route, head, record)
}
"""By name; each has a folder of that name in the corpus."""
