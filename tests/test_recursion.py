"""No depth of a call stack is decided by input: every recursive function of the product is listed here, with its bound.

Python's stack holds a thousand calls, so a function that calls itself for each nested box, each pipelined request or
each part of a name ends in a `RecursionError` that a stranger can cause. This test finds the circles of calls within
each module: functions that call each other by name, methods that call each other on `self`. A new circle is either made
a loop, or listed with the reason why its depth is bounded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("trickle", "app", "publisher", "subscriber", "analytics", "tricklecast")

BOUNDED: dict[str, str] = {
    "app/hls/timeline.py: Timeline.has": "asks once, about the part after a segment's last one",
    "publisher/ingest/rtmp.py: _AmfReader._members, _AmfReader._value": "MAX_DEPTH",
    "publisher/ingest/rtmp.py: encode_amf": "encodes the server's own answers",
    "subscriber/command/run.py: _rounded": "as deep as the statistics of a run, two",
    "subscriber/core.py: Start._parse": "a position is parsed once",
    "analytics/lines/files.py: _expand": "a folder that a pattern matched is expanded once",
    "analytics/lines/reading.py: _structure.of": "as deep as the names of fields in the operator's own map",
}
"""The functions of each circle, and what bounds its depth."""


class Calls(ast.NodeVisitor):
    """Which functions of a module call which: plain calls by name, and calls of methods on `self` or `cls`."""

    def __init__(self) -> None:
        self.calls: dict[str, set[str]] = {}
        self._scopes: list[tuple[str, bool]] = []  # names of classes and functions around, and which are classes

    def _enter(self, node: ast.AST, name: str, is_class: bool) -> None:
        self._scopes.append((name, is_class))
        if not is_class:
            self.calls.setdefault(self._name(), set())
        self.generic_visit(node)
        self._scopes.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._enter(node, node.name, True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._enter(node, node.name, False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._enter(node, node.name, False)

    def visit_Call(self, node: ast.Call) -> None:
        if self._function() is not None and (called := self._called(node.func)) is not None:
            self.calls[self._function() or ""].add(called)
        self.generic_visit(node)

    def _name(self) -> str:
        return ".".join(name for name, _ in self._scopes)

    def _function(self) -> str | None:
        """The innermost function around, by its full name."""
        for depth in range(len(self._scopes), 0, -1):
            if not self._scopes[depth - 1][1]:
                return ".".join(name for name, _ in self._scopes[:depth])
        return None

    def _called(self, function: ast.expr) -> str | None:
        match function:
            case ast.Name(id=name):
                return name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                classes = [name for name, is_class in self._scopes if is_class]
                return f"{classes[-1]}.{name}" if classes else None
        return None


def circles(source: str) -> Iterator[tuple[str, ...]]:
    """The sets of functions of a module that call each other in a circle, each sorted."""
    visitor = Calls()
    visitor.visit(ast.parse(source))
    by_last: dict[str, list[str]] = {}
    for function in visitor.calls:
        by_last.setdefault(function.rpartition(".")[2], []).append(function)
    edges = {
        function: {
            target
            for name in called
            for target in ([name] if name in visitor.calls else by_last.get(name, []))
            # A plain name never means a method.
            if "." in name or not _is_method(target, visitor.calls)
        }
        for function, called in visitor.calls.items()
    }
    reached = {function: _reach(function, edges) for function in edges}
    seen: set[str] = set()
    for function in edges:
        if function in reached[function] and function not in seen:
            circle = {other for other in reached[function] if function in reached[other]}
            seen |= circle
            yield tuple(sorted(circle))


def _is_method(function: str, functions: dict[str, set[str]]) -> bool:
    """Whether a function stands in a class and not in another function."""
    around = function.rpartition(".")[0]
    return bool(around) and around not in functions


def _reach(start: str, edges: dict[str, set[str]]) -> set[str]:
    """All that is called, directly or not."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in edges[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


def recursive() -> dict[str, str]:
    """Every circle of the product: `path: function, function`."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.is_symlink() or any(parent.is_symlink() for parent in path.relative_to(ROOT).parents):
                continue
            for circle in circles(path.read_text(encoding="utf-8")):
                found[f"{path.relative_to(ROOT)}: {', '.join(circle)}"] = ""
    return found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f():\n    f()", [("f",)]),
        ("def f():\n    g()\ndef g():\n    f()", [("f", "g")]),
        ("class A:\n    def f(self):\n        self.g()\n    def g(self):\n        self.f()", [("A.f", "A.g")]),
        ("class A:\n    async def f(self):\n        await self.f()", [("A.f",)]),
        ("def f():\n    def g():\n        g()\n    g()", [("f.g",)]),
        ("class A:\n    def f(self):\n        f()\ndef f():\n    pass", []),
        ("class A:\n    def f(self):\n        self.b.f()", []),
        ("def f():\n    g()\ndef g():\n    pass", []),
    ],
)
def test_circles_are_found(source: str, expected: list[tuple[str, ...]]) -> None:
    """Direct and mutual recursion, of functions, methods and nested functions; another object's method is another."""
    assert list(circles(source)) == expected


def test_every_recursive_function_has_a_bound() -> None:
    """A new circle is made a loop, or listed in `BOUNDED` with the reason; an old one that is gone is removed there."""
    assert recursive().keys() == BOUNDED.keys()
    assert all(BOUNDED.values())
