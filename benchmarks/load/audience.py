"""An audience that follows a film segment by segment, as players of HLS do, or later; or the server, on dashboards.

The film is fragmented MP4, since HLS has to find pictures in it: one picture in each chunk. Its bytes are no video.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.load.http import Connection, http_chunk
from benchmarks.load.loop import Loop, address
from benchmarks.load.meter import Meter
from benchmarks.load.stream import SETTLE_S, STUCK_S, create, turn_until
from benchmarks.scenarios import Audience, Way
from tests.support.media import CLOCK_HZ, fragment, init_segment

PICTURES_HZ: Final = 25
SEGMENT_S: Final = 2
PICTURES: Final = PICTURES_HZ * SEGMENT_S
PICTURE: Final = bytes(number * 167 % 251 for number in range(10_000))
"""Two megabits a second."""

BEGUN: Final = 3
"""Segments that are there before an audience comes."""

_PART: Final = re.compile(rb'#EXT-X-PART:[^\n]*URI="([^"]+)"')
_SEQUENCE: Final = re.compile(rb"#EXT-X-MEDIA-SEQUENCE:(\d+)")


@dataclass(frozen=True, slots=True)
class AudienceResult:
    """The figures of one run.

    Attributes:
        mb_s: media, or bytes of dashboards' feeds, that have arrived, in MB a second.
        share: of the bytes that should have arrived; 1 where nothing says how many these are.
        server_busy, load_busy: CPU time of a wall second of the server, and of the load generator.
    """

    mb_s: float
    share: float
    server_busy: float
    load_busy: float


def pictures(seq: int) -> list[bytes]:
    """The chunks of a segment."""
    length = CLOCK_HZ // PICTURES_HZ
    begin = seq * PICTURES * length
    found = [fragment(begin + number * length, (length,), key=not number, media=PICTURE) for number in range(PICTURES)]
    return [init_segment() + found[0], *found[1:]]


class Film:
    """Publishes the film in step with its pictures; :data:`BEGUN` segments of it at once.

    Args:
        path: of a new channel.
    """

    def __init__(self, loop: Loop, path: str) -> None:
        create(loop, path)
        self._loop, self._path = loop, path
        self._connection = Connection(loop, 0)
        self._seq = -1
        self._left: deque[bytes] = deque()
        for _ in range(BEGUN * PICTURES):
            self._publish()
        self._began, self._sent = time.monotonic(), 0

    def play(self, until: float) -> None:
        """Publish until then (``time.monotonic``)."""
        while (due := self._began + self._sent / PICTURES_HZ) < until:
            turn_until(self._loop, due)
            self._publish()
            self._sent += 1
        turn_until(self._loop, until)

    def _publish(self) -> None:
        if not self._left:
            if self._seq >= 0:
                self._connection.send(b"0\r\n\r\n")
            while self._connection.busy:
                self._loop.turn(time.monotonic() + SETTLE_S)
            self._seq += 1
            self._left += pictures(self._seq)
            fields = "Content-Type: video/mp4\r\nTransfer-Encoding: chunked\r\n"
            self._connection.request("POST", f"{self._path}/{self._seq}", fields)
        self._connection.send(http_chunk(self._left.popleft()))


Count = Callable[[memoryview], object]


class Subscriber:
    """Reads segment after segment, on two connections by turns: each asks for its next one as soon as the other's has
    begun.
    """

    def __init__(self, loop: Loop, path: str, number: int, count: Count) -> None:
        self._path, self._seq = path, BEGUN
        self._waits = False
        self._connections = [Connection(loop, 0, source=address(number)) for _ in range(2)]
        for connection in self._connections:
            connection.on_payload, connection.on_head, connection.on_end = count, self._begun, self._ended
        self._ask()

    def _ask(self) -> None:
        self._connections[self._seq % 2].request("GET", f"{self._path}/{self._seq}")

    def _begun(self) -> None:
        self._seq += 1
        self._waits = self._connections[self._seq % 2].busy
        if not self._waits:
            self._ask()

    def _ended(self) -> None:
        if self._waits:
            self._waits = False
            self._ask()


class Player:
    """A player of low-latency HLS: it asks for the playlist that will have the next part, and for each part that it
    finds there, as hls.js does.
    """

    def __init__(self, loop: Loop, path: str, number: int, count: Count) -> None:
        self._path = path
        self._text = bytearray()
        self._parts: deque[bytes] = deque()
        self._newest = b""
        self._list, self._media = (Connection(loop, 0, source=address(number)) for _ in range(2))
        self._list.on_payload, self._list.on_end = self._text.extend, self._listed
        self._media.on_payload, self._media.on_end = count, self._fetch
        self._list.request("GET", f"{self._path}/media.m3u8")

    def _listed(self) -> None:
        text = bytes(self._text)
        self._text.clear()
        parts = _PART.findall(text, max(0, text.rfind(self._newest)) if self._newest else 0)
        self._parts += [part for part in parts if part != self._newest] if self._newest else parts[-1:]
        self._newest = parts[-1] if parts else self._newest
        self._fetch()
        sequence = _SEQUENCE.search(text)
        assert sequence is not None, "each playlist has it"
        whole = text.count(b"#EXTINF:")
        part = text.count(b"#EXT-X-PART:", max(0, text.rfind(b"#EXTINF:")))
        self._list.request("GET", f"{self._path}/media.m3u8?_HLS_msn={int(sequence[1]) + whole}&_HLS_part={part}")

    def _fetch(self) -> None:
        if self._parts and not self._media.busy:
            self._media.request("GET", f"{self._path}/{self._parts.popleft().decode()}")


class Replays:
    """Readers that read closed segments from the first one on, again and again, at a common rate."""

    def __init__(self, loop: Loop, path: str, scenario: Audience, count: Count) -> None:
        self._loop, self._path, self._scenario = loop, path, scenario
        self._connections = [Connection(loop, 0, source=address(number)) for number in range(scenario.readers)]
        for connection in self._connections:
            connection.on_payload = count
        self._began, self._asked = time.monotonic(), 0

    def play(self, until: float) -> None:
        """Read until then (``time.monotonic``)."""
        while (due := self._began + self._asked / self._scenario.rate) < until:
            turn_until(self._loop, due)
            turn, number = divmod(self._asked, len(self._connections))
            while self._connections[number].busy:
                self._loop.turn(until)
            seq = (turn + number) % self._scenario.segments
            self._connections[number].request("GET", f"{self._path}/{seq}")
            self._asked += 1
        turn_until(self._loop, until)


def run(loop: Loop, scenario: Audience, pid: int) -> AudienceResult:
    """Run a scenario against a server.

    Args:
        pid: of the server.
    """
    meter, path = Meter(pid), f"/trickle/{scenario.channel}"

    def count(data: memoryview) -> None:
        meter.delivered += len(data)

    readers: list[object] = []
    play: Callable[[float], None] = lambda until: turn_until(loop, until)  # noqa: E731
    match scenario.way:
        case Way.NOT | Way.SEGMENTS | Way.HLS:
            play = Film(loop, path).play
            made = {Way.SEGMENTS: Subscriber, Way.HLS: Player}.get(scenario.way)
            readers += [made(loop, path, number, count) for number in range(scenario.readers) if made]
        case Way.REPLAY:
            play = Replays(loop, path, scenario, count).play
        case Way.DASHBOARD:
            for number in range(scenario.readers):
                readers.append(connection := Connection(loop, 0, source=address(number)))
                connection.on_payload = count
                connection.request("GET", "/api/v1/dashboard", "Accept-Encoding: gzip\r\n")
    _play(play, scenario, meter, scenario.warm_up_s)
    meter.begin()
    _play(play, scenario, meter, scenario.measure_s)
    meter.end()
    found = meter.result(meter.delivered)
    expected = PICTURES_HZ * len(fragment(0, media=PICTURE)) * len(readers)
    share = found.rate / expected if scenario.way in (Way.SEGMENTS, Way.HLS) else 1.0
    return AudienceResult(found.rate / 1e6, share, found.server_busy, found.load_busy)


def _play(play: Callable[[float], None], scenario: Audience, meter: Meter, seconds: float) -> None:
    """For so long, and until something has arrived: on a slow machine the first bytes take their time."""
    before, stuck_at = meter.delivered, time.monotonic() + seconds + STUCK_S
    play(time.monotonic() + seconds)
    while scenario.readers and meter.delivered == before:
        if time.monotonic() > stuck_at:
            raise TimeoutError("nothing arrives")
        play(time.monotonic() + SETTLE_S)
