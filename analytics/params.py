"""Every number that decides what a storm is, with its unit, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StormParams:
    """Thresholds of the report.

    A count alone is a poor judge: patient clients reach any count in time. Hence two axes: a burst that is short and
    fast, *or* one that goes on for long.

    Attributes:
        gap_s: a pause longer than this ends an episode. Seconds.
        warn_hits, warn_rps: warn from so many hits that also come so fast (hits, hits per second).
        warn_hits_alone: warn from so many hits at any rate.
        critical_hits, critical_rps, critical_hits_alone: the same for ``critical``.
        not_found_rps: repeated 404s are a loop from this mean rate on, a drip below it. Per second.
        overload_rps: repeated 429/503 below this mean rate are a polite retry. Per second.
        crowd_s: a burst no longer than this, in which every connection asked about once, is a crowd behind one client
            key (a NAT without ``Trickle-Client``) and not a loop. And a crowd gets a segment within it: what asks for
            one for longer, steadily and under a name of its own, is a loop. Seconds.
        crowd_per_conn: fewer requests per connection than this count as "about once".
        slow_gap_s: a loop that is slow but goes on for long (a drip after a channel's end, a sweep past a head that
            stands still, Retry-After cut short) may pause for so long. Seconds.
        same_seq_s, same_seq_few, same_seq_share: at most so many segments, asked for longer than this and in so much
            of that time, are a loop even if each request opened a connection (seconds, segments, 0 to 1). Segments are
            so few for a loop under a name of its own, too.
        browse_rps, browse_times: whoever takes segments that are there already, each again fewer times than this and
            fewer than so many per second altogether, looks at what is current, or seeks. Per second, times.
        early: coming back after less than this share of Retry-After, on average, is ignoring it (0 to 1).
        anonymous_s: many connections of one network, without names, that ask about once each are a loop only if that
            goes on for longer than this. Seconds.
        trigger_before_s: a channel's end so long before an episode's first request can still be its trigger. Seconds.
        restart_before_s, birth_before_s: the same for events of the server, and for the creation of a channel, which
            comes before anything that happens to it. Seconds.
        trigger_after_s: how long after it, since the lines of one moment are not ordered. Seconds.
        many_clients: from so many clients on, overload is the fleet's (clients).
        amplification: requests per wanted request from which a fleet amplifies (a ratio).
        amplified_s: so many amplified seconds make an episode (a count of seconds).
        herd_clients: a herd has at least so many clients in one second (clients).
        herd_ratio: and so many times the node's usual second (a ratio).
        usual_s: the usual second is looked for in at least so long a time. Seconds.
        herd_waves_s: whoever still comes at the same rate after so many seconds is no herd but polls. Seconds.
        herd_channels: without a restart before it, a herd spans at least so many channels (channels).
        herd_arrival_s, herd_arrival_share: and this share of its clients came within so many seconds (seconds, 0 to 1).
        herd_insists, herd_insists_rps: where its cue is the end of their channel, about which all may ask: most of its
            requests are of clients that sent so many, so fast (requests, requests per second).
        herd_gap_s: a pause longer than this ends a herd; its waves are as far apart as its back-off. Seconds.
        max_names: names of clients and channels listed per episode (names).
        max_episodes: the worst episodes that are listed (episodes).
        max_bad_share: more unparsable lines than this and the report is not to be trusted (0 to 1).
        busy_minute: a node's minute is judged by its amplification from so many requests on (requests per minute).
        client_budget: retries per request that one client may make in a minute (0 to 1; Google SRE, "Handling
            Overload": 10 %); client_budget_floor: so many are free, or one retry would break it (retries per minute).
        node_budget: the same for all clients of a node together (0 to 1; Linkerd and Envoy: 20 %); node_budget_rps:
            so many are free (retries per second; Linkerd's minRetriesPerSecond: 10).
        blast_before_s: an episode's healthy are compared with at least so much time before it (seconds).
        silence_s: a busy node that writes nothing for longer has a gap in its log (seconds).
        max_shares: channels, releases and nodes listed (names).
        max_offenders: clients, releases and networks listed as offenders (names).
        max_budget_breaks: broken budgets listed (minutes).
        max_markers: lifecycle events in the timeline (events).
    """

    gap_s: float = 5.0
    warn_hits: int = 8
    warn_rps: float = 8.0
    warn_hits_alone: int = 30
    critical_hits: int = 10
    critical_rps: float = 10.0
    critical_hits_alone: int = 50
    not_found_rps: float = 2.0
    overload_rps: float = 1.0
    crowd_s: float = 2.0
    crowd_per_conn: float = 2.0
    slow_gap_s: float = 30.0
    same_seq_s: float = 10.0
    same_seq_few: int = 3
    same_seq_share: float = 0.25
    browse_rps: float = 1.5
    browse_times: int = 10
    early: float = 0.5
    anonymous_s: float = 30.0
    trigger_before_s: float = 120.0
    restart_before_s: float = 60.0
    birth_before_s: float = 20.0
    trigger_after_s: float = 2.0
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
    max_names: int = 100
    max_episodes: int = 1000
    max_bad_share: float = 0.01
    busy_minute: int = 1000
    client_budget: float = 0.1
    client_budget_floor: int = 10
    node_budget: float = 0.2
    node_budget_rps: float = 10.0
    blast_before_s: float = 60.0
    silence_s: float = 120.0
    max_shares: int = 50
    max_offenders: int = 20
    max_budget_breaks: int = 100
    max_markers: int = 200
