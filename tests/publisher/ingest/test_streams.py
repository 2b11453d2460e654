"""Streams of encoders on their way to a real server: RTMP over sockets, SRT through a program."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Literal

import pytest
from anyio.from_thread import start_blocking_portal

from tests.publisher.ingest.encoder import AUDIO, HANDSHAKE, VIDEO, Encoder, chunks, command, publish
from tests.publisher.media.clips import decode, make_clip
from tests.support.forked import forked, python
from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.publisher.ingest import rtmp_listener, sessions, srt
from tricklecast.publisher.ingest.keys import Channels
from tricklecast.publisher.ingest.rtmp_listener import RtmpListener
from tricklecast.publisher.ingest.sessions import SessionOptions, _Arrivals, _SessionSource, publish_from
from tricklecast.publisher.ingest.srt import SrtReceiver
from tricklecast.publisher.ingest.srt_listener import SrtListener
from tricklecast.publisher.media import reader
from tricklecast.publisher.media.inputs import Kind
from tricklecast.publisher.media.reader import MediaOptions
from tricklecast.trickle.client.arguments import channel_urls
from tricklecast.trickle.errors import InvalidInput


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server; each test uses channels of its own."""
    with local_server() as running:
        yield running


class Ingest:
    """What runs in another thread.

    Attributes:
        port: where encoders connect.
        lines: what it has shown.
    """

    def __init__(self) -> None:
        self.port = 0
        self.lines: list[str] = []

    def shows(self, text: str, times: int = 1) -> None:
        """Wait until so many lines contain a text."""
        eventually(lambda: sum(text in line for line in self.lines) >= times, what=f"{text!r} in {self.lines}")


@contextmanager
def ingesting(
    server: LocalServer,
    *,
    keys: Path | None = None,
    srt: str | None = None,
    many: bool = False,
    reconnect_for_s: float = WITHIN_S,
    container: Literal["mpegts"] | None = None,
    **options: object,
) -> Iterator[Ingest]:
    """Take RTMP streams, or SRT streams at an address, until the block ends, as Ctrl-C ends it.

    Args:
        many: SRT streams for many channels.
    """
    ingest = Ingest()
    media = MediaOptions(container, reconnect_for_s=reconnect_for_s)
    settings = SessionOptions(media=media, **options)  # type: ignore[arg-type]
    say = ingest.lines.append

    async def run() -> None:
        base = f"http://127.0.0.1:{server.port}/trickle/"
        receiver: RtmpListener | SrtListener | SrtReceiver
        channels = Channels(base, keys)
        if srt is not None and many:
            receiver = await SrtListener.open(srt, channels, max_streams=settings.max_sessions, say=say)
        elif srt is None:
            receiver = await RtmpListener.open("127.0.0.1", 0, channels, max_streams=settings.max_sessions, say=say)
        else:
            receiver = await SrtReceiver.open(srt, channel_urls(f"{base}srt"), say=say)
        await publish_from(receiver, settings, say)

    with start_blocking_portal() as portal:
        running = portal.start_task_soon(run)
        try:
            eventually(lambda: ingest.lines or running.done())
            ingest.port = 0 if srt else int(ingest.lines[0].rpartition(":")[2].partition("/")[0])
            yield ingest
        finally:
            running.cancel()  # leaving the portal waits for its end


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command as a process, which is killed at the end of the block if it still runs."""
    with subprocess.Popen(forked(*arguments), stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def segments(server: LocalServer, channel: str) -> list[bytes]:
    """All segments of a channel; waits for its end."""
    found: list[bytes] = []
    while True:
        url = f"http://127.0.0.1:{server.port}/trickle/{channel}/{len(found)}"
        with urllib.request.urlopen(url, timeout=WITHIN_S) as response:
            if response.headers["Lp-Trickle-Closed"]:
                return found
            found.append(response.read())


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds of video and sound, as RTMP carries them."""
    return make_clip(tmp_path_factory.mktemp("clips") / "clip.flv", seconds=2.0)


def test_streams_become_channels(server: LocalServer, clip: Path) -> None:
    """Two encoders at once, over one port; each channel has its stream's frames, and ends with it."""
    with ingesting(server) as ingest, Encoder(ingest.port, "one") as one, Encoder(ingest.port, "two") as two:
        one.send(clip)
        two.send(clip)
        ingest.shows("127.0.0.1 streams h264 64x64, aac", times=2)
        one.end()
        two.end()
        for channel in ("one", "two"):
            ingest.shows(f"{channel}: published 2 segments")
            assert decode(b"".join(segments(server, channel)), "mpegts").hashes == decode(clip).hashes


def test_a_wrong_key_is_refused(server: LocalServer, clip: Path, tmp_path: Path) -> None:
    """The encoder is told, and a line says who came; the right key and the right token are taken."""
    keys = tmp_path / "keys"
    keys.write_text("locked first-secret\n")
    with ingesting(server, keys=keys) as ingest:
        for wrong in ("locked", "other?token=first-secret"):
            with Encoder(ingest.port, wrong) as encoder:
                assert b"wrong stream key" in encoder.answer()
        ingest.shows("127.0.0.1 is refused: wrong stream key")
        for number, right in enumerate(("first-secret", "locked?token=first-secret"), 1):
            with Encoder(ingest.port, right) as encoder:
                encoder.send(clip)
                encoder.end()
                ingest.shows("locked: published 2 segments", times=number)
        assert not any("first-secret" in line for line in ingest.lines)


def test_a_key_is_used_once_at_a_time(server: LocalServer, clip: Path) -> None:
    """A second encoder is refused while the first one streams, which goes on."""
    with ingesting(server) as ingest, Encoder(ingest.port, "taken") as first:
        first.send(clip)
        ingest.shows("taken: 127.0.0.1 streams")
        with Encoder(ingest.port, "taken") as second:
            assert b"already streaming to taken" in second.answer()
        first.end()
        ingest.shows("taken: published 2 segments")


def test_a_stream_may_be_taken_over(server: LocalServer, clip: Path) -> None:
    """With ``takeover`` the first encoder is disconnected, and the channel goes on with the second one's stream."""
    with ingesting(server, takeover=True) as ingest, Encoder(ingest.port, "over") as first:
        first.send(clip)
        ingest.shows("over: 127.0.0.1 streams")
        with Encoder(ingest.port, "over") as second:
            second.send(clip)
            assert b"another encoder took over" in first.answer()
            ingest.shows("over: 127.0.0.1 streams", times=2)
            second.end()
        ingest.shows("over: published 4 segments")


def test_an_encoder_comes_back(server: LocalServer, clip: Path) -> None:
    """After a broken connection the channel waits, and goes on without a jump in its times."""
    with ingesting(server) as ingest:
        with Encoder(ingest.port, "back") as first:
            first.send(clip)
            ingest.shows("back: 127.0.0.1 streams")
            first.break_off()
        with Encoder(ingest.port, "back") as second:
            second.send(clip)
            ingest.shows("back: 127.0.0.1 streams", times=2)
            second.end()
        ingest.shows("back: published 4 segments")
        times = decode(b"".join(segments(server, "back")), "mpegts").times["video"]
        assert len(times) == 100
        assert times == sorted(times)


def test_an_encoder_does_not_come_back(server: LocalServer, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ``reconnect_for_s`` the channel ends. The same key may begin it anew."""
    monkeypatch.setattr(reader, "MIN_OPEN_S", 0.01)
    with ingesting(server, reconnect_for_s=0.01) as ingest:
        for times in (1, 2):
            with Encoder(ingest.port, "gone") as encoder:
                encoder.send(clip)
                ingest.shows("gone: 127.0.0.1 streams", times=times)
            ingest.shows("gone: published 2 segments", times=times)


def test_the_end_of_the_command_ends_all_channels(server: LocalServer, clip: Path) -> None:
    """Encoders that stream, and channels that wait for one: readers get all segments, and then the end."""
    with ingesting(server) as ingest, Encoder(ingest.port, "live") as live:
        live.send(clip)
        with Encoder(ingest.port, "lost") as lost:
            lost.send(clip)
            ingest.shows("lost: 127.0.0.1 streams")
        ingest.shows("live: 127.0.0.1 streams")
    for channel in ("live", "lost"):
        assert sum(f"{channel}: published 2 segments" in line for line in ingest.lines) == 1, ingest.lines
        assert len(segments(server, channel)) == 2


def test_what_is_no_stream_is_shown_and_closed(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other protocols, clients that say too little in time, and encoders that send no media."""
    monkeypatch.setattr(rtmp_listener, "HANDSHAKE_S", 0.05)
    monkeypatch.setattr(rtmp_listener, "SILENCE_S", 0.05)
    monkeypatch.setattr(sessions, "LINE_S", 0.0)
    with ingesting(server) as ingest:
        sent = {
            b"GET / HTTP/1.1\r\n\r\n": "127.0.0.1 is refused: not RTMP",
            HANDSHAKE[:100]: "127.0.0.1 did not ask to publish within 0.05 s",
            publish("silent") + chunks(VIDEO, 0, b"a frame that is cut off")[:-1]: "127.0.0.1 sent no media for 0.05 s",
            HANDSHAKE + command("play", 4.0, None, "key"): "this port only takes streams",
        }
        for data, line in sent.items():
            with socket.create_connection(("127.0.0.1", ingest.port), WITHIN_S) as connection:
                connection.sendall(data)
                ingest.shows(line)
                with suppress(ConnectionResetError):
                    while connection.recv(65536):
                        pass


def test_hostile_clients_do_not_fill_the_terminal(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line in a while, which says how many others there were."""
    now = [0.0]
    monkeypatch.setattr(sessions, "monotonic", lambda: now[0])
    with ingesting(server) as ingest:
        for at in (1.0, 1.1, 1.2, 2.1):
            now[0] = at
            with socket.create_connection(("127.0.0.1", ingest.port), WITHIN_S) as connection:
                connection.sendall(b"x")
                assert connection.recv(1) == b""
        ingest.shows("not RTMP (and 2 more before)")
        assert sum("not RTMP" in line for line in ingest.lines) == 2


def test_there_are_limits(server: LocalServer, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One stream more is refused with a reason; one connection more is closed at once."""
    monkeypatch.setattr(rtmp_listener, "MAX_PENDING", 1)
    with ingesting(server, max_sessions=1) as ingest, Encoder(ingest.port, "first") as first:
        first.send(clip)
        ingest.shows("first: 127.0.0.1 streams")
        with Encoder(ingest.port, "second") as second:
            assert b"this server takes 1 stream at a time" in second.answer()
        with (
            socket.create_connection(("127.0.0.1", ingest.port), WITHIN_S),
            socket.create_connection(("127.0.0.1", ingest.port), WITHIN_S) as third,
        ):
            assert third.recv(1) == b""
        first.end()


def test_a_stream_that_cannot_be_published_is_refused(server: LocalServer, tmp_path: Path) -> None:
    """A codec that segments cannot carry, or a channel that the server does not allow; a line says why."""
    old = make_clip(tmp_path / "old.flv", seconds=2.0, video="libvpx-vp9", audio=None)
    good = make_clip(tmp_path / "good.flv", seconds=1.0)
    with ingesting(server, container="mpegts") as ingest:
        for key, clip in (("old", old), ("_x", good)):
            with Encoder(ingest.port, key) as encoder:
                encoder.send(clip)
                assert b"the stream cannot be published" in encoder.answer()
        ingest.shows("MPEG-TS can carry (vp9)")
        assert not any("--transcode" in line for line in ingest.lines)  # which this command does not have
        ingest.shows("the server does not allow this")


@pytest.mark.parametrize(("codec", "shown"), [("libx265", "hevc"), ("libsvtav1", "av1")])
def test_newer_codecs_come_over_rtmp(server: LocalServer, tmp_path: Path, codec: str, shown: str) -> None:
    """HEVC and AV1 by the four characters of enhanced RTMP; AV1 becomes fragmented MP4."""
    clip = make_clip(tmp_path / "clip.flv", seconds=2.0, video=codec, audio=None)
    with ingesting(server) as ingest, Encoder(ingest.port, shown) as encoder:
        encoder.send(clip)
        encoder.end()
        ingest.shows(f"streams {shown} 64x64")
        ingest.shows(f"{shown}: published")
    data = b"".join(segments(server, shown))
    assert decode(data, "mp4" if shown == "av1" else "mpegts").hashes == decode(clip).hashes


def test_several_tracks_of_a_kind_are_refused(server: LocalServer, clip: Path) -> None:
    """The encoder and the terminal are told; what came before is published."""
    with ingesting(server) as ingest, Encoder(ingest.port, "tracks") as encoder:
        encoder.send(clip)
        ingest.shows("tracks: 127.0.0.1 streams h264")
        encoder.socket.sendall(chunks(VIDEO, 0, b"\x96\x00avc1\x01x"))
        assert b"several video tracks" in encoder.answer()
        ingest.shows("127.0.0.1 is refused: the encoder sends several video tracks over one connection (multitrack)")


def test_a_stream_that_begins_late_is_left_out(server: LocalServer, clip: Path) -> None:
    """Sound that comes more than a second after the picture: the picture is published."""
    with ingesting(server) as ingest, Encoder(ingest.port, "late") as encoder:
        encoder.send(clip, VIDEO)
        ingest.shows("late: 127.0.0.1 streams h264 64x64")
        encoder.send(clip, AUDIO)
        encoder.end()
        ingest.shows("late: published 2 segments")
    assert decode(b"".join(segments(server, "late")), "mpegts").hashes["video"] == decode(clip).hashes["video"]


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
def test_damaged_streams_are_published_or_refused(clip: Path, container: Literal["mpegts", "fmp4"]) -> None:
    """Whatever a stream says, the session's thread raises no other exception than InvalidInput."""
    for seed in range(20):
        random = Random(seed)
        damaged = bytearray(clip.read_bytes())
        for _ in range(random.choice([3, 30, 300])):
            damaged[random.randrange(13, len(damaged))] = random.randrange(256)
        with ThreadPoolExecutor(1) as sender:
            ours, theirs = socket.socketpair()
            arrivals = _Arrivals("damaged", Kind.NETWORK, say=lambda _: None)
            arrivals.waiting.put((theirs, "127.0.0.1", "flv"))
            ended = threading.Event()
            ended.set()

            def send(end: socket.socket = ours, data: bytes = bytes(damaged)) -> None:
                with end, suppress(OSError):
                    end.sendall(data)

            sender.submit(send)
            with suppress(InvalidInput):
                source = _SessionSource(arrivals, MediaOptions(container=container), has_ended=ended)
                for _ in source.open(_Silent(), lambda: False):
                    pass


class _Silent:
    """Hears reports."""

    def say(self, message: str, /) -> None:
        """Nothing."""

    def source(self, state: str, /) -> None:
        """Nothing."""


def test_a_fault_ends_one_stream_only(
    server: LocalServer, clip: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An exception that nobody expected is printed, and the other streams go on."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    with ingesting(server) as ingest, Encoder(ingest.port, "sound") as sound:
        sound.send(clip)
        ingest.shows("sound: 127.0.0.1 streams")
        with monkeypatch.context() as faulty:
            faulty.setattr(sessions, "run", fail)
            with Encoder(ingest.port, "faulty") as encoder:
                assert b"the stream cannot be published" in encoder.answer()
            ingest.shows("faulty: stopped by a fault of this program")
            faulty.setattr(rtmp_listener, "_Encoder", fail)
            with socket.create_connection(("127.0.0.1", ingest.port), WITHIN_S) as connection:
                assert connection.recv(1) == b""
        sound.end()
        ingest.shows("sound: published 2 segments")
    assert capfd.readouterr().err.count("RuntimeError: a fault") == 2


def test_the_command_takes_a_stream_of_libavformat(server: LocalServer, clip: Path, tmp_path: Path) -> None:
    """The whole command, with FFmpeg's own RTMP client; Ctrl-C ends it."""
    to = f"http://127.0.0.1:{server.port}/trickle/"
    arguments = ("ingest", "rtmp://127.0.0.1:0", "--to", to, "--max-streams", "2")
    with running(*arguments) as process:
        assert process.stderr is not None
        port = process.stderr.readline().rpartition(":")[2].partition("/")[0]
        send = [
            python(),
            "-m",
            "tests.publisher.media.sender",
            f"rtmp://127.0.0.1:{port}/live/av",
            "flv",
            str(clip),
        ]
        subprocess.run(send, timeout=WITHIN_S, check=True)
        while "av: published 2 segments" not in process.stderr.readline():
            assert process.poll() is None
        assert decode(b"".join(segments(server, "av")), "mpegts").hashes == decode(clip).hashes
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 130


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://127.0.0.1:1", "--to", "http://127.0.0.1:1/trickle/"), "use rtmp://HOST:PORT or srt://HOST:PORT"),
        (("rtmp://127.0.0.1/live", "--to", "http://127.0.0.1:1/trickle/"), "leave out the path"),
        (("rtmp://127.0.0.1:0", "--to", "http://127.0.0.1:1/trickle/cam"), "names one channel"),
        (("rtmp://192.0.2.1:1", "--to", "http://127.0.0.1:1/trickle/"), "cannot listen on 192.0.2.1:1"),
        (("srt://127.0.0.1", "--to", "http://127.0.0.1:1/trickle/cam"), "an SRT address has a port"),
        (("srt://127.0.0.1:9", "--to", "http://127.0.0.1:1/trickle/cam", "--keys", "x"), "one stream has no key"),
        (("srt://127.0.0.1:9", "--to", "http://127.0.0.1:1/trickle/cam"), "SRT needs ffmpeg (built with libsrt) or"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[str, ...], message: str) -> None:
    """One line, and an exit code that is not zero; nothing on PATH can receive SRT."""
    done = subprocess.run(
        forked("ingest", *arguments),
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == (1 if "listen" in message or "needs" in message else 2)
    assert message in " ".join(done.stderr.replace("│", " ").split())


PROGRAMS = ["ffmpeg", "gst-launch-1.0"]


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg, which sends the streams")
@pytest.mark.parametrize("program", PROGRAMS)
def test_srt_streams_follow_one_another(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """ffmpeg or GStreamer receives a stream, and the next one of the same channel; the port is free at the end."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    found, others = shutil.which, set(PROGRAMS) - {program}
    monkeypatch.setattr(shutil, "which", lambda name: None if name in others else found(name))
    monkeypatch.setattr(srt, "RESTART_S", 0.05)
    clip = make_clip(tmp_path / "clip.ts", seconds=2.0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"srt://127.0.0.1:{port}"
    with ingesting(server, srt=address) as ingest:
        assert address in ingest.lines[0]
        # Twice as fast as it plays: SRT drops what comes much faster.
        send = [
            "ffmpeg",
            "-loglevel",
            "error",
            "-readrate",
            "2",
            "-i",
            str(clip),
            "-c",
            "copy",
            "-f",
            "mpegts",
            address,
        ]
        for number in (1, 2):
            eventually(lambda: subprocess.run(send, timeout=WITHIN_S, capture_output=True, check=False).returncode == 0)
            ingest.shows("streams h264", number)
    video = decode(b"".join(segments(server, "srt")), "mpegts").hashes["video"]
    assert len(video) > 25  # SRT loses packets as a sender closes, and on a busy machine
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", port))


def test_a_silent_srt_client_does_not_keep_the_port(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program takes one connection, and libsrt does not tell who has it: after a silence it is started again."""
    monkeypatch.setattr(srt, "SILENCE_S", 0.05)
    monkeypatch.setattr(srt, "RESTART_S", 0.0)
    starts = tmp_path / "starts"
    silent = ["sh", "-c", f"echo >> {starts}; exec sleep {WITHIN_S:g}"]
    monkeypatch.setattr(srt, "find_program", lambda _: silent)
    with ingesting(server, srt="srt://127.0.0.1:0") as ingest:
        eventually(lambda: starts.exists() and starts.read_text().count("\n") >= 3)
        assert len(ingest.lines) == 1
