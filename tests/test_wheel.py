"""The wheel in an empty environment, beside a user's project that has packages named as ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PathDistribution, distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.support.waiting import WITHIN_S
from tricklecast.testing import server
from tricklecast.trickle import __version__

ROOT = Path(__file__).parents[1]
USERS_PACKAGES = ("app", "publisher", "subscriber", "analytics", "trickle")

COMMAND = (
    "from importlib.metadata import entry_points\n"
    "[command] = entry_points(group='console_scripts', name='tricklecast')\n"
    "command.load()()\n"
)
"""The script that an installer makes of the wheel's entry point."""

PROGRAM = """
    import asyncio

    import {imports}
    from tricklecast import Publisher, Subscriber
    from tricklecast.testing import server

    assert {{module.MARKER for module in ({imports})}} == {{"of the user"}}


    async def main(url):
        async with Publisher(url) as publisher:
            await publisher.publish(b"a segment")
            async with Subscriber(url, start=0) as subscriber:
                segment = await anext(subscriber)
                print(await segment.read())


    with server() as running:
        asyncio.run(main(running.url("cam")))
"""


TEST = """
    import anyio
    import pytest

    import {imports}
    from app.relay import shout
    from tricklecast import Publisher, Subscriber
    from tricklecast.testing import server

    assert {{module.MARKER for module in ({imports})}} == {{"of the user"}}


    @pytest.fixture(scope="session")
    def trickle():
        with server() as running:
            yield running


    def test_shouting(trickle):
        async def scenario():
            async with Publisher(trickle.url("in")) as publisher:
                await publisher.publish(b"hello")
            await shout(trickle.url("in"), trickle.url("out"))
            async with Subscriber(trickle.url("out"), start=0) as out:
                assert await (await anext(out)).read() == b"HELLO"

        anyio.run(scenario)
"""

RELAY = """
    from tricklecast import Publisher, Subscriber


    async def shout(source, target):
        async with Subscriber(source, start=0) as heard, Publisher(target) as publisher:
            async for segment in heard:
                await publisher.publish((await segment.read()).upper())
"""


def build(source: Path, target: str, into: Path, *, within_s: float = WITHIN_S) -> Path:
    """Build a ``wheel`` or an ``sdist`` of a source tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=within_s)
    [built] = into.iterdir()
    return built


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel."""
    with ZipFile(wheel) as files:
        return {name: files.read(name) for name in files.namelist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source tree."""
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@dataclass(frozen=True)
class Project:
    """A user's project, and the Python of its environment."""

    folder: Path
    python: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the project's folder, which is on Python's path."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
        environment["PYTHONPATH"] = "."
        command: list[str | Path] = [self.python, *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=WITHIN_S
        )


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_project(wheel, tmp_path_factory.mktemp("project"))


def make_project(wheel: Path, folder: Path) -> Project:
    """An environment with the wheel and its dependencies, and a project whose packages have the names of ours."""
    venv.create(folder / ".venv", with_pip=False, symlinks=True)
    [packages] = (folder / ".venv").glob("lib/python*/site-packages")
    with ZipFile(wheel) as files:
        files.extractall(packages)
    # Python does not read the .pth files of a folder that a .pth file names: this checkout's editable install is not
    # on the path, and its dependencies are.
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    for name in USERS_PACKAGES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text('MARKER = "of the user"\n')
    (folder / "app" / "relay.py").write_text(textwrap.dedent(RELAY))
    for name, text in (("test_relay.py", TEST), ("program.py", PROGRAM)):
        (folder / name).write_text(textwrap.dedent(text).format(imports=", ".join(USERS_PACKAGES)))
    return Project(folder, folder / ".venv" / "bin" / "python")


LEAN_PROGRAM = """
    import asyncio
    import sys

    from tricklecast import Publisher, Subscriber
    from tricklecast.subscriber import json_messages


    async def main(url):
        async with Publisher(url) as publisher:
            await publisher.publish(b'{"a": 1}')
            async with Subscriber(url, start=0) as subscriber:
                segment = await anext(subscriber)
                print(await segment.read())
            async with json_messages(url, start=0) as messages:
                print((await anext(messages)).value)


    asyncio.run(main(sys.argv[1]))
"""


def needed(requirements: Iterable[str]) -> set[str]:
    """The names of the installed distributions that these requirements bring, without any extra."""
    names: set[str] = set()
    for requirement in map(Requirement, requirements):
        if requirement.name not in names and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found = distribution(requirement.name)
            names |= {requirement.name} | needed(found.requires or ())
    return names


@pytest.fixture(scope="module")
def lean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """An environment with the wheel and what it needs without extras; of all else in this one, nothing."""
    folder = tmp_path_factory.mktemp("lean")
    venv.create(folder / ".venv", with_pip=False, symlinks=True)
    [packages] = (folder / ".venv").glob("lib/python*/site-packages")
    with ZipFile(wheel) as files:
        files.extractall(packages)
    [metadata] = packages.glob("tricklecast-*.dist-info")
    for name in needed(PathDistribution(metadata).requires or ()):
        tops = {file.parts[0] for file in distribution(name).files or ()}
        for top in tops - {"..", "__pycache__"}:
            (packages / top).symlink_to(Path(sysconfig.get_path("purelib")) / top)
    (folder / "program.py").write_text(textwrap.dedent(LEAN_PROGRAM))
    return Project(folder, folder / ".venv" / "bin" / "python")


def test_the_clients_need_no_extra(lean: Project) -> None:
    """A program publishes and reads messages with what the bare wheel brings; the server is in another environment."""
    with server() as running:
        done = lean.run("program.py", running.url("lean"))
    assert (done.stdout, done.stderr) == ("b'{\"a\": 1}'\n{'a': 1}\n", "")


@pytest.mark.parametrize("arguments", [[], ["serve"], ["publish", "--help"]])
def test_the_command_names_its_extra(lean: Project, arguments: list[str]) -> None:
    """Without the packages of the command line: one line with what to type, and exit code 2."""
    done = lean.run("-c", COMMAND, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tricklecast: the command needs typer: pip install '.[server]' in a clone of tricklecast\n"


def test_the_version_needs_no_extra(lean: Project) -> None:
    """It is the first thing that a report of a fault names."""
    done = lean.run("-c", COMMAND, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tricklecast {__version__}\n", "")


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("import tricklecast.testing", r"tricklecast\.testing needs \w+: pip install '\.\[server\]' in a clone"),
        (
            "import tricklecast.trickle.pyav as p; p.need_pyav()",
            r"media needs PyAV: pip install '\.\[media\]'",
        ),
    ],
)
def test_a_program_is_told_the_extra(lean: Project, program: str, line: str) -> None:
    """The last line of the error names it."""
    done = lean.run("-c", program)
    assert re.search(line, done.stderr.splitlines()[-1]), done.stderr


def test_the_wheel_holds_one_package(wheel: Path) -> None:
    """Beside it there is only the wheel's metadata: other top-level names belong to other people's packages."""
    names = contents(wheel)
    assert {name.partition("/")[0] for name in names} == {"tricklecast", f"tricklecast-{__version__}.dist-info"}
    assert {"tricklecast/py.typed", "tricklecast/app/cli.py", "tricklecast/trickle/wire.py"} <= set(names)


def test_the_wheel_holds_the_web_pages(wheel: Path) -> None:
    """With the packages from npm that they use, each with its licence."""
    names = {name.removeprefix("tricklecast/app/web/") for name in contents(wheel)}
    assert {"templates/dashboard.html", "static/session.js", "vendor/mpegts.js/mpegts.js"} <= names
    assert {"vendor/mpegts.js/LICENSE", "vendor/swagger-ui-dist/LICENSE"} <= names


def test_a_wheel_from_the_sdist_is_the_same(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installers that have no wheel build one from the sdist, without a network."""
    with tarfile.open(build(ROOT, "sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    again = build(tmp_path / f"tricklecast-{__version__}", "wheel", tmp_path / "wheel")
    assert contents(again) == contents(wheel)


def test_the_installed_package_is_the_one_of_the_wheel(project: Project) -> None:
    """The other tests see neither this checkout nor its editable install."""
    done = project.run("-c", "import tricklecast; print(tricklecast.__file__)")
    assert Path(done.stdout.strip()).is_relative_to(project.folder / ".venv"), done.stderr


def test_the_command_starts(project: Project) -> None:
    """Its help lists the commands."""
    done = project.run("-c", COMMAND, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "publish" in done.stdout


def test_a_command_of_a_client_starts(project: Project) -> None:
    """A server that does not answer is one line, not a module that is missing."""
    done = project.run("-c", COMMAND, "channels", "http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    said = "cannot connect to http://127.0.0.1:1: Connection refused; start one with `tricklecast serve`"
    assert done.stderr == f"tricklecast: {said}\n"


def test_a_project_with_an_app_of_its_own_is_tested(project: Project) -> None:
    """pytest runs the user's test of the user's `app`, against the server of `tricklecast.testing`.

    The user's packages stay the user's, also those that have the names of ours.
    """
    done = project.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_relay.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_a_build_that_cannot_compile_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not after a minute of the type checker."""
    monkeypatch.setenv("HATCH_BUILD_HOOKS_ENABLE", "1")
    monkeypatch.setenv("CC", "no-such-compiler -pthread")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        build(ROOT, "wheel", tmp_path)
    assert b"this is missing: the C compiler no-such-compiler -pthread. Install it" in failed.value.stderr


@pytest.mark.long
def test_a_compiled_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hot path is compiled, it is for this platform, and a user's program runs with it as with the other one."""
    with tarfile.open(build(ROOT, "sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.setenv("HATCH_BUILD_HOOKS_ENABLE", "1")
    compiled = build(tmp_path / f"tricklecast-{__version__}", "wheel", tmp_path / "wheel", within_s=10 * WITHIN_S)
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in compiled.name
    assert not compiled.name.endswith("-any.whl")
    assert not list((tmp_path / "sdist").rglob("*.so")), "Python would take these for the sources"
    names = contents(compiled)
    for module in ("app/core/registry", "app/data_plane/handler", "app/http1/connection", "trickle/wire"):
        assert f"tricklecast/{module}.py" in names
        assert any(name.startswith(f"tricklecast/{module}.cpython") for name in names), module
    project = make_project(compiled, tmp_path)
    done = project.run("program.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'a segment'\n", "")
    assert project.run("-c", COMMAND, "--version").stdout == f"tricklecast {__version__} (compiled)\n"
