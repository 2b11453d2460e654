"""What an input is taken for, and how it is opened."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from io import BufferedRWPair
from itertools import cycle
from pathlib import Path
from typing import Self

import pytest

from tests.publisher.media.clips import make_clip
from tests.support.forked import python
from tests.support.ports import free_port
from tricklecast.publisher.media import inputs
from tricklecast.publisher.media.inputs import Input, Kind, NetworkBytes
from tricklecast.trickle.errors import InvalidInput

LIMIT_S = 120


def never() -> bool:
    """Nothing is stopped."""
    return False


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("film.mp4", Kind.FILE),
        ("/a/b:c.ts", Kind.FILE),
        ("file:///a.ts", Kind.FILE),
        ("testsrc.mp4", Kind.FILE),
        ("-", Kind.PIPE),
        ("rtsp://h/s", Kind.NETWORK),
        ("udp://127.0.0.1:9000", Kind.NETWORK),
        ("https://h/film.mp4", Kind.NETWORK),
        ("v4l2:/dev/video0", Kind.DEVICE),
        ("alsa:hw:0", Kind.DEVICE),
        ("avfoundation:0:1", Kind.DEVICE),
        ("testsrc", Kind.GENERATED),
        ("testsrc:size=320x180", Kind.GENERATED),
    ],
)
def test_an_input_is_recognised(text: str, kind: Kind) -> None:
    """By its scheme, or the name of a kind of device; everything else is a file."""
    assert Input.parse(text).kind is kind


def test_some_inputs_wait_for_a_sender() -> None:
    """Servers, in libavformat's three ways to say so."""
    assert Input.parse("rtmp://0.0.0.0/live/x", {"listen": "1"}).listens
    assert Input.parse("rtsp://0.0.0.0/x", {"rtsp_flags": "listen"}).listens
    assert Input.parse("tcp://0.0.0.0:9000?a=b&listen=1").listens
    assert not Input.parse("tcp://h:9000?listen=0").listens
    assert Input.parse("udp://127.0.0.1:9000").listens  # there is nothing to connect to


def test_a_sender_is_waited_for_no_longer_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit at first; within what is left when it is opened again. Over UDP in steps of a read's time."""
    monkeypatch.setattr(inputs, "READ_S", 0.15)
    for url in ("udp://127.0.0.1:0", f"tcp://127.0.0.1:{free_port()}?listen=1"):
        with pytest.raises(InvalidInput, match="nothing came in time"):
            Input.parse(url).open(never, within_s=0.2)


def test_a_sender_over_udp_may_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins when the first wait for its bytes is over."""
    clip = make_clip(tmp_path / "clip.ts").read_bytes()
    waited, over = threading.Event(), threading.Event()
    begins = NetworkBytes.begins

    def noted(connection: NetworkBytes) -> bool:
        came = begins(connection)
        inputs.READ_S = 10.0  # type: ignore[misc]  # a busy sender is not a silent one
        waited.set()
        return came

    monkeypatch.setattr(NetworkBytes, "begins", noted)
    monkeypatch.setattr(inputs, "READ_S", 0.05)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        port = free_port()

        def send() -> None:
            waited.wait()
            for place in cycle(range(0, len(clip), 1316)):
                if over.wait(0.0005):
                    return
                with suppress(OSError):  # nobody listens for a moment
                    sender.sendto(clip[place : place + 1316], ("127.0.0.1", port))

        thread = threading.Thread(target=send)
        thread.start()
        try:
            opened = Input.parse(f"udp://127.0.0.1:{port}").open(never)
            assert {stream.type for stream in opened.source.streams.values()} == {"video", "audio"}
            opened.source.close()
        finally:
            over.set()
            thread.join()


def test_a_file_is_not_live(tmp_path: Path) -> None:
    """It waits for whoever reads it; its name may be a URL."""
    clip = make_clip(tmp_path / "clip.mp4", seconds=0.5)
    for name in (str(clip), f"file://{clip}"):
        opened = Input.parse(name).open(never)
        assert not opened.is_live
        assert len(opened.source.streams) == 2
        opened.source.close()


def test_a_pipe_begins_with_its_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding out what it carries takes a while; a live encoder goes on meanwhile."""
    clip = make_clip(tmp_path / "clip.ts").read_bytes()
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as standard_input, os.fdopen(write_end, "wb") as encoder:
        monkeypatch.setattr(sys, "stdin", standard_input)

        def send() -> None:
            encoder.write(clip)
            encoder.close()

        sending = threading.Thread(target=send)
        before = time.monotonic()
        sending.start()
        opened = Input.parse("-").open(never)
        assert opened.begun_at is not None
        assert before <= opened.begun_at <= time.monotonic()
        assert sum(track == 0 for track, _ in opened.source.packets()) == 75
        opened.source.close()
        sending.join()


def test_a_device_is_live() -> None:
    """libavfilter is one as well, and there everywhere; options reach it."""
    opened = Input.parse("lavfi:testsrc2=size=64x64", {"graph": "testsrc2=size=32x32"}).open(never)
    assert opened.is_live
    assert getattr(opened.source.streams[0].codec_context, "width", None) == 32
    opened.source.close()


def test_a_generated_source_paces_itself() -> None:
    """Unless it shall be as fast as it can."""
    slow, quick = (Input.parse("testsrc:duration=1s,size=160x90", realtime=realtime) for realtime in (True, False))
    assert slow.open(never).is_live
    assert list(slow.open(lambda: True).source.packets()) == []
    assert sum(track == 0 for track, _ in quick.open(never).source.packets()) == 25


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing://h", "cannot read nothing://h: PyAV was built without this protocol"),
        (
            "srt://h:9",
            "cannot read srt://h:9: PyAV was built without this protocol; let `tri",
        ),
        ("lavfi:nothing", "cannot read lavfi:nothing: Filter not found"),
        ("tcp://127.0.0.1:1", "cannot read tcp://127.0.0.1:1: Connection refused"),
        ("testsrc:size=huge", "testsrc: size=huge cannot be read"),
    ],
)
def test_what_cannot_be_opened_is_said(text: str, said: str) -> None:
    """In one line that names it."""
    with pytest.raises(InvalidInput) as failure:
        Input.parse(text).open(never)
    assert str(failure.value).startswith(said)


SDP = b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nt=0 0\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n"


class UdpCamera:
    """A camera that answers 461 to a client that wants RTP over TCP, and sends a clip over UDP.

    Args:
        clip: of pictures alone; ``None``: it refuses UDP as well.
    """

    def __init__(self, clip: Path | None) -> None:
        self._clip = clip
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"rtsp://127.0.0.1:{self._server.getsockname()[1]}/s"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with suppress(OSError), connection, connection.makefile("rwb") as stream:
                    self._serve(stream)

    def _serve(self, stream: BufferedRWPair) -> None:
        port = ""
        while request := stream.readline():
            headers = dict(line.split(b": ", 1) for line in iter(stream.readline, b"\r\n"))
            status, body, more = b"200 OK", b"", b""
            if request.startswith(b"DESCRIBE"):
                body = SDP
            elif request.startswith(b"SETUP"):
                wanted = headers[b"Transport"].strip()
                if b"TCP" in wanted or self._clip is None:
                    status = b"461 Unsupported Transport"
                else:
                    port = wanted.decode().partition("client_port=")[2].partition("-")[0]
                    more = b"Session: 1\r\nTransport: %b;server_port=6000-6001\r\n" % wanted
            head = b"RTSP/1.0 %b\r\nCSeq: %b\r\n" % (status, headers[b"CSeq"].strip())
            stream.write(
                head + more + b"Content-Type: application/sdp\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            stream.flush()
            if request.startswith(b"PLAY"):
                sender = [python(), "-m", "tests.publisher.media.sender", f"rtp://127.0.0.1:{port}", "rtp"]
                subprocess.run([*sender, str(self._clip)], check=True, timeout=LIMIT_S)


def test_a_camera_that_sends_over_udp_only_is_read_over_udp(tmp_path: Path) -> None:
    """It refuses TCP with 461. People are told, since packets may be lost now."""
    with UdpCamera(make_clip(tmp_path / "clip.ts", audio=None)) as camera:
        opened = Input.parse(camera.url).open(never)
        assert opened.note == f"{camera.url} does not send over TCP: it is read over UDP, where packets may be lost"
        with closing(opened.source) as source:
            assert [stream.type for stream in source.streams.values()] == ["video"]
            _, packet = next(iter(source.packets()))
            assert packet.is_keyframe


def test_a_camera_that_refuses_both_is_told_of() -> None:
    """The line has both reasons. Whoever chose a way to send gets that one only."""
    with UdpCamera(None) as camera:
        with pytest.raises(InvalidInput, match=r"cannot read rtsp://127.* over TCP: .*; nor over UDP: ") as failure:
            Input.parse(camera.url).open(never)
        assert "--input-option" not in str(failure.value)
        with pytest.raises(InvalidInput, match="UDP only: --input-option rtsp_transport=udp"):
            Input.parse(camera.url, {"rtsp_transport": "tcp"}).open(never)


def test_a_dead_source_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection, and nothing comes."""
    monkeypatch.setattr(inputs, "READ_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InvalidInput, match="nothing came in time"):
            Input.parse(url).open(never)


def test_the_name_of_a_camera_has_no_password() -> None:
    """Messages and the live line show the name; the name of a file stays as it is."""
    assert Input.parse("rtsp://me:secret@camera/stream1").name == "rtsp://***@camera/stream1"
    assert Input.parse("me@home.mp4").name == "me@home.mp4"
