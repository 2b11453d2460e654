"""Lines from anywhere: files of any known format become rows with the columns of one schema."""

from __future__ import annotations

from tricklecast.analytics.sources.clients import ClientKey, parse_client_key
from tricklecast.analytics.sources.fieldmap import BadFormat
from tricklecast.analytics.sources.grouping import Grouped
from tricklecast.analytics.sources.native import read_lines
from tricklecast.analytics.sources.notes import notes_on
from tricklecast.analytics.sources.reading import Reading, read_logs, recognise

__all__ = [
    "BadFormat",
    "ClientKey",
    "Grouped",
    "Reading",
    "notes_on",
    "parse_client_key",
    "read_lines",
    "read_logs",
    "recognise",
]
