"""Tables of the page on reports and alerts, from their classes and the thresholds themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import groupby
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tricklecast.analytics.report.model import Alert, Report
from tricklecast.analytics.rules.classes import StormClass
from tricklecast.analytics.rules.params import Params

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def report_tables() -> str:
    """A table for a report, one for an alert, and one for each kind of object in them, but for the thresholds."""
    seen: set[Any] = set()
    others = [kind for document in (Report, Alert) for kind in _reachable(document, seen)][1:]
    parts = [_table(Report)]
    for each in others:
        if each is not Params:
            also = (
                f" It has all fields of [{base.__name__}](#{base.__name__.lower()}), and:"
                if (base := _base(each))
                else ""
            )
            parts.append(f"### {each.__name__}\n\n{_text(each)[0]}{also}\n\n{_table(each)}")
    return "\n\n".join(parts)


def parameter_table() -> str:
    """Every threshold, with its default and what its docstring says."""
    defaults = {field.name: f"{getattr(Params(), field.name):g}" for field in fields(Params)}
    return _table(Params, ("parameter", "default"), defaults)


def _reachable(kind: Any, seen: set[Any]) -> Iterator[Any]:
    """A dataclass, and those that its fields are made of."""
    if is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        yield kind
        yield from _reachable(_base(kind), seen)
        for inner in get_type_hints(kind).values():
            yield from _reachable(inner, seen)
    for inner in get_args(kind):
        yield from _reachable(inner, seen)


def _table(kind: Any, heads: tuple[str, str] = ("field", "type"), seconds: dict[str, str] | None = None) -> str:
    """Names, a second column, and meanings: neighbours of one meaning share a row."""
    meanings, types = _text(kind)[1], get_type_hints(kind)
    rows = [f"| {heads[0]} | {heads[1]} | meaning |", "|---|---|---|"]
    inherited = {field.name for field in fields(base)} if (base := _base(kind)) else set()
    own = [field.name for field in fields(kind) if field.name not in inherited]
    for meaning, together in groupby(own, key=lambda name: meanings.get(name, name)):
        names = list(together)
        second = [seconds[name] for name in names] if seconds else dict.fromkeys(_type(types[name]) for name in names)
        shown = ", ".join(f"`{name}`" for name in names)
        rows.append(f"| {shown} | {', '.join(second)} | {meaning if names[0] in meanings else ''} |")
    return "\n".join(rows)


def _base(kind: Any) -> Any:
    """The dataclass that another one extends; ``None`` if it extends none."""
    return next((each for each in kind.__mro__[1:] if is_dataclass(each)), None)


def _type(kind: Any) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind is StormClass:
        return "a [class](storm-classes.md)"
    if kind is Params:
        return "the thresholds, by name"
    if isinstance(kind, type) and is_dataclass(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if get_origin(kind) is Literal:
        return " or ".join(f'`"{value}"`' for value in get_args(kind))
    if isinstance(kind, UnionType):
        return " or ".join(map(_type, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"array of {_type(get_args(kind)[0])}"
    return " or ".join(f'`"{value}"`' for value in kind)  # an enumeration


def _text(kind: Any) -> tuple[str, dict[str, str]]:
    """A docstring's summary, and its entries ``name, name: meaning``, each under all of its names."""
    summary, _, listed = (inspect.getdoc(kind) or "").partition("Attributes:")
    name = "(?:" + "|".join(field.name for field in fields(kind)) + ")"
    parts = re.split(rf"(?:^|(?<=[.;]) )({name}(?:, {name})*): ", " ".join(listed.split()))[1:]
    found: dict[str, str] = {}
    for names, meaning in zip(parts[::2], parts[1::2], strict=True):
        said = meaning.replace("``None``", "`null`").replace("``", "`").replace("|", "\\|").rstrip(";. ") + "."
        found |= {each: said[0].upper() + said[1:] for each in names.split(", ")}
    return " ".join(summary.split()), found
