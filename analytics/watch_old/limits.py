"""Every number of the live view that is no threshold of a storm, with its unit. Those are in ``analytics.params``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """What bounds the live view.

    Attributes:
        batch_bytes: at most so much is read for one batch; what is left waits in the log. Bytes.
        chunk_bytes: so much of one file at a time, so that no file keeps the others waiting; a longer line is skipped
            and counted. Bytes.
        poll_s: pause between two looks at files that do not grow. Seconds.
        wait_s: a batch is waited for no longer than this before Spark is answered. Seconds.
        answer_s: how long a Kafka broker may take to answer. Seconds.
        files: at most so many files are followed (files).
        window_s: Spark adds a key's lines up for so long, counted from when they were read. Seconds.
        rows: changed rows that one batch may hand to the detector, the loudest first (rows).
        islands: stretches of one client's answers that are remembered, the newest first (islands).
        storms: storms that may be open at once; further ones are counted (storms).
        fleet_s: seconds of a node that are remembered for its fleets. Seconds.
        hold_s: one client's overload waits so long for the fleet's, where many are refused. Seconds.
        idle_s: a storm without a line for so long after its gap is over even if its node says nothing. Seconds.
        events: lifecycle events remembered per channel, and per node (events).
        names: channels with events that are remembered (channels).
        outbox: alerts kept for a receiver that does not answer; beyond, the oldest are dropped and counted (alerts).
        told: keys of alerts that are remembered as told (keys).
    """

    batch_bytes: int = 8 << 20
    chunk_bytes: int = 1 << 20
    poll_s: float = 0.02
    wait_s: float = 0.25
    answer_s: float = 5.0
    files: int = 5_000
    window_s: int = 20
    rows: int = 20_000
    islands: int = 50_000
    storms: int = 500
    fleet_s: int = 120
    hold_s: float = 4.0
    idle_s: float = 1.0
    events: int = 50
    names: int = 20_000
    outbox: int = 1_000
    told: int = 10_000
