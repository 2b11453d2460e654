"""Tables of the page: one way to make them, so that all can be read by eye, by ear and on a telephone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tricklecast.analytics.report_old.html.markup import Child, Markup, element


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        title: its heading.
        kind: ``text``, ``number`` (to the right) or ``drawing`` (as wide as possible).
        hint: what it means, on hover.
    """

    title: str
    kind: str = "text"
    hint: str | None = None


def table(caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Child]]) -> Markup:
    """A table whose first cell in each row is that row's heading."""
    head = element("tr", [heading(column) for column in columns])
    body = [
        element("tr", [_cell(column, cell, at == 0) for at, (column, cell) in _pairs(columns, row)]) for row in rows
    ]
    inside = element("table", element("caption", caption), element("thead", head), element("tbody", body))
    return element("div", inside, class_="wide", tabindex=0, role="region", aria_label=caption)


def heading(column: Column) -> Markup:
    """The cell at the top of a column."""
    return element("th", column.title, scope="col", class_=_class(column), title=column.hint)


def _pairs(columns: Sequence[Column], row: Sequence[Child]) -> Iterable[tuple[int, tuple[Column, Child]]]:
    return enumerate(zip(columns, row, strict=True))


def _cell(column: Column, cell: Child, first: bool) -> Markup:
    if first:
        return element("th", cell, scope="row", class_=_class(column))
    return element("td", cell, class_=_class(column))


def _class(column: Column) -> str | None:
    return {"number": "n", "drawing": "d"}.get(column.kind)
