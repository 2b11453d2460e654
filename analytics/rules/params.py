"""Every number that decides what a storm is, with its unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Params:
    """Thresholds. Each is a macro of the same name in the steps; those in seconds (``_s``) also one in ``_us``.

    Attributes:
        gap_s: a pause longer than this ends a stretch. Seconds.
        slow_gap_s: a loop that is slow but goes on for long may pause for so long. Seconds.
        fast_hits, fast_rps: a storm from so many hits on that also come so fast (hits, hits per second).
        slow_hits: a storm from so many hits on at any rate. A count alone is a poor judge, since patient clients reach
            any count in time; hence two axes.
        not_found_rps: repeated 404s are a loop from this mean rate on, a drip below it. Per second.
        overload_rps: repeated 429 and 503 below this mean rate are a polite retry. Per second.
        early: coming back after less than this share of ``Retry-After`` is ignoring it (0 to 1).
        crowd_s: a burst no longer than this, in which every connection asked about once, is a crowd behind one client
            key and no loop. Seconds.
        anonymous_s, anonymous_rps: failures of a network whose clients are not known, or have a new name each time, are
            a loop if they go on for longer and come steadily at this mean rate. Seconds; per second.
        crowd_per_conn: fewer requests per connection than this are "about once".
        same_seq_s, same_seq_few, same_seq_share: at most so many segments, asked for longer than this and in so much of
            that time, are a loop even if each request opened a connection (seconds, segments, 0 to 1).
        browse_rps, browse_times: whoever takes segments that are there already, each fewer times than this and fewer
            than so many per second altogether, looks at what is current, or seeks.
        hot_s: a client whose pauses are shorter than this does not wait at all: a hot loop. Seconds.
        many_clients: from so many refused clients on, an overload is the fleet's.
        amplification: requests per wanted request from which a fleet amplifies.
        amplified_s: so many amplified seconds make an overload (a count of seconds).
        herd_clients: a herd has at least so many clients in one second.
        herd_ratio: and so many times the node's usual second.
        usual_s: the usual second is looked for in at least so long a time. Seconds.
        herd_waves_s: who still comes at the same rate after so many seconds is no herd but polls. Seconds.
        herd_channels: without a restart before it, a herd spans at least so many channels.
        herd_arrival_s, herd_arrival_share: and this share of its clients came within so many seconds.
        herd_insists, herd_insists_rps: where its cue is the end of their channel, about which all may ask: most of its
            requests are of clients that sent so many, so fast.
        herd_gap_s: a pause longer than this ends a herd. Seconds.
        end_before_s: a channel's end so long before a stretch can still be its trigger. Seconds.
        restart_before_s, birth_before_s: the same for events of the server, and for the creation of a channel.
        clocks_s: servers' clocks, and the lines of one moment, may be in disorder by so much. Seconds.
        together_s: fleets on several nodes whose triggers are so close are one incident. Seconds.
        harm_n, harm_share: others are harmed from so many refused or slowed requests on that also are this share of
            theirs, if the storm's own cost is measurable.
        share, share_rps: cost is measurable from this share of the nodes' requests, handler time or bytes on (0 to 1),
            if the storm has at least so many requests per second.
        heavy_share: cost is heavy from this share on (0 to 1).
        again_rps: good answers without content, on one URL, are a loop from this steady rate on. Per second.
        tries: requests of one client that fail alike, from which on some are retries; many such clients can be a storm.
        steady: retries whose mean time is no earlier than this share of their course do not slow down (0 to 1; retries
            with equal pauses have 0.5).
        generic: 1 to tell loops on paths that no route matches also where other paths match; else only where none does.
        peak_rps: a peak from which the rate alone is worth a warning. Per second.
    """

    gap_s: float = 5.0
    slow_gap_s: float = 30.0
    fast_hits: int = 8
    fast_rps: float = 8.0
    slow_hits: int = 30
    not_found_rps: float = 1.8
    overload_rps: float = 1.0
    early: float = 0.5
    crowd_s: float = 2.0
    crowd_per_conn: float = 2.0
    anonymous_s: float = 15.0
    anonymous_rps: float = 3.0
    same_seq_s: float = 10.0
    same_seq_few: int = 3
    same_seq_share: float = 0.25
    browse_rps: float = 1.5
    browse_times: int = 15
    hot_s: float = 0.1
    many_clients: int = 5
    amplification: float = 2.0
    amplified_s: int = 3
    herd_clients: int = 15
    herd_ratio: float = 4.0
    usual_s: float = 300.0
    herd_waves_s: int = 10
    herd_channels: int = 3
    herd_arrival_s: float = 1.5
    herd_arrival_share: float = 0.9
    herd_insists: int = 6
    herd_insists_rps: float = 1.2
    herd_gap_s: float = 10.0
    end_before_s: float = 120.0
    restart_before_s: float = 60.0
    birth_before_s: float = 20.0
    clocks_s: float = 0.5
    together_s: float = 60.0
    harm_n: int = 10
    harm_share: float = 0.05
    share: float = 0.1
    share_rps: float = 5.0
    heavy_share: float = 0.5
    again_rps: float = 4.0
    tries: int = 3
    steady: float = 0.48
    generic: int = 0
    peak_rps: float = 50.0

    def macros(self) -> Iterator[str]:
        """One ``CREATE MACRO`` for each number."""
        for field in fields(self):
            value = getattr(self, field.name)
            kind = "BIGINT" if isinstance(value, int) else "DOUBLE"
            yield f"CREATE OR REPLACE TEMP MACRO {field.name}() AS CAST({value!r} AS {kind});"
            if field.name.endswith("_s"):
                name = f"{field.name.removesuffix('_s')}_us"
                yield f"CREATE OR REPLACE TEMP MACRO {name}() AS CAST({round(value * 1e6)} AS BIGINT);"
