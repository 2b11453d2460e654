"""Many SRT streams on one port: real callers (ffmpeg, and libsrt itself), and a real server."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest

from tests.publisher.ingest.test_streams import ingesting, segments
from tests.publisher.media.clips import decode, make_clip
from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.publisher.ingest import libsrt, srt_listener
from tricklecast.publisher.ingest.keys import Channels
from tricklecast.publisher.ingest.libsrt import SrtError, SrtSocket, library
from tricklecast.publisher.ingest.srt_listener import SrtListener, parse_address
from tricklecast.trickle.errors import InvalidInput


def _is_there() -> bool:
    try:
        library()
    except InvalidInput:
        return False
    return shutil.which("ffmpeg") is not None


needs_srt = pytest.mark.skipif(not _is_there(), reason="needs libsrt and ffmpeg")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """Each test uses channels of its own."""
    with local_server() as running:
        yield running


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three groups of pictures, and a tone."""
    return make_clip(tmp_path_factory.mktemp("clips") / "clip.mp4", seconds=3)


@pytest.fixture
def address() -> str:
    """Where to listen."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"srt://127.0.0.1:{probe.getsockname()[1]}"


@contextmanager
def encoding(film: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Stream a film, at its pace; it is cut off at the end of the block."""
    command = ["ffmpeg", "-loglevel", "quiet", "-re", "-i", str(film), "-c", "copy", "-f", "mpegts", address]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.terminate()  # it says goodbye


@contextmanager
def calling(address: str, stream_id: bytes) -> Iterator[int]:
    """A caller that connects and sends nothing."""
    srt, port = library(), int(address.rpartition(":")[2])
    number = srt.srt_create_socket()
    srt.srt_setsockflag(number, libsrt._STREAMID, stream_id, len(stream_id))
    packed = libsrt._packed(socket.AF_INET, ("127.0.0.1", port))
    assert srt.srt_connect(number, packed, len(packed)) == 0
    try:
        yield number
    finally:
        srt.srt_close(number)


@needs_srt
def test_two_encoders_stream_to_one_port(server: LocalServer, film: Path, address: str) -> None:
    """At the same time, each to the channel of its stream id, written in either form."""
    with ingesting(server, srt=address, many=True, reconnect_for_s=0.1) as ingest:
        assert ingest.lines == [f"encoders stream to {address}?streamid=CHANNEL"]
        ids = {"plain": "plain", "standard": "#!::r=standard,m=publish"}
        with (
            encoding(film, f"{address}?streamid={ids['plain']}") as one,
            encoding(film, f"{address}?streamid={ids['standard']}") as other,
        ):
            for name in ids:
                ingest.shows(f"{name}: 127.0.0.1 streams h264 64x64, aac")
            assert (one.wait(WITHIN_S), other.wait(WITHIN_S)) == (0, 0)
        for name in ids:
            ingest.shows(f"{name}: published 3 segments")
            found = decode(b"".join(segments(server, name)), "mpegts").hashes["video"]
            # What a caller has sent within the latency before it closes its connection is lost.
            assert len(found) > 60
            assert found[:60] == decode(film).hashes["video"][:60]


@needs_srt
def test_an_encoder_that_comes_back_goes_on(server: LocalServer, film: Path, address: str) -> None:
    """In the same channel; meanwhile a second one with its stream id is refused."""
    with ingesting(server, srt=address, many=True, reconnect_for_s=WITHIN_S) as ingest:
        with encoding(film, f"{address}?streamid=back"):
            ingest.shows("back: 127.0.0.1 streams")
            with encoding(film, f"{address}?streamid=back"):
                ingest.shows("127.0.0.1 is refused: 127.0.0.1 is already streaming to back")

        def comes_back() -> bool:
            with encoding(film, f"{address}?streamid=back") as again:
                again.wait(WITHIN_S)
            return sum("back: 127.0.0.1 streams" in line for line in ingest.lines) >= 2

        eventually(comes_back)
    channel = server.plane.registry.channels["back"]
    assert (channel.epoch, channel.ended) == (1, True)


@needs_srt
def test_who_may_not_publish_is_refused(
    server: LocalServer, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong secret, no stream id, a reader: the connection is closed, and a line says why."""
    monkeypatch.setattr("tricklecast.publisher.ingest.sessions.LINE_S", 0.0)
    keys = tmp_path / "keys.txt"
    keys.write_text("cam correct-horse\n")
    with ingesting(server, srt=address, many=True, keys=keys) as ingest:
        for stream_id, why in {
            b"": "no channel in the stream id",
            b"battery-staple": "wrong stream key",
            b"door?token=correct-horse": "wrong stream key",
            b"#!::r=cam,m=request,s=correct-horse": "only encoders connect here",
        }.items():
            with calling(address, stream_id):
                ingest.shows(f"127.0.0.1 is refused: {why}")
        with calling(address, b"#!::r=cam,m=publish,s=correct-horse"):
            pass
    assert not [line for line in ingest.lines if "fault" in line]


@needs_srt
def test_a_passphrase_keeps_strangers_out(server: LocalServer, film: Path, address: str) -> None:
    """The library refuses them in its handshake; with it, the media is encrypted."""
    locked = f"{address}?passphrase=correct-horse"
    with ingesting(server, srt=locked, many=True, reconnect_for_s=0.1) as ingest:
        for wrong in ("", "&passphrase=battery-staple"):
            with encoding(film, f"{address}?streamid=safe{wrong}") as refused:
                assert refused.wait(WITHIN_S)
        with encoding(film, f"{locked}&streamid=safe") as taken:
            assert taken.wait(WITHIN_S) == 0
        ingest.shows("safe: published 3 segments")
    assert "correct-horse" not in "".join(ingest.lines)


@needs_srt
def test_callers_that_send_nothing_are_bounded(
    server: LocalServer, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In number and in time. When it ends, the command does not wait for them."""
    monkeypatch.setattr(srt_listener, "MAX_PENDING", 1)
    monkeypatch.setattr(srt_listener, "SILENCE_S", 0.2)
    srt, state_closed = library(), 5  # SRTS_CONNECTED; what comes after it is broken or closed
    with ingesting(server, srt=address, many=True, max_sessions=1), calling(address, b"a") as one:
        with calling(address, b"b"), calling(address, b"c") as three:
            eventually(lambda: srt.srt_getsockstate(three) > state_closed)
        eventually(lambda: srt.srt_getsockstate(one) > state_closed)
        monkeypatch.setattr(srt_listener, "SILENCE_S", 3600.0)
        with calling(address, b"d"):
            pass


@needs_srt
def test_a_listener_that_is_closed_ends_what_waits(address: str) -> None:
    """And its address is free again; one that is in use is an error."""
    port = int(address.rpartition(":")[2])

    def listening() -> SrtSocket:
        return SrtSocket.listening("127.0.0.1", port, passphrase="", key_bytes=0, latency_ms=120)

    listener = listening()
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as taken:
        taken.bind(("::1", 0))
        with pytest.raises(InvalidInput, match="cannot listen on ::1"):
            SrtSocket.listening("::1", taken.getsockname()[1], passphrase="", key_bytes=0, latency_ms=120)
    listener.close()
    with pytest.raises(SrtError):
        listener.accept()


def test_a_port_that_is_in_use_is_a_plain_error(address: str) -> None:
    """In the system's words."""

    async def main() -> None:
        with pytest.raises(InvalidInput, match=r"^cannot listen on 127\.0\.0\.1:[0-9]+: Address already in use$"):
            await SrtListener.open(address, Channels("http://127.0.0.1:1/"), max_streams=1, say=print)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        anyio.run(main)


@needs_srt
def test_messages_that_are_there_come_together(address: str) -> None:
    """Each batch takes a while: one message at a time would be slower than a stream, and most of it was lost."""
    port, srt = int(address.rpartition(":")[2]), library()
    listener = SrtSocket.listening("127.0.0.1", port, passphrase="", key_bytes=0, latency_ms=120)
    with ThreadPoolExecutor(1) as thread, closing(listener):
        accepted = thread.submit(listener.accept)
        with calling(address, b"cam") as caller:
            receiver, peer = accepted.result(WITHIN_S)
            assert (peer, receiver.prepare(WITHIN_S)) == ("127.0.0.1", "cam")
            for _ in range(300):
                assert srt.srt_sendmsg(caller, b"x" * 1316, 1316, -1, 1) == 1316
            size = batches = 0
            while size < 300 * 1316:
                size, batches = size + len(receiver.receive()), batches + 1
            assert batches < 150
            receiver.close()


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("passphrase=short", "a passphrase of SRT has 10 to 79 characters"),
        ("mode=caller", "leave out mode="),
        ("pkt_size=1316", "not pkt_size"),
        ("latency=soon", "whole numbers"),
    ],
)
def test_options_that_cannot_be_used(query: str, why: str) -> None:
    """Are one line."""
    with pytest.raises(InvalidInput, match=why):
        parse_address(f"srt://127.0.0.1:1?{query}")


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else of the command needs it."""
    monkeypatch.setattr(libsrt, "FILES", ())
    monkeypatch.setattr("ctypes.util.find_library", lambda _: None)
    with pytest.raises(InvalidInput, match=r"apt-get install libsrt1\.5-gnutls"):
        library.__wrapped__()
