"""The report and alerts for programs: the values of :mod:`analytics.report.model` as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tricklecast.analytics.report.model import Alert, Report, Summary


def as_dict(value: Report | Summary | Alert) -> dict[str, Any]:
    """The value as JSON's own types: every field always; what is not known is ``null``."""
    made: dict[str, Any] = msgspec.to_builtins(value)
    return made


def as_json(report: Report) -> str:
    """The report as a JSON document.

    It is ASCII: names come from whoever sent the requests, and a terminal that shows the file must not obey them.
    """
    return json.dumps(as_dict(report), ensure_ascii=True, allow_nan=False, indent=2) + "\n"
