"""A gateway as a process, and a viewer that speaks WHEP and WebRTC with aiortc."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from tests.support.forked import forked
from tests.support.waiting import WITHIN_S, eventually, until

SDP = {"Content-Type": "application/sdp"}


class Gateway:
    """A running gateway.

    Attributes:
        process: of the command.
        lines: what it has shown.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()
        self.shows("viewers post to")
        self.url = next(line for line in self.lines if "viewers post to" in line).split()[-1].removesuffix("/CHANNEL")

    def shows(self, text: str, times: int = 1) -> None:
        """Wait until so many lines contain a text."""
        eventually(
            lambda: sum(text in line for line in self.lines) >= times or self.process.poll() is not None,
            what=f"{text!r} in {self.lines}",
        )
        assert sum(text in line for line in self.lines) >= times, self.lines

    def end(self) -> int:
        """End it as Ctrl-C does; returns its exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(WITHIN_S)
        self._reading.join()
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())


@contextmanager
def gateway(base: str, *options: str) -> Iterator[Gateway]:
    """Run `tricklecast gateway webrtc` until the block ends."""
    command = forked("gateway", "webrtc", f"{base}/", "--listen", "127.0.0.1:0", *options)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        running = None
        try:
            running = Gateway(process)
            yield running
        finally:
            if running is not None and process.poll() is None:
                running.end()
            process.kill()


@contextmanager
def publishing(base: str, channel: str, source: object, *options: str) -> Iterator[None]:
    """Run `tricklecast publish` until the block ends."""
    process = subprocess.Popen(forked("publish", f"{base}/{channel}", source, *options), stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(WITHIN_S)


class Watching:
    """What a viewer has got.

    Attributes:
        location: its own URL.
        frames: decoded frames, by their kind.
        sizes: of the pictures.
        state: of the connection.
    """

    def __init__(self) -> None:
        self.location = ""
        self.frames: Counter[str] = Counter()
        self.sizes: set[tuple[int, int]] = set()
        self.state = "new"

    async def got(self, **least: int) -> None:
        """Wait for so many frames of each kind."""
        async with asyncio.timeout(WITHIN_S):
            await until(lambda: all(self.frames[kind] >= count for kind, count in least.items()))


async def post(url: str, offer: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """Post an offer. The gateway waits for a channel's first media."""
    async with httpx.AsyncClient(timeout=WITHIN_S, trust_env=False) as client:
        return await client.post(url, content=offer, headers=SDP if headers is None else headers)


async def request(method: str, url: str) -> httpx.Response:
    """Another request."""
    async with httpx.AsyncClient(timeout=WITHIN_S, trust_env=False) as client:
        return await client.request(method, url)


async def offer_of(peer: Any) -> str:
    """The offer of a viewer that wants pictures and sound."""
    for kind in ("video", "audio"):
        peer.addTransceiver(kind, direction="recvonly")
    await peer.setLocalDescription(await peer.createOffer())
    return str(peer.localDescription.sdp)


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[Watching]:
    """Watch a channel until the block ends."""
    from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
    from aiortc.mediastreams import MediaStreamError

    peer, seen = RTCPeerConnection(RTCConfiguration([])), Watching()
    tasks: list[asyncio.Task[None]] = []

    async def receive(track: Any) -> None:
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            seen.frames[track.kind] += 1
            if track.kind == "video":
                seen.sizes.add((frame.width, frame.height))

    def changed() -> None:
        seen.state = peer.connectionState

    peer.on("track", lambda track: tasks.append(asyncio.ensure_future(receive(track))))
    peer.on("connectionstatechange", changed)
    try:
        answer = await post(url, await offer_of(peer))
        assert answer.status_code == 201, answer.text
        assert answer.headers["Content-Type"] == "application/sdp"
        seen.location = str(httpx.URL(url).join(answer.headers["Location"]))
        await peer.setRemoteDescription(RTCSessionDescription(answer.text, "answer"))
        yield seen
    finally:
        await peer.close()
        await asyncio.gather(*tasks)
