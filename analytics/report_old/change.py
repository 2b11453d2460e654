"""What a rate ratio with its confidence interval says, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tricklecast.analytics.report.formats import UNKNOWN

if TYPE_CHECKING:
    from tricklecast.analytics.report_old.figures import RateRatio


def change(ratio: RateRatio) -> str:
    """``worse`` or ``better`` if the whole interval is on one side of 1, else ``no clear change``."""
    if ratio.lo is not None and ratio.lo > 1:
        return "worse"
    if ratio.hi is not None and ratio.hi < 1:
        return "better"
    return "no clear change"


def interval_words(ratio: RateRatio) -> str:
    """``0.73 to 1.1``; one end alone where the other is not bounded."""
    if ratio.lo is None and ratio.hi is None:
        return UNKNOWN
    low = "0" if ratio.lo is None else f"{ratio.lo:,.3g}"
    return f"from {low}" if ratio.hi is None else f"{low} to {ratio.hi:,.3g}"
