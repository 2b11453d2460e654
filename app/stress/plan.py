"""What a stress run is to do, and who does which part of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Final
from urllib.parse import urlsplit

from tricklecast.trickle import wire
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.load import MARKER_BYTES, Load
from tricklecast.trickle.paths import ChannelURL, normalize_base_path, parse_server_url
from tricklecast.trickle.stress import Orders, Seat
from tricklecast.trickle.terminal import parse_size

STARTS: Final = ("0", "next", "current", "earliest")
"""Subscribers are there before the first segment, so all of these mean the same, by different requests."""

CATCH_UP_S: Final = 10.0

PUBLISHING: Final = "tricklecast.publisher.stress"
SUBSCRIBING: Final = "tricklecast.subscriber.stress"
"""The modules that do the work, as text: packages know nothing of one another."""


def parse_sizes(text: str) -> tuple[int, int]:
    """Read one size or a range of sizes: ``64KiB``, ``1KiB-128KiB``.

    Raises:
        InvalidInput: it is neither, or the range is empty.
    """
    low, _, high = text.partition("-")
    smallest, largest = parse_size(low), parse_size(high or low)
    if smallest > largest:
        raise InvalidInput(f"{text!r} is an empty range")
    if smallest < MARKER_BYTES:
        raise InvalidInput(f"a segment has at least {MARKER_BYTES} bytes, which say where it belongs")
    return smallest, largest


def base_url(url: str) -> str:
    """The URL below which channels live; a URL without a path means the usual base path.

    Raises:
        InvalidURL: it is not a URL of a server.
    """
    parts = urlsplit(url)
    return parse_server_url(url) + normalize_base_path(parts.path or wire.DEFAULT_BASE_PATH)


@dataclass(frozen=True, slots=True)
class Plan:
    """One run.

    Attributes:
        base: the URL below which the channels live.
        run: a part of their names that no other run has.
        load: what is published; one channel per publisher.
        subscribers: how many read each channel.
        processes: how many processes publish, and how many subscribe.
        start: where subscribers begin, one of :data:`STARTS`.
        ca_file: certificates to trust; empty for the usual ones.
        catch_up_s: once all is published, subscribers are waited for until none has got anything for so many seconds.
        publishing, subscribing: the modules whose ``work`` does it; tests put their own here.
    """

    base: str
    run: str
    load: Load
    subscribers: int
    processes: int = 1
    start: str = "0"
    ca_file: str = ""
    catch_up_s: float = CATCH_UP_S
    publishing: str = PUBLISHING
    subscribing: str = SUBSCRIBING

    @property
    def for_s(self) -> float:
        """How long publishing takes, in seconds."""
        return self.load.segments * self.load.every_s

    def channel(self, number: int | str) -> str:
        """The name of a publisher's channel, or of another one that no other run has."""
        return f"stress-{self.run}-{number}"

    def publishers(self) -> list[Orders]:
        """The orders of each process that publishes."""
        return self._share([self._seat(channel) for channel in range(self.load.channels)])

    def readers(self) -> list[Orders]:
        """The orders of each process that subscribes; a channel's subscribers are spread over all of them."""
        pairs = product(range(self.subscribers), range(self.load.channels))
        return self._share([self._seat(channel, number) for number, channel in pairs])

    def _seat(self, channel: int, number: int = 0) -> Seat:
        return Seat(channel, str(ChannelURL.parse(f"{self.base}/{self.channel(channel)}")), number)

    def _share(self, seats: list[Seat]) -> list[Orders]:
        shares = [tuple(seats[first :: self.processes]) for first in range(self.processes)]
        return [Orders(share, self.load, self.start, self.ca_file) for share in shares if share]


def segments_in(for_s: float, every_s: float) -> int:
    """How many segments a channel gets in a time: at least one."""
    return max(1, math.ceil(for_s / every_s - 1e-9))
