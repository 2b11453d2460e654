"""Calls whose options are wrong. They never run: mypy says that each is an error, and fails if one is none."""

from __future__ import annotations

import httpx

from tricklecast import Publisher, Subscriber, sync
from tricklecast.media import MediaPublisher, frames, relay
from tricklecast.subscriber import json_lines, json_messages, record

URL = "http://127.0.0.1:2939/trickle/words"


async def misspelt() -> None:
    """There is no such option."""
    Publisher(URL, tranport=None)  # type: ignore[call-arg]
    Subscriber(URL, strat="earliest")  # type: ignore[call-arg]
    json_messages(URL, strat="earliest")  # type: ignore[call-arg]
    json_lines(URL, limits=5)  # type: ignore[call-arg]
    sync.Publisher(URL, tranport=None)  # type: ignore[call-arg]
    sync.Subscriber(URL, strat="earliest")  # type: ignore[call-arg]
    await record(URL, "words", keep=5)  # type: ignore[call-arg]


async def mistyped() -> None:
    """The option wants another type."""
    json_messages(URL, start=1.5)  # type: ignore[arg-type]
    json_lines(URL, headers=["X"])  # type: ignore[arg-type]
    sync.Subscriber(URL, reconnect_s="30 s")  # type: ignore[arg-type]
    await record(URL, "words", refresh_s="30")  # type: ignore[arg-type]


def of_httpx() -> None:
    """It belongs to the asynchronous classes."""
    auth = httpx.BasicAuth("user", "password")
    sync.Publisher(URL, auth=auth)  # type: ignore[arg-type]
    sync.Publisher(URL, transport=None)  # type: ignore[call-arg]
    sync.Subscriber(URL, auth=auth)  # type: ignore[arg-type]
    sync.Channel(URL, auth=auth)  # type: ignore[arg-type]
    sync.list_channels(URL, auth=auth)  # type: ignore[arg-type]


async def misspelt_words() -> None:
    """The option wants one of some words."""
    Publisher(URL, start="rest")  # type: ignore[arg-type]
    Publisher(URL, when_full="dropp")  # type: ignore[arg-type]
    sync.Publisher(URL, when_full="dropp")  # type: ignore[arg-type]
    subscriber = Subscriber(URL, start="earlist")  # type: ignore[arg-type]
    await subscriber.seek("curent")  # type: ignore[arg-type]
    Subscriber(URL, on_lag="life")  # type: ignore[arg-type]
    Subscriber(URL, on_broken="rise")  # type: ignore[arg-type]
    sync.Subscriber(URL, start="earlist")  # type: ignore[arg-type]
    sync.Subscriber(URL, on_lag="life")  # type: ignore[arg-type]
    json_messages(URL, on_error="rise")  # type: ignore[arg-type]
    await record(URL, "words", start="earlist")  # type: ignore[arg-type]
    await record(URL, "words", on_lag="life")  # type: ignore[arg-type]
    frames(URL, when_full="dropp")  # type: ignore[call-overload]
    frames(URL, start="earlist")  # type: ignore[call-overload]
    frames(URL, audio="packet")  # type: ignore[call-overload]
    MediaPublisher(URL, preset="quick")  # type: ignore[arg-type]
    MediaPublisher(URL, container="mp4")  # type: ignore[arg-type]
    MediaPublisher(URL, audio_codec="mp3")  # type: ignore[arg-type]
    await relay(URL, URL, abs, start="earlist")  # type: ignore[arg-type]
    await relay(URL, URL, abs, subscriber={"on_lag": "life"})  # type: ignore[arg-type]
