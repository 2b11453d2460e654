"""What is told: a change of a storm as the JSON object that every receiver gets, and that the ledger keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tricklecast.analytics.report.formats import clock, counted, rate
from tricklecast.analytics.report.json_report import episode_dict
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.watch_old.open_storms import Change

NEWS_VERSION: Final = 1
"""Raised when a field changes its meaning or goes away; new fields do not raise it."""

News = Mapping[str, Any]


def news_of(change: Change, told_us: int) -> dict[str, Any]:
    """The JSON object of a change.

    Args:
        told_us: when it was noticed, microseconds since the epoch.
    """
    return {
        "alert": "tricklecast storms watch",
        "version": NEWS_VERSION,
        "key": change.key,
        "status": change.kind.value,
        "told_us": told_us,
        "into": change.into,
        "episode": episode_dict(change.episode),
    }


def headline(news: News) -> str:
    """What happened, in one line that is safe to print: severity, class, who, where, how fast, why."""
    episode: Mapping[str, Any] = news["episode"]
    state = {"firing": episode["severity"], "worse": f"now {episode['severity']}"}.get(news["status"], "over")
    n, speed = counted(episode["n"], "request"), rate(episode["peak_rps"])
    trigger = f", after {episode['trigger']}" if episode["trigger"] else ""
    line = f"{clock(episode['end_us'])} {state} {episode['class']}: {who(episode)} {where(episode)}"
    if news["into"]:
        return f"{line}: part of {news['into']}"
    return f"{line}, {n}, {speed}{trigger} [{episode['id']}]"


def who(episode: Mapping[str, Any]) -> str:
    """The client, or how many there are."""
    names = episode["clients"]
    return plain(names[0]) if len(names) == 1 else counted(episode["n_clients"], "client")


def where(episode: Mapping[str, Any]) -> str:
    """The channel, or how many there are, and the node."""
    names = episode["channels"]
    channel = f"on {plain(names[0])}" if len(names) == 1 else f"on {counted(episode['n_channels'], 'channel')}"
    return f"{channel} at {plain(episode['node'])}" if episode["node"] else channel
