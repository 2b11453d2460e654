"""Thresholds from a file or the command line, checked: unknown names, wrong types and contradictions are refused."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from tricklecast.analytics.params import StormParams

_ORDERED: Final = (
    ("warn_hits", "critical_hits"),
    ("warn_rps", "critical_rps"),
    ("warn_hits_alone", "critical_hits_alone"),
)
"""The first of each pair is not above the second: what is critical is a warning, too."""


def load_params(file: str | None, settings: Iterable[str], base: StormParams | None = None) -> StormParams:
    """The thresholds of a run.

    Args:
        file: a TOML file with a ``[storms]`` table, or with the names at its top level.
        settings: ``NAME=VALUE`` each; they override the file.
        base: what applies where neither says anything.

    Raises:
        ValueError: with the file's name or the setting, and what is wrong.
    """
    changes = _from_file(file) if file is not None else {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"{setting!r} is not NAME=VALUE")
        changes[name.strip()] = _value(value.strip())
    return with_changes(base or StormParams(), changes)


def with_changes(params: StormParams, changes: Mapping[str, Any]) -> StormParams:
    """The same thresholds with some replaced.

    Raises:
        ValueError: a name is unknown, or a value has the wrong type, is out of range or contradicts another.
    """
    checked: dict[str, Any] = {name: _checked(name, value, params) for name, value in changes.items()}
    changed = replace(params, **checked)
    for lower, upper in _ORDERED:
        if getattr(changed, lower) > getattr(changed, upper):
            low, high = getattr(changed, lower), getattr(changed, upper)
            raise ValueError(f"{lower} = {low} is above {upper} = {high}: what is critical must be a warning, too")
    return changed


def _from_file(file: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(f"cannot read {file!r}: {reason}") from None
    table = document.get("storms", document)
    if not isinstance(table, dict) or (table is not document and len(document) > 1):
        raise ValueError(f"{file!r}: expected names and numbers, or one table [storms] of them")
    return dict(table)


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _checked(name: str, value: Any, params: StormParams) -> int | float:
    known = [field.name for field in fields(params)]
    if name not in known:
        near = get_close_matches(name, known, n=1)
        raise ValueError(f"no such parameter: {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    default = getattr(params, name)
    kind = "a whole number" if isinstance(default, int) else "a number"
    right = isinstance(value, int) if isinstance(default, int) else isinstance(value, int | float)
    if not right or isinstance(value, bool):
        raise ValueError(f"{name} is {kind}, not {value!r}")
    # Shares end in "share"; everything else is a count, a rate or a length of time.
    top = 1.0 if name.endswith("_share") else 1e9
    if not 0 < value <= top:
        raise ValueError(f"{name} = {value}: not above 0 and up to {top:g}")
    return int(value) if isinstance(default, int) else float(value)
