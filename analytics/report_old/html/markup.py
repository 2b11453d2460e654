"""HTML that cannot be wrong about what is text: every string that is not :class:`Markup` already is escaped here.

There is no other way from a value to the page. Attributes that could run something (``on…``, ``style``, links that lead
anywhere but to a place in the page) are refused: they would be a mistake of ours, since no name of an attribute comes
from a log.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final, TypeAlias

from tricklecast.analytics.report.formats import UNKNOWN, date_and_time, moment
from tricklecast.analytics.report.plain import Name, Phrase, plain, spelled

MAX_TITLE: Final = 256
"""Characters of a long name that are shown on hover."""

MAX_TEXT: Final = 10_000
"""Characters of any one text: a guard against names that reached the page uncut."""

_VOID: Final = frozenset({"meta", "col", "input", "br", "path", "rect", "line", "circle"})
"""Elements without content; those of SVG need the slash, to those of HTML it does nothing."""

_LINKS: Final = frozenset({"href", "src", "action", "formaction", "data", "xlink_href", "xlink:href"})


class Markup(str):
    """Text that is HTML already: made by :func:`element`, and from the package's own files."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"
Attribute: TypeAlias = str | int | float | bool | None


def element(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """An element.

    Args:
        name: of the element.
        children: texts, which are escaped, elements, or collections of both; ``None`` is nothing.
        attributes: ``class_`` for ``class``; ``_`` is written as ``-``; ``True`` for one without a value, ``False`` and
            ``None`` for none.

    Raises:
        ValueError: for an attribute that could run or fetch something.
    """
    start = "".join([name, *(_attribute(key, value) for key, value in attributes.items())])
    return Markup(f"<{start}/>" if name in _VOID else f"<{start}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Markup:
    """Texts and elements, one after the other."""
    return Markup("".join(map(_child, children)))


def name(value: str | None, limit: int = 40) -> Markup:
    """A name from a log: isolated from the direction of its neighbours, cut, with more of it on hover."""
    if value is None:
        return element("span", UNKNOWN, class_="none")
    shown = plain(value, limit)
    title = plain(value, MAX_TITLE)
    if shown == title and shown.isascii():
        return joined(shown)  # a thousand episodes have many names; these need no isolation
    return element("bdi", shown, title=title if title != shown else None)


def phrase(words: Phrase, limit: int = 64) -> Markup:
    """Words of ours with names in them."""
    return joined(name(part.text, limit) if isinstance(part, Name) else part for part in words)


def time(us: int, shown: str | None = None) -> Markup:
    """A time, UTC; the script adds the reader's own on hover."""
    when = moment(us)
    stamp = None if when is None else when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return element("time", shown or date_and_time(us), datetime=stamp)


def _child(child: Child) -> str:
    match child:
        case None:
            return ""
        case Markup():
            return child
        case str():
            return escape(spelled(child[:MAX_TEXT]), quote=False)
        case int():
            return str(child)
    return "".join(map(_child, child))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    if key.startswith("on") or key == "style" or (key in _LINKS and not str(value).startswith("#")):
        raise ValueError(f"the attribute {key}={value!r} has no place in a report")
    written = key.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{escape(spelled(str(value)[:MAX_TEXT]))}"'
