"""PyAV: its absence, its errors, and what outlives a container."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import av
import pytest
from av.stream import Disposition

from tests.publisher.media.clips import make_clip
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.pyav import (
    changed_codec,
    codec_name,
    copied,
    decoder_of,
    file_errors,
    is_attached,
    need_pyav,
    new_decoder,
    packet_errors,
    reason,
)


def test_without_pyav_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line."""
    need_pyav()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InvalidInput, match=r'pip install "tricklecast\[media\]"'):
        need_pyav()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError(2, "No such file"), "No such file"),
        (ValueError("one\ntwo"), "one"),
        (ValueError(), "ValueError"),
        (OSError(1, "Immediate exit requested"), "nothing came in time"),
    ],
)
def test_the_reason_is_one_line(error: Exception, text: str) -> None:
    """The system's words, or clearer ones."""
    assert reason(error) == text


def test_copies_and_decoders_outlive_the_container() -> None:
    """They keep codec, parameters and language."""
    with av.open(os.devnull, "w", format="null") as container:
        stream = container.add_stream("aac", rate=48_000)
        stream.codec_context.open()
        assert copied(stream).metadata == {}
        stream.metadata["language"] = "deu"
        copies = [copied(stream), copied(stream, container, is_opaque=True)]
        decoder, parameters = new_decoder(stream), stream.codec_context.extradata
    assert parameters
    assert (decoder.name, decoder.is_decoder, decoder.extradata) == ("aac", True, parameters)
    assert copies[0].metadata == copies[1].metadata == {"language": "deu"}


def test_streams_have_the_names_of_their_codecs() -> None:
    """Not of a decoder; of data, as far as libavformat knows it."""
    with av.open(os.devnull, "w", format="mpegts") as container:
        assert codec_name(container.add_stream("libx264", rate=25)) == "h264"
        assert codec_name(container.add_data_stream("klv")) == "klv"
    with av.open(os.devnull, "w", format="matroska") as container:
        assert codec_name(container.add_attachment("a", "text/plain", b"a")) == "unknown codec"


def test_a_cover_is_attached() -> None:
    """A film is not."""
    with av.open(os.devnull, "w", format="null") as container:
        stream = container.add_stream("png", rate=1)
        assert not is_attached(stream)
        stream.disposition = Disposition.attached_pic
        assert is_attached(stream)


def test_a_codec_that_changes_is_noticed(tmp_path: Path) -> None:
    """When the first packet of the new one is there."""
    clips = [
        make_clip(tmp_path / f"{codec}.ts", seconds=2, video=codec, audio=None) for codec in ("libx264", "libx265")
    ]
    with av.open(io.BytesIO(b"".join(clip.read_bytes() for clip in clips)), "r", "mpegts") as container:
        stream = container.streams.video[0]
        found = [changed_codec(stream) for packet in container.demux(stream) if packet.is_keyframe]
    assert found == ["", "", "hevc", "hevc"]
    with av.open(str(make_clip(tmp_path / "old.ts", seconds=1, video="mpeg1video", audio=None))) as container:
        assert changed_codec(container.streams.video[0]) == ""


def test_a_refused_packet_is_no_broken_disk() -> None:
    """Damage is told from errors that end all."""
    assert issubclass(av.error.InvalidDataError, packet_errors())
    assert not issubclass(av.error.FFmpegError, packet_errors())
    assert not issubclass(av.error.BrokenPipeError, packet_errors())


def test_codecs_of_one_decoder_have_one_name() -> None:
    """MPEG-1 and MPEG-2, and the layers of their sound."""
    assert decoder_of("mp2") == decoder_of("mp3") == "mp3"
    assert decoder_of("mpeg1video") == decoder_of("mpeg2video")
    assert decoder_of("aac") == "aac"


def test_errors_of_files_are_those_of_the_system_and_of_libavformat() -> None:
    """Some of the latter are no errors of the system."""
    assert issubclass(av.error.ExperimentalError, file_errors())
    assert issubclass(PermissionError, file_errors())
