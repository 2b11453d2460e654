"""A record of a log as a line for people: what matters, and nothing that harms a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from tricklecast.analytics.report.plain import plain
from tricklecast.trickle.records import Kind
from tricklecast.trickle.wire import Status

_MAX_UNREADABLE: Final = 160
_MAX_NAME: Final = 32
_DIM, _RED, _YELLOW, _GREEN, _CYAN = "2", "31", "33", "32", "36"

Paint = Callable[[str, str], str]


def readable(record: Mapping[str, Any], *, colour: bool) -> str:
    """A record as one line that is safe to print.

    Args:
        record: the columns of a line of any format, with ``bad`` and ``line``.
    """
    paint = _painted if colour else _bare
    if record["bad"]:
        return paint(plain(record["line"][: 4 * _MAX_UNREADABLE].decode("utf-8", "replace"), _MAX_UNREADABLE), _DIM)
    moment = datetime.fromtimestamp(record["ts_us"] // 1_000_000, UTC)
    words = [f"{moment:%Y-%m-%d %H:%M:%S}.{record['ts_us'] // 1000 % 1000:03}", _name(record["node"])]
    words += _event(record, paint) if record["kind"] == Kind.EVENT else _exchange(record, paint)
    return " ".join(word for word in words if word)


def _event(record: Mapping[str, Any], paint: Paint) -> list[str]:
    name = paint(f"-- {_name(record['event']) or 'event'} --", _CYAN)
    worker = record.get("worker")
    return [name, "" if worker is None else f"worker {worker}", _name(record["channel"]), _name(record["detail"])]


def _exchange(record: Mapping[str, Any], paint: Paint) -> list[str]:
    status = record["status"]
    where = "/".join(part for part in (_name(record["channel"]), _seq(record)) if part)
    who = " ".join(name for name in (_name(record["client"]), _name(record["release"])) if name)
    return [
        paint(f"{status if status is not None else '---'}", _colour(status)),
        f"{_name(record['op']) or _name(record['method']) or '?':<7}",
        where or _name(record["path"]),
        _name(record["reason"]),
        _amount(record["bytes_out"] or record["bytes_in"] or 0),
        _took(record["dur_us"]),
        paint(who, _DIM),
        _again(record),
    ]


def _seq(record: Mapping[str, Any]) -> str:
    asked, resolved = record["seq"], record["rseq"]
    if resolved is None or resolved == asked:
        return _name(asked)
    return f"{asked}={resolved}" if asked is not None else _name(resolved)


def _amount(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B" if count else ""


def _took(took: int | None) -> str:
    if took is None:
        return ""
    return f"{took / 1e6:.2f} s" if took >= 10**6 else f"{took / 1e3:.1f} ms"


def _again(record: Mapping[str, Any]) -> str:
    attempt, told = record["attempt"], record["retry_after_ms"]
    words = [f"attempt {attempt}"] if attempt is not None and attempt > 1 else []
    words += [f"told to wait {told} ms"] if told else []
    return ", ".join(words)


def _name(value: Any) -> str:
    return "" if value is None else plain(str(value)[: 2 * _MAX_NAME], _MAX_NAME)


def _colour(status: int | None) -> str:
    if status is None:
        return _DIM
    if status >= Status.SERVER_ERROR or status == Status.TOO_MANY_REQUESTS:
        return _RED
    return _YELLOW if status >= Status.BAD_REQUEST else _GREEN


def _painted(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if text else ""


def _bare(text: str, code: str) -> str:
    return text
