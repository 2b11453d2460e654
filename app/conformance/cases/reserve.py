"""The last fifth of a limit: for those who go on, while whoever is new has to wait."""

from __future__ import annotations

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.target import Target

RESERVE = Group("reserve", "6. Refusals")


@RESERVE.case(profiles=("ten-readers",), alone=True)
def of_readers_is_for_those_who_resume(target: Target) -> None:
    """From 80 % of the readers on GET -1 and -2 are 503 with Retry-After, until below 60 %; GET of a seq is served."""
    first, second, third = (target.channel() for _ in range(3))
    for channel in (first, second, third):
        channel.create()
    leaving = [first.waiting(0) for _ in range(3)]
    last = second.waiting(0)
    staying = [third.waiting(0) for _ in range(3)]
    # The eighth of ten still joins; from it on nobody does.
    staying.append(third.waiting(-1))
    for seq in (-1, -2):
        expect.number(expect.refusal(first.get(seq), 503), "Retry-After")
    staying.append(third.waiting(0))
    staying[-1].silent()
    first.publish(0, b"first")
    for reader in leaving:
        expect.status(reader.response(), 200)
    # Six are left: no longer 80 %, and not below 60 % yet.
    expect.number(expect.refusal(first.get(-2), 503), "Retry-After")
    second.publish(0, b"second")
    expect.status(last.response(), 200)
    expect.equal("the newest segment", expect.status(first.get(-2), 200).body, b"first")
    third.publish(0, b"third")
    for reader in staying:
        expect.equal("the segment", reader.response().body, b"third")


@RESERVE.case(profiles=("few-channels",), alone=True)
def of_channels_is_for_publishers_that_resume(target: Target) -> None:
    """Where a new channel is refused, a POST of a seq above 0 to one that is not there is taken."""
    channels = [target.channel() for _ in range(target.settings.max_channels + 1)]
    made = [channel for channel in channels if target.ask("POST", channel.path, body=b"").status == 200]
    new, resumed = channels[-1], target.channel()
    for seq in (0, -1):
        expect.number(expect.refusal(new.post(seq), 503), "Retry-After")
    made[0].publish(0)
    resumed.publish(5)
    made[-1].end()
    expect.number(expect.refusal(new.post(0), 503), "Retry-After")
    for channel in (*made[:-1], resumed):
        channel.end()
    expect.status(new.post(0), 200)
