"""Scenes by somebody who knew the record and the classes, but not the code: what it once got wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tests.analytics.support.writer import LogWriter
from tricklecast.trickle.records import Event

Story = tuple[str, int | None, int, str | None]
"""An episode in short: its class, its n (``None`` if it is not the point), its clients, its trigger."""

Scene = Callable[[LogWriter], list[Story]]


def _restart(log: LogWriter, at: float) -> None:
    for offset, event in enumerate((Event.DRAIN, Event.SERVER_STOP, Event.SERVER_START, Event.SERVER_READY)):
        log.event(at - 2 + offset / 2, event)


def _lives_of_a_channel(log: LogWriter) -> list[Story]:
    for life in range(4):
        begins = 20 + 26 * life
        log.event(begins - 0.5, Event.CHANNEL_CREATE, "lives")
        for seq in range(25):
            log.served(begins + seq, "viewer", "lives", seq, epoch=life)
        log.event(begins + 25.1, Event.CHANNEL_END, "lives")
    return []


def _polls_for_the_first_segment(log: LogWriter) -> list[Story]:
    log.event(19, Event.CHANNEL_CREATE, "begins")
    for viewer in range(12):
        for second in range(40):
            log.missing(20 + second + viewer / 20, f"first-{viewer}", "begins", 0, head=0)
            log.missing(20 + second + viewer / 20, f"latest-{viewer}", "begins", -1, head=0, next_seq=0)
    return []


def _far_before_the_head(log: LogWriter) -> list[Story]:
    for second in range(40):
        log.missing(20 + second, "viewer", "relative", -25, head=15)
    return [("seq_behind_loop", 40, 1, None)]


def _behind_now_and_then(log: LogWriter) -> list[Story]:
    for turn in range(40):
        log.missing(20 + 4 * turn, "slow-link", "jumps", 10 + 40 * turn, head=50 + 40 * turn)
        log.served(20.1 + 4 * turn, "slow-link", "jumps", 49 + 40 * turn)
    return []


def _preconnected_at_the_end(log: LogWriter) -> list[Story]:
    log.event(18, Event.CHANNEL_CREATE, "ends")
    log.event(25, Event.CHANNEL_END, "ends")
    for viewer in range(60):
        for seq in (5, 6):
            log.not_found(25.1 + viewer / 200, f"viewer-{viewer}", "ends", seq)
    return []


def _one_answer_per_rendition(log: LogWriter) -> list[Story]:
    for viewer in range(60):
        for rendition in ("low", "mid", "high"):
            log.not_found(25.1 + viewer / 200, f"viewer-{viewer}", rendition, 5)
    return []


def _polls_after_a_restart(log: LogWriter) -> list[Story]:
    _restart(log, 20)
    for viewer in range(40):
        for second in range(20):
            log.not_found(20.1 + second + viewer / 50, f"viewer-{viewer}", "later")
    log.event(41, Event.CHANNEL_CREATE, "later")
    return []


def _herd_on_a_quiet_server(log: LogWriter) -> list[Story]:
    _restart(log, 20)
    for viewer in range(30):
        for wave in range(3):
            log.not_found(20.1 + wave + viewer / 50, f"viewer-{viewer}", f"c{viewer % 4}")
    return [("thundering_herd", 90, 30, "server_ready")]


def _many_refused_for_a_moment(log: LogWriter) -> list[Story]:
    for viewer in range(20):
        for attempt in range(30):
            log.refused(20 + attempt / 20 + viewer / 100, f"viewer-{viewer}", f"c{viewer}", attempt=attempt + 1)
    return [("overload_amplification", 600, 20, None)]


def _one_hot_among_the_polite(log: LogWriter) -> list[Story]:
    for attempt in range(120):
        log.refused(20 + attempt / 20, "hot", "busy", retry_after_ms=2000)
    for viewer in range(10):
        for attempt in range(4):
            log.refused(20 + viewer / 10 + 2.1 * attempt, f"polite-{viewer}", "busy", retry_after_ms=2000)
    return [("overload_client", 120, 1, None)]


def _repeats_beside_healthy_traffic(log: LogWriter) -> list[Story]:
    for seq in range(100):
        log.served(20 + seq, "viewer", "mixed", seq)
    for repeat in range(80):
        log.served(119.1 + repeat / 20, "viewer", "mixed", 99)
    return [("same_segment_loop", 81, 1, None)]


def _young_channel_of_a_young_server(log: LogWriter) -> list[Story]:
    log.event(1, Event.SERVER_START)
    log.event(60, Event.CHANNEL_CREATE, "young")
    for turn in range(40):
        log.missing(100 + turn / 20, "viewer", "young", 3, head=40)
    return [("seq_behind_loop", 40, 1, None)]


SCENES: Final[dict[str, Scene]] = {
    "lives_of_a_channel": _lives_of_a_channel,
    "polls_for_the_first_segment": _polls_for_the_first_segment,
    "far_before_the_head": _far_before_the_head,
    "behind_now_and_then": _behind_now_and_then,
    "preconnected_at_the_end": _preconnected_at_the_end,
    "one_answer_per_rendition": _one_answer_per_rendition,
    "polls_after_a_restart": _polls_after_a_restart,
    "herd_on_a_quiet_server": _herd_on_a_quiet_server,
    "many_refused_for_a_moment": _many_refused_for_a_moment,
    "one_hot_among_the_polite": _one_hot_among_the_polite,
    "repeats_beside_healthy_traffic": _repeats_beside_healthy_traffic,
    "young_channel_of_a_young_server": _young_channel_of_a_young_server,
}


TWO_SERVERS: Final = "two servers"
"""The one scene whose client goes from server to server."""


def in_turn_on_two_servers(one: LogWriter, other: LogWriter) -> Story:
    for log in (one, other):
        log.event(19.8, Event.CHANNEL_END, "balanced")
    for turn in range(60):
        (one, other)[turn % 2].not_found(20 + 2 * turn, "balanced-viewer", "balanced")
    return "not_found_drip", 60, 1, "channel_end"


def write_scenes(seed: int) -> tuple[list[str], dict[str, list[Story]]]:
    """All scenes, each on a server of its own named after it, and what happened there."""
    rng = random.Random(seed)
    logs = {name: LogWriter(name, rng) for name in (*SCENES, "left", "right")}
    truths = {name: scene(logs[name]) for name, scene in SCENES.items()}
    truths[TWO_SERVERS] = [in_turn_on_two_servers(logs["left"], logs["right"])]
    # Clients of different scenes are different ones.
    for name in SCENES:
        for record in logs[name].records:
            record.client = record.client and f"{name}: {record.client}"
    return [line for log in logs.values() for line in log.lines()], truths
