"""A line of the access log as people read it, and which lines they want to see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final

import orjson

from tricklecast.analytics.report.plain import plain
from tricklecast.trickle.records import Kind
from tricklecast.trickle.wire import Status

_MAX_UNREADABLE: Final = 160
_MAX_NAME: Final = 32
_DIM, _RED, _YELLOW, _GREEN, _CYAN, _PLAIN = "2", "31", "33", "32", "36", ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines are shown. A line must have one of the values of each filter that is not empty.

    Attributes:
        channels, clients: names, or patterns with ``*``.
        statuses: numbers, or patterns such as ``5xx``.
        ops, reasons: of an exchange; ``limit:*`` is any limit. An event's name counts as its op.
        failures: only refusals and errors: status 400 and above.
    """

    channels: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    failures: bool = False

    @property
    def everything(self) -> bool:
        """Whether there is no filter."""
        return self == Wanted()

    def __call__(self, line: bytes) -> bool:
        """Whether a line is shown; one that cannot be read is, unless something particular is looked for."""
        if self.everything:
            return True
        record = parsed(line)
        return record is not None and self._has(record)

    def _has(self, record: dict[str, Any]) -> bool:
        status = record.get("status")
        if self.failures and not (isinstance(status, int) and status >= Status.BAD_REQUEST):
            return False
        op = record.get("event") if record.get("kind") == Kind.EVENT else record.get("op")
        return (
            _any(self.channels, record.get("channel"))
            and _any(self.clients, record.get("client"))
            and _any(tuple(pattern.lower().replace("x", "?") for pattern in self.statuses), status)
            and _any(self.ops, op)
            and _any(self.reasons, record.get("reason"))
        )


def _any(patterns: tuple[str, ...], value: Any) -> bool:
    if not patterns:
        return True
    return value is not None and any(fnmatchcase(str(value), pattern) for pattern in patterns)


def parsed(line: bytes) -> dict[str, Any] | None:
    """The record of a line; ``None`` if it is no JSON object."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) else None


def readable(line: bytes, *, colour: bool) -> str:
    """A line for people: safe to print, whatever is in it."""
    paint = _painted if colour else _bare
    record = parsed(line)
    if record is None:
        return paint(plain(line[: 4 * _MAX_UNREADABLE].decode("utf-8", "replace"), _MAX_UNREADABLE), _DIM)
    words = [_time(record.get("ts_us")), _name(record.get("node"))]
    words += _event(record, paint) if record.get("kind") == Kind.EVENT else _exchange(record, paint)
    return " ".join(word for word in words if word)


Paint = Callable[[str, str], str]


def _event(record: dict[str, Any], paint: Paint) -> list[str]:
    name = paint(f"-- {_name(record.get('event')) or 'event'} --", _CYAN)
    return [name, _name(record.get("channel")), _name(record.get("detail"))]


def _exchange(record: dict[str, Any], paint: Paint) -> list[str]:
    status = record.get("status")
    where = "/".join(part for part in (_name(record.get("channel")), _seq(record)) if part)
    return [
        paint(f"{plain(str(status), 6) if status is not None else '---':>3}", _colour(status)),
        f"{_name(record.get('op')) or _name(record.get('method')) or '?':<7}",
        where or _name(record.get("path")),
        _name(record.get("reason")),
        _amount(record),
        _took(record),
        paint(_who(record), _DIM),
        _again(record),
    ]


def _seq(record: dict[str, Any]) -> str:
    asked, resolved = record.get("seq"), record.get("rseq")
    if resolved is None or resolved == asked:
        return _name(asked)
    return f"{_name(asked)}={_name(resolved)}" if asked is not None else _name(resolved)


def _amount(record: dict[str, Any]) -> str:
    count = record.get("bytes_out") or record.get("bytes_in")
    if not isinstance(count, int) or isinstance(count, bool) or count <= 0:
        return ""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}" if count < 10**15 else f"{count:.1e} B"
    return f"{count} B"


def _took(record: dict[str, Any]) -> str:
    took = record.get("dur_us")
    if not isinstance(took, int) or isinstance(took, bool) or not 0 <= took < 10**15:
        return ""
    return f"{took / 1e6:.2f} s" if took >= 10**6 else f"{took / 1e3:.1f} ms"


def _who(record: dict[str, Any]) -> str:
    return " ".join(name for name in (_name(record.get("client")), _name(record.get("release"))) if name)


def _again(record: dict[str, Any]) -> str:
    attempt, told = record.get("attempt"), record.get("retry_after_ms")
    words = [f"attempt {attempt}"] if isinstance(attempt, int) and 1 < attempt < 10**9 else []
    words += [f"told to wait {told} ms"] if isinstance(told, int) and 0 < told < 10**12 else []
    return ", ".join(words)


def _time(ts_us: Any) -> str:
    if not isinstance(ts_us, int) or isinstance(ts_us, bool) or not 0 <= ts_us < 4_102_444_800_000_000:
        return "?" * len("2025-10-09 08:53:20.250")
    moment = datetime.fromtimestamp(ts_us // 1_000_000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ts_us // 1000 % 1000:03}"


def _name(value: Any) -> str:
    return "" if value is None else plain(str(value)[: 2 * _MAX_NAME], _MAX_NAME)


def _colour(status: Any) -> str:
    if not isinstance(status, int):
        return _DIM
    if status >= Status.SERVER_ERROR or status == Status.TOO_MANY_REQUESTS:
        return _RED
    return _YELLOW if status >= Status.BAD_REQUEST else _GREEN


def _painted(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if text else ""


def _bare(text: str, code: str) -> str:
    return text
