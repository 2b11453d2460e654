"""Section 2: methods other than GET, POST and DELETE, browsers, and the changefeed."""

from __future__ import annotations

import json
import time
from functools import partial

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.connection import AT_ONCE_S
from tricklecast.app.conformance.http1 import Response
from tricklecast.app.conformance.profiles import QUICK
from tricklecast.app.conformance.target import Target
from tricklecast.app.conformance.verdicts import Failure
from tricklecast.trickle import wire

METHODS = Group("methods", "2. Routes")
BROWSERS = Group("browsers", "2. Routes, 7. Clients in the field")
CHANGES = Group("changefeed", "2. Routes")

_ORIGIN = "https://player.example"


def _not_allowed(target: Target, method: str, tail: str, allowed: set[str]) -> None:
    channel = target.channel()
    channel.publish(0, b"kept")
    response = expect.refusal(target.ask(method, channel.path + tail, body=b""), 405)
    expect.true(allowed <= response.tokens("Allow"), f"Allow with {', '.join(sorted(allowed))}", response)
    expect.segment(channel.get(0), 0, b"kept")


for _method in ("PUT", "PATCH"):
    METHODS.add(
        f"{_method.lower()}-of-a-segment-is-refused",
        f"{_method} of a segment is 405 with `Allow`, and changes nothing.",
        partial(_not_allowed, method=_method, tail="/0", allowed={"get", "post", "delete"}),
    )
    METHODS.add(
        f"{_method.lower()}-of-a-channel-is-refused",
        f"{_method} of a channel is 405 with `Allow`, and changes nothing.",
        partial(_not_allowed, method=_method, tail="", allowed={"post", "delete"}),
    )


@METHODS.case()
def get_of_a_channel_is_refused(target: Target) -> None:
    """A channel itself cannot be read, only its segments: 405 with `Allow`."""
    channel = target.channel()
    channel.create()
    response = expect.refusal(target.ask("GET", channel.path), 405)
    expect.true({"post", "delete"} <= response.tokens("Allow"), "Allow with POST and DELETE", response)


@METHODS.case()
def head_of_a_segment_has_its_headers(target: Target) -> None:
    """HEAD answers with the headers known now and no body; the connection goes on."""
    channel = target.channel()
    channel.create(mime="video/mp2t")
    channel.publish(0, b"data")
    connection = target.send("HEAD", channel.at(0))
    response = expect.status(connection.response(), 200)
    expect.header(response, wire.SEQ, 0)
    expect.header(response, "Content-Type", "video/mp2t")
    connection.request("GET", channel.at(0))
    expect.segment(connection.response(), 0, b"data")


@METHODS.case()
def head_never_waits(target: Target) -> None:
    """HEAD of a segment that a GET would wait for answers at once."""
    channel = target.channel()
    channel.create()
    for seq in ("0", "-1", "-2"):
        target.ask("HEAD", channel.at(seq))
    channel.started(0, b"open")
    target.ask("HEAD", channel.at(0))


@METHODS.case()
def head_of_a_missing_channel_is_404(target: Target) -> None:
    """HEAD of a missing channel is 404, and creates none."""
    channel = target.channel()
    expect.status(target.ask("HEAD", channel.at(0)), 404)
    expect.status(channel.get("next"), 404)


def _preflight(target: Target, method: str, path: str) -> Response:
    wanted = ", ".join(("Expect-Content", "Content-Type", wire.RESET, "Authorization", wire.IDEMPOTENCY_KEY))
    headers = {
        "Origin": _ORIGIN,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": wanted.lower(),
    }
    return target.ask("OPTIONS", path, headers)


@BROWSERS.case()
def preflight_allows_reading(target: Target) -> None:
    """A CORS preflight for a GET allows any page, and each request header of the protocol by name."""
    response = expect.status(_preflight(target, "GET", target.channel().at(0)), 200, 204)
    origin = response.get("Access-Control-Allow-Origin")
    expect.true(origin in ("*", _ORIGIN), f"Access-Control-Allow-Origin: * or {_ORIGIN}", response)
    allowed = response.tokens("Access-Control-Allow-Headers")
    needed = {"expect-content", "content-type", "lp-trickle-reset", "authorization", "idempotency-key"}
    expect.true(needed <= allowed, f"Access-Control-Allow-Headers with {', '.join(sorted(needed))}", response)


@BROWSERS.case()
def preflight_does_not_allow_writing(target: Target) -> None:
    """A CORS preflight for a POST or DELETE of a page of another origin gives no permission, and creates nothing."""
    channel = target.channel()
    for method in ("POST", "DELETE"):
        for path in (channel.at(0), channel.path):
            response = _preflight(target, method, path)
            expect.no_header(response, "Access-Control-Allow-Origin")
            permitted = response.tokens("Access-Control-Allow-Methods")
            expect.true(method.lower() not in permitted, f"{method} not to be allowed", response)
    expect.status(channel.get("next"), 404)


@BROWSERS.case()
def pages_of_other_origins_do_not_write(target: Target) -> None:
    """A POST or DELETE of a page of another origin is 403 and changes nothing; a simple POST needs no preflight."""
    channel = target.channel()
    channel.publish(0, b"kept")
    page = {"Origin": _ORIGIN, "Content-Type": "text/plain"}
    for method, path in (
        ("POST", channel.at(1)),
        ("POST", channel.path),
        ("DELETE", channel.at(0)),
        ("DELETE", channel.path),
    ):
        expect.refusal(target.ask(method, path, page, b""), 403)
    expect.segment(channel.get(0), 0, b"kept")
    expect.true(channel.next_seq() == 1, "the head where it was", channel.next_seq())


@BROWSERS.case()
def pages_of_the_same_origin_write(target: Target) -> None:
    """A page whose origin is the server's own may publish and end a channel."""
    channel = target.channel()
    address = target.address
    scheme = "https" if address.tls is not None else "http"
    page = {"Origin": f"{scheme}://{address.authority}"}
    expect.status(target.ask("POST", channel.at(0), page, b"own"), 200)
    expect.status(target.ask("DELETE", channel.path, page), 200)


def _readable(response: Response) -> None:
    expect.true(response.get("Access-Control-Allow-Origin") in ("*", _ORIGIN), "Access-Control-Allow-Origin", response)
    exposed = response.tokens("Access-Control-Expose-Headers")
    needed = {name.lower() for name in (wire.SEQ, wire.LATEST, wire.EARLIEST, wire.SIZE, wire.CLOSED, "Retry-After")}
    expect.true(needed <= exposed or "*" in exposed, f"exposed: {', '.join(sorted(needed))}", response)


@BROWSERS.case()
def scripts_may_read_segments_and_headers(target: Target) -> None:
    """A segment may be read by scripts of any page, with the protocol's headers exposed."""
    channel = target.channel()
    channel.publish(0, b"data")
    _readable(expect.status(channel.get(0, {"Origin": _ORIGIN}), 200))


@BROWSERS.case()
def scripts_may_read_refusals(target: Target) -> None:
    """A 470 may be read by scripts of any page, too: they need its headers to go on."""
    channel = target.channel()
    channel.publish(0)
    _readable(expect.status(channel.get(9, {"Origin": _ORIGIN}), 470))


def _changes(target: Target, kind: str, name: str, start: int, within_s: float) -> list[dict[str, list[str]]]:
    """Read the changefeed from a seq on until it tells of a channel."""
    deadline = time.monotonic() + within_s
    seen: list[dict[str, list[str]]] = []
    for seq in range(start, start + 10_000):
        reader = target.send("GET", f"{target.base}/{wire.CHANGEFEED}/{seq}")
        response = expect.status(reader.response(max(0.1, deadline - time.monotonic())), 200)
        reader.close()
        try:
            change = json.loads(response.body)
        except ValueError:
            raise Failure("one JSON object per segment of the changefeed", repr(response.body)) from None
        expect.true(isinstance(change, dict), "a JSON object", response.body)
        seen.append(change)
        if name in change.get(kind, []):
            break
    return seen


def _feed_head(target: Target) -> int:
    response = expect.status(target.ask("GET", f"{target.base}/{wire.CHANGEFEED}/next"), 200)
    return expect.number(response, wire.LATEST)


@CHANGES.case()
def tells_of_new_channels(target: Target) -> None:
    """`GET /_changes/{seq}` tells of each new channel as `{"added": [name]}`."""
    channel = target.channel()
    start = _feed_head(target)
    channel.create()
    _changes(target, "added", channel.name, start, AT_ONCE_S)


@CHANGES.case(profiles=QUICK)
def tells_of_removed_channels(target: Target) -> None:
    """`GET /_changes/{seq}` tells of each channel that is gone as `{"removed": [name]}`, after its `added`."""
    channel = target.channel()
    start = _feed_head(target)
    channel.create()
    channel.end()
    seen = _changes(target, "removed", channel.name, start, target.settings.channel_drain_s + AT_ONCE_S)
    expect.true(any(channel.name in change.get("added", []) for change in seen), "added before removed", seen)


@CHANGES.case()
def is_waited_for_like_any_channel(target: Target) -> None:
    """A GET of the changefeed's head waits for the next change."""
    channel = target.channel()
    reader = target.send("GET", f"{target.base}/{wire.CHANGEFEED}/-1")
    target.settle()
    channel.create()
    change = json.loads(expect.status(reader.response(), 200).body)
    expect.true(bool(change.get("added") or change.get("removed")), "a change", change)


@CHANGES.case()
def is_not_written_by_others(target: Target) -> None:
    """Writing to the changefeed is 403."""
    path = f"{target.base}/{wire.CHANGEFEED}"
    expect.refusal(target.ask("POST", f"{path}/-1", body=b"{}"), 403)
    expect.refusal(target.ask("DELETE", path), 403)
    expect.status(target.ask("GET", f"{path}/next"), 200)
