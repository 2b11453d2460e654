"""The report for programs: the values of :mod:`analytics.report.model` as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tricklecast.analytics.report.model import Report


def as_dict(report: Report) -> dict[str, Any]:
    """The report as JSON's own types: every field always; what is not known is ``null``."""
    made: dict[str, Any] = msgspec.to_builtins(report)
    return made


def as_json(report: Report) -> str:
    """The report as a JSON document.

    It is ASCII: names come from whoever sent the requests, and a terminal that shows the file must not obey them.
    """
    return json.dumps(as_dict(report), ensure_ascii=True, allow_nan=False, indent=2) + "\n"
