"""What helps at once, on the server: the clients, where the cure mostly is, cannot be changed at night."""

from __future__ import annotations

from typing import assert_never

from tricklecast.analytics.classes import StormClass


def first_aid(storm: StormClass) -> str:
    """What to do on the server while a storm of that class goes on; the cure is in the episode's advice."""
    match storm:
        case StormClass.ZERO_BYTE_LOOP | StormClass.SAME_SEGMENT_LOOP:
            return "DELETE the channel, or restart its publisher"
        case StormClass.ENDED_LOOP | StormClass.NOT_FOUND_LOOP | StormClass.NOT_FOUND_DRIP:
            return "nothing on the server, as these answers are cheap; where they are not, block the release"
        case StormClass.SEQ_BEHIND_LOOP | StormClass.SEQ_AHEAD_SWEEP:
            return "look whether the publisher keeps up; where readers fall out of the window, make it longer"
        case StormClass.REPOST_LOOP:
            return "nothing on the server, which refuses these; restart the publisher"
        case StormClass.OVERLOAD_CLIENT | StormClass.OVERLOAD_AMPLIFICATION | StormClass.THUNDERING_HERD:
            return "shed load: let fewer readers in, so that the others are refused early; restart servers one by one"
        case StormClass.SERVER_ERROR_LOOP:
            return "find the error in the server's own log"
        case StormClass.REJECTED_LOOP:
            return "look at the reason in the log: a token that has expired is renewed by whoever issues it"
        case StormClass.ABANDONED_LOOP:
            return "get the publisher going again: an answered GET is not given up; if it is gone, DELETE the channel"
        case _:
            assert_never(storm)
