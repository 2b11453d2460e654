"""Thresholds from a file or the command line: unknown names, wrong types and values out of range are refused."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from tricklecast.analytics.rules.params import Params

_SHARES: Final = ("early", "same_seq_share", "herd_arrival_share", "harm_share", "share", "heavy_share")


def thresholds(file: str | None, settings: Iterable[str]) -> Params:
    """The thresholds of a run.

    Args:
        file: a TOML file with a ``[storms]`` table, or with the names at its top level.
        settings: ``NAME=VALUE`` each; they override the file.

    Raises:
        ValueError: with the file's name or the setting, and what is wrong.
    """
    changes = _from_file(file) if file is not None else {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"{setting!r} is not NAME=VALUE")
        changes[name.strip()] = _number(value.strip())
    checked: dict[str, Any] = {name: _checked(name, value) for name, value in changes.items()}
    return replace(Params(), **checked)


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


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _checked(name: str, value: Any) -> int | float:
    known = [field.name for field in fields(Params)]
    if name not in known:
        near = get_close_matches(name, known, n=1)
        raise ValueError(
            f"no such threshold: {name!r}; "
            + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}")
        )
    whole = isinstance(getattr(Params(), name), int)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ValueError(f"{name} is {'a whole number' if whole else 'a number'}, not {value!r}")
    top = 1.0 if name in _SHARES else 1e9
    if not 0 < value <= top:
        raise ValueError(f"{name} is a number above 0, {top:,.0f} at most, not {value:,}")
    return int(value) if whole else float(value)
