"""Publish segments of a channel."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tricklecast.publisher.client import Publisher
    from tricklecast.publisher.segment import Segment
    from tricklecast.publisher.statistics import Statistics
    from tricklecast.publisher.verdicts import Closed, Receipt

_HOMES = {
    "Closed": "verdicts",
    "Publisher": "client",
    "Receipt": "verdicts",
    "Segment": "segment",
    "Statistics": "statistics",
}

__all__ = ["Closed", "Publisher", "Receipt", "Segment", "Statistics"]


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562): a command's ``--help`` needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
