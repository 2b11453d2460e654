"""Where a channel is pushed to, and the program that does it."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

import anyio

from tricklecast.trickle.client.program import Program
from tricklecast.trickle.errors import InvalidInput, TrickleError
from tricklecast.trickle.wire import redacted

SEND_S: Final = 15.0
"""A program that takes no bytes for this many seconds is stuck: its server is away."""

END_S: Final = 5.0
"""How long a program may take to send the rest, in seconds."""

_SRT_OPTIONS: Final = ("-hide_banner", "-nostdin", "-loglevel", "error", "-f", "matroska", "-i", "-")


_ADDRESS: Final = re.compile(r" @ 0x[0-9a-f]+")


class ConnectionBroke(TrickleError):
    """The program ended, or is stuck; the text says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server, as a user names it.

    Attributes:
        shown: its URL without stream key, user, password and options, for people and logs.
        command: the program.
        secrets: texts that no line may have.
    """

    url: str
    shown: str
    command: tuple[str, ...]
    secrets: tuple[str, ...]

    @classmethod
    def parse(cls, url: str) -> Self:
        """Recognise a target.

        Raises:
            InvalidInput: it is none, or nothing here can send to it. ValueError: its port is no number of a port.
        """
        parts = urlsplit(url)
        port, shown = parts.port, redacted(url)
        if parts.scheme in ("rtmp", "rtmps"):
            app, _, key = parts.path.lstrip("/").partition("/")
            if not parts.hostname or not app or not key:
                raise InvalidInput(f"{parts.scheme}://HOST/APP/KEY is expected, with a stream key")
            shown = f"{redacted(f'{parts.scheme}://{parts.netloc}')}/{app}/***"
            key = f"{key}?{parts.query}" if parts.query else key
            command = (sys.executable, "-m", "tricklecast.subscriber.relay.rtmp")
            return cls(url, shown, command, (url, key, parts.netloc if "@" in parts.netloc else ""))
        if parts.scheme == "srt":
            if port is None:
                raise InvalidInput("an SRT address has a port: srt://HOST:9000")
            ffmpeg = shutil.which("ffmpeg")
            if ffmpeg is None:
                raise InvalidInput("SRT needs ffmpeg (built with libsrt); on Debian: apt-get install ffmpeg")
            output = ("-map", "0", "-c", "copy", "-f", "mpegts", "-flush_packets", "1", url)
            return cls(url, shown, (ffmpeg, *_SRT_OPTIONS, *output), (url, parts.query))
        raise InvalidInput(f"{shown!r} is neither rtmp://, rtmps:// nor srt://")

    def cleaned(self, text: str) -> str:
        """A text of libav, or of the server, without secrets, and without libav's addresses in memory.

        A short key may also be a part of words, which stay.
        """
        text = _ADDRESS.sub("", text)
        for secret in filter(None, self.secrets):
            text = re.sub(rf"(?<![^\W_]){re.escape(secret)}(?![^\W_])", "***", text)
        return text


class Push:
    """One connection: the program runs, and takes bytes."""

    def __init__(self, target: Target, program: Program) -> None:
        self._target = target
        self._program = program

    @classmethod
    async def begin(cls, target: Target) -> Self:
        """Start the program. Only a program that goes on for a while has connected."""
        push = cls(target, await Program.start(target.command, takes_input=True))
        if target.url not in target.command:
            try:
                await push.send(f"{target.url}\n".encode())
            except BaseException:
                await push.stop()
                raise
        return push

    async def send(self, data: bytes) -> None:
        """Pass bytes on.

        Raises:
            ConnectionBroke: the program does not take them.
        """
        try:
            with anyio.fail_after(SEND_S):
                await self._program.input.send(data)
        except TimeoutError:
            raise ConnectionBroke(f"it takes no media for {SEND_S:g} s") from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise ConnectionBroke(await self._why()) from None

    async def end(self) -> None:
        """Let the program send the rest.

        Raises:
            ConnectionBroke: it could not, or took too long.
        """
        await self._program.input.aclose()
        with anyio.move_on_after(END_S):
            if await self._program.wait():
                raise ConnectionBroke(await self._why())
            return
        raise ConnectionBroke(f"it did not take the rest within {END_S:g} s")

    async def stop(self) -> None:
        """End the program, if it still runs."""
        await self._program.stop()

    async def _why(self) -> str:
        said = self._target.cleaned(await self._program.last_words(END_S)).splitlines()
        return "; ".join(said[-2:]) or "the connection broke"
