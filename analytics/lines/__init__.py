"""Lines from anywhere: paths, folders and streams of any known format become rows of one shape, ``line``."""

from __future__ import annotations

from tricklecast.analytics.lines.files import ALWAYS, LogFiles, Window, find_logs
from tricklecast.analytics.lines.mapped import BadFormat
from tricklecast.analytics.lines.reading import BadLine, Counts, Reading
from tricklecast.analytics.lines.recognise import Format, NothingUnderstood, UnknownFormat, recognise
from tricklecast.analytics.lines.records import LINE

__all__ = [
    "ALWAYS",
    "LINE",
    "BadFormat",
    "BadLine",
    "Counts",
    "Format",
    "LogFiles",
    "NothingUnderstood",
    "Reading",
    "UnknownFormat",
    "Window",
    "find_logs",
    "recognise",
]
