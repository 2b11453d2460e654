"""The structure of the project, enforced: who may import whom, how long a module may be, what the wheel holds."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("trickle", "app", "publisher", "subscriber", "analytics")

MAX_LINES = 300
MAX_CORE_LINES = 400
"""A sans-IO core may be longer: its rules belong together."""

IMPURE = ("asyncio", "http", "time", "random", "logging", "socket", "datetime", "secrets", "uuid", "threading", "os")
"""What a sans-IO core must not import: `now`, the random generator and ids are arguments."""

LAZY_MOUNT = "app/cli.py"
"""The one module that may name other packages, and only inside functions."""

FOR_USERS_TESTS = ("publisher/testing.py", "subscriber/testing.py")
"""They offer the server to the tests of users' programs (ADR 4): the one import from client packages to `app`."""

LAYERS: dict[str, tuple[str, ...]] = {
    "app.core": ("app.core",),
    "app.storage": ("app.core", "app.storage"),
    "app.data_plane": ("app.core", "app.storage", "app.data_plane", "app.settings"),
    # The arrows between the planes: what the API changes goes through the object that also relays and logs, and what
    # it refuses it refuses in the same words; and a connection knows whether an answer was taken.
    "app.control_plane": (
        "app.core",
        "app.storage",
        "app.control_plane",
        "app.settings",
        "app.data_plane.answers",
        "app.data_plane.delegating",
        "app.data_plane.identity",
        "app.data_plane.plane",
        "app.data_plane.replies",
    ),
    # Decides for both planes, and answers in their words.
    "app.access": ("app.access", "app.core", "app.data_plane", "app.control_plane.refuse", "app.control_plane.scope"),
    "app.conformance": ("app.conformance",),
}
"""Inside the server: which parts of `app` a part may import. What is not listed is wiring and may import all."""


def _modules(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def _ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _package_of(path: Path) -> str:
    dotted = _dotted(path)
    return dotted if path.name == "__init__.py" else dotted.rpartition(".")[0]


def _imports(path: Path, *, nested: bool = True) -> Iterator[str]:
    """Dotted names that a module imports; with ``from a import b`` both ``a`` and ``a.b``.

    Args:
        path: the module's file.
        nested: whether imports inside functions count, too.
    """
    for node in ast.walk(_tree(path)) if nested else _outside_functions(_tree(path)):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                source = _source(path, node)
                yield source
                yield from (f"{source}.{alias.name}" for alias in node.names)


def _source(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = _package_of(path).split(".")
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _outside_functions(child)


def _within(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in _imports(path)}


def test_the_checks_see_the_code() -> None:
    """The rules below are not vacuous: every package has modules, and the import reader finds known imports."""
    assert all(_modules(package) for package in PACKAGES)
    assert "trickle.wire" in set(_imports(ROOT / "trickle" / "errors.py"))


@pytest.mark.parametrize("path", _modules("trickle"), ids=_ids(_modules("trickle")))
def test_contracts_import_only_the_standard_library(path: Path) -> None:
    """`trickle` is imported by every program that speaks the protocol, so it brings nothing along."""
    assert _tops(path) <= sys.stdlib_module_names | {"trickle"}


@pytest.mark.parametrize("path", _modules("trickle"), ids=_ids(_modules("trickle")))
def test_contracts_have_no_clock_and_no_input(path: Path) -> None:
    """`trickle` does nothing by itself: no clock, sockets, threads; of `random` only the class of the argument."""
    forbidden = [name for name in _imports(path) if _within(name, *IMPURE) and name not in ("random", "random.Random")]
    assert forbidden == []


@pytest.mark.parametrize("path", _modules(*PACKAGES[1:]), ids=_ids(_modules(*PACKAGES[1:])))
def test_packages_meet_only_in_the_contracts(path: Path) -> None:
    """Server, clients and analytics import the contracts and never each other: each can be used alone."""
    own = path.relative_to(ROOT).parts[0]
    others = set(PACKAGES) - {own, "trickle"}
    imports = {name for name in _imports(path) if name.partition(".")[0] in others}
    if path.relative_to(ROOT).as_posix() in FOR_USERS_TESTS:
        imports = {name for name in imports if not _within(name, "app.testing")}
    assert imports == set()


@pytest.mark.parametrize("path", _modules("publisher", "subscriber"), ids=_ids(_modules("publisher", "subscriber")))
def test_clients_do_not_load_the_server_for_tests(path: Path) -> None:
    """`publisher.testing` and `subscriber.testing` are imported by users only."""
    assert [name for name in _imports(path) if _within(name, "publisher.testing", "subscriber.testing")] == []


def test_other_packages_commands_are_mounted_lazily() -> None:
    """The command line names other packages' modules as text, so that `--help` imports none of them."""
    path = ROOT / LAZY_MOUNT
    if not path.exists():
        pytest.skip(f"{LAZY_MOUNT} is not there")
    heavy = {"publisher", "subscriber", "analytics", "uvicorn", "fastapi", "av", "pyspark"}
    assert {name.partition(".")[0] for name in _imports(path, nested=False)} & heavy == set()


@pytest.mark.parametrize("path", _modules(*PACKAGES), ids=_ids(_modules(*PACKAGES)))
def test_no_package_imports_the_tests(path: Path) -> None:
    """What is shipped stands without the tests and benchmarks."""
    assert _tops(path) & {"tests", "benchmarks", "examples", "scripts", "pytest", "hypothesis"} == set()


@pytest.mark.parametrize("layer", list(LAYERS))
def test_layers_of_the_server_point_inwards(layer: str) -> None:
    """The core knows nobody, the planes know the core, and the data plane knows nothing of the control plane."""
    wrong = [
        f"{_dotted(path)} -> {name}"
        for path in _modules("app")
        if _within(_dotted(path), layer)
        for name in _imports(path)
        if _within(name, "app") and name != "app" and not _within(name, *LAYERS[layer])
    ]
    assert wrong == []


_CORES = [*_modules("app/core"), *(p for p in _modules("publisher", "subscriber") if p.name == "core.py")]


@pytest.mark.parametrize("path", _CORES, ids=_ids(_CORES))
def test_cores_are_sans_io(path: Path) -> None:
    """A core decides and does nothing: no loop, protocol library, clock, chance, log or socket, not even lazily."""
    allowed_for_types = ("random", "random.Random")
    forbidden = [name for name in _imports(path) if _within(name, *IMPURE) and name not in allowed_for_types]
    assert forbidden == []
    assert _tops(path) <= sys.stdlib_module_names | {"trickle", path.relative_to(ROOT).parts[0]}


@pytest.mark.parametrize("path", _CORES, ids=_ids(_CORES))
def test_cores_draw_no_random_numbers_of_their_own(path: Path) -> None:
    """The random generator is an argument; its class may be named in an annotation, never called."""
    calls = [ast.unparse(node.func) for node in ast.walk(_tree(path)) if isinstance(node, ast.Call)]
    assert [call for call in calls if call == "Random" or call.startswith("random.")] == []


@pytest.mark.parametrize("path", _modules(*PACKAGES), ids=_ids(_modules(*PACKAGES)))
def test_modules_stay_readable(path: Path) -> None:
    """A module fits in one sitting: at most 300 lines, a core at most 400."""
    limit = MAX_CORE_LINES if path in _CORES else MAX_LINES
    assert len(path.read_text(encoding="utf-8").splitlines()) <= limit


def test_the_wheel_holds_the_five_packages() -> None:
    """The list is explicit: a new top-level directory never slips into the distribution."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == list(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed(package: str) -> None:
    """Each package carries the marker that lets type checkers read its annotations."""
    assert (ROOT / package / "py.typed").is_file()


def _test_directories() -> list[Path]:
    return sorted({path.parent for path in (ROOT / "tests").rglob("*.py")})


@pytest.mark.parametrize("directory", _test_directories(), ids=_ids(_test_directories()))
def test_every_test_directory_is_a_package(directory: Path) -> None:
    """Without `__init__.py`, `tests/app` would shadow `app`."""
    assert (directory / "__init__.py").is_file()


def test_every_directory_of_code_is_a_package() -> None:
    """A directory without `__init__.py` would be missing from type checks and from imports in a wheel."""
    bare = {path.parent for path in _modules(*PACKAGES) if not (path.parent / "__init__.py").is_file()}
    assert bare == set()
