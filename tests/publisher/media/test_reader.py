"""Inputs that end, break, come back and repeat: over real sockets, with real protocols."""

from __future__ import annotations

import io
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random

import av
import pytest

from tests.publisher.media.clips import FRAME_RATE, Decoded, decode, make_clip
from tests.support.forked import python
from tests.support.ports import free_port
from tricklecast.publisher.media import inputs, reader
from tricklecast.publisher.media.encode import Encoding
from tricklecast.publisher.media.inputs import Input
from tricklecast.publisher.media.muxers import ContainerName
from tricklecast.publisher.media.reader import MediaInput, MediaOptions
from tricklecast.publisher.steps import Chunk, SegmentEnd, Step
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.media.containers import PACKET_BYTES

FRAMES = 3 * FRAME_RATE
LIMIT_S = 120


class Hasty(Random):
    """Draws the shortest pauses."""

    def uniform(self, a: float, b: float) -> float:
        """The lower end."""
        return a


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers do not wait long before they open a source again."""
    monkeypatch.setattr(reader, "Random", Hasty)


class Report:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.states: list[str] = []

    def say(self, message: str, /) -> None:
        """A line."""
        self.said.append(message)

    def source(self, state: str, /) -> None:
        """A state."""
        self.states.append(state)


class Run:
    """A relay that runs to its end, or until so many segments are there."""

    def __init__(self, text: str, options: MediaOptions, input_options: dict[str, str] | None = None) -> None:
        self.report = Report()
        self.segments: list[bytes] = []
        self._stopped = False
        what = Input.parse(text, input_options)
        self._open: Callable[[], Iterator[Step]] = lambda: MediaInput(what, options).open(
            self.report, lambda: self._stopped
        )

    def run(self, segments: int = 1000, said: int = 0) -> Run:
        """Collect so many segments, until so much was said; not the one under way when it is stopped."""
        current = b""
        for step in self._open():
            match step:
                case Chunk(data):
                    current += data
                case SegmentEnd() if current:
                    self.segments.append(current)
                    current = b""
            if len(self.segments) >= segments and len(self.report.said) >= said:
                self._stopped = True
                break
        return self

    def decoded(self, format_: str = "mpegts") -> Decoded:
        """All segments, joined."""
        return decode(b"".join(self.segments), format_)


@contextmanager
def serving(*answers: bytes) -> Iterator[str]:
    """A TCP server that sends each connection the next answer; after the last one nobody listens any more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for number, answer in enumerate(answers):
                connection, _ = listener.accept()
                if number == len(answers) - 1:
                    listener.close()
                with connection:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(LIMIT_S)


def assert_continuous(decoded: Decoded) -> None:
    """Times increase in both streams, and picture and sound end together."""
    for times in decoded.times.values():
        assert all(here < there for here, there in pairwise(times))
    assert abs(decoded.times["video"][-1] - decoded.times["audio"][-1]) < 0.2


def decoding_times(segments: bytes) -> list[Fraction]:
    """Of the pictures."""
    with av.open(io.BytesIO(segments), "r", "mpegts") as container:
        packets = [packet for packet in container.demux(container.streams.video[0]) if packet.dts is not None]
        return [packet.dts * packet.time_base for packet in packets if packet.dts is not None]


OPTIONS = MediaOptions(realtime=False, reconnect_for_s=0.2)


def test_a_network_source_that_ends_is_opened_again(tmp_path: Path) -> None:
    """What follows goes on behind it, in new segments; in the end nobody answers, and that is the end."""
    clip = make_clip(tmp_path / "clip.ts")
    data = clip.read_bytes()
    with serving(data, data) as address:
        done = Run(f"tcp://{address}", OPTIONS).run()
    assert len(done.segments) == 6
    decoded = done.decoded()
    assert decoded.hashes["video"] == 2 * decode(clip).hashes["video"]
    assert_continuous(decoded)
    said = [line.replace(f"tcp://{address}", "it") for line in done.report.said]
    assert said[0] == "it ended; trying for 0.2 s to open it again"
    assert said[1].startswith("it is back after 0.")
    assert said[-1] == "it did not come back within 0.2 s"
    assert done.report.states[0] == "reconnecting, attempt 1"
    assert done.report.states[-1] == ""


@pytest.mark.parametrize("kind", ["mpegts", "fmp4"])
def test_what_comes_back_may_be_another_stream(tmp_path: Path, kind: ContainerName) -> None:
    """With other codecs, another size and one stream less: each segment says what it holds."""
    first = make_clip(tmp_path / "a.ts")
    second = make_clip(tmp_path / "b.ts", video="libx265", audio=None, side=96)
    with serving(first.read_bytes(), second.read_bytes()) as address:
        done = Run(f"tcp://{address}", MediaOptions(kind, realtime=False, reconnect_for_s=0.2)).run()
    format_ = "mpegts" if kind == "mpegts" else "mp4"
    shapes = []
    for segment in done.segments:
        with av.open(io.BytesIO(segment), "r", format_) as container:
            video = container.streams.video[0].codec_context
            shapes.append((video.name, video.width, len(container.streams.audio)))
    assert shapes == [("h264", 64, 1)] * 3 + [("hevc", 96, 0)] * 3
    if kind == "mpegts":  # receivers look at tables again only where their version says so
        versions = [segment[2 * PACKET_BYTES :][10] >> 1 & 31 for segment in done.segments]
        assert versions == [0] * 3 + [1] * 3


def test_a_source_that_breaks_and_does_not_come_back_is_an_error(tmp_path: Path) -> None:
    """What came before is published; a broken connection is no end.

    The answer has a length: of a chunked one, the libavformat of FFmpeg 9.0 takes a break for the end.
    """
    data = make_clip(tmp_path / "clip.ts").read_bytes()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nContent-Type: video/mp2t\r\n\r\n" % (len(data) + 1)
    with serving(head + data) as address:
        run = Run(f"http://{address}/live.ts", replace(OPTIONS, reconnect=True), {"reconnect": "0"})
        with pytest.raises(InvalidInput, match=r"did not come back within 0.2 s: cannot read .*refused"):
            run.run()
    assert len(run.decoded().hashes["video"]) > FRAMES - 5


def test_a_file_on_the_web_ends_like_a_file(tmp_path: Path) -> None:
    """What has a length is not live: its end is the end, and nothing is opened again."""
    data = make_clip(tmp_path / "clip.mkv").read_bytes()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(data)
    with serving(head + data) as address:
        done = Run(f"http://{address}/film.mkv", OPTIONS).run()
    assert len(done.segments) == 3
    assert done.report.said == []


def test_without_reconnecting_the_end_is_the_end(tmp_path: Path) -> None:
    """Also of a live source."""
    data = make_clip(tmp_path / "clip.ts").read_bytes()
    with serving(data) as address:
        done = Run(f"tcp://{address}", MediaOptions(realtime=False, reconnect=False)).run()
    assert len(done.segments) == 3
    assert done.report.said == []


@pytest.mark.parametrize(
    ("scheme", "format_", "listen", "how"),
    [("rtmp", "flv", {"listen": "1"}, []), ("rtsp", "rtsp", {"rtsp_flags": "listen"}, ["rtsp_transport=tcp"])],
)
def test_encoders_send_to_us(tmp_path: Path, scheme: str, format_: str, listen: dict[str, str], how: list[str]) -> None:
    """RTMP and RTSP, as the end that listens: what OBS or ffmpeg send is published, twice, as one stream."""
    clip = make_clip(tmp_path / "clip.mp4")
    url = f"{scheme}://127.0.0.1:{free_port()}/live/cam"
    command = [python(), "-m", "tests.publisher.media.sender", url, format_, str(clip), *how]
    run = Run(url, MediaOptions(realtime=False, reconnect_for_s=LIMIT_S), listen)
    senders = threading.Thread(
        target=lambda: [subprocess.run(command, check=True, timeout=LIMIT_S) for _ in range(2)], daemon=True
    )
    senders.start()
    run.run(segments=6)
    senders.join(LIMIT_S)
    assert run.report.said[0] == f"waiting for a sender to connect to {url}"
    decoded = run.decoded()
    assert decoded.hashes["video"] == 2 * decode(clip).hashes["video"]
    assert_continuous(decoded)


def test_a_sender_that_stops_for_good_is_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who stops streaming closes the connection, in the middle of it as far as RTMP is concerned."""
    monkeypatch.setattr(reader, "MIN_OPEN_S", 0.1)
    url = f"rtmp://127.0.0.1:{free_port()}/live/cam"
    command = [python(), "-m", "tests.publisher.media.sender", url, "flv", str(make_clip(tmp_path / "clip.mp4"))]
    sender = subprocess.Popen(command)
    done = Run(url, OPTIONS, {"listen": "1"}).run()
    assert sender.wait(LIMIT_S) == 0
    assert len(done.segments) == 3
    assert done.report.said[1:] == [
        f"the sender to {url} is gone; waiting 0.2 s for a sender",
        f"{url} did not come back within 0.2 s",
    ]


def test_datagrams_that_stop_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPEG-TS over UDP, joined in the middle of a segment, falls silent and comes back, and its clock jumps."""
    monkeypatch.setattr(inputs, "READ_S", 0.5)
    clip = make_clip(tmp_path / "clip.ts")
    datagrams = [clip.read_bytes()[at : at + 1316] for at in range(0, clip.stat().st_size, 1316)]
    port = free_port(socket.SOCK_DGRAM)
    run = Run(f"udp://127.0.0.1:{port}", MediaOptions(realtime=False, reconnect_for_s=LIMIT_S))
    is_over, pause = threading.Event(), threading.Event()

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while not is_over.is_set():
                for datagram in datagrams[20:] + datagrams[:20]:
                    sender.sendto(datagram, ("127.0.0.1", port))
                    is_over.wait(0.001)
                if len(run.segments) >= 3 and not any("is gone" in line for line in run.report.said):
                    pause.wait(LIMIT_S)

    monkeypatch.setattr(run.report, "source", lambda state: pause.set())
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    run.run(segments=8, said=6)
    is_over.set()
    thread.join(LIMIT_S)
    joined = f"udp://127.0.0.1:{port} did not begin with a keyframe: "
    said = [line for line in run.report.said if not line.startswith(joined)]
    assert len(said) < len(run.report.said)
    assert said[0] == f"waiting for a sender to connect to udp://127.0.0.1:{port}"
    # The clip that begins again has other counters than the one that ended.
    assert said[1].startswith(f"udp://127.0.0.1:{port} is damaged: ")
    assert said[2].startswith(f"udp://127.0.0.1:{port}: ")
    assert said[3].startswith(f"the sender to udp://127.0.0.1:{port} is gone; waiting {LIMIT_S} s")
    times = decoding_times(b"".join(run.segments))
    assert all(here < there for here, there in pairwise(times))
    assert max(there - here for here, there in pairwise(times)) > 0.3


def test_a_file_is_played_again(tmp_path: Path) -> None:
    """As one stream, without a gap in the picture."""
    clip = make_clip(tmp_path / "clip.mp4", seconds=2.0)
    done = Run(str(clip), MediaOptions(realtime=False, plays=3)).run()
    assert len(done.segments) == 6
    decoded = done.decoded()
    assert decoded.hashes["video"] == 3 * decode(clip).hashes["video"]
    times = decoded.times["video"]
    assert max(there - here for here, there in pairwise(times)) < 0.07
    assert_continuous(decoded)


def test_what_could_not_be_carried_can_be_encoded() -> None:
    """Raw pictures of a device, with --transcode."""
    device = "lavfi:testsrc2=size=64x64:duration=2"
    with pytest.raises(InvalidInput, match=r"can carry \(wrapped_avframe\); --transcode may help"):
        Run(device, OPTIONS).run()
    done = Run(device, MediaOptions(realtime=False, encoding=Encoding(gop_s=1.0))).run()
    assert len(done.segments) == 2
    assert len(done.decoded().hashes["video"]) == 50


def test_an_input_may_be_waited_for_without_end(tmp_path: Path) -> None:
    """The line names no time then."""
    data = make_clip(tmp_path / "clip.ts").read_bytes()
    with serving(data, data) as address:
        run = Run(f"tcp://{address}", MediaOptions(realtime=False, reconnect_for_s=None))
        run.run(segments=5)
    assert "ended; trying to open it again" in run.report.said[0]


def test_a_stopped_relay_does_not_wait(tmp_path: Path) -> None:
    """Whatever pause it is in."""
    data = make_clip(tmp_path / "clip.ts").read_bytes()
    with serving(data) as address:
        run = Run(f"tcp://{address}", MediaOptions(realtime=False, reconnect_for_s=1000))
        run.run(segments=3)
    assert run.report.said == []
