"""Small drawings inside the cells of tables: shares as bars, ratios with their confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.report_old.html.markup import Markup, element

if TYPE_CHECKING:
    from tricklecast.analytics.report_old.figures import RateRatio

_HEIGHT: Final = 14
_LEAST_REACH: Final = 2.0
"""A drawing of ratios reaches at least from half to twice."""
_MOST_REACH: Final = 1000.0


def bar(share: float, before: float = 0.0) -> Markup:
    """A share of the cell's width; lighter in front of it, what the rows above add up to. 0 to 1 each."""
    start, width = min(1.0, max(0.0, before)), min(1.0, max(0.0, share))
    rest = element("rect", width=f"{100 * start:.2f}%", height=10, y=2, class_="rest") if start else None
    own = element("rect", x=f"{100 * start:.2f}%", width=f"{100 * width:.2f}%", height=10, y=2)
    return element("svg", rest, own, class_="bar", width="100%", height=_HEIGHT, aria_hidden="true")


def reach(ratios: Sequence[RateRatio]) -> float:
    """How far a common logarithmic axis for these has to reach to either side of 1, as a factor."""
    known = [value for ratio in ratios for value in (ratio.ratio, ratio.lo, ratio.hi) if value]
    farthest = max((max(value, 1 / value) for value in known), default=_LEAST_REACH)
    return min(_MOST_REACH, max(_LEAST_REACH, farthest * 1.1))


def interval(ratio: RateRatio, far: float) -> Markup:
    """A ratio as a dot, its confidence interval as a line, on a logarithmic axis from 1 / ``far`` to ``far``."""
    lo, hi = _place(ratio.lo or 1 / far, far), _place(ratio.hi or far, far)
    known = ratio.lo is not None or ratio.hi is not None
    drawn = [
        element("line", x1="50%", x2="50%", y1=0, y2=_HEIGHT, class_="one"),
        element("line", x1=f"{lo}%", x2=f"{hi}%", y1=7, y2=7, class_="interval") if known else None,
        element("circle", cx=f"{_place(ratio.ratio, far)}%", cy=7, r=4) if ratio.ratio else None,
    ]
    return element("svg", drawn, class_="ratio", width="100%", height=_HEIGHT, aria_hidden="true")


def _place(value: float, far: float) -> float:
    share = log(min(far, max(1 / far, value))) / log(far)
    return round(50 + 48 * share, 2)
