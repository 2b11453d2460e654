"""Takes an SRT stream: ffmpeg or GStreamer receives it, and passes its MPEG-TS on unchanged.

PyAV's wheels contain no SRT. An SRT listener takes one stream at a time; when it ends, :class:`SrtReceiver` starts the
program again. SRT does not say whether an encoder ended its stream or lost its connection, so the channel always waits
for a while.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream

from tricklecast.publisher.ingest.sessions import Say, Sessions, SourceRefused
from tricklecast.trickle.client.program import Program
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.paths import ChannelURL

RESTART_S: Final = 1.0
"""Pause before the program is started again, in seconds."""

SILENCE_S: Final = 10.0
"""Without a byte for this long the program is started again, because it takes one connection only: a client
that connects and sends nothing would keep the encoder out. A caller repeats its handshake for 3 s, and so survives
this."""

PROGRAM_S: Final = 30.0
"""How long a program may take to say what it can do, in seconds."""

READ_BYTES: Final = 64 * 1024

WORDS_S: Final = 5.0
"""How long a program that has closed its output may take to end, and so to finish its error text, in seconds."""

MISSING: Final = (
    "SRT needs ffmpeg (built with libsrt) or GStreamer (with srtsrc), and neither is installed;"
    " on Debian: apt-get install ffmpeg"
)


def find_program(url: str) -> list[str]:
    """Find a program that can receive SRT.

    Returns:
        Its command line. It writes the bytes that it receives to its standard output.

    Raises:
        InvalidInput: there is none; the message says what to install.
    """
    if (ffmpeg := shutil.which("ffmpeg")) is not None and "srt" in _output([ffmpeg, "-protocols"]).split():
        # The format "data" is bytes: ffmpeg neither probes nor changes them.
        options = ["-hide_banner", "-nostdin", "-loglevel", "error", "-f", "data", "-i", url]
        return [ffmpeg, *options, "-map", "0", "-c", "copy", "-f", "data", "-flush_packets", "1", "-"]
    if (launch := shutil.which("gst-launch-1.0")) is not None and _output(["gst-inspect-1.0", "srtsrc"]):
        return [launch, "-q", "srtsrc", f"uri={url}", "keep-listening=false", "!", "fdsink", "fd=1"]
    raise InvalidInput(MISSING)


class SrtReceiver:
    """Takes streams for one channel, one after the other, until it is cancelled.

    Args:
        channel: where it is published: its URLs.
    """

    def __init__(self, url: str, command: Sequence[str], channel: tuple[ChannelURL, ...], *, say: Say) -> None:
        self._url = url
        self._command = command
        self._channel = channel
        self._say = say

    @classmethod
    async def open(cls, url: str, channel: tuple[ChannelURL, ...], *, say: Say) -> SrtReceiver:
        """Prepare to listen.

        Args:
            url: ``srt://HOST:PORT``, with SRT's options as its query. The mode is ``listener`` unless the query says
                something else.

        Raises:
            InvalidInput: no program can receive SRT, or the port is in use.
        """
        if "mode=" not in url:
            url += ("&" if "?" in url else "?") + "mode=listener"
        command = await anyio.to_thread.run_sync(find_program, url)
        if "mode=listener" in url:
            check_port(url)
            say(f"an encoder streams to {url.partition('?')[0]}")
        return cls(url, command, channel, say=say)

    async def run(self, sessions: Sessions) -> None:
        """Receive, and publish through ``sessions``."""
        while True:
            program = await Program.start(self._command)
            try:
                why = await self._receive(program, sessions)
            finally:
                await program.stop()
            if why:
                self._say(f"{self._channel[0].channel}: {why}")
            await anyio.sleep(RESTART_S)

    async def _receive(self, program: Program, sessions: Sessions) -> str:
        """Publish the bytes that the program receives; return why there were none, or why they were refused."""
        has_received = False
        try:
            data = await _next(program.output)
            has_received = True
            async with sessions.attach(self._channel, "the SRT encoder", "mpegts") as source:
                while True:
                    await source.send(data)
                    data = await _next(program.output)
        except anyio.EndOfStream:
            if has_received:  # the session says that it waits
                return ""
        except TimeoutError:
            return f"the SRT encoder sent nothing for {SILENCE_S:g} s" if has_received else ""
        except SourceRefused as error:
            return str(error)
        # The query may have a passphrase.
        return (await program.last_words(WORDS_S)).replace(self._url, "SRT").rpartition("\n")[2]


async def _next(output: ByteReceiveStream) -> bytes:
    """The next bytes.

    Raises:
        TimeoutError: none came for :data:`SILENCE_S`.
    """
    with anyio.fail_after(SILENCE_S):
        return await output.receive(READ_BYTES)


def check_port(url: str) -> None:
    """Raise InvalidInput if the port cannot be used: SRT would say so in many words, or in words of its own."""
    parts = urlsplit(url)
    host, port = parts.hostname or "0.0.0.0", parts.port or 0
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, port))
    except OSError as error:
        raise InvalidInput(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def _output(command: list[str]) -> str:
    """Return the output of a program; nothing if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
