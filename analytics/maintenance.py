"""Maintenance: times in which nobody is to be woken, as people type them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from tricklecast.analytics.times import parse_time

FORMS: Final = "02:00-04:00, 'sat,sun 22:00-06:00 Europe/Berlin', 2026-11-28T02:00/2026-11-28T06:00, or FILE.toml"
"""For messages."""

MAX_WINDOWS: Final = 1000

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAILY: Final = re.compile(r"(?:([a-z,]+)\s+)?(\d\d):(\d\d)-(\d\d):(\d\d)(?:\s+(\S+))?", re.IGNORECASE)
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _Window:
    """One time, or one that comes again on some days of the week.

    Attributes:
        text: as it was typed. from_us, until_us: of one time.
        days: 0 for Monday; at, length: when it begins on such a day, by the clocks of ``zone``, and for how long.
    """

    text: str
    from_us: int = 0
    until_us: int = 0
    days: frozenset[int] = frozenset()
    at: timedelta = timedelta()
    length: timedelta = timedelta()
    zone: tzinfo = UTC

    def covers(self, since_us: int, until_us: int) -> bool:
        """Whether two moments are in it, at one of the times that it comes."""
        if not self.days:
            return self.from_us <= since_us and until_us < self.until_us
        since, until = (
            (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)).astimezone(self.zone).replace(tzinfo=None)
            for us in (since_us, until_us)
        )
        midnight = datetime(since.year, since.month, since.day)
        # It may have begun on the day before.
        return any(
            begin.weekday() in self.days and begin + self.at <= since and until < begin + self.at + self.length
            for begin in (midnight, midnight - _DAY)
        )


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The windows of a run; none by default."""

    windows: tuple[_Window, ...] = ()

    def covers(self, since_us: int, until_us: int | None = None) -> str | None:
        """The window that a moment, or all of a time, is in, as it was typed; ``None`` if there is none."""
        until_us = since_us if until_us is None else until_us
        return next((one.text for one in self.windows if one.covers(since_us, until_us)), None)


def parse_maintenance(texts: Iterable[str]) -> Maintenance:
    """The windows that some texts and files tell.

    Args:
        texts: each a window, or the name of a TOML file with a list ``windows`` of such texts.

    Raises:
        ValueError: one is no window, or a file cannot be read.
    """
    found = [_window(each) for text in texts for each in (_from_file(text) if text.endswith(".toml") else [text])]
    if len(found) > MAX_WINDOWS:
        raise ValueError(f"more than {MAX_WINDOWS:,} windows of maintenance")
    return Maintenance(tuple(found))


def _from_file(file: str) -> list[str]:
    try:
        windows = tomllib.loads(Path(file).read_text(encoding="utf-8")).get("windows")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"cannot read {file!r}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(windows, list) or not all(isinstance(one, str) for one in windows):
        raise ValueError(f'{file!r}: expected windows = ["02:00-04:00", ...]')
    return windows


def _window(text: str) -> _Window:
    wrong = f"no window of maintenance: {text!r}; write {FORMS}"
    if found := _DAILY.fullmatch(text.strip()):
        days, *clock, zone = found.groups()
        names = days.lower().split(",") if days else list(_DAYS)
        begin, end = (timedelta(hours=int(hour), minutes=int(minute)) for hour, minute in (clock[:2], clock[2:]))
        if not set(names) <= set(_DAYS) or max(begin, end) > _DAY or int(clock[1]) > 59 or int(clock[3]) > 59:
            raise ValueError(wrong)
        try:
            # ValueError for "../x", OSError for the name of a folder.
            place = ZoneInfo(zone) if zone else UTC
        except (KeyError, ValueError, OSError):
            raise ValueError(f"no such time zone: {zone!r}; write UTC, or Europe/Berlin") from None
        length = end - begin if end > begin else end - begin + _DAY
        return _Window(text, days=frozenset(map(_DAYS.index, names)), at=begin, length=length, zone=place)
    first, slash, last = text.partition("/")
    try:
        from_us, until_us = parse_time(first, 0), parse_time(last, 0)
    except ValueError:
        raise ValueError(wrong) from None
    if not slash or from_us >= until_us:
        raise ValueError(wrong)
    return _Window(text, from_us, until_us)
