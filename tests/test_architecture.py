"""The structure of the project, enforced: which package may import which, and what the wheel holds."""

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

IMPURE = ("asyncio", "http", "time", "random", "logging", "socket", "datetime", "secrets", "uuid", "threading", "os")
"""What a sans-IO core must not import: `now`, the random generator and ids are arguments."""

LAZY_MOUNT = "app/cli.py"
"""The one module that may name other packages, and only inside functions."""

FOR_USERS_TESTS = ("publisher/testing.py", "subscriber/testing.py")
"""They offer the server to the tests of users' programs (ADR 4): the one import from client packages to `app`."""

LAYERS: dict[str, tuple[str, ...]] = {
    "core": ("core",),
    "storage": ("core", "storage"),
    "data_plane": ("core", "storage", "data_plane", "settings"),
    # The arrows between the planes: what the API changes goes through the object that also relays and logs, and what
    # it refuses it refuses in the same words; and a connection knows whether an answer was taken.
    "control_plane": (
        "core",
        "storage",
        "control_plane",
        "settings",
        "data_plane.answers",
        "data_plane.client_address",
        "data_plane.delegating",
        "data_plane.identity",
        "data_plane.plane",
        "data_plane.replies",
    ),
    # Decides for both planes, and answers in their words.
    "access": ("access", "core", "data_plane", "control_plane.refuse", "control_plane.scope"),
    "conformance": ("conformance",),
}
"""Inside the server: which parts of `app` a part may import. What is not listed is wiring and may import all."""


def _modules(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def _python_files() -> list[Path]:
    """Ours, that is those that are not below a folder such as `.venv`."""
    return _modules(*PACKAGES, "tests", "benchmarks", "examples")


def _ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def _dotted(path: Path) -> str:
    parts = ("tricklecast", *path.relative_to(ROOT).with_suffix("").parts)
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
    """The packages that a module imports: ours by their own names, others by their first name."""
    names = (name.removeprefix("tricklecast.") for name in _imports(path) if name != "tricklecast")
    return {name.partition(".")[0] for name in names}


def test_the_checks_see_the_code() -> None:
    """The rules below are not vacuous: every package has modules, and the import reader finds known imports."""
    assert all(_modules(package) for package in PACKAGES)
    assert "tricklecast.trickle.wire" in set(_imports(ROOT / "trickle" / "errors.py"))


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
    imports = {name for name in _imports(path) if _within(name, *(f"tricklecast.{other}" for other in others))}
    if path.relative_to(ROOT).as_posix() in FOR_USERS_TESTS:
        imports -= {name for name in imports if _within(name, "tricklecast.app.testing")} | {"tricklecast.app"}
    assert imports == set()


@pytest.mark.parametrize("path", _modules("publisher", "subscriber"), ids=_ids(_modules("publisher", "subscriber")))
def test_clients_do_not_load_the_server_for_tests(path: Path) -> None:
    """`publisher.testing` and `subscriber.testing` are imported by users only."""
    assert [
        name
        for name in _imports(path)
        if _within(name, "tricklecast.publisher.testing", "tricklecast.subscriber.testing")
    ] == []


def test_other_packages_commands_are_mounted_lazily() -> None:
    """The command line names other packages' modules as text, so that `--help` imports none of them."""
    path = ROOT / LAZY_MOUNT
    if not path.exists():
        pytest.skip(f"{LAZY_MOUNT} is not there")
    heavy = {"publisher", "subscriber", "analytics", "uvicorn", "fastapi", "av", "pyspark"}
    names = (name.removeprefix("tricklecast.") for name in _imports(path, nested=False))
    assert {name.partition(".")[0] for name in names} & heavy == set()


@pytest.mark.parametrize("path", _modules(*PACKAGES), ids=_ids(_modules(*PACKAGES)))
def test_no_package_imports_the_tests(path: Path) -> None:
    """What is shipped stands without the tests and benchmarks."""
    assert _tops(path) & {"tests", "benchmarks", "examples", "scripts", "pytest", "hypothesis"} == set()


@pytest.mark.parametrize("layer", list(LAYERS))
def test_layers_of_the_server_point_inwards(layer: str) -> None:
    """The core knows nobody, the planes know the core, and the data plane knows nothing of the control plane."""
    allowed = [f"tricklecast.app.{name}" for name in LAYERS[layer]]
    wrong = [
        f"{_dotted(path)} -> {name}"
        for path in _modules(f"app/{layer}")
        for name in _imports(path)
        if _within(name, "tricklecast.app") and name != "tricklecast.app" and not _within(name, *allowed)
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


def test_the_wheel_holds_one_package() -> None:
    """`app`, `publisher` and the like are names of other people's packages: ours are all below `tricklecast`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["tricklecast"]
    links = {path.name: path.readlink() for path in (ROOT / "tricklecast").iterdir() if path.is_symlink()}
    assert links == {package: Path("..") / package for package in PACKAGES}


@pytest.mark.parametrize("path", _python_files(), ids=_ids(_python_files()))
def test_packages_are_imported_below_tricklecast_only(path: Path) -> None:
    """In a checkout `app` can be imported, too, and would be a second copy of every class in it."""
    assert {name.partition(".")[0] for name in _imports(path)} & set(PACKAGES) == set()


@pytest.mark.parametrize("package", ["tricklecast", *PACKAGES])
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
