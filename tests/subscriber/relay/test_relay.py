"""``tricklecast relay``: channels on their way to servers of RTMP and SRT, over real sockets."""

from __future__ import annotations

import io
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.publisher.ingest.test_streams import Ingest, ingesting, segments
from tests.publisher.media.clips import Decoded, decode, make_clip
from tests.publisher.media.test_publisher import picture
from tests.subscriber.fake import Exchange, fake
from tests.subscriber.fake import run as in_loop
from tests.support.forked import forked
from tests.support.local import LocalServer, local_server
from tests.support.ports import free_port
from tests.support.segments import cut
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.publisher.media.publisher import MediaPublisher
from tricklecast.subscriber.relay import run as relays
from tricklecast.subscriber.relay.outflow import Outflow, aac_parameters
from tricklecast.subscriber.relay.run import Request, _Relay, _Waiting, run
from tricklecast.subscriber.relay.target import Target
from tricklecast.trickle.errors import ChannelNotFound, InvalidInput, TrickleError
from tricklecast.trickle.terminal import Screen

GOP = 25


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """One server for all; each test has channels of its own."""
    with local_server(channel_drain_s=3600) as running:
        yield running


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three groups of pictures, and a tone."""
    return make_clip(tmp_path_factory.mktemp("clips") / "clip.mp4", seconds=3)


@pytest.fixture(scope="module")
def wanted(film: Path) -> Decoded:
    """What is in it."""
    return decode(film)


def published(server: LocalServer, name: str, bodies: list[bytes], mime: str = "video/mp2t") -> str:
    """The URL of a channel that has ended."""
    with server.client() as target:
        channel = target.channel(name)
        channel.create(mime)
        if bodies:
            channel.publish(0, *bodies)
        channel.end()
    return f"http://127.0.0.1:{server.port}/trickle/{name}"


def relayed(url: str, target: Target | str, **options: float) -> tuple[bool, str]:
    """Push a channel from its first segment: whether the target got all of it, and what was said."""
    said = io.StringIO()
    where = Target.parse(target) if isinstance(target, str) else target

    async def main() -> bool:
        return await run(Request(url, where, start=0, **options), Screen(said))  # type: ignore[arg-type]

    return in_loop(main), said.getvalue()


@pytest.mark.parametrize("container", ["mpegts", "mp4"])
def test_a_channel_goes_to_an_rtmp_server(server: LocalServer, film: Path, wanted: Decoded, container: str) -> None:
    """All frames arrive; the end of the channel ends the stream in order. No line has the stream key."""
    name = f"push-{container}"
    url = published(server, name, cut(film, container), "video/mp2t" if container == "mpegts" else "video/mp4")
    with ingesting(server) as ingest:
        is_whole, said = relayed(url, f"rtmp://127.0.0.1:{ingest.port}/live/{name}-copy")
        ingest.shows(f"{name}-copy: published 3 segments")
    assert is_whole
    assert re.fullmatch(rf"sent \d+\.\d kB to rtmp://127\.0\.0\.1:{ingest.port}/live/\*\*\*\n", said)
    got = decode(b"".join(segments(server, f"{name}-copy")), "mpegts")
    assert got.hashes["video"] == wanted.hashes["video"]
    assert len(got.hashes["audio"]) >= len(wanted.hashes["audio"]) - 1


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg sends SRT")
def test_a_channel_goes_to_an_srt_server(server: LocalServer, film: Path, tmp_path: Path) -> None:
    """ffmpeg sends it, and here another one takes it. The line has no passphrase."""
    port, path = free_port(), tmp_path / "taken.ts"
    options = "passphrase=secret-secret"
    taker = ["ffmpeg", "-nostdin", "-loglevel", "error", "-i", f"srt://127.0.0.1:{port}?mode=listener&{options}"]
    with subprocess.Popen([*taker, "-c", "copy", path]) as process:
        try:
            url = published(server, "srt", cut(film))
            is_whole, said = relayed(url, f"srt://127.0.0.1:{port}?{options}")
            process.wait(WITHIN_S)
        finally:
            process.kill()
    assert is_whole
    assert "secret" not in said
    assert len(decode(path).hashes["video"]) >= 2 * GOP


class Cutter:
    """Passes connections on to a server, but breaks the first one after some bytes of its client."""

    def __init__(self, port: int, after: int) -> None:
        self._to, self._after = port, after
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Cutter:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()

    def _run(self) -> None:
        left: int | None = self._after
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                with client, socket.create_connection(("127.0.0.1", self._to)) as server:
                    back = threading.Thread(target=self._copy, args=(server, client, None), daemon=True)
                    back.start()
                    self._copy(client, server, left)
                    left = None
                    for end in (client, server):
                        with suppress(OSError):
                            end.shutdown(socket.SHUT_RDWR)
                    back.join()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, left: int | None) -> None:
        with suppress(OSError):
            while (left is None or left > 0) and (data := source.recv(1024)):
                target.sendall(data)
                left = None if left is None else left - len(data)


@contextmanager
def cut_off(ingest: Ingest, after: int) -> Iterator[int]:
    """The port of a :class:`Cutter`."""
    with Cutter(ingest.port, after) as cutter:
        yield cutter.port


def test_a_connection_that_breaks_is_made_anew(
    server: LocalServer, film: Path, wanted: Decoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on at a key picture; people are told, and the exit code is not 0."""
    monkeypatch.setattr(relays, "MIN_LIFE_S", 0.0)
    url = published(server, "broken", [*cut(film), *cut(film)])
    with ingesting(server) as ingest, cut_off(ingest, after=12_000) as port:
        is_whole, said = relayed(url, f"rtmp://127.0.0.1:{port}/live/broken-copy")
        ingest.shows("broken-copy: 127.0.0.1 streams h264 64x64, aac", times=2)
        ingest.shows("broken-copy: published")
    assert not is_whole
    assert f"warning: rtmp://127.0.0.1:{port}/live/***: " in said
    assert "; trying for 60 s to connect again" in said
    got = decode(b"".join(segments(server, "broken-copy")), "mpegts").hashes["video"]
    assert got[-GOP:] == wanted.hashes["video"][-GOP:]


@pytest.mark.parametrize("keys", [True, False])
def test_a_target_that_cannot_be_reached_is_an_error(
    server: LocalServer, film: Path, tmp_path: Path, keys: bool
) -> None:
    """At once, with the server's words where it has some; the stream key stands nowhere."""
    url = published(server, f"error-{keys}", cut(film))
    file = tmp_path / "keys"
    file.write_text("cam another-secret\n")
    with ingesting(server, keys=file) as ingest:
        port = ingest.port if keys else free_port()
        with pytest.raises(TrickleError, match=r"cannot push to rtmp://127.*/live/\*\*\*: ") as failure:
            relayed(url, f"rtmp://127.0.0.1:{port}/live/my-secret-key")
    assert "my-secret" not in str(failure.value)
    assert ("stream key" if keys else "Connection refused") in str(failure.value)


def test_a_target_that_breaks_off_is_an_error_of_its_own(server: LocalServer) -> None:
    """The line has none of the warnings that libavformat has of the stream from here: advice, and made-up times."""
    url = f"http://127.0.0.1:{server.port}/trickle/breaks-off"

    async def publish() -> None:
        async with MediaPublisher(url, when_full="wait") as publisher:
            for number in range(30):
                await publisher.write(picture(number), pts=number, time_base=Fraction(1, 30))

    in_loop(publish)
    with (
        ingesting(server) as ingest,
        cut_off(ingest, after=5_000) as port,
        pytest.raises(TrickleError, match=r"cannot push to rtmp://127.*/live/\*\*\*: ") as failure,
    ):
        relayed(url, f"rtmp://127.0.0.1:{port}/live/breaks-off-copy")
    assert not re.search("Consider|making some up", str(failure.value))


def test_a_channel_that_is_no_media_is_said(server: LocalServer) -> None:
    """Without words on files and on options of other commands."""
    url = published(server, "text", [b"no media"])
    with pytest.raises(TrickleError, match=r"^segment 0 is no media .* into a live stream: it is neither .* nor MP4$"):
        relayed(url, "rtmp://127.0.0.1:1/live/key")


def test_streams_that_cannot_be_pushed_are_said() -> None:
    """A stream has a container, which may not take all."""
    with pytest.raises(TrickleError, match=r"^a live stream holds none of this channel's streams: none$"):
        Outflow(print).made({})


@pytest.mark.parametrize("was_good", [False, True])
def test_a_target_that_does_not_take_the_end(
    server: LocalServer, film: Path, was_good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error where it never took the stream: a short channel is over before the program has connected."""
    monkeypatch.setattr(relays, "MIN_LIFE_S", 0.0 if was_good else 1e9)
    url = published(server, f"end-{was_good}", cut(film)[:1])
    script = "import sys; sys.stdin.buffer.read(); sys.exit('refused')"
    target = Target("there", "there", (sys.executable, "-c", script, "there"), ())
    if was_good:
        is_whole, said = relayed(url, target)
        assert not is_whole
        assert said.startswith("warning: there: refused\n")
    else:
        with pytest.raises(TrickleError, match=r"^cannot push to there: refused$"):
            relayed(url, target)


def test_a_channel_without_a_segment_needs_no_target(server: LocalServer) -> None:
    """None is tried, and the line says so."""
    url = published(server, "without", [])
    is_whole, said = relayed(url, "rtmp://127.0.0.1:1/live/key")
    assert is_whole
    assert said == "nothing was sent to rtmp://127.0.0.1:1/live/***: the channel has ended, and had nothing to send\n"


def test_a_target_that_stays_away_is_given_up(server: LocalServer, film: Path) -> None:
    """After the time that was given, of failures in a row; the line has the last words, without secrets."""
    url = published(server, "away", [*cut(film), *cut(film)])
    script = "import sys; sys.stdin.buffer.read(100); sys.exit('no more of secret')"
    target = Target("secret", "there", (sys.executable, "-c", script), ("secret",))
    said = io.StringIO()

    async def main() -> None:
        relay = _Relay(Request(url, target, start=0, reconnect_s=0.01), Screen(said))
        relay._was_good = True  # the connection before was good
        await relay.run()

    with pytest.raises(TrickleError, match=r"cannot push to there: no more of \*\*\*"):
        in_loop(main)


def test_the_source_may_be_away_too(film: Path) -> None:
    """As long as the target may; people are told."""
    script = "import sys; sys.stdin.buffer.read()"
    target = Target("secret", "there", (sys.executable, "-c", script), ("secret",))
    said = io.StringIO()
    is_away = True

    async def source(exchange: Exchange) -> None:
        nonlocal is_away
        if exchange.tail == "0":
            await exchange.segment(0, cut(film)[0], Content_Type="video/mp2t")  # of a server that tells no ends
        elif is_away:
            is_away = False
            await exchange.text(404, "Stream not found")
        else:
            await exchange.empty(closed="terminated")

    async def main(**options: Any) -> None:
        async with fake(source) as server:
            await run(Request(server.url, target, start=0, **options), Screen(said))

    with pytest.raises(ChannelNotFound):
        in_loop(main)
    is_away = True
    in_loop(lambda: main(reconnect_s=None))
    assert "warning: channel not found (HTTP 404, segment 1); trying again\n" in said.getvalue()


@pytest.mark.parametrize("came", [0, 1 / 2])
def test_a_segment_that_breaks_does_not_end_a_relay(film: Path, wanted: Decoded, tmp_path: Path, came: float) -> None:
    """A server that was killed has lost its rest. The target gets the part that came, and the segments behind it."""
    path = tmp_path / "taken.mkv"
    script = f"import pathlib, sys; pathlib.Path({str(path)!r}).write_bytes(sys.stdin.buffer.read())"
    target = Target("there", "there", (sys.executable, "-c", script, "there"), ())
    said = io.StringIO()
    first, second = cut(film)[:2]
    part = first[: int(came * len(first)) // 188 * 188]

    has_broken = False

    async def source(exchange: Exchange) -> None:
        nonlocal has_broken
        if exchange.tail == "0" and not has_broken:
            has_broken = True
            await exchange.begin(0, Content_Type="video/mp2t")
            if part:
                await exchange.chunk(part)
            exchange.abort()
        elif exchange.tail == "0":
            await exchange.text(470, "segment not available", latest=1)
        elif exchange.tail == "1":
            await exchange.segment(1, second, Content_Type="video/mp2t")
        else:
            await exchange.empty(closed="terminated")

    async def main() -> bool:
        async with fake(source) as server:
            return await run(Request(server.url, target, start=0), Screen(said))

    assert not in_loop(main)
    assert f"warning: segment 0 broke after {len(part)} bytes: connection lost" in said.getvalue()
    assert "left out" not in said.getvalue()
    pictures = decode(path).hashes["video"]
    assert pictures[-GOP:] == wanted.hashes["video"][GOP : 2 * GOP]
    assert (len(pictures) > GOP) is bool(part)


def test_a_target_that_is_too_slow_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number of segments waits, and of bytes; one segment may be larger than that."""
    relay = _Relay(Request("http://h/c", Target.parse("rtmp://h/a/k")), Screen(io.StringIO()))
    for seq in range(relays.QUEUE_SEGMENTS + 3):
        relay._add(_Waiting(seq, b"x", True, True))
    assert [waiting.seq for waiting in relay._queue] == list(range(3, relays.QUEUE_SEGMENTS + 3))
    assert relay._dropped == 3
    monkeypatch.setattr(relays, "QUEUE_BYTES", 10)
    relay._add(_Waiting(99, b"x" * 11, True, True))
    assert [waiting.seq for waiting in relay._queue] == [99]


@pytest.mark.parametrize(
    ("url", "shown", "host"),
    [
        ("rtmp://a.example/live2/abcd-efgh", "rtmp://a.example/live2/***", "a.example"),
        ("rtmps://me:word@h:443/app/key?token=x", "rtmps://***@h:443/app/***", "***"),
    ],
)
def test_a_target_is_shown_without_its_key(url: str, shown: str, host: str) -> None:
    """Neither in its name, nor in what a program says of it; and the command line does not have it."""
    target = Target.parse(url)
    assert target.shown == shown
    assert url not in target.command
    key = url.rpartition("/")[2]
    assert key not in target.cleaned(f"cannot open {url}: {key}")
    said = target.cleaned(f"[rtmp @ 0x559e391a1680] Cannot open connection tcp://{target.url.split('/')[2]}?x")
    assert said == f"[rtmp] Cannot open connection tcp://{host}?x"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("the 'analyzeduration' is tcp_nodelay", "the 'analyzeduration' is tcp_nodelay"),
        ("cannot open rtmp://h/app/y: y, live_y, y?z, /y", "cannot open ***: ***, live_***, ***?z, /***"),
    ],
)
def test_a_short_key_is_hidden_where_it_stands_alone(said: str, shown: str) -> None:
    """Words that have its letters can still be read."""
    assert Target.parse("rtmp://h/app/y").cleaned(said) == shown


@pytest.mark.parametrize("url", ["http://h/a/k", "rtmp://h", "rtmp://h/app", "rtmp:///app/key", "film.mp4"])
def test_what_is_no_target_is_said(url: str) -> None:
    """An RTMP server needs an application and a stream key."""
    with pytest.raises(InvalidInput, match=r"rtmp://"):
        Target.parse(url)


@pytest.mark.parametrize("url", ["rtmp://h:99999/app/key", "srt://h:x", "srt://h"])
def test_a_port_that_cannot_be_is_said_at_once(url: str) -> None:
    """Before a program is started, which would say less."""
    with pytest.raises(ValueError, match=r"[Pp]ort"):
        Target.parse(url)


def test_the_parameters_of_aac_stand_in_its_frames() -> None:
    """As ADTS has them: AAC-LC, 48 kHz, stereo. Frames of MP4 have none."""
    assert aac_parameters(bytes.fromhex("fff14c80017ffc21")) == bytes.fromhex("1190")
    assert aac_parameters(b"\x21\x10\x04\x60\x8c\x1c\x00") == b""
    assert aac_parameters(b"\xff\xf1") == b""


def test_the_command_reads_its_target_from_standard_input(server: LocalServer, film: Path) -> None:
    """So that no other user of the machine sees the stream key; a channel that does not exist is named."""
    url = published(server, "command", cut(film)[:1])
    with ingesting(server) as ingest:
        target = f"rtmp://127.0.0.1:{ingest.port}/live/command-copy\n"
        for name, code in (("command", 0), ("missing", 1)):
            started = forked("relay", url.replace("command", name), "-", "--start", "earliest")
            done = subprocess.run(started, input=target, capture_output=True, text=True, timeout=WITHIN_S, check=False)
            assert done.returncode == code, done.stderr
            assert "command-copy" not in done.stderr
        eventually(lambda: any("command-copy: published" in line for line in ingest.lines))


def test_a_channel_that_is_missing_is_an_error(server: LocalServer) -> None:
    """Nothing is connected for it, and no line says how much was sent."""
    said, url = io.StringIO(), f"http://127.0.0.1:{server.port}/trickle/nothing"
    with pytest.raises(ChannelNotFound):
        in_loop(partial(run, Request(url, Target.parse("rtmp://127.0.0.1:1/live/key")), Screen(said)))
    assert said.getvalue() == ""
