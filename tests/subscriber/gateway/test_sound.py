"""Sound of any codec becomes Opus, with its times."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import pytest

from tests.publisher.media.clips import make_clip
from tricklecast.subscriber.gateway.sound import RATE, STEP, Sound


@pytest.mark.parametrize(("name", "codec"), [("clip.mp4", "aac"), ("clip.ts", "mp2")])
def test_sound_is_encoded_as_opus(tmp_path: Path, name: str, codec: str) -> None:
    """Its packets follow each other every 20 ms, from the time of the first, and a decoder takes them."""
    sound, packets = Sound(), []
    with av.open(str(make_clip(tmp_path / name, video=None, audio=codec))) as clip:
        for packet in clip.demux(audio=0):
            if packet.size:
                assert packet.pts is not None
                packets += sound.convert(packet, 5 + float(packet.pts * packet.time_base))
    assert abs(packets[0][0] - 5 * RATE) < 1.5 * RATE
    assert {later - earlier for (earlier, _), (later, _) in pairwise(packets)} == {STEP}
    assert len(packets) == pytest.approx(3 * 50, abs=6)
    decoder = av.CodecContext.create("libopus", "r")
    decoder.sample_rate = RATE
    assert all(decoder.decode(av.Packet(data)) for _, data in packets)


def test_opus_is_passed_on(tmp_path: Path) -> None:
    """Byte for byte."""
    sound = Sound()
    with av.open(str(make_clip(tmp_path / "clip.mkv", video=None, audio="libopus"))) as clip:
        for packet in clip.demux(audio=0):
            if packet.size:
                assert sound.convert(packet, 2.0) == [(2 * RATE, bytes(packet))]


def test_times_begin_anew_behind_a_loss(tmp_path: Path) -> None:
    """What comes ten seconds later in the source comes ten seconds later for viewers."""
    sound, times, last = Sound(), [], Fraction(0)
    with av.open(str(make_clip(tmp_path / "clip.mp4", video=None, audio="aac"))) as clip:
        for packet in clip.demux(audio=0):
            if packet.size:
                assert packet.pts is not None
                last = packet.pts * packet.time_base
                times += [at for at, _ in sound.convert(packet, float(last) + (10 if last > 1 else 0))]
    jumps = [later - earlier for earlier, later in pairwise(times) if later - earlier != STEP]
    assert jumps == [pytest.approx(10 * RATE, abs=0.1 * RATE)]


def test_damaged_sound_is_left_out(tmp_path: Path) -> None:
    """What the decoder refuses gives nothing, and what follows is heard."""
    sound, heard = Sound(), 0
    with av.open(str(make_clip(tmp_path / "clip.mp4", video=None, audio="aac"))) as clip:
        for number, packet in enumerate(clip.demux(audio=0)):
            if packet.size:
                damaged = av.Packet(b"\xff" * 30)
                damaged.stream, damaged.time_base = packet.stream, packet.time_base
                assert sound.convert(damaged if number == 3 else packet, number * 1024 / RATE) is not None
                heard += number != 3
    assert heard > 100
