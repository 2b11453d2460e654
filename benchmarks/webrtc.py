"""WebRTC: what a viewer costs the gateway, for a channel of 2 Mbit/s.

Run it as ``python -m benchmarks.webrtc`` (it needs the extra ``webrtc``, and Linux). A film of 720p at 30 pictures a
second with sound, which is encoded beforehand, is published in a loop. The gateway passes it to viewers in another
process, and the CPU time of the gateway's process alone is counted. The viewers make real connections, and count the
packets that come without a look into them, so that they leave the processors to the gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.glass import running

SIZE: Final = (1280, 720)
RATE: Final = 30
BIT_RATE: Final = 2_000_000
FILM_S: Final = 10
SOUND_RATE: Final = 48_000
TOGETHER: Final = 5
"""Viewers that connect at a time."""

STARTS_WITHIN_S: Final = 60
SETTLES_S: Final = 3


def cpu_s(pid: int) -> float:
    """The CPU time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def datagrams() -> int:
    """How many UDP packets this machine has sent: with those that a busy viewer's socket had no room for."""
    names, values = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line[:4] == "Udp:"]
    others = dict(line.split() for line in Path("/proc/net/snmp6").read_text().splitlines())
    return int(values[names.index("OutDatagrams")]) + int(others["Udp6OutDatagrams"])


def encode(path: Path, audio: str) -> None:
    """Make the film: noise in large grains, of which x264 makes just the bit rate, and a tone."""
    import av
    import numpy as np

    dice = np.random.default_rng(1)
    with av.open(str(path), "w") as film:
        options = {"tune": "zerolatency", "preset": "veryfast", "g": str(RATE), "maxrate": "2M", "bufsize": "500k"}
        picture: Any = film.add_stream("libx264", RATE, options)
        (picture.width, picture.height), picture.bit_rate, picture.pix_fmt = SIZE, BIT_RATE, "yuv420p"
        sound: Any = film.add_stream("libopus" if audio == "opus" else "aac", SOUND_RATE)
        for number in range(FILM_S * RATE):
            grains = dice.integers(0, 255, (SIZE[1] // 40, SIZE[0] // 40, 3), np.uint8)
            frame = av.VideoFrame.from_ndarray(grains.repeat(40, 0).repeat(40, 1), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            film.mux(picture.encode(frame))
            step = SOUND_RATE // RATE
            wave = np.sin(np.arange(number * step, (number + 1) * step) * 0.06).astype(np.float32)
            tone = av.AudioFrame.from_ndarray(wave[None], format="flt", layout="mono")
            tone.sample_rate, tone.pts, tone.time_base = SOUND_RATE, number * step, Fraction(1, SOUND_RATE)
            film.mux(sound.encode(tone))
        film.mux(picture.encode(None))
        film.mux(sound.encode(None))


def watch(url: str, viewers: int, pipe: Connection) -> None:
    """Run viewers: tell how many are connected, then, whenever asked, how many packets have come to all of them."""
    from aioice.ice import Connection as IceConnection
    from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

    packets, others = 0, IceConnection.data_received

    def count(connection: Any, data: bytes, component: int) -> None:
        nonlocal packets
        if 128 <= data[0] < 192:  # RTP (RFC 7983)
            packets += 1
        else:
            others(connection, data, component)

    IceConnection.data_received = count
    peers: list[Any] = []

    async def join(turn: asyncio.Semaphore, client: httpx.AsyncClient) -> None:
        async with turn:
            peer = RTCPeerConnection(RTCConfiguration([]))
            peers.append(peer)
            for kind in ("video", "audio"):
                peer.addTransceiver(kind, direction="recvonly")
            await peer.setLocalDescription(await peer.createOffer())
            headers = {"Content-Type": "application/sdp"}
            answer = await client.post(url, content=peer.localDescription.sdp, headers=headers)
            if answer.status_code != 201:
                raise SystemExit(f"{answer.status_code} {answer.text}")
            await peer.setRemoteDescription(RTCSessionDescription(answer.text, "answer"))
            async with asyncio.timeout(STARTS_WITHIN_S):
                while peer.connectionState != "connected":  # noqa: ASYNC110 - aiortc's event would need a future more
                    await asyncio.sleep(0.05)

    async def run() -> None:
        turn = asyncio.Semaphore(TOGETHER)
        async with httpx.AsyncClient(timeout=STARTS_WITHIN_S, trust_env=False) as client:
            await asyncio.gather(*(join(turn, client) for _ in range(viewers)))
        pipe.send(len(peers))
        while await asyncio.to_thread(pipe.recv):
            pipe.send((packets, sum(peer.connectionState == "connected" for peer in peers)))

    asyncio.run(run())


def measure(film: Path, viewers: int, seconds: float, audio: str) -> str:
    """Measure with so many viewers; returns a line."""
    with running("serve", "--port", "0", "--shutdown-drain-s", "0.1", "--shutdown-restart-s", "0") as server:
        assert server.stdout is not None
        base = server.stdout.readline().strip().removeprefix("tricklecast is listening on ")
        port = 20_000 + os.getpid() % 10_000
        options = ("--listen", f"127.0.0.1:{port}", "--max-viewers", "1000", "--quiet")
        with (
            running("publish", f"{base}/cam", str(film), "--loop", "forever", "--realtime"),
            running("gateway", "webrtc", f"{base}/", *options) as gateway,
        ):
            _wait(f"{base}/cam/0")
            _wait(f"http://127.0.0.1:{port}/whep/cam")
            here, there = multiprocessing.Pipe()
            arguments = (f"http://127.0.0.1:{port}/whep/cam", viewers, there)
            load = multiprocessing.get_context("spawn").Process(target=watch, args=arguments, daemon=True)
            load.start()
            try:
                if not here.poll(STARTS_WITHIN_S + viewers):
                    raise SystemExit("the viewers did not connect")
                here.recv()
                time.sleep(SETTLES_S)
                (before, _), begun, cpu, sent = _ask(here), time.perf_counter(), cpu_s(gateway.pid), datagrams()
                time.sleep(seconds)
                took, used, sent = time.perf_counter() - begun, cpu_s(gateway.pid) - cpu, datagrams() - sent
                after, connected = _ask(here)
            finally:
                load.kill()
    come = (after - before) / took
    return (
        f"{viewers:>7} {connected:>9} {audio:>5} {sent / took:>7.0f} {come:>7.0f} {used / took:>7.0%} "
        f"{used / took / viewers:>10.2%} {used / max(1, sent) * 1e6:>9.0f}"
    )


def _ask(pipe: Connection) -> Any:
    pipe.send(True)
    return pipe.recv()


def _wait(url: str) -> None:
    """Wait until a server answers that it has something there, or knows the path."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline:
        try:
            if httpx.head(url, timeout=30, trust_env=False).status_code in (200, 405):
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"nothing at {url}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--viewers", type=int, action="append", help="may be repeated (default: 1, 20, 50)")
    parser.add_argument("--audio", choices=("opus", "aac"), default="opus")
    parser.add_argument("--seconds", type=float, default=15, help="how long each number of viewers is measured")
    options = parser.parse_args()
    print(
        f"{'viewers':>7} {'connected':>9} {'sound':>5} {'packets/s':>9} {'core':>7} {'per viewer':>10} {'us/packet':>9}"
    )
    with tempfile.TemporaryDirectory() as folder:
        film = Path(folder) / "film.mkv"
        encode(film, options.audio)
        for viewers in options.viewers or [1, 20, 50]:
            print(measure(film, viewers, options.seconds, options.audio), flush=True)


if __name__ == "__main__":
    main()
