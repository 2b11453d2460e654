"""The documentation: it builds without a warning, every link leads somewhere, and the reference is complete."""

from __future__ import annotations

import html
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tricklecast.trickle.errors
from tricklecast import publisher, subscriber
from tricklecast.app.cli import COMMANDS

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, in a plainer theme than readers have it in, which takes a third less time."""
    folder = tmp_path_factory.mktemp("site")
    strict = ["--fail-on-warning", "--keep-going", "-q"]
    command = [sys.executable, "-m", "sphinx", *strict, "-b", "html", "-D", "html_theme=basic"]
    done = subprocess.run(
        [*command, str(ROOT / "docs"), str(folder)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_reference_has_every_public_name(site: Path) -> None:
    """What a package exports has an entry, read off its docstring."""
    for package, page in ((publisher, "publisher"), (subscriber, "subscriber")):
        text = (site / "reference" / "api" / f"{page}.html").read_text(encoding="utf-8")
        named = [name for name in package.__all__ if inspect.isclass(value := vars(package)[name]) or callable(value)]
        missing = [name for name in named if f'id="tricklecast.{page}.{name}"' not in text]
        assert missing == []
    errors = (site / "reference" / "api" / "errors.html").read_text(encoding="utf-8")
    names = [
        name
        for name, kind in vars(tricklecast.trickle.errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    assert [name for name in names if f'id="tricklecast.trickle.errors.{name}"' not in errors] == []


def test_the_reference_has_every_command_and_option(site: Path) -> None:
    """The page of commands is made from the commands themselves."""
    text = html.unescape((site / "reference" / "commands.html").read_text(encoding="utf-8"))
    for name in COMMANDS:
        assert f"tricklecast {name} " in text
    assert "--on-lag" in text
    assert "--content-type" in text


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda path: path.name
)
def test_links_of_the_front_pages_lead_somewhere(path: Path) -> None:
    """The site's own links are checked while it is built; these pages are not part of it."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (ROOT / target).exists()] == []
