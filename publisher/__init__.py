"""Publish segments of a channel."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tricklecast.publisher.client import Publisher
    from tricklecast.publisher.core import Closed, Receipt
    from tricklecast.publisher.events import PublisherEvent
    from tricklecast.publisher.lines import JsonLines
    from tricklecast.publisher.segments import PublisherStatistics, SegmentWriter

_HOMES = {
    "Closed": "core",
    "JsonLines": "lines",
    "Publisher": "client",
    "PublisherEvent": "events",
    "PublisherStatistics": "segments",
    "Receipt": "core",
    "SegmentWriter": "segments",
}

__all__ = ["Closed", "JsonLines", "Publisher", "PublisherEvent", "PublisherStatistics", "Receipt", "SegmentWriter"]


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562): a command's ``--help`` needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
