"""Section 7: what clients in the field rely on, beyond the rules that are there for everybody."""

from __future__ import annotations

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.cases.publish import RESET
from tricklecast.app.conformance.target import Target
from tricklecast.trickle import wire

CLIENTS = Group("clients", "7. Clients in the field")

_BETWEEN_MESSAGES_S = 11.0
"""A control channel writes every 10 s on a connection that must still be there."""

_UNTIL_HEADERS_S = 6.0
"""Longer than the five seconds after which common servers give a silent connection up."""


@CLIENTS.case()
def first_post_may_reset(target: Target) -> None:
    """A publisher may send `Lp-Trickle-Reset` with the first POST of a new channel."""
    channel = target.channel()
    expect.header(expect.status(channel.post(0, b"first", RESET), 200), wire.SEQ, 0)
    expect.segment(channel.get(0), 0, b"first")


@CLIENTS.case()
def restarted_publisher_goes_on_at_the_head(target: Target) -> None:
    """A publisher that was lost mid-segment and starts over asks `/next`, resets, and goes on; no reader is stuck."""
    channel = target.channel()
    channel.publish(0)
    lost, reader = channel.started(1, b"lost")
    lost.abort()
    head = expect.number(expect.status(channel.get("next"), 200), wire.LATEST)
    expect.equal("the head", head, 2)
    expect.status(channel.post(head, b"goes on", RESET), 200)
    expect.equal("the rest", reader.rest(), b"")
    expect.segment(channel.get(head), head, b"goes on")


@CLIENTS.case()
def idle_connections_are_kept(target: Target) -> None:
    """A connection that is idle for more than 10 s after a segment takes the next one."""
    channel = target.channel()
    connection = target.send("POST", channel.at(0), body=b"first")
    expect.keeps_open(expect.status(connection.response(), 200))
    connection.silent(_BETWEEN_MESSAGES_S)
    connection.request("POST", channel.at(1), body=b"second")
    expect.status(connection.response(), 200)
    expect.segment(channel.get(1), 1, b"second")


@CLIENTS.case()
def silent_connections_are_kept(target: Target) -> None:
    """A connection that says nothing yet is kept: some clients hold their headers back until the first byte."""
    channel = target.channel()
    connection = target.open()
    connection.silent(_UNTIL_HEADERS_S)
    connection.request("POST", channel.at(0), body=b"late")
    expect.status(connection.response(), 200)
    expect.segment(channel.get(0), 0, b"late")
