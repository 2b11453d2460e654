"""Events as lines, and the page that describes them."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from tricklecast import subscriber
from tricklecast.subscriber.archive import Entry
from tricklecast.subscriber.command.events import (
    Ended,
    Event,
    Failed,
    Gap,
    Note,
    Reconnecting,
    Retry,
    SegmentRead,
    Started,
    Totals,
    as_line,
    name_of,
)
from tricklecast.subscriber.fetch import Unanswered
from tricklecast.subscriber.remux.container import NothingToWrite
from tricklecast.subscriber.sinks import SinkClosed
from tricklecast.trickle import errors

DOCS = Path(__file__).parents[3] / "docs" / "reference"
KINDS: list[type[Event]] = [Started, SegmentRead, Gap, Retry, Reconnecting, Note, Ended, Failed]


def test_a_line_is_the_event_with_its_time() -> None:
    """In one line of UTF-8, with numbers that people can read."""
    assert as_line(Gap(2, None), 1.23456) == b'{"v": 1, "event": "gap", "time": 1.235, "missed": 2, "before": null}\n'
    line = as_line(Ended("time", "3@1", Totals(seconds=1 / 3, bytes=7)), 0.0)
    assert json.loads(line)["totals"] == {
        "seconds": 0.333,
        "segments": 0,
        "bytes": 7,
        "gaps": 0,
        "missed": 0,
        "truncated": 0,
        "broken": 0,
        "resumed": 0,
        "retries": 0,
        "requests": 0,
    }
    assert as_line(Note("Ü\n"), 0.0).count(b"\n") == 1


def kinds(kind: type[errors.TrickleError]) -> set[type[errors.TrickleError]]:
    """That type of error and all below it that the subscriber has to do with."""
    here = {kind} if kind.__module__.startswith(("tricklecast.subscriber.", "tricklecast.trickle.")) else set()
    return here.union(*(kinds(below) for below in kind.__subclasses__()))


def test_errors_have_names_that_can_be_imported() -> None:
    """Private types are named by a public one; those that scripts can tell apart have a name of their own."""
    named = {kind: name_of(kind.__new__(kind)) for kind in kinds(errors.TrickleError)}
    assert {hasattr(errors, name) or name in subscriber.__all__ for name in named.values()} == {True}
    assert {kind: name for kind, name in named.items() if name != kind.__name__} == {
        Unanswered: "ConnectionLost",
        # Neither of these comes out of a run.
        SinkClosed: "TrickleError",
        NothingToWrite: "TrickleError",
    }


@pytest.mark.parametrize("kind", [*KINDS, Totals, Entry], ids=lambda kind: kind.__name__)
def test_every_field_is_documented(kind: type) -> None:
    """On the page that readers of the events, or of the index, go by."""
    page = (DOCS / ("outputs.md" if kind is Entry else "subscribe-events.md")).read_text(encoding="utf-8")
    words = set(re.findall(r"`(\w+)`", page))
    assert {field.name for field in fields(kind)} <= words
    assert getattr(kind, "event", "kind" if kind is Entry else "end") in words
