"""The demo of media: its clips, its historic fault, and signals."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.app.tools.test_demo_cluster import running
from tests.support.forked import forked_deep
from tests.support.local import local_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.tools.demo import media
from tricklecast.app.tools.demo.stage import DemoFailed
from tricklecast.trickle.records import Op


def test_an_encoded_clip_is_decoded(tmp_path: Path) -> None:
    """The clip has all its pictures and its sound, and two decodings give the same digest."""
    clip = tmp_path / "clip.mp4"
    media.encode(clip, seconds=1, rate=10, size="160x90")
    frames = media.decode(clip)
    assert (frames.video, frames.audio) == (10, 48)
    assert media.decode(clip) == frames


def test_a_clip_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A file that is missing, or holds no media, gets one line."""
    (text := tmp_path / "text.mp4").write_text("no media")
    for path in (tmp_path / "none.mp4", text):
        with pytest.raises(DemoFailed, match=f"^cannot read {path}: ."):
            media.decode(path)


def test_the_naive_client_repeats_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The naive client repeats the GET of one segment before and after the channel's end."""
    monkeypatch.setattr(media, "NAIVE_PAUSE_S", 0.0)
    with local_server(storm_guard="off") as server:
        media.replay_fault(f"http://127.0.0.1:{server.port}/trickle/fault")

        def asked() -> int:
            reads = [record for record in list(server.records) if record.client == media.NAIVE_CLIENT]
            assert {(record.op, record.rseq) for record in reads} <= {(Op.READ, 1)}
            return len(reads)

        eventually(lambda: asked() == media.NAIVE_REQUESTS)
        server.record(op=Op.DELETE, channel="fault")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_a_signal_leaves_no_process(number: signal.Signals, code: int, tmp_path: Path) -> None:
    """Ctrl-C or SIGTERM during publishing ends the server, the publishers and the subscribers."""
    clip = tmp_path / "clip.mp4"
    media.encode(clip, seconds=60, rate=1, size="160x90")
    command = forked_deep("demo", "--clip", str(clip), "--work-dir", str(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            eventually(lambda: (tmp_path / "film-1.ts").exists() and (tmp_path / "film-1.ts").stat().st_size)
            assert len(running(tmp_path)) >= 4
            process.send_signal(number)
            _, said = process.communicate(timeout=WITHIN_S)
            assert (process.returncode, b"Traceback" in said) == (code, False)
            assert running(tmp_path) == []
        finally:
            process.kill()
