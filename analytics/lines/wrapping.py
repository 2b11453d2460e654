"""Wrappings: containers, journals and log services each add text of their own around the line that a server wrote.

A wrapping is told from a sample, like a format, and taken off before a line is parsed; there may be several around each
other (a container's log that syslog has sent). Most are a prefix that a regular expression cuts off a whole block of
lines at once. A container runtime cuts long lines into pieces: they are joined, and each piece but the last leaves a
blank line, so that the number of a line is its number in the file.

Beside the lines of the server there are others in such a log: of an entrypoint, of another program. They are no lines
of the format and are counted apart (:func:`~tricklecast.analytics.lines.reading.selected`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import msgspec

from tricklecast.analytics.lines.records import MAX_LINE

STAMPED: Final = "stamped"
LABEL: Final = "label"
MAX_DEPTH: Final = 3
"""Wrappings around each other."""

_ISO: Final = rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"

PREFIXES: Final[dict[str, tuple[bytes, bytes]]] = {
    "kubectl": (rb"^\[pod/[^\]\n]+\] ", b""),
    "colours": (rb"\x1b\[[0-9;]*[mK]", b""),
    "compose": (rb"^[\d.]*[A-Za-z_-][\w.-]* +\| ?", b""),
    "syslog": (
        rb"^(?:(?:\d{1,7} )?<\d{1,3}>1 \S+ \S+ \S+ \S+ \S+ (?:-|(?:\[[^\]\n]*\])+) ?(?:\xef\xbb\xbf)?"
        rb"|(?:<\d{1,3}>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\d{10}\.\d{6}|"
        + _ISO
        + rb") \S+ [^ :\[\n]+(?:\[\d+\])?: )",
        b"",
    ),
    "csv": (rb'(?m)^"?' + _ISO + rb'"?,"(.*)"(?=\r?$)', rb"\1"),
    "console": (
        rb"^([0-9][^\t\n]*)\tINFO\thttp\.log\.access\S*\thandled request\t\{",
        rb'{"ts":"\1","msg":"handled request",',
    ),
    "loki": (rb"^" + _ISO + rb' \{\w+="[^{\n]*?"\} ', b""),
    "dyno": (rb"^" + _ISO + rb" [\w.-]+\[[\w.-]+\](?: +\w+ \[\w+\]|:) ", b""),
    "stern": (rb"^[a-z][a-z0-9.-]*-[a-z0-9]{1,10} [a-z][a-z0-9-]* ", b""),
    "grafana": (rb"^\d{13,19}\t" + _ISO + rb"\t", b""),
    "stream": (rb"^" + _ISO + rb" (?=[^ /\n]*[A-Za-z])[^ /\n]+/\S+ ", b""),
    "timestamp": (rb"^" + _ISO + rb"[ \t]", b""),
    "array": (rb"^[ \t]*(?:\x1e|\[)?[ \t]*(\{.*\}),[ \t]*(?=\r?$)", rb"\1"),
    LABEL: (rb'^[^{"\n]{1,200}(?=\{")', b""),
}
"""Name → what is cut out of a line, at its beginning but for colours, and what comes in its place."""

CRI: Final = re.compile(rb"(?m)^\S+ (stdout|stderr) ([FP])(?::\S*)? ")
_MESSAGE: Final = re.compile(rb'^\s*"message": (".*?"),?\s*$')
_EXPORT: Final = re.compile(rb"^(?:__CURSOR|__REALTIME_TIMESTAMP)=")
_RARE: Final = frozenset({"console"})
"""One line tells these; the others have to be around half of them."""

_COMPILED: Final = {
    name: (re.compile(rb"(?m)" + was.removeprefix(b"(?m)")), now) for name, (was, now) in PREFIXES.items()
}

NAMES: Final = ("envelope", STAMPED, "cri", "journal", "aws-json", *PREFIXES)
"""In the order in which they are tried: the most particular first. ``stamped`` is an envelope whose time is put before
the line, for lines without one of their own."""


class _Envelope(msgspec.Struct):
    """The line in a JSON object: of Docker's json-file, journald, Fluent Bit, Filebeat, Loki and Cloud Logging."""

    log: msgspec.Raw = msgspec.Raw(b"")
    MESSAGE: msgspec.Raw = msgspec.Raw(b"")
    message: msgspec.Raw = msgspec.Raw(b"")
    textPayload: msgspec.Raw = msgspec.Raw(b"")
    line: msgspec.Raw = msgspec.Raw(b"")
    short_message: msgspec.Raw = msgspec.Raw(b"")
    event: msgspec.Raw = msgspec.Raw(b"")
    raw: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="_raw")
    jsonPayload: msgspec.Raw = msgspec.Raw(b"")
    log_processed: msgspec.Raw = msgspec.Raw(b"")
    source: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="_source")
    result: msgspec.Raw = msgspec.Raw(b"")
    # When the line was written, for lines that do not say so themselves.
    time: msgspec.Raw = msgspec.Raw(b"")
    timestamp: msgspec.Raw = msgspec.Raw(b"")
    at: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="@timestamp")
    journal_us: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="__REALTIME_TIMESTAMP")
    # Of a record of our own, whose ``event`` is no line of a log.
    ts_us: msgspec.Raw = msgspec.Raw(b"")


_decoder: Final = msgspec.json.Decoder(_Envelope)


def _inside(line: bytes, stamped: bool = False) -> bytes | None:
    """The line that a JSON object is around; ``None`` if it is none, or around nothing.

    Args:
        stamped: put the object's time before the line.
    """
    if line[:1] != b"{":
        return None
    try:
        found = _decoder.decode(line)
        text = None if bytes(found.ts_us) else _text_of(found)
        if text is None or not stamped:
            return text
        whens = (bytes(raw).strip(b'"') for raw in (found.time, found.timestamp, found.at, found.journal_us))
        when = next((when for when in whens if when[:1].isdigit() and b" " not in when), None)
        return text if when is None else when + b" " + text
    except (ValueError, RecursionError):
        return None


def _text_of(found: _Envelope) -> bytes | None:
    texts = [bytes(raw) for raw in (found.log, found.MESSAGE, found.message, found.textPayload, found.line)]
    texts += [bytes(raw) for raw in (found.short_message, found.event, found.raw)]
    for value in texts:
        if value[:1] == b'"' and value != b'""':
            return msgspec.json.decode(value, type=str).encode()
        if value[:1] == b"[":
            # The journal writes what is no UTF-8 as a list of bytes.
            return bytes(msgspec.json.decode(value, type=list[int]))
    objects = (*map(bytes, (found.jsonPayload, found.log_processed, found.source, found.result)), *texts)
    return next((value for value in objects if value[:1] == b"{"), None)


def wrapping_of(lines: Sequence[bytes]) -> list[str]:
    """The wrappings that may be the outer one of some lines; the most particular first."""
    return [name for name in NAMES if lines and _has(name, lines)]


def _has(name: str, lines: Sequence[bytes]) -> bool:
    if name in ("envelope", STAMPED):
        return _half(lambda line: _inside(line) is not None, lines)
    if name in ("journal", "aws-json"):
        return any(map((_EXPORT if name == "journal" else _MESSAGE).match, lines))
    fits = CRI.match if name == "cri" else _COMPILED[name][0].search
    return any(map(fits, lines)) if name in _RARE else _half(fits, lines)


def _half(fits: Callable[[bytes], object], lines: Sequence[bytes]) -> bool:
    """Whether at least half of the lines fit; it looks no further than needed."""
    others = (True for line in lines if not fits(line))
    return not next(islice(others, len(lines) // 2, None), False)


class Unwrapper:
    """Takes wrappings off blocks of lines of one log, in their order.

    It holds at most one unfinished line of each of a container's two streams, of each 1 MiB.
    """

    def __init__(self, wrapping: Sequence[str]) -> None:
        """Args: wrapping: names, the outer one first."""
        self._steps = [self._step(name) for name in wrapping]

    def feed(self, block: bytes) -> bytes:
        """The lines of a block without what is around them; as many, some of them blank.

        Args:
            block: whole lines; the log's last one may have no end.
        """
        for step in self._steps:
            block = step(block)
        return block

    @staticmethod
    def _step(name: str) -> Callable[[bytes], bytes]:
        if name == "cri":
            return _Pieces().cri
        if name in ("envelope", STAMPED):
            return _Pieces(stamped=name == STAMPED).envelope
        if name == "journal":
            return _journal
        if name == "aws-json":
            return _aws_json
        pattern, now = _COMPILED[name]
        if name == "csv":
            return lambda block: pattern.sub(now, block).replace(b'""', b'"')
        return lambda block: pattern.sub(now, block)


class _Pieces:
    """Joins the pieces of long lines."""

    def __init__(self, stamped: bool = False) -> None:
        self._stamped = stamped
        # The beginning of a line whose end has not come, by stream.
        self._begun: dict[bytes, bytes] = {}
        # Whether this log ends each line's text with a line's end, as Docker does; others have no pieces.
        self._ended: bool | None = None

    def _join(self, stream: bytes, text: bytes, whole: bool) -> bytes:
        if self._begun:
            text = self._begun.pop(stream, b"") + text
        if whole:
            return text
        self._begun[stream] = text[: MAX_LINE + 1]
        return b""

    def cri(self, block: bytes) -> bytes:
        """Kubernetes' container logs: ``TIME stdout P text``."""
        if not self._begun and not re.search(rb"(?m)^\S+ std(?:out|err) P", block):
            return CRI.sub(b"", block)
        lines = []
        for line in block.split(b"\n"):
            found = CRI.match(line)
            lines.append(self._join(found[1], line[found.end() :].rstrip(b"\r"), found[2] == b"F") if found else line)
        return b"\n".join(lines)

    def envelope(self, block: bytes) -> bytes:
        """A line's text in a JSON object."""
        taken = [(line, _inside(line, self._stamped and not self._begun)) for line in block.split(b"\n")]
        if self._ended is None:
            self._ended = any(text.endswith(b"\n") for _, text in taken if text is not None)
        lines = []
        for line, text in taken:
            if text is None:
                lines.append(line)
                continue
            ended = text.endswith(b"\n") or not self._ended
            stream = b"stderr" if self._ended and b'"stream":"stderr"' in line else b"stdout"
            lines.append(self._join(stream, text.rstrip(b"\r\n").replace(b"\n", b" "), ended))
        return b"\n".join(lines)


def _journal(block: bytes) -> bytes:
    """``journalctl -o export``: a line for each field."""
    mark = b"MESSAGE="
    return b"\n".join(line[len(mark) :] if line.startswith(mark) else b"" for line in block.split(b"\n"))


def _aws_json(block: bytes) -> bytes:
    """``aws logs filter-log-events``: JSON over several lines, one of them with the message."""
    lines = []
    for line in block.split(b"\n"):
        found = _MESSAGE.match(line)
        try:
            lines.append(msgspec.json.decode(found[1], type=str).encode().replace(b"\n", b" ") if found else b"")
        except ValueError:
            lines.append(line)
    return b"\n".join(lines)
