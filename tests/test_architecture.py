"""The structure of the project, enforced: which package imports which, and what the distribution declares.

Each test checks one rule for all modules and fails with the list of offenders.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("trickle", "app", "publisher", "subscriber", "analytics")

IMPURE = ("asyncio", "http", "time", "random", "logging", "socket", "datetime", "secrets", "uuid", "threading", "os")
"""Modules that a sans-IO core must not import: the time, the random generator and ids are its arguments."""

CLASSES_FOR_TYPES = ("random", "random.Random")
"""A core may name the class of the generator that it is passed."""

NO_CONTRACTS = ("trickle/terminal.py", "trickle/pyav.py", "trickle/client")
"""Parts of `trickle` that are shared code instead of contracts: they may import more than the standard library."""

LAZY_MOUNT = "app/cli.py"
"""The one module that may name other packages, and only inside functions."""

NO_CYCLES = ("trickle", "app", "publisher", "subscriber", "analytics")
"""Packages among whose modules, and among whose folders, there is no import cycle."""

TOOLS = "app/tools"
"""The demo, the stress test and the conformance suite: they may import every package, and no module imports them."""

LAYERS: dict[str, tuple[str, ...]] = {
    "core": ("core",),
    # It waits for a disk that may never answer.
    "storage": ("core", "storage", "clock", "daemon_thread"),
    "data_plane": ("core", "storage", "data_plane", "hls", "replication", "clock", "content_coding", "settings"),
    "replication": ("core", "replication", "clock", "encoding"),
    "hls": ("core", "hls", "clock"),
    "http1": ("core", "data_plane", "http1"),
    # The control plane changes channels through the object that also relays and logs, refuses in the data plane's
    # words, asks a connection whether an answer was taken, and stores what has come of a body before it is cut short.
    # It lists the requests of a channel's readers, and ends one.
    "control_plane": (
        "core",
        "storage",
        "control_plane",
        "changes",
        "clock",
        "encoding",
        "query",
        "settings",
        "http1.asgi_bridge",
        "data_plane.client_address",
        "data_plane.context",
        "data_plane.cors",
        "data_plane.reader",
        "data_plane.responses",
        "data_plane.upload",
    ),
    # Pages and what they show: they read everything, and change nothing.
    "web": (
        "changes",
        "content_coding",
        "core",
        "data_plane",
        "control_plane",
        "http1",
        "encoding",
        "settings",
        "usage",
        "web",
    ),
    # It decides for both planes, and answers in their words.
    "access": ("encoding", "access", "core", "data_plane", "control_plane.middleware"),
}
"""The parts of `app` that a part of `app` may import. Parts that are not listed are wiring and may import all."""


def _modules(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def _contracts() -> list[Path]:
    left_out = [ROOT / name for name in NO_CONTRACTS]
    return [path for path in _modules("trickle") if not any(path.is_relative_to(out) for out in left_out)]


def _cores() -> list[Path]:
    of_clients = (path for path in _modules("publisher", "subscriber") if path.name in ("core.py", "numbering.py"))
    return [*_modules("app/core"), *of_clients]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _dotted(path: Path) -> str:
    parts = ("tricklecast", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def _statements(path: Path) -> tuple[list[ast.Import | ast.ImportFrom], list[ast.Import | ast.ImportFrom]]:
    """The imports of a module: all, and those outside functions.

    The trees are not kept: garbage collection would look through all of them again and again.
    """
    tree = _tree(path)
    all_, outside = (
        [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        for nodes in (ast.walk(tree), _outside_functions(tree))
    )
    return all_, outside


def _imports(path: Path, *, nested: bool = True) -> Iterator[str]:
    """Yield the dotted names that a module imports; for ``from a import b`` both ``a`` and ``a.b``.

    Imports for types only (under ``TYPE_CHECKING``) are among them.

    Args:
        path: the module's file.
        nested: whether imports inside functions count.
    """
    for node in _statements(path)[0 if nested else 1]:
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
    dotted = _dotted(path)
    package = (dotted if path.name == "__init__.py" else dotted.rpartition(".")[0]).split(".")
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _outside_functions(child)


def _within(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _tops(path: Path, *, nested: bool = True) -> set[str]:
    """Return the packages that a module imports: ours by their own names, others by their first name."""
    names = (name.removeprefix("tricklecast.") for name in _imports(path, nested=nested) if name != "tricklecast")
    return {name.partition(".")[0] for name in names}


def _offenders(found: Iterable[tuple[Path, Iterable[str]]]) -> list[str]:
    return [f"{_name(path)}: {name}" for path, names in found for name in sorted(set(names))]


def _graph(paths: list[Path]) -> dict[str, set[str]]:
    """Return the imports among modules: each module's dotted name with those that it imports.

    ``from a.b import c`` is an import of module ``a.b.c`` if there is one, else of ``a.b``. The packages that Python
    loads on the way (``a``) do not count, since a package may offer the names of its own modules.
    """
    names = {_dotted(path) for path in paths}
    graph = {}
    for path in paths:
        wanted: set[str] = set()
        for node in _statements(path)[0]:
            match node:
                case ast.Import():
                    wanted |= {alias.name for alias in node.names}
                case ast.ImportFrom():
                    source = _source(path, node)
                    full = {f"{source}.{alias.name}" for alias in node.names}
                    wanted |= full | ({source} if full - names else set())
        graph[_dotted(path)] = wanted & names - {_dotted(path)}
    return graph


def import_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Find the groups of modules that import each other in a circle, imports for types only included.

    Args:
        graph: of each module those that it imports.

    Returns:
        Each group, sorted: two modules of a group reach each other through its imports.
    """
    reached = {name: _reach(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return [list(group) for group in sorted(groups)]


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    next_ones = list(graph[start])
    while next_ones:
        name = next_ones.pop()
        if name not in reached:
            reached.add(name)
            next_ones += graph[name]
    return reached


def test_the_checks_see_the_code() -> None:
    """The rules below are not vacuous: every package has modules, and the import reader finds known imports."""
    assert all(_modules(package) for package in PACKAGES)
    assert "tricklecast.trickle.wire" in set(_imports(ROOT / "trickle" / "errors.py"))
    assert _graph(_modules("trickle"))["tricklecast.trickle.paths"] == {
        "tricklecast.trickle.errors",
        "tricklecast.trickle.wire",
    }


def test_contracts_import_only_the_standard_library() -> None:
    """Every program that speaks the protocol imports the contracts of `trickle`: they bring nothing along."""
    allowed = sys.stdlib_module_names | {"trickle"}
    assert _offenders((path, _tops(path) - allowed) for path in _contracts()) == []


def test_contracts_have_no_clock_and_no_input() -> None:
    """The contracts do nothing by themselves: no clock, sockets, threads; of `random` only the class of an argument."""
    forbidden = ((path, (name for name in _imports(path) if _within(name, *IMPURE))) for path in _contracts())
    assert _offenders((path, set(names) - set(CLASSES_FOR_TYPES)) for path, names in forbidden) == []


def test_contracts_do_not_import_shared_code() -> None:
    """The parts of `trickle` that need more than the standard library stand above the contracts."""
    above = [f"tricklecast.{name.removesuffix('.py').replace('/', '.')}" for name in NO_CONTRACTS]
    found = ((path, [name for name in _imports(path) if _within(name, *above)]) for path in _contracts())
    assert _offenders(found) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """A module knows those below it, also for types only: a lower one offers a Protocol that the upper one fills."""
    assert {part: cycles for part in NO_CYCLES if (cycles := import_cycles(_graph(_modules(part))))} == {}


def test_no_folders_import_each_other_in_a_circle() -> None:
    """A folder of a package knows those below it, as its modules do; a module beside the folders counts as one."""

    def folder(module: str) -> str:
        return ".".join(module.split(".")[:3])

    found = {}
    for part in NO_CYCLES:
        graph: dict[str, set[str]] = {}
        for module, imported in _graph(_modules(part)).items():
            graph.setdefault(folder(module), set()).update(map(folder, imported))
        found[part] = import_cycles({name: others - {name} for name, others in graph.items()})
    assert {part: cycles for part, cycles in found.items() if cycles} == {}


def test_a_circle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports for types only and inside functions count; a package's own list of names does not."""
    files = {
        "part/__init__.py": "from tricklecast.part.a import A",
        "part/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tricklecast.part.b import B",
        "part/b.py": "def f():\n    from . import c",
        "part/c.py": "import tricklecast.part.a",
        "part/d.py": "from tricklecast.part import a",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    names = [f"tricklecast.part.{name}" for name in ("a", "b", "c")]
    assert import_cycles(_graph(_modules("part"))) == [names]


def test_packages_meet_only_in_the_contracts() -> None:
    """Server, clients and analytics import `trickle` and never each other: each can be used alone."""

    def others(path: Path) -> set[str]:
        if path.is_relative_to(ROOT / TOOLS):
            return set()
        own = path.relative_to(ROOT).parts[0]
        foreign = [f"tricklecast.{other}" for other in PACKAGES if other not in (own, "trickle")]
        return {name for name in _imports(path) if _within(name, *foreign)}

    assert _offenders((path, others(path)) for path in _modules(*PACKAGES)) == []


def test_only_users_import_what_stands_above_the_packages() -> None:
    """`tricklecast.testing` and `tricklecast.sync` use several packages: no package may need them."""
    above = ("tricklecast.testing", "tricklecast.sync")
    modules = _modules(*PACKAGES)
    assert _offenders((path, [name for name in _imports(path) if _within(name, *above)]) for path in modules) == []


def test_no_module_imports_the_tools() -> None:
    """The tools stand above all packages; the command line names them as text."""
    others = [path for path in _modules(*PACKAGES) if not path.is_relative_to(ROOT / TOOLS)]
    found = ((path, [name for name in _imports(path) if _within(name, "tricklecast.app.tools")]) for path in others)
    assert _offenders(found) == []


def test_the_conformance_suite_shares_no_code_with_the_server() -> None:
    """The suite judges any server by its bytes: of ours it imports only the contracts and its own modules."""

    def wrong(path: Path) -> Iterator[str]:
        for name in _imports(path):
            if _within(name, "tricklecast") and not _within(name, "tricklecast.trickle", "tricklecast.app.tools"):
                yield name

    assert _offenders((path, wrong(path)) for path in _modules(f"{TOOLS}/conformance")) == []


def test_other_packages_commands_are_mounted_lazily() -> None:
    """The command line names other packages' modules as text, so that `--help` imports none of them."""
    heavy = {"publisher", "subscriber", "analytics", "uvicorn", "fastapi", "av", "pyspark"}
    assert _tops(ROOT / LAZY_MOUNT, nested=False) & heavy == set()


def test_no_package_imports_the_tests() -> None:
    """The wheel has neither the tests nor the benchmarks."""
    unshipped = {"tests", "benchmarks", "examples", "scripts", "pytest", "hypothesis"}
    assert _offenders((path, _tops(path) & unshipped) for path in _modules(*PACKAGES)) == []


def test_layers_of_the_server_point_inwards() -> None:
    """The core imports no plane, the planes import the core, and the data plane does not import the control plane."""

    def wrong(path: Path, layer: str) -> Iterator[str]:
        allowed = [f"tricklecast.app.{name}" for name in LAYERS[layer]]
        for name in _imports(path):
            if _within(name, "tricklecast.app") and name != "tricklecast.app" and not _within(name, *allowed):
                yield name

    assert _offenders((path, wrong(path, layer)) for layer in LAYERS for path in _modules(f"app/{layer}")) == []


def test_who_builds_the_parts_sets_nothing_afterwards() -> None:
    """A part gets what it needs when it is made: neither a node nor a server, nor a test's, sets attributes of one."""

    def pokes(path: Path) -> Iterator[str]:
        for node in ast.walk(_tree(path)):
            match node:
                case ast.Attribute(value=ast.Name("self")):
                    pass
                case ast.Attribute(ctx=ast.Store()):
                    yield ast.unparse(node)

    builders = [ROOT / name for name in ("app/node.py", "app/server.py", "tests/support/local.py")]
    assert _offenders((path, pokes(path)) for path in builders) == []


def test_cores_are_sans_io() -> None:
    """A core decides and does nothing: no loop, protocol library, clock, chance, log or socket, not even lazily."""

    def forbidden(path: Path) -> set[str]:
        impure = {name for name in _imports(path) if _within(name, *IMPURE)} - set(CLASSES_FOR_TYPES)
        return impure | (_tops(path) - sys.stdlib_module_names - {"trickle", path.relative_to(ROOT).parts[0]})

    assert _offenders((path, forbidden(path)) for path in _cores()) == []


def test_cores_draw_no_random_numbers_of_their_own() -> None:
    """The random generator is an argument; an annotation may name its class, and no code may call it."""

    def calls(path: Path) -> Iterator[str]:
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Call) and (ast.unparse(node.func) + ".").startswith(("Random.", "random.")):
                yield ast.unparse(node.func)

    assert _offenders((path, calls(path)) for path in _cores()) == []


def test_nats_is_imported_for_a_cluster_only() -> None:
    """Without `--cluster` a server runs without nats-py: the modules that need it are imported lazily."""
    needing = {_dotted(path) for path in _modules("app/cluster") if "nats" in _tops(path)}
    assert "tricklecast.app.cluster.bucket" in needing
    needing.add("tricklecast.app.cluster.directory")
    others = [path for path in _modules(*PACKAGES) if not path.is_relative_to(ROOT / "app/cluster")]
    found = ((path, (name for name in _imports(path, nested=False) if _within(name, *needing))) for path in others)
    assert _offenders(found) == []


def test_the_wheel_is_declared_with_one_package() -> None:
    """`app`, `publisher` and the like are names of other people's packages: ours are all below `tricklecast`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["tricklecast"]
    links = {path.name: path.readlink() for path in (ROOT / "tricklecast").iterdir() if path.is_symlink()}
    assert links == {package: Path("..") / package for package in PACKAGES}


def _compiled() -> list[Path]:
    """The modules of the hot path that mypyc compiles (docs/adr/0047)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    found = (path for pattern in hook["include"] for path in ROOT.glob(pattern.removeprefix("tricklecast/")))
    return sorted(path for path in found if path.name not in hook["exclude"])


def test_compiled_classes_have_no_interpreted_subclass() -> None:
    """Python would refuse to make an object of it, in the compiled server only."""
    compiled = {path: "tricklecast." + ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in _compiled()}
    offenders = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path in compiled:
                continue
            imports = [one for one in _statements(path)[0] if isinstance(one, ast.ImportFrom)]
            named = [alias for one in imports if one.module in compiled.values() for alias in one.names]
            native = {alias.asname or alias.name for alias in named}
            classes = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.ClassDef)] if native else []
            offenders += [
                f"{path.relative_to(ROOT)}: {one.name}"
                for one in classes
                if any(isinstance(base, ast.Name) and base.id in native for base in one.bases)
            ]
    assert offenders == [], "compile the module, too: include in pyproject.toml"


def test_compiled_modules_have_no_tuple_of_floats_alone() -> None:
    """Compiled code takes such a constant for one that was never set (mypyc issue 1183): write `tuple[float, ...]`."""

    def is_float(node: ast.expr) -> bool:
        match node:
            case ast.UnaryOp():
                return is_float(node.operand)
            case ast.Constant():
                return isinstance(node.value, float)
        return False

    def tuples(path: Path) -> Iterator[str]:
        for node in ast.walk(_tree(path)):
            match node:
                case ast.AnnAssign(annotation=ast.Name("Final"), value=ast.Tuple(elts=values)) if values:
                    if all(map(is_float, values)):
                        yield ast.unparse(node.target)
                case ast.Subscript(value=ast.Name("tuple"), slice=ast.Tuple(elts=types)):
                    if {ast.unparse(one) for one in types} == {"float"}:
                        yield ast.unparse(node)

    assert len(_compiled()) > 30
    assert _offenders((path, tuples(path)) for path in _compiled()) == []


def test_packages_are_imported_below_tricklecast_only() -> None:
    """In a checkout `app` can be imported, too, and would be a second copy of every class in it."""
    # Only modules with such words are parsed: all of them would take twenty times as long.
    words = re.compile(rf"^\s*(?:import|from)[ \t]+(?:{'|'.join(PACKAGES)})\b", re.MULTILINE)
    found = (
        (path, {name.partition(".")[0] for name in _imports(path)} & set(PACKAGES))
        for path in _modules(*PACKAGES, "tests", "benchmarks", "examples")
        if words.search(path.read_text(encoding="utf-8"))
    )
    assert _offenders(found) == []


def test_every_package_is_typed() -> None:
    """Each package carries the marker that lets type checkers read its annotations."""
    assert [name for name in ("tricklecast", *PACKAGES) if not (ROOT / name / "py.typed").is_file()] == []


def test_every_directory_of_code_is_a_package() -> None:
    """Without `__init__.py`, type checks and a wheel would miss a directory, and `tests/app` would shadow `app`."""
    folders = {path.parent for path in _modules(*PACKAGES, "tests")}
    assert sorted(_name(folder) for folder in folders if not (folder / "__init__.py").is_file()) == []
