"""Inputs of media: files, URLs, pipes, devices and the test source, and how each of them is opened.

========================================  ==============================================================
``film.mp4``                              a file
``-``                                     standard input
``rtsp://``, ``udp://``, ``https://`` …   a network source that libavformat opens
``v4l2:/dev/video0``, ``alsa:hw:0`` …     a device, by libavdevice's name for its kind
``testsrc``, ``testsrc:size=320x180``     a generated picture and tone (:mod:`tricklecast.publisher.media.testsrc`)
========================================  ==============================================================

Everything here blocks and runs in a worker thread.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from tricklecast.publisher.media.source import MediaSource
from tricklecast.publisher.media.strays import FileStrays, Strays
from tricklecast.publisher.raw import StoppableReader, standard_input
from tricklecast.publisher.steps import IsStopped
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.media.timeline import MAX_HELD
from tricklecast.trickle.pyav import (
    any_titles,
    codec_family,
    codec_name,
    demuxed,
    need_pyav,
    new_decoder,
    packet_errors,
    present_streams,
    reason,
)
from tricklecast.trickle.wire import redacted

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer
    from av.stream import Stream

    from tricklecast.publisher.media.source import Packets

STDIN: Final = "-"

OPEN_S: Final = 15.0
"""A source on the network may take this many seconds to open: more than two keyframes, since it is probed, too."""

READ_S: Final = 10.0
"""A source on the network is dead after this many seconds without a packet."""

RTSP_LISTEN_S: Final = 1_000_000
"""libavformat itself waits this many seconds for an RTSP client. It must be told: its default, for ever, fails."""

DEVICES: Final = frozenset(
    {"alsa", "avfoundation", "dshow", "fbdev", "gdigrab", "jack", "kmsgrab", "lavfi", "oss", "pulse", "sndio"}
    | {"v4l2", "video4linux2", "x11grab", "xcbgrab"}
)
"""Kinds of devices: libavdevice's input formats. How PyAV was built decides which of them exist."""

_UDP: Final = {
    "overrun_nonfatal": "1",  # packets that come too fast are lost, which is no reason to stop
    "fifo_size": "65536",  # packets of 188 bytes: 12 MB, seconds of high-definition video
}
_HTTP: Final = {"reconnect": "1", "reconnect_delay_max": "8"}  # a file goes on from where it broke
_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "rtsp": {"rtsp_transport": "tcp"},  # lost UDP packets are broken pictures, and firewalls stop them altogether
    "rtsps": {"rtsp_transport": "tcp"},
    "udp": _UDP,
    "rtp": _UDP,
    "http": _HTTP,
    "https": _HTTP,
}
"""libavformat's options, by scheme; the user's options win."""

_MERGE_TABLES: Final = {"merge_pmt_versions": "1"}
"""MPEG-TS whose tables name other PIDs in the middle goes on in the same streams. By default, libavformat makes further
ones, whose packets PyAV does not show. Other formats have no such option, and ignore it."""

_CONNECTIONLESS: Final = frozenset({"udp", "rtp"})
_BYTE_SCHEMES: Final = frozenset({"tcp", "udp"})
"""These schemes carry a stream of bytes, not a file in which a format may look ahead."""

_FILE_SCHEMES: Final = frozenset({"http", "https", "ftp", "sftp", "smb"})

_REORDERED: Final = frozenset({"h264", "hevc"})
"""Codecs whose pictures tell in which order they are shown, to libavcodec's filter ``dts2pts``. Of MPEG-1 and MPEG-2,
libavformat knows the order by itself."""

_TS: Final = "mpegts"
_GROWING: Final = frozenset({_TS, "flv"})
"""Formats whose streams may be announced at any time."""

MAX_BYTES_WITHOUT_PACKET: Final = 16 * 1024 * 1024
"""A stream of bytes in one of these breaks after this many without a packet: some seconds of any live source."""

LOOK_AFTER_PACKETS: Final = 50
"""A source's codecs are checked in front of each keyframe, and after this many packets: a second of sound."""

_DECLARING: Final = frozenset({"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "flv"})
"""Formats whose header says how long a file is. Of others, libavformat guesses it."""

MIN_MISSING_S: Final = 1.0
MAX_LENGTH_S: Final = 1e6
"""A file lacks its end if more than a second is missing, and more than a tenth of it. Twelve days are no length."""

MAX_REPEATED: Final = 2 * MAX_HELD
"""At the end of a bare stream, at most this many pictures come again: libavcodec's filter waits for at most 63."""

_NO_TIMESTAMPS: Final = 0x0080
"""libavformat's ``AVFMT_NOTIMESTAMPS``; PyAV's own name for it is no number."""


_BEFORE_INDEX: Final = frozenset({b"ftyp", b"free", b"skip", b"wide", b"uuid", b"pdin", b"styp"})
"""Boxes that an MP4 file may have in front of its index (``moov``)."""


class ByteReader(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""


class IndexFirst:
    """A stream of bytes that refuses MP4 with its index at the end: that needs a file, in which one can go back.

    libavformat would read all of such a pipe, and then find no picture, and say nothing.
    """

    def __init__(self, source: ByteReader, name: str) -> None:
        self._source = source
        self._name = name
        self._head = bytearray()  # of the present box
        self._skip = 0  # bytes up to the next one
        self._is_open = True  # no index came yet

    def read(self, size: int, /) -> bytes:
        """The next bytes.

        Raises:
            InvalidInput: the media comes before its index.
        """
        data = self._source.read(size)
        at = 0
        while self._is_open and at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
            else:
                step = 1
                self._head.append(data[at])
                is_long = self._head[:4] == b"\0\0\0\1"  # its size follows, in 64 bits
                if len(self._head) == (16 if is_long else 8):
                    self._look(bytes(self._head))
                    self._head.clear()
            at += step
        return data

    def _look(self, head: bytes) -> None:
        size, kind = int.from_bytes(head[8:] or head[:4]), head[4:8]
        if kind == b"mdat":
            raise InvalidInput(
                f"{self._name} is MP4 with its index at the end, which cannot be read from a pipe: give the file's "
                "name, or send MPEG-TS (ffmpeg -i film.mp4 -c copy -f mpegts - | ...)"
            )
        self._is_open = kind in _BEFORE_INDEX and size >= len(head)
        self._skip = size - len(head)


class NetworkBytes:
    """The bytes that a protocol of libavformat receives, so that :class:`Watched` sees them before a container does.

    Args:
        container: the source, opened as plain ``data``. It is closed with this object.
    """

    def __init__(self, container: InputContainer) -> None:
        self._container = container
        self._packets = container.demux()
        self._rest = b""  # of the last packet: at most 1 KiB, or a datagram

    def begins(self) -> bool:
        """Wait for the first bytes, or the end; ``False`` if neither came in :data:`READ_S`."""
        from av.error import ExitError

        try:
            self._rest = bytes(next(self._packets, b""))
        except ExitError:
            return False
        return True

    def read(self, size: int, /) -> bytes:
        """The next bytes; none at the end.

        Raises:
            OSError: the connection broke, or was silent for :data:`READ_S`.
        """
        if not self._rest:
            self._rest = bytes(next(self._packets, b""))
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def close(self) -> None:
        """Close the connection."""
        self._container.close()


class Watched:
    """A stream of bytes that breaks if it goes on, and no packet comes of it: after many bytes, or some time.

    PyAV passes over the packets of streams that it does not know. A live source that goes on in other ones would be
    read without end, and nobody would hear of it.

    Args:
        source: the bytes. Those of a network break after a time as well: of :data:`OPEN_S` until the first packet, then
            of :data:`READ_S`. A pipe may stand still for as long as its writer wants.

    Attributes:
        strays: counts the bytes of MPEG-TS that belong to no packet; ``None`` for other formats.
    """

    def __init__(self, source: ByteReader) -> None:
        self._source = source
        self._left: int | None = None  # bytes until the next packet; no limit while libavformat looks for streams
        self._limit_s = OPEN_S if isinstance(source, NetworkBytes) else None  # from one packet to the next
        self._since = time.monotonic()  # when it was read from first after the last packet: a slow server is no silence
        self._is_read = True  # since the last packet
        self.strays: Strays | None = Strays()  # unless it is no MPEG-TS

    def read(self, size: int, /) -> bytes:
        """The next bytes.

        Raises:
            OSError: too many came without a packet, or for too long.
        """
        if not self._is_read:
            self._is_read, self._since = True, time.monotonic()
        data = self._source.read(size)
        if self.strays is not None:
            self.strays.feed(data)
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise OSError(f"{MAX_BYTES_WITHOUT_PACKET >> 20} MiB came without a packet of its streams")
        if self._limit_s is not None and data and time.monotonic() - self._since > self._limit_s:
            raise OSError(f"no packet of its streams came for {self._limit_s:g} s")
        return data

    def packet_came(self, *, may_grow: bool) -> None:
        """Count anew.

        Args:
            may_grow: streams may be announced at any time, so that the number of bytes counts.
        """
        self._left = MAX_BYTES_WITHOUT_PACKET if may_grow else None
        self._is_read = False
        if self._limit_s is not None:
            self._limit_s = READ_S

    def close(self) -> None:
        """Close the source, if it can be closed; a pipe is its owner's."""
        if (close := getattr(self._source, "close", None)) is not None:
            close()


class ContainerSource:
    """The packets of an open container, unchanged; the time of their arrival counts as the time of their capture.

    Args:
        container: is closed with the source.
        path: of the file, if it is one.
    """

    def __init__(self, container: InputContainer, watched: Watched | None = None, path: str = "") -> None:
        self._container = container
        self._watched = watched
        self._strays: Strays | None = None
        if container.format.name == _TS:
            self._strays = FileStrays(path) if watched is None else watched.strays
        elif watched is not None:
            watched.strays = None
        # A bare stream without a container: cameras without a muxer send nothing but coded frames.
        self._has_no_times = bool(container.format.flags & _NO_TIMESTAMPS)

    @property
    def streams(self) -> Mapping[int, Stream]:
        return {stream.index: stream for stream in self._container.streams}

    @property
    def strays(self) -> int:
        return 0 if self._strays is None else self._strays.count

    @property
    def is_endless(self) -> bool:
        """Whether the container does not say how long it is: most likely it is live."""
        return self._container.duration is None

    def packets(self) -> Packets:
        """The packets, in the container's order; those of a bare stream get times by its frame rate."""
        packets = self._demuxed()
        videos = {stream.index for stream in self._container.streams.video}
        unseen = 0  # packets since the streams were looked at
        end_s = 0.0  # of the packets so far
        for packet in self._timed(packets) if self._has_no_times else self._counted(packets):
            unseen += 1
            if unseen >= LOOK_AFTER_PACKETS or (packet.is_keyframe and packet.stream_index in videos):
                self._look()
                unseen = 0
            if packet.has_sidedata("encryption_info"):
                raise OSError(
                    "it is encrypted, and nobody could play it; --input-option decryption_key=HEX may decrypt it"
                )
            if isinstance(self._strays, FileStrays) and (packet.pos or -1) >= 0:
                self._strays.look(packet.pos)
            if packet.size:  # an empty one, at the end, asks decoders for the frames that they hold back
                packet.opaque = time.time_ns() // 1000
                if packet.pts is not None:
                    end_s = max(end_s, float((packet.pts + (packet.duration or 0)) * packet.time_base))
                yield packet.stream_index, packet
        if isinstance(self._strays, FileStrays):
            self._strays.look(None)
        elif self._strays is not None:
            self._strays.end()
        self._look()
        self._check_length(end_s - (self._container.start_time or 0) / 1e6)

    def _demuxed(self) -> Iterator[Packet[Stream]]:
        """The packets as they come."""
        may_grow = self._container.format.name in _GROWING
        for packet in demuxed(self._container, list(self._container.streams)):
            if self._watched is not None:
                self._watched.packet_came(may_grow=may_grow)
            yield packet

    def _check_length(self, length_s: float) -> None:
        """Refuse a file that is over long before it says.

        Raises:
            OSError: it is.
        """
        declared_s = (self._container.duration or 0) / 1e6
        is_told = self._container.format.name in _DECLARING and declared_s < MAX_LENGTH_S
        if is_told and declared_s - length_s > max(MIN_MISSING_S, declared_s / 10):
            raise OSError(
                f"it ends after {length_s:.1f} s of {declared_s:.1f} s; it was cut off, or its copy is incomplete"
            )

    def _look(self) -> None:
        """Refuse a stream that goes on in another codec: PyAV has the first one for ever.

        Raises:
            OSError: the codec has changed. PyAV looks anew at a source that is opened again.
        """
        present = present_streams(self._container)
        for stream in (*self._container.streams.video, *self._container.streams.audio):
            _, codec = present.get(stream.index, ("", "none"))
            first = codec_name(stream)
            if stream.codec_context is not None and codec != "none" and codec_family(codec) != codec_family(first):
                raise OSError(f"its {stream.type} changes from {first} to {codec}; publish the rest on its own")

    def late(self) -> Mapping[int, str]:
        """Streams that libavformat has found since."""
        known = len(self._container.streams)
        present = present_streams(self._container)
        return {number: f"{kind}: {codec}" for number, (kind, codec) in present.items() if number >= known}

    def _counted(self, packets: Iterator[Packet[Stream]]) -> Iterator[Packet[Stream]]:
        """The packets; those of sound that has just begun get lengths and times.

        Where libavformat does not know yet how long they are, it tells the time of the first of several in a row alone.
        """
        sounds = {stream.index: stream for stream in self._container.streams.audio if stream.codec_context is not None}
        lengths: dict[int, int] = {}
        before: dict[int, tuple[int, bytes]] = {}  # the last packet of each of them without a length
        for packet in packets:
            track = packet.stream_index
            if track in sounds and packet.size:
                if packet.pts is None and track in before:
                    pts, data = before[track]
                    if track not in lengths and (length_s := _length_s(new_decoder(sounds[track]), data)):
                        lengths[track] = round(length_s / packet.time_base)
                    if track in lengths:
                        packet.pts = packet.dts = pts + lengths[track]
                if not packet.duration and packet.pts is not None:
                    before[track] = packet.pts, bytes(packet)
                    packet.duration = lengths.get(track, 0)
            yield packet

    def _timed(self, packets: Iterator[Packet[Stream]]) -> Iterator[Packet[Stream]]:
        """The packets of a bare stream, with times by its frame rate.

        Pictures that are shown in another order than they come in wait for the pictures that tell their place. At the
        end, the first ones come again, as often as necessary, to tell the last ones theirs, and are left out.
        """
        from av.bitstream import BitStreamFilterContext

        stream = self._container.streams[0]
        reorders = codec_name(stream) in _REORDERED and getattr(stream.codec_context, "has_b_frames", False)
        order = BitStreamFilterContext("dts2pts", stream) if reorders else None
        next_dts = waiting = 0
        first: list[bytes] = []
        for packet in packets:
            if packet.size and packet.dts is None:
                packet.dts, next_dts = next_dts, next_dts + (packet.duration or 1)
            if order is None:
                yield packet
            elif packet.size:
                data, dts, is_key = bytes(packet), packet.dts, packet.is_keyframe
                if len(first) <= MAX_HELD:
                    first.append(data)
                step, waiting = packet.duration or 1, waiting + 1
                try:
                    ready = order.filter(packet)
                except packet_errors():  # it is damaged: it is shown when it is decoded
                    ready = [_packet(stream, data, dts or 0, step)]
                    ready[0].pts, ready[0].is_keyframe = dts, is_key
                for timed in ready:
                    waiting -= 1
                    yield timed
        for data in islice(cycle(first), MAX_REPEATED):
            if order is None or not waiting:
                return
            with suppress(*packet_errors()):
                for timed in order.filter(_packet(stream, data, next_dts, step))[:waiting]:
                    waiting -= 1
                    yield timed
            next_dts += step
        if order is not None and waiting:  # better a picture in the order in which it came than none
            yield from order.filter(None)[:waiting]

    def close(self) -> None:
        """Close the container, and the connection that it reads from."""
        self._container.close()
        if self._watched is not None:
            self._watched.close()
        if isinstance(self._strays, FileStrays):
            self._strays.close()


def _length_s(decoder: Any, data: bytes) -> Fraction | None:
    """How long the sound of a packet is, if it can be decoded."""
    from av import Packet

    with suppress(*packet_errors()):
        for frame in decoder.decode(Packet(data)):
            return Fraction(frame.samples, frame.sample_rate)
    return None


def _packet(stream: Stream, data: bytes, dts: int, duration: int) -> Packet[Stream]:
    from av import Packet

    packet: Packet[Stream] = Packet(data)
    packet.stream, packet.dts, packet.duration = stream, dts, duration
    packet.time_base = cast(Fraction, stream.time_base)
    return packet


def open_media(
    source: str | ByteReader,
    name: str,
    *,
    format: str | None = None,
    options: Mapping[str, str] | None = None,
    timeouts_s: tuple[float | None, float | None] = (None, None),
) -> ContainerSource:
    """Open a file, a URL, a device or a stream of bytes.

    Args:
        format: its format; found out, if it is not given. Devices need it.
        options: libavformat's, for the protocol and the format.
        timeouts_s: the longest times for opening it, and for every read.

    Raises:
        InvalidInput: PyAV cannot read this.
    """
    watched = None if isinstance(source, str) or hasattr(source, "seek") else Watched(source)
    try:
        container = _container(watched or source, name, format, options or {}, timeouts_s)
        path = source.removeprefix("file:") if isinstance(source, str) else ""
        return ContainerSource(container, watched, path)
    except BaseException:
        if watched is not None:
            watched.close()
        raise


def _container(
    source: str | ByteReader,
    name: str,
    format: str | None,
    options: Mapping[str, str],
    timeouts_s: tuple[float | None, float | None],
) -> InputContainer:
    """Open it with libavformat; see :func:`open_media`."""
    import av

    timeout = None if timeouts_s == (None, None) else timeouts_s
    try:
        every = {**_MERGE_TABLES, **options}
        opened: InputContainer = av.open(source, "r", format, options=every, timeout=timeout, **any_titles())
    except InvalidInput:
        raise  # the source of the bytes refused them
    except (av.error.FFmpegError, OSError, ValueError) as error:
        is_other = isinstance(error, av.error.InvalidDataError | av.error.EOFError)
        why = "it is no media, or incomplete" if is_other else reason(error)
        raise InvalidInput(f"cannot read {name}: {why}{_advice(source, error, options)}") from error
    return opened


def _advice(source: str | ByteReader, error: Exception, options: Mapping[str, str]) -> str:
    """Return advice about a network source that cannot be opened, if there is any."""
    import av

    url = source if isinstance(source, str) else ""
    scheme = url.partition("://")[0]
    if scheme == "srt" and isinstance(error, av.error.ProtocolNotFoundError):
        return (
            "; let `tricklecast ingest srt://HOST:PORT --to URL` receive it, or pipe it:"
            f" ffmpeg -i {url.partition('?')[0]} -c copy -f mpegts - | tricklecast publish URL -"
        )
    if scheme.startswith("rtsp") and options.get("rtsp_transport") == "tcp" and _refuses_tcp(error):
        return "; it may send over UDP only: --input-option rtsp_transport=udp"
    return ""


def _refuses_tcp(error: BaseException | None) -> bool:
    """Whether an error may be the answer of a camera that sends over UDP only (RTSP's 461)."""
    import av

    refused = isinstance(error, av.error.InvalidDataError | av.error.HTTPOtherClientError)
    return refused or getattr(error, "errno", None) == errno.EPROTONOSUPPORT


class Kind(Enum):
    """The kinds of inputs."""

    FILE = "file"
    PIPE = "pipe"
    NETWORK = "network"
    DEVICE = "device"
    GENERATED = "generated"


@dataclass(frozen=True, slots=True)
class Opened:
    """An open source.

    Attributes:
        is_live: it comes at its own pace, and goes on while nobody reads.
        begun_at: when its first byte came, in seconds (monotonic), if that is known. The time of probing is no reason
            to be that much behind the source for ever.
        note: for people: how it was opened, if not in the usual way.
    """

    source: MediaSource
    is_live: bool
    begun_at: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """An input as a user names it.

    Attributes:
        kind: found out from the text.
        options: libavformat's, besides or instead of the usual ones.
        realtime: the generated source paces itself.
    """

    text: str
    kind: Kind
    options: Mapping[str, str] = field(default_factory=dict)
    realtime: bool = True

    @classmethod
    def parse(cls, text: str, options: Mapping[str, str] | None = None, *, realtime: bool = True) -> Input:
        """Recognise an input."""
        return cls(text, _kind(text), options or {}, realtime)

    @property
    def name(self) -> str:
        """The input's name in messages; the URL of a camera is shown without its password."""
        match self.kind:
            case Kind.PIPE if self.text == STDIN:
                return "standard input"
            case Kind.NETWORK:
                return redacted(self.text)
        return self.text

    @property
    def advice(self) -> str:
        """Advice for the user, where video or sound cannot be carried."""
        return "; --transcode may help"

    @property
    def _scheme(self) -> str:
        scheme, given, _ = self.text.partition("://")
        return scheme.lower() if given else ""

    @property
    def listens(self) -> bool:
        """Whether it waits for a sender to connect, instead of connecting itself."""
        query = self.text.partition("?")[2].split("&")
        if self._scheme in _CONNECTIONLESS:
            return True
        return "listen=1" in query or self.options.get("listen") == "1" or self.options.get("rtsp_flags") == "listen"

    def open(self, is_stopped: IsStopped, *, within_s: float | None = None) -> Opened:
        """Open it; blocks.

        Args:
            is_stopped: a source that can be stopped while it waits ends soon after this returns ``True``.
            within_s: an input that listens waits this many seconds for a sender; ``None``: without end.

        Raises:
            InvalidInput: it cannot be read, or PyAV is not installed.
        """
        need_pyav()
        match self.kind:
            case Kind.GENERATED:
                return Opened(self._generated(is_stopped), is_live=True)
            case Kind.PIPE:
                return self._pipe(is_stopped)
            case Kind.DEVICE:
                format_, _, device = self.text.partition(":")
                return Opened(open_media(device, self.name, format=format_, options=self.options), is_live=True)
            case Kind.NETWORK:
                return self._network(within_s)
            case Kind.FILE:
                return Opened(open_media(self.text, self.name, options=self.options), is_live=False)

    def _generated(self, is_stopped: IsStopped) -> MediaSource:
        from tricklecast.publisher.media.testsrc import TestOptions, TestSource

        options = TestOptions.parse(self.text)
        return TestSource(options if self.realtime else replace(options, speed=None), is_stopped=is_stopped)

    def _pipe(self, is_stopped: IsStopped) -> Opened:
        if self.text != STDIN:  # opened once, and for as long as the program runs
            return self._piped(os.open(self.text, os.O_RDONLY), is_stopped)
        descriptor = standard_input()
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # redirected from a file, in which libavformat can seek
            return Opened(open_media(f"/dev/fd/{descriptor}", self.name, options=self.options), is_live=False)
        return self._piped(descriptor, is_stopped)

    def _piped(self, descriptor: int, is_stopped: IsStopped) -> Opened:
        reader = StoppableReader(descriptor, is_stopped)
        source = open_media(IndexFirst(reader, self.name), self.name, options=self.options)
        return Opened(source, is_live=False, begun_at=reader.begun_at)

    def _network(self, within_s: float | None) -> Opened:
        scheme = self._scheme
        options = {**_OPTIONS.get(scheme, {}), **self.options}
        open_s: float | None = OPEN_S
        if self.listens:
            open_s = within_s
            if scheme.startswith("rtsp"):
                options.setdefault("listen_timeout", str(RTSP_LISTEN_S))
        if scheme in _BYTE_SCHEMES:
            connection = self._connect(options, open_s)
            return Opened(open_media(connection, self.name, options=self.options), is_live=True)
        note = ""
        try:
            source = open_media(self.text, self.name, options=options, timeouts_s=(open_s, READ_S))
        except InvalidInput as error:
            if self.listens or not scheme.startswith("rtsp") or "rtsp_transport" in self.options:
                raise
            if not _refuses_tcp(error.__cause__):
                raise
            note = f"{self.name} does not send over TCP: it is read over UDP, where packets may be lost"
            source = self._over_udp(options, error)
        # A source with a length is a file, wherever it lies.
        return Opened(source, is_live=scheme not in _FILE_SCHEMES or source.is_endless, note=note)

    def _over_udp(self, options: Mapping[str, str], refusal: InvalidInput) -> ContainerSource:
        """Open a camera that refused TCP.

        Raises:
            InvalidInput: it cannot be read over UDP, either.
        """
        over_udp = {**options, "rtsp_transport": "udp"}
        try:
            return open_media(self.text, self.name, options=over_udp, timeouts_s=(OPEN_S, READ_S))
        except InvalidInput as error:
            tcp, udp = (reason(cause) for cause in (refusal.__cause__, error.__cause__) if isinstance(cause, Exception))
            raise InvalidInput(f"cannot read {self.name} over TCP: {tcp}; nor over UDP: {udp}") from error

    def _connect(self, options: Mapping[str, str], within_s: float | None) -> NetworkBytes:
        """Open a stream of bytes.

        A socket of UDP is open before anybody sends, and libavformat waits only for :data:`READ_S`. So this opens one
        after the other until the first bytes come, and may exceed ``within_s`` by that time.
        """
        deadline = None if within_s is None else time.monotonic() + within_s
        while True:
            connection = NetworkBytes(_container(self.text, self.name, "data", options, (within_s, READ_S)))
            if connection.begins():
                return connection
            connection.close()
            if self._scheme not in _CONNECTIONLESS or (deadline is not None and time.monotonic() >= deadline):
                raise InvalidInput(f"cannot read {self.name}: nothing came in time")


def _kind(text: str) -> Kind:
    if text == STDIN:
        return Kind.PIPE
    if text.partition(":")[0] == "testsrc":
        return Kind.GENERATED
    if "://" in text:
        return Kind.FILE if text.startswith("file://") else Kind.NETWORK
    if ":" in text and text.partition(":")[0] in DEVICES:
        return Kind.DEVICE
    return Kind.PIPE if Path(text).is_fifo() else Kind.FILE
