"""PyAV: its absence, its errors, and objects that outlive a container."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import av
import pytest
from av.codec.context import ThreadType
from av.stream import Disposition

from tests.publisher.media.clips import make_clip
from tricklecast.trickle.errors import InvalidInput, NoHardware
from tricklecast.trickle.pyav import (
    Sink,
    any_titles,
    check_hwaccel,
    codec_family,
    codec_name,
    copied,
    demuxed,
    file_errors,
    is_attached,
    need_pyav,
    new_decoder,
    packet_errors,
    present_streams,
    reason,
)


class LateStream:
    """A container that, like PyAV, meets a new stream behind its second packet."""

    def __init__(self) -> None:
        self.packets = iter([1, 2, None, 3])

    def demux(self, streams: Sequence[object], /) -> Iterator[int]:
        """Raise IndexError where the new stream begins."""
        assert list(streams) == ["video"]
        for packet in self.packets:
            if packet is None:
                raise IndexError("list index out of range")
            yield packet


def test_a_stream_that_begins_later_stops_no_other() -> None:
    """Its packets are left out, and the others are yielded."""
    found: list[Any] = list(demuxed(cast(Any, LateStream()), cast(Any, ["video"])))
    assert found == [1, 2, 3]
    assert list(demuxed(cast(Any, LateStream()), [])) == []


def test_a_title_may_have_any_encoding() -> None:
    """A file of an old camera is opened, with this PyAV and with the next."""
    file = io.BytesIO()
    with av.open(file, "w", "wav") as container:
        stream = cast(Any, container.add_stream("pcm_s16le", rate=8000, layout="mono"))
        container.metadata["title"] = "Kanal"
        sound = av.AudioFrame(format="s16", layout="mono", samples=160)
        sound.sample_rate = 8000
        container.mux(stream.encode(sound))
    odd = file.getvalue().replace(b"Kanal", "Känal".encode("latin-1"))
    with av.open(io.BytesIO(odd), "r", **any_titles()) as container:
        assert [stream.type for stream in container.streams] == ["audio"]


def test_without_pyav_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one line with the command to install it."""
    need_pyav()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InvalidInput, match=r"pip install '\.\[media\]' in a clone"):
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
    """The reason is the system's message, or a clearer one, in one line."""
    assert reason(error) == text


def test_copies_and_decoders_outlive_the_container() -> None:
    """Copies and decoders keep codec, parameters and language."""
    with av.open(os.devnull, "w", format="null") as container:
        stream = container.add_stream("aac", rate=48_000)
        stream.codec_context.open()
        assert copied(stream).metadata == {}
        stream.metadata["language"] = "deu"
        copies = [copied(stream), copied(stream, container)]
        decoder, parameters = new_decoder(stream), stream.codec_context.extradata
    assert parameters
    assert (decoder.name, decoder.is_decoder, decoder.extradata) == ("aac", True, parameters)
    assert copies[0].metadata == copies[1].metadata == {"language": "deu"}


def test_a_copy_needs_no_encoder(tmp_path: Path) -> None:
    """Media of any codec is passed on: PyAV has no encoder of VC-1, VVC or CAVS."""
    clip = make_clip(tmp_path / "clip.avi", video="mpeg4", audio=None).read_bytes()
    with (
        av.open(io.BytesIO(clip.replace(b"FMP4", b"WVC1"))) as source,
        av.open(io.BytesIO(), "w", format="mpegts") as container,
    ):
        assert codec_name(copied(source.streams.video[0], container)) == "vc1"


def test_streams_have_the_names_of_their_codecs() -> None:
    """The name is the codec's, not the decoder's; of data, it is libavformat's."""
    with av.open(os.devnull, "w", format="mpegts") as container:
        assert codec_name(container.add_stream("libx264", rate=25)) == "h264"
        assert codec_name(container.add_data_stream("klv")) == "klv"
    with av.open(os.devnull, "w", format="matroska") as container:
        assert codec_name(container.add_attachment("a", "text/plain", b"a")) == "unknown codec"


def test_a_cover_is_attached() -> None:
    """A cover is an attached picture; a film is not."""
    with av.open(os.devnull, "w", format="null") as container:
        stream = container.add_stream("png", rate=1)
        assert not is_attached(stream)
        stream.disposition = Disposition.attached_pic
        assert is_attached(stream)


def test_streams_are_seen_as_they_are_now(tmp_path: Path) -> None:
    """A stream that changes its codec or begins later is seen; the log's level is restored."""
    clips = [
        make_clip(tmp_path / f"{codec}.ts", seconds=1, video=codec, audio=sound)
        for codec, sound in (("libx264", None), ("libx265", "ac3"))
    ]
    data = io.BytesIO(b"".join(clip.read_bytes() for clip in clips))
    level = av.logging.get_level()
    with av.open(cast(Any, Pipe(data)), "r", "mpegts") as container:
        assert present_streams(container) == {0: ("video", "h264")}
        assert sum(packet.is_keyframe for packet in demuxed(container, container.streams.video)) == 2
        assert present_streams(container) == {0: ("video", "hevc"), 1: ("audio", "ac3")}
    assert av.logging.get_level() == level


class Pipe:
    """A file that cannot seek."""

    def __init__(self, data: io.BytesIO) -> None:
        self.read = data.read


def test_a_refused_packet_is_no_broken_disk() -> None:
    """A damaged packet raises another error than a broken file."""
    assert issubclass(av.error.InvalidDataError, packet_errors())
    assert not issubclass(av.error.FFmpegError, packet_errors())
    assert not issubclass(av.error.BrokenPipeError, packet_errors())


def test_codecs_of_one_decoder_have_one_name() -> None:
    """MPEG-1 and MPEG-2 share a name, and so do the layers of their sound."""
    assert codec_family("mp2") == codec_family("mp3") == "mp3"
    assert codec_family("mpeg1video") == codec_family("mpeg2video")
    assert codec_family("aac") == "aac"


def test_errors_of_files_are_those_of_the_system_and_of_libavformat() -> None:
    """Both kinds are caught."""
    assert issubclass(av.error.ExperimentalError, file_errors())
    assert issubclass(PermissionError, file_errors())


def test_a_device_has_a_kind_that_pyav_was_built_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have a number or a path; the error names the kinds."""
    monkeypatch.setattr("av.codec.hwaccel.hwdevices_available", lambda: ["cuda"])
    for name in ("auto", "cuda", "cuda:1"):
        check_hwaccel(name)
    with pytest.raises(NoHardware, match="built with cuda"):
        check_hwaccel("vaapi:/dev/dri/renderD128")
    monkeypatch.setattr("av.codec.hwaccel.hwdevices_available", list)
    with pytest.raises(NoHardware, match="built with none"):
        check_hwaccel("cuda")
    for wrong in (1, b"cuda"):
        with pytest.raises(InvalidInput, match=f"^hwaccel is the name of a device, as in 'cuda', not {wrong!r}$"):
            check_hwaccel(cast(Any, wrong))


class Machine:
    """A machine with devices, as libavcodec would see it: each makes the processor's decoder."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds
        self.asked: list[tuple[object, ...]] = []

    def create(self, codec: str, mode: str, device: tuple[str, str | None, bool]) -> Any:
        """Stand in for ``CodecContext.create``."""
        self.asked.append((codec, *device))
        if device[0] == "broken":
            raise av.error.PermissionError(1, "Operation not permitted")
        return SimpleNamespace(is_hwaccel=device[0] in self.kinds, extradata=None)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One whose ``vaapi`` decodes H.264, whose ``drm`` does not, and whose ``broken`` cannot be opened."""
    machine = Machine("vaapi")
    monkeypatch.setattr("av.codec.hwaccel.hwdevices_available", lambda: ["broken", "drm", "vaapi"])
    monkeypatch.setattr(
        "av.codec.hwaccel.HWAccel",
        lambda kind, device, allow_software_fallback: (kind, device, allow_software_fallback),
    )
    monkeypatch.setattr("av.CodecContext", SimpleNamespace(create=machine.create))
    return machine


def test_a_device_decodes(machine: Machine) -> None:
    """The one that was asked for, and no other way; with ``auto`` the first that can, or libavcodec if it cannot."""
    with av.open(os.devnull, "w", format="null") as container:
        stream = container.add_stream("libx264", rate=25)
        assert new_decoder(stream, hwaccel="vaapi:/dev/dri/renderD129", threads=2).is_hwaccel
        assert new_decoder(stream, hwaccel="auto").is_hwaccel
    assert machine.asked == [
        ("h264", "vaapi", "/dev/dri/renderD129", False),
        ("h264", "broken", None, True),
        ("h264", "drm", None, True),
        ("h264", "vaapi", None, True),
    ]


def test_a_device_that_does_not_decode_is_an_error(machine: Machine) -> None:
    """It says why, and what else is there."""
    with av.open(os.devnull, "w", format="null") as container:
        stream = container.add_stream("libx264", rate=25)
        with pytest.raises(NoHardware, match=r"'drm': it does not decode h264; devices .* that decode h264: vaapi$"):
            new_decoder(stream, hwaccel="drm")
        machine.kinds = ()
        with pytest.raises(NoHardware, match=r"'broken': it cannot be opened \(Operation not permitted\); .*: none$"):
            new_decoder(stream, hwaccel="broken")
        with pytest.raises(NoHardware, match=r"'auto': no device of this machine decodes h264$"):
            new_decoder(stream, hwaccel="auto")


def test_threads_decode_pictures_at_once() -> None:
    """Without a number, only parts of one: none has to wait for the next."""
    with av.open(os.devnull, "w", format="null") as container:
        stream = container.add_stream("libx264", rate=25)
        decoder = new_decoder(stream, threads=3)
        assert (decoder.thread_count, decoder.thread_type) == (3, ThreadType.FRAME)
        assert new_decoder(stream).thread_type == ThreadType.SLICE


def test_a_sink_gives_each_byte_once() -> None:
    """A muxer may use its buffer again, so the sink has a copy."""
    sink, buffer = Sink(), bytearray(b"ab")
    assert sink.write(buffer) == 2
    buffer[:] = b"xy"
    sink.write(b"c")
    assert (sink.take(), sink.take()) == (b"abc", b"")
