"""Section 6: how the server says no."""

from __future__ import annotations

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.connection import Connection
from tricklecast.app.conformance.target import Target

REFUSALS = Group("refusals", "6. Refusals")

_CROWDED = ("few-readers",)
_FULL = ("few-channels",)
_ENDLESS = 4 << 20
_PIECE = 1 << 16


@REFUSALS.case()
def are_one_line_of_text(target: Target) -> None:
    """Every refusal is a status with a body of one line of text: 400, 403, 404, 405, 409 and 470 alike."""
    channel = target.channel()
    expect.refusal(channel.get(0), 404)
    channel.publish(0)
    expect.refusal(channel.get("x"), 400)
    expect.refusal(target.ask("POST", f"{target.base}/_{channel.name}/0", body=b"x"), 403)
    expect.refusal(target.ask("PUT", channel.at(0), body=b"x"), 405)
    expect.refusal(channel.post(0), 409)
    expect.refusal(channel.post(9), 470)
    expect.refusal(channel.get(9), 470)


@REFUSALS.case()
def change_nothing(target: Target) -> None:
    """Refused requests leave head, epoch, media type and segments as they were."""
    channel = target.channel()
    channel.create(mime="video/mp2t")
    channel.publish(0, b"kept")
    before = channel.get(0)
    for refused in (
        channel.post(9),
        channel.post(0),
        channel.post("x"),
        channel.post(-7),
        channel.close("x"),
        channel.close(-1),
        target.ask("PUT", channel.path, {"Expect-Content": "text/plain"}, b""),
        channel.get(9),
        channel.get("+1"),
    ):
        expect.true(refused.status >= 400, "a refusal", refused)
    after = channel.get(0)
    expect.body(after, before.body)
    for name in ("Content-Type", "Lp-Trickle-Latest", "Lp-Trickle-Epoch"):
        expect.equal(name, after.get(name), before.get(name))


@REFUSALS.case(profiles=_CROWDED, alone=True)
def too_many_readers_are_503(target: Target) -> None:
    """A reader beyond the server-wide limit is 503 with `Retry-After`; those who are there are not disturbed."""
    channel = target.channel()
    channel.create()
    readers = [channel.waiting(0) for _ in range(target.settings.max_readers)]
    response = expect.refusal(channel.get(0), 503)
    expect.number(response, "Retry-After")
    channel.publish(0, b"served")
    for reader in readers:
        expect.segment(reader.response(), 0, b"served")


@REFUSALS.case(profiles=_FULL, alone=True)
def too_many_channels_are_503(target: Target) -> None:
    """A channel beyond the server-wide limit is 503 with `Retry-After`, by POST of it or of its first segment."""
    for _ in range(target.settings.max_channels):
        channel = target.channel()
        if target.ask("POST", channel.path, body=b"").status != 200:
            break
    for response in (target.channel().post(0), target.ask("POST", target.channel().path, body=b"")):
        expect.number(expect.refusal(response, 503), "Retry-After")


@REFUSALS.case(profiles=_FULL, alone=True)
def channel_beyond_the_limit_does_not_exist(target: Target) -> None:
    """A channel that was refused is not there, and is let in when others have made room."""
    channels = [target.channel() for _ in range(target.settings.max_channels + 1)]
    made = [channel for channel in channels if target.ask("POST", channel.path, body=b"").status == 200]
    refused = channels[-1]
    expect.status(refused.get("next"), 404)
    # One that ends need not do: a server may keep a reserve for those that are there already.
    for channel in made:
        channel.end()
    expect.status(target.ask("POST", refused.path, body=b""), 200)


def _flood(connection: Connection, prefix: bytes, filler: bytes) -> None:
    """Send far more than any server should take, until it stops taking it."""
    connection.expects("GET")
    if not connection.try_send(prefix):
        return
    for _ in range(_ENDLESS // _PIECE):
        if not connection.try_send(filler * (_PIECE // len(filler))):
            return


@REFUSALS.case()
def endless_url_is_414(target: Target) -> None:
    """A URL that does not end is 414, or 431 where the two are counted together."""
    connection = target.open()
    _flood(connection, f"GET {target.base}/".encode(), b"x")
    expect.status(connection.response(), 414, 431)


@REFUSALS.case()
def endless_headers_are_431(target: Target) -> None:
    """Headers that do not end are 431."""
    connection = target.open()
    head = connection.render("GET", target.channel().at(0))
    _flood(connection, head[:-2], b"X-Filler: " + b"y" * 4084 + b"\r\n")
    expect.status(connection.response(), 431)


@REFUSALS.case()
def endless_header_value_is_431(target: Target) -> None:
    """One header that does not end is 431."""
    connection = target.open()
    head = connection.render("GET", target.channel().at(0))
    _flood(connection, head[:-2] + b"X-Filler: ", b"y")
    expect.status(connection.response(), 431)
