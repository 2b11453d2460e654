"""``tricklecast publish`` as a process, against a real server."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import pytest
import typer
from typer.testing import CliRunner

from tests.publisher.media.clips import FRAME_RATE, decode, make_clip
from tests.publisher.media.test_reader import serving
from tests.publisher.media.test_texts import film as film_with_text
from tests.support.forked import forked
from tests.support.server import RunningServer, serve
from tricklecast.app.cli import runnable
from tricklecast.publisher import cli
from tricklecast.publisher.run import ENDLESS_S
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.media.clock import read_temi

WITHIN_S = 120


def publish(*arguments: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    started = forked("publish", *arguments)
    done = subprocess.run(started, input=stdin or b"", capture_output=True, timeout=WITHIN_S, check=False)
    return subprocess.CompletedProcess(started, done.returncode, done.stdout.decode(), done.stderr.decode())


@contextmanager
def publishing(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command with an open standard input."""
    with subprocess.Popen(forked("publish", *arguments), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def create(server: RunningServer, channel: str) -> str:
    """Create a channel, so that its first segment can be waited for; its URL."""
    url = f"{server.base}/{channel}"
    urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=WITHIN_S).close()
    return url


def read(server: RunningServer, channel: str, seq: int) -> bytes:
    """One segment, waiting for it."""
    with urllib.request.urlopen(f"{server.base}/{channel}/{seq}", timeout=WITHIN_S) as response:
        data: bytes = response.read()
        return data


def status(url: str) -> int:
    """What a GET answers."""
    try:
        with urllib.request.urlopen(url, timeout=WITHIN_S) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_clip_arrives_as_it_is(server: RunningServer, tmp_path: Path) -> None:
    """What readers get decodes to the frames of the file."""
    clip = make_clip(tmp_path / "clip.mp4")
    done = publish(f"{server.base}/clip", clip, "--no-realtime", "--leave-open")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("published 3 segments (")
    assert done.stderr.endswith("the last one 2; the channel is still open\n")
    received = b"".join(read(server, "clip", seq) for seq in range(3))
    assert decode(received, "mpegts").hashes == decode(clip).hashes
    with urllib.request.urlopen(f"{server.base}/clip/0", timeout=WITHIN_S) as response:
        assert response.headers["Content-Type"] == "video/mp2t"


def test_fragmented_mp4_arrives_as_it_is(server: RunningServer, tmp_path: Path) -> None:
    """Segments of the other container, played twice: what readers get decodes to the frames of the file."""
    clip = make_clip(tmp_path / "clip.mkv")
    done = publish(f"{server.base}/mp4", clip, "--no-realtime", "--leave-open", "--container", "fmp4", "--loop", "2")
    assert (done.returncode, done.stdout) == (0, "")
    received = b"".join(read(server, "mp4", seq) for seq in range(6))
    assert decode(received, "mp4").hashes["video"] == 2 * decode(clip).hashes["video"]
    with urllib.request.urlopen(f"{server.base}/mp4/0", timeout=WITHIN_S) as response:
        assert response.headers["Content-Type"] == "video/mp4"


def test_a_film_keeps_its_text_on_the_way_into_a_file(server: RunningServer, tmp_path: Path) -> None:
    """As fragmented MP4; what is read back has the film's cues. MPEG-TS leaves them out, and the command says so."""
    film = film_with_text(tmp_path / "film.mkv", tmp_path)
    done = publish(f"{server.base}/film", film, "--container", "fmp4", "--no-realtime")
    assert (done.returncode, "left out" in done.stderr) == (0, False)
    texts = []
    for seq in range(3):
        with av.open(io.BytesIO(read(server, "film", seq)), "r", "mp4") as container:
            text = container.streams[2]
            texts += [bytes(packet)[2:].decode() for packet in container.demux(text) if packet.size]
            assert text.metadata["language"] == "deu"
    assert texts == ["", "Hello", "", "", "Zwei\nZeilen", "Zwei\nZeilen", ""]
    done = publish(f"{server.base}/ts", film, "--no-realtime")
    assert "left out: stream 2 (subtitle, subrip); --container fmp4 can carry it" in done.stderr


def test_segments_say_when_they_were_made(server: RunningServer) -> None:
    """The generated picture is published as it is generated, and its time is that of now."""
    begun_us = time.time_ns() // 1000
    done = publish(f"{server.base}/now", "testsrc:size=160x90,duration=2s", "--leave-open", "--min-segment", "500ms")
    assert done.returncode == 0, done.stderr
    first, second = (read_temi(read(server, "now", seq)) for seq in range(2))
    assert first is not None
    assert second is not None
    assert begun_us <= first < time.time_ns() // 1000
    assert abs(second - first - 1_000_000) < 20_000  # the wall clock may be adjusted meanwhile, a bit


def test_an_input_is_encoded_anew(server: RunningServer, tmp_path: Path) -> None:
    """With --transcode, also what no container carries; keyframes stand where they are asked for."""
    clip = make_clip(tmp_path / "clip.mkv", audio="pcm_s16le")
    coding = ["--transcode", "--gop", "1s", "--video-bitrate", "200k", "--audio-codec", "opus"]
    done = publish(f"{server.base}/anew", clip, "--no-realtime", "--leave-open", *coding)
    assert done.returncode == 0, done.stderr
    decoded = decode(b"".join(read(server, "anew", seq) for seq in range(3)), "mpegts")
    assert len(decoded.hashes["video"]) == 3 * FRAME_RATE
    assert "audio" in decoded.hashes


def test_interrupted_while_it_waits_for_its_input(server: RunningServer, tmp_path: Path) -> None:
    """A source that has gone is waited for; Ctrl-C ends the wait, and the channel."""
    with (
        serving(make_clip(tmp_path / "clip.ts").read_bytes()) as address,
        publishing(create(server, "gone"), f"tcp://{address}", "--reopen-for", "1h") as process,
    ):
        assert process.stderr is not None
        assert b"ended; trying for 3600 s to open it again" in process.stderr.readline()
        assert len(read(server, "gone", 2)) > 10_000  # complete: nobody waits for the next one
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 130
        # The last one was read by then, which is not to say that its publisher had its answer.
        assert re.search(rb"published [23] segments .*; interrupted, the channel is ended", process.stderr.read())


def test_media_comes_through_a_pipe(server: RunningServer, tmp_path: Path) -> None:
    """``-`` is standard input, which need not be seekable."""
    clip = make_clip(tmp_path / "clip.mkv")
    done = publish(f"{server.base}/pipe", "-", "--no-realtime", "--leave-open", stdin=clip.read_bytes())
    assert done.returncode == 0, done.stderr
    received = b"".join(read(server, "pipe", seq) for seq in range(3))
    assert decode(received, "mpegts").hashes == decode(clip).hashes


def test_media_redirected_from_a_file_can_be_sought_in(server: RunningServer, tmp_path: Path) -> None:
    """An MP4 whose index is at its end can be read from ``< file``."""
    clip = make_clip(tmp_path / "clip.mp4")
    started = forked("publish", f"{server.base}/redirected", "-", "--no-realtime")
    with clip.open("rb") as file:
        done = subprocess.run(started, stdin=file, capture_output=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr


def test_media_is_paced(server: RunningServer, tmp_path: Path) -> None:
    """By default a clip takes as long as it plays, and its channel ends with it."""
    clip = make_clip(tmp_path / "clip.mp4", seconds=2.0)
    done = publish(f"{server.base}/paced", clip)
    assert done.returncode == 0, done.stderr
    assert float(done.stderr.split(" in ")[1].split(" s")[0]) >= 1.9
    with urllib.request.urlopen(f"{server.base}/paced/next", timeout=WITHIN_S) as response:
        assert response.headers["Lp-Trickle-Closed"] == "terminated"


def test_lines_become_segments(server: RunningServer) -> None:
    """Line by line while the input is still open; the tail is not lost; numbering goes on at the next run."""
    url = create(server, "lines")
    with publishing(url, "-", "--raw", "--by", "line", "--leave-open", "--content-type", "application/json") as process:
        assert process.stdin is not None
        for number in range(3):
            process.stdin.write(b"%d\n" % number)
            process.stdin.flush()
            assert read(server, "lines", number) == b"%d\n" % number
        process.stdin.write(b"tail")
        process.stdin.close()
        assert process.wait(WITHIN_S) == 0
    assert read(server, "lines", 3) == b"tail"
    assert publish(url, "-", "--raw", "--leave-open", stdin=b"more").returncode == 0
    assert read(server, "lines", 4) == b"more"
    assert publish(url, "-", "--raw", "--start", "reset", stdin=b"reset").returncode == 0
    assert read(server, "lines", 5) == b"reset"


def test_a_file_is_split_by_size(server: RunningServer, tmp_path: Path) -> None:
    """Joined, the segments are the file."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(300_000))
    done = publish(f"{server.base}/bytes", path, "--raw", "--by", "size:64KiB", "--leave-open")
    assert done.returncode == 0, done.stderr
    received = [read(server, "bytes", seq) for seq in range(5)]
    assert [len(data) for data in received] == [65_536] * 4 + [37_856]
    assert b"".join(received) == path.read_bytes()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_ends_the_channel(server: RunningServer, number: int, code: int) -> None:
    """Ctrl-C and SIGTERM end the channel in order, although standard input is silent and open."""
    channel = f"interrupted{code}"
    with publishing(create(server, channel), "-", "--raw", "--by", "line") as process:
        assert process.stdin is not None
        process.stdin.write(b"x\nhalf a line")
        process.stdin.flush()
        assert read(server, channel, 0) == b"x\n"
        process.send_signal(number)
        assert process.wait(WITHIN_S) == code
    with urllib.request.urlopen(f"{server.base}/{channel}/-1", timeout=WITHIN_S) as response:
        assert response.headers["Lp-Trickle-Closed"] == "terminated"


def test_interrupted_it_ends_the_last_segment(server: RunningServer) -> None:
    """Ctrl-C is a normal end: what was read of the input is one more whole segment. Two signals at once are one."""
    with publishing(create(server, "last"), "-", "--raw", "--by", "time:1h") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"the last words")
        process.stdin.flush()
        with urllib.request.urlopen(f"{server.base}/last/0", timeout=WITHIN_S) as response:
            assert response.read(4) == b"the "
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)
            assert response.read() == b"last words"
        assert process.wait(WITHIN_S) == 130
        summary = process.stderr.read().decode()
    assert re.fullmatch(r"published 1 segment .*, the last one 0; interrupted, the channel is ended\n", summary)
    with urllib.request.urlopen(f"{server.base}/last/0", timeout=WITHIN_S) as response:
        assert response.headers["Lp-Trickle-Truncated"] is None


def test_interrupted_it_may_keep_the_channel(server: RunningServer) -> None:
    """With --leave-open, the channel stays as it is."""
    with publishing(create(server, "kept"), "-", "--raw", "--by", "line", "--leave-open") as process:
        assert process.stdin is not None
        process.stdin.write(b"x\n")
        process.stdin.flush()
        assert read(server, "kept", 0) == b"x\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 130
    with urllib.request.urlopen(f"{server.base}/kept/next", timeout=WITHIN_S) as response:
        assert response.headers["Lp-Trickle-Closed"] is None
        assert response.read() == b"1"


def test_the_end_of_the_channel_from_outside_is_an_error(server: RunningServer) -> None:
    """Somebody else's DELETE is seen without a further write, and not undone."""
    url = create(server, "ended")
    with publishing(url, "-", "--raw", "--by", "line") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"x\n")
        process.stdin.flush()
        assert read(server, "ended", 0) == b"x\n"
        urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=WITHIN_S).close()
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(process.stdin.fileno(), b"y\nz\n")
        assert process.wait(WITHIN_S) == 1
        summary, error = process.stderr.read().splitlines()
        assert summary.endswith(b"; stopped by an error")
        assert error == b"tricklecast: the channel has ended"


def test_a_second_publisher_is_refused(server: RunningServer) -> None:
    """One line says who publishes, since when, and what to type; the first goes on. With --takeover it is the first
    that fails."""
    url = create(server, "busy")
    with publishing(url, "-", "--raw", "--by", "line") as first:
        assert first.stdin is not None
        assert first.stderr is not None
        first.stdin.write(b"one\n")
        first.stdin.flush()
        assert read(server, "busy", 0) == b"one\n"
        done = publish(url, "-", "--raw", stdin=b"other")
        assert (done.returncode, done.stdout) == (1, "")
        line = (
            r"tricklecast: \S+ has published to this channel since \d\d:\d\d:\d\d; --takeover publishes in its place\n"
        )
        assert re.fullmatch(line, done.stderr), done.stderr
        with publishing(url, "-", "--raw") as silent:  # it need not have anything to publish
            assert silent.wait(WITHIN_S) == 1
        first.stdin.write(b"two\n")
        first.stdin.flush()
        assert read(server, "busy", 1) == b"two\n"
        assert publish(url, "-", "--raw", "--takeover", "--leave-open", stdin=b"mine").returncode == 0
        assert first.wait(WITHIN_S) == 1  # at once, although it has nothing to publish at the moment
        assert b"tricklecast: another publisher has taken over this channel (" in first.stderr.read()


def test_an_input_that_fails_leaves_the_channel_open(server: RunningServer) -> None:
    """The exit code is 1, and another publisher can go on."""
    url = create(server, "failing")
    master, slave = os.openpty()  # reading from its master is an error as soon as no slave is open
    started = forked("publish", url, "-", "--raw", "--by", "line")
    with subprocess.Popen(started, stdin=master, stderr=subprocess.PIPE, text=True) as process:
        os.close(master)
        os.write(slave, b"line\n")
        assert read(server, "failing", 0) == b"line\r\n"
        os.close(slave)
        _, said = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    summary, error = said.splitlines()
    assert summary.endswith("; stopped by an error")
    assert error == "tricklecast: cannot read on from standard input: Input/output error"
    with urllib.request.urlopen(f"{url}/next", timeout=WITHIN_S) as response:
        assert response.headers["Lp-Trickle-Closed"] is None


def bad_inputs(base: str, tmp_path: Path) -> dict[str, tuple[list[object], int, str]]:
    """Arguments that cannot work, the exit code, and what the error says."""
    clip = make_clip(tmp_path / "clip.mkv", seconds=0.2)
    pcm = make_clip(tmp_path / "pcm.wav", seconds=0.2, video=None, audio="pcm_s16le")
    broken = tmp_path / "broken"
    broken.write_bytes(b"no media in here" * 100)
    return {
        "no scheme": (["nonsense", clip], 1, "not a usable URL"),
        "no channel": ([base.removesuffix("/trickle"), clip], 1, "names no channel"),
        "refused": (
            ["http://127.0.0.1:1/trickle/x", clip],
            1,
            "cannot connect to http://127.0.0.1:1: Connection refused",
        ),
        "reserved name": ([f"{base}/_x", clip], 1, "the server does not allow this"),
        "not a trickle server": ([f"{base.removesuffix('/trickle')}/api/v1/x", clip, "--start", "0"], 1, "40"),
        "missing file": ([f"{base}/bad", tmp_path / "missing.mp4"], 1, "No such file"),
        "missing raw file": ([f"{base}/bad", tmp_path / "missing", "--raw"], 1, "No such file"),
        "directory": ([f"{base}/bad", tmp_path], 1, "directory"),
        "raw directory": ([f"{base}/bad", tmp_path, "--raw"], 1, "directory"),
        "unreadable media": ([f"{base}/bad", broken], 1, "it is no media"),
        "nothing to carry": ([f"{base}/bad", pcm], 1, "no video or audio that MPEG-TS can carry"),
        "no certificates": ([f"{base}/bad", clip, "--ca-file", broken], 2, "cannot read certificates"),
        "split without raw": ([f"{base}/bad", clip, "--by", "line"], 2, "--by needs --raw"),
        "bad split": ([f"{base}/bad", clip, "--raw", "--by", "word"], 2, "split by"),
        "encoding without --transcode": ([f"{base}/bad", clip, "--gop", "1s"], 2, "--gop needs --transcode"),
        "bad bitrate": ([f"{base}/bad", clip, "--transcode", "--video-bitrate", "much"], 2, "not a bit rate"),
        "bad duration": ([f"{base}/bad", clip, "--min-segment", "soon"], 2, "not a duration"),
        "bad loop": ([f"{base}/bad", clip, "--loop", "0"], 2, "--loop: use a number of times"),
        "bad option": ([f"{base}/bad", clip, "--input-option", "tcp"], 2, "--input-option is KEY=VALUE"),
        "nothing before =": ([f"{base}/bad", clip, "--input-option", "=tcp"], 2, "--input-option is KEY=VALUE"),
        "a pipe again": ([f"{base}/bad", "-", "--loop", "2"], 2, "only a file can be played again, not standard"),
        "encoding plain bytes": ([f"{base}/bad", clip, "--raw", "--transcode"], 2, "--transcode: it is for media"),
        "pacing plain bytes": ([f"{base}/bad", clip, "--raw", "--no-realtime"], 2, "--no-realtime: it is for media"),
        "which option": ([f"{base}/bad", clip, "--segment", "soon"], 2, "--segment: not a duration"),
        "bad media type": ([f"{base}/bad", clip, "--content-type", "a\nb"], 2, "printable ASCII"),
        "bad picture": ([f"{base}/bad", clip, "--transcode", "--video-bitrate", "1"], 1, "libx264 does not take a pic"),
        "mad bitrate": ([f"{base}/bad", clip, "--transcode", "--video-bitrate", "9999999999G"], 1, "no encoder takes"),
        "bad test source": ([f"{base}/bad", "testsrc:size=big"], 2, "size=640x360"),
        "bad start": ([f"{base}/bad", clip, "--start", "-3"], 2, "start is"),
        "two sizes": ([f"{base}/bad", clip, "--buffer", "1MB,2MB"], 2, "--buffer: one size and one time"),
        "bad buffer": ([f"{base}/bad", clip, "--buffer", "much"], 2, "--buffer: not a duration"),
    }


@pytest.mark.parametrize(
    ("text", "size", "time_s"),
    [
        ("64MiB,30s", 64 << 20, 30),
        ("2min, 1 kB", 1000, 120),
        ("4096", 4096, ENDLESS_S),
        ("10B", 10, ENDLESS_S),
        ("1w", cli.HUGE_BYTES, 604_800),
    ],
)
def test_a_buffer_has_a_size_or_a_time_or_both(text: str, size: int, time_s: float) -> None:
    """Each in the units that all commands take."""
    assert cli.parse_buffer(text) == {"buffer_bytes": size, "buffer_s": time_s}


def test_what_cannot_work_is_one_clear_line(server: RunningServer, tmp_path: Path) -> None:
    """Each wrong use says what is wrong, exits non-zero, and creates no channel."""
    app = typer.Typer()
    app.command()(runnable(cli.publish))
    for name, (arguments, code, text) in bad_inputs(server.base, tmp_path).items():
        result = CliRunner().invoke(app, [*map(str, arguments)])
        said = str(result.exception) if isinstance(result.exception, TrickleError) else result.stderr
        assert (result.exit_code, result.stdout) == (code, ""), name
        assert text in " ".join(said.replace("│", " ").split()), (name, said)
        assert code == 2 or "\n" not in said, name
    assert status(f"{server.base}/bad/next") == 404


def test_an_error_is_one_line_on_standard_error(server: RunningServer, tmp_path: Path) -> None:
    """Without a traceback, and with an exit code."""
    done = publish(f"{server.base}/bad", tmp_path / "missing.mp4")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"tricklecast: cannot read {tmp_path / 'missing.mp4'}: No such file or directory\n"


@pytest.mark.parametrize("arguments", [[], ["--raw"]])
def test_without_a_standard_input_nothing_is_read_from_it(server: RunningServer, arguments: list[str]) -> None:
    """Services may be started without one."""
    started = [sys.executable, "-m", "tricklecast", "publish", f"{server.base}/bad", "-", *arguments]
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *started]
    done = subprocess.run(closed, capture_output=True, timeout=WITHIN_S, check=False)
    assert (done.returncode, done.stderr) == (1, b"tricklecast: cannot read standard input: it is closed\n")


def test_over_tls(certificate: Path) -> None:
    """A server whose certificate is trusted is published to; any other one is not."""
    files = ["--tls-cert", str(certificate / "cert.pem"), "--tls-key", str(certificate / "key.pem")]
    with serve(*files, scheme="https") as server:
        url = f"{server.base}/c"
        done = publish(url, "-", "--raw", "--by", "line", "--ca-file", certificate / "cert.pem", stdin=b"a\nb\n" * 20)
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("published 40 segments")
        done = publish(url, "-", "--raw", stdin=b"x")
        assert done.returncode == 1
        assert "certificate verify failed" in done.stderr


def test_a_segment_that_is_too_large_is_reported(tmp_path: Path) -> None:
    """What the server does not keep is said, and is an error at the end."""
    log = tmp_path / "access.log"
    with serve("--max-segment-bytes", "100000", access_log=log) as server:
        done = publish(f"{server.base}/c", "-", "--raw", "--by", "size:1MiB", stdin=bytes(1_500_000))
        assert done.returncode == 1, done.stderr
        assert "segment 0 is lost: segment too large: the limit is " in done.stderr
        assert server.stop() == 0
    posts = [record for record in map(json.loads, log.read_text().splitlines()) if record.get("op") == "publish"]
    assert {record["release"] for record in posts} == {"tricklecast/0.1.0"}
