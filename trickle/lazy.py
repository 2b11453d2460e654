"""Public names of a package that are loaded when they are first used (PEP 562).

Every command imports these packages, and ``--help`` needs none of their names. Type checkers read the imports beside
``if TYPE_CHECKING`` instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy(package: str, homes: Mapping[str, str]) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return the ``__all__``, ``__getattr__`` and ``__dir__`` of a package.

    Args:
        homes: modules, and behind each the public names in it, with spaces between them.
    """
    modules = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name], package), name)

    return sorted(modules), load, lambda: sorted({*vars(sys.modules[package]), *modules})
