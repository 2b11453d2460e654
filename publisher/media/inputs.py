"""What ``INPUT`` names on the command line, and how each kind of source is opened.

========================================  ==============================================================
``film.mp4``                              a file
``-``                                     standard input
``rtsp://``, ``udp://``, ``https://`` …   what libavformat opens over a network
``v4l2:/dev/video0``, ``alsa:hw:0`` …     a device, by libavdevice's name for its kind
``testsrc``, ``testsrc:size=320x180``     a generated picture and tone (:mod:`tricklecast.publisher.media.testsrc`)
========================================  ==============================================================
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from tricklecast.publisher.media.source import MediaSource, open_media
from tricklecast.publisher.raw import StoppableReader, standard_input
from tricklecast.trickle.wire import redacted

STDIN: Final = "-"

OPEN_S: Final = 15.0
"""How long a source on the network may take to open, in seconds: more than two keyframes, since it is probed, too."""

READ_S: Final = 10.0
"""After how many seconds without a packet a source on the network counts as dead."""

RTSP_LISTEN_S: Final = 1_000_000
"""How long libavformat itself waits for an RTSP client, in seconds. It must be told: its default, for ever, fails."""

DEVICES: Final = frozenset(
    {"alsa", "avfoundation", "dshow", "fbdev", "gdigrab", "jack", "kmsgrab", "lavfi", "oss", "pulse", "sndio"}
    | {"v4l2", "video4linux2", "x11grab", "xcbgrab"}
)
"""Kinds of devices: libavdevice's input formats. Which of them there are depends on how PyAV was built."""

_UDP: Final = {
    "overrun_nonfatal": "1",  # what came too fast is lost, which is no reason to stop
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
"""libavformat's options, by scheme; the user's win."""

_CONNECTIONLESS: Final = frozenset({"udp", "rtp"})
_FILE_SCHEMES: Final = frozenset({"http", "https", "ftp", "sftp", "smb"})


class Kind(Enum):
    """What an input is."""

    FILE = "file"
    PIPE = "pipe"
    NETWORK = "network"
    DEVICE = "device"
    GENERATED = "generated"


@dataclass(frozen=True, slots=True)
class Opened:
    """An open source.

    Attributes:
        source: it.
        is_live: it comes at its own pace, and goes on while nobody reads.
        begun_at: when its first byte came, in seconds (monotonic), if that is known: what was read to find out what it
            is, is no reason to be that much behind it for ever.
    """

    source: MediaSource
    is_live: bool
    begun_at: float | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """What is to be opened.

    Attributes:
        text: as it was written.
        kind: what it is.
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
            case Kind.PIPE:
                return "standard input"
            case Kind.NETWORK:
                return redacted(self.text)
        return self.text

    @property
    def _scheme(self) -> str:
        scheme, given, _ = self.text.partition("://")
        return scheme.lower() if given else ""

    @property
    def listens(self) -> bool:
        """Whether it waits for somebody to connect to it, and has nothing to connect to."""
        query = self.text.partition("?")[2].split("&")
        if self._scheme in _CONNECTIONLESS:
            return True
        return "listen=1" in query or self.options.get("listen") == "1" or self.options.get("rtsp_flags") == "listen"

    def open(self, is_stopped: Callable[[], bool], *, within_s: float | None = None) -> Opened:
        """Open it; blocks.

        Args:
            is_stopped: a source that can be stopped while it waits, ends soon after this returns ``True``.
            within_s: how long somebody who should connect is waited for; ``None``: without end.

        Raises:
            InvalidInput: it cannot be read.
        """
        match self.kind:
            case Kind.GENERATED:
                return Opened(self._generated(is_stopped), is_live=True)
            case Kind.PIPE:
                return self._pipe(is_stopped)
            case Kind.DEVICE:
                format_, _, device = self.text.partition(":")
                source = open_media(device, self.name, format=format_, options=self.options)
                return Opened(source, is_live=True)
            case Kind.NETWORK:
                return self._network(within_s)
            case Kind.FILE:
                return Opened(open_media(self.text, self.name, options=self.options), is_live=False)

    def _generated(self, is_stopped: Callable[[], bool]) -> MediaSource:
        from tricklecast.publisher.media.testsrc import TestOptions, TestSource

        options = TestOptions.parse(self.text)
        return TestSource(options if self.realtime else replace(options, speed=None), is_stopped=is_stopped)

    def _pipe(self, is_stopped: Callable[[], bool]) -> Opened:
        descriptor = standard_input()
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # redirected from a file, which can be sought in
            source = open_media(f"/dev/fd/{descriptor}", self.name, options=self.options)
            return Opened(source, is_live=False)
        reader = StoppableReader(descriptor, is_stopped)
        source = open_media(reader, self.name, options=self.options)
        return Opened(source, is_live=False, begun_at=reader.begun_at)

    def _network(self, within_s: float | None) -> Opened:
        scheme = self._scheme
        options = {**_OPTIONS.get(scheme, {}), **self.options}
        open_s: float | None = OPEN_S
        if self.listens:
            open_s = within_s
            if scheme.startswith("rtsp"):
                options.setdefault("listen_timeout", str(RTSP_LISTEN_S))
        source = open_media(self.text, self.name, options=options, timeouts_s=(open_s, READ_S))
        # What has a length is a file, wherever it lies.
        return Opened(source, is_live=scheme not in _FILE_SCHEMES or source.is_endless)


def _kind(text: str) -> Kind:
    if text == STDIN:
        return Kind.PIPE
    if text.partition(":")[0] == "testsrc":
        return Kind.GENERATED
    if "://" in text:
        return Kind.FILE if text.startswith("file://") else Kind.NETWORK
    return Kind.DEVICE if ":" in text and text.partition(":")[0] in DEVICES else Kind.FILE
