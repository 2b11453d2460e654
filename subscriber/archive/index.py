"""The index of a recording: one JSON object per line, only ever appended to.

====================  ==================================================================================
``kind``              says
====================  ==================================================================================
``channel``           whose recording this is; the first line
``segment``           a segment was recorded whole: its file is there (see :class:`Entry`)
``removed``           a segment's file was removed, to make room
``ended``             the channel ended here; ``gap`` segments were missed before its end
====================  ==================================================================================

Lines of a kind that is not known, and fields that are not, are passed over, so that older programs can read what
newer ones write. A last line without its end was being written when its program died; it counts as not there.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tricklecast.trickle.errors import TrickleError

VERSION: Final = 1

_HEADER: Final = f'{{"v": {VERSION}, "kind": "channel", "channel": '.encode()
"""How the first line begins, even if it is torn. A file that begins with something else is not ours to repair."""

_EXTENSIONS: Final = {
    "video/mp2t": ".ts",
    "video/mp4": ".mp4",
    "audio/mp4": ".m4a",
    "video/webm": ".webm",
    "video/x-matroska": ".mkv",
    "audio/aac": ".aac",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/wav": ".wav",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "application/json": ".json",
    "application/x-ndjson": ".jsonl",
    "text/plain": ".txt",
    "text/vtt": ".vtt",
}
"""Own table: that of :mod:`mimetypes` depends on the machine."""


class DamagedIndex(TrickleError):
    """A line of the index cannot be read, and no crash has torn it. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded segment.

    Attributes:
        seq: its number. life: which numbering it belongs to, counted 1, 2, … within this recording: a channel that is
            created again, or whose server has restarted, begins anew, and so do the server's epochs.
        file: its file, relative to the folder; ``None``: the segment was empty.
        size: of its file, in bytes. sha256: of its bytes, in hexadecimal.
        content_type: the channel's media type.
        epoch: which life of the channel's name the server calls it; ``None`` where it does not say.
        began_at, ended_at: when its first and its last byte came, in seconds of Unix time.
        gap: segments missed immediately before it. restarted: the numbering began anew with it.
        truncated: why it is not whole, as the server said. broken: why the rest of it could not be had.
        numbering: the name that the server gives to the numbering; ``None`` where it does not say.
    """

    seq: int
    life: int
    file: str | None
    size: int
    sha256: str
    content_type: str
    epoch: int | None
    began_at: float
    ended_at: float
    gap: int = 0
    restarted: bool = False
    truncated: str | None = None
    broken: str | None = None
    numbering: str | None = None

    def line(self) -> bytes:
        """The line that says so."""
        return line("segment", **asdict(self))


def line(kind: str, **fields: Any) -> bytes:
    """One line of the index, its end included."""
    return json.dumps({"v": VERSION, "kind": kind, **fields}, ensure_ascii=False).encode() + b"\n"


def extension(content_type: str) -> str:
    """What the files of segments of this media type end with; ``.bin`` if nothing better is known."""
    return _EXTENSIONS.get(content_type.partition(";")[0].strip().lower(), ".bin")


@dataclass(slots=True)
class Contents:
    """What an index says, line by line.

    Attributes:
        channel: whose recording it is; ``None`` while it is empty.
        last: the newest segment; where to go on is behind it.
        kept: the segments whose files are there, oldest first. kept_bytes: their sizes, added up.
        removed: segments that were removed. dead: lines that are about them.
        size: bytes of the index up to its last whole line; what follows is torn.
    """

    channel: str | None = None
    last: Entry | None = None
    kept: deque[Entry] = field(default_factory=deque)
    kept_bytes: int = 0
    removed: int = 0
    dead: int = 0
    size: int = 0

    @classmethod
    def scan(cls, lines: Iterable[bytes]) -> Contents:
        """Read an index.

        Args:
            lines: with their ends, as a binary file yields them.

        Raises:
            DamagedIndex: a line that is not the last one makes no sense, or the first one is of something else.
        """
        contents = cls()
        wrong: int | None = None
        for number, text in enumerate(lines, 1):
            if wrong is not None:
                raise DamagedIndex(f"line {wrong} of the index is damaged")
            if contents._take(text):
                contents.size += len(text)
            else:
                wrong = number
            if contents.channel is None and text[: len(_HEADER)] != _HEADER[: len(text)]:
                raise DamagedIndex("that is no index of a recording")
        return contents

    def add(self, entry: Entry) -> None:
        """A segment was recorded."""
        self.last = entry
        self.kept.append(entry)
        self.kept_bytes += entry.size

    def drop_oldest(self) -> None:
        """The oldest segment was removed."""
        self.kept_bytes -= self.kept.popleft().size
        self.removed += 1
        self.dead += 2

    def _take(self, text: bytes) -> bool:
        """Take a line in; whether it is one."""
        if not text.endswith(b"\n"):
            return False
        try:
            said = json.loads(text)
            match said["kind"]:
                case "channel":
                    self.channel, self.removed = str(said["channel"]), int(said.get("removed", 0))
                case "segment":
                    self.add(Entry(**{name: said[name] for name in Entry.__slots__ if name in said}))
                case "removed":
                    self._forget(said["life"], said["seq"])
        except (ValueError, KeyError, TypeError):
            return False
        return True

    def _forget(self, life: int, seq: int) -> None:
        # The oldest goes first, always; a line that was written twice names one that is gone already.
        if self.kept and (self.kept[0].life, self.kept[0].seq) == (life, seq):
            self.drop_oldest()
