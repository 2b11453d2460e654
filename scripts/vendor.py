"""Fetch the npm packages that the web pages use, at the versions pinned in vendor.toml.

``python scripts/vendor.py`` puts the product's packages into ``app/web/vendor/``, each with its licence. With ``--dev``
it puts those of the tests into ``.venv/npm/`` as well. Neither folder is in git. Files that are there already are not
fetched again.

The build of a wheel does the same first (a hatch build hook), so that users need neither npm nor a build step. An
sdist holds the files, so that a build from an sdist needs no network. If the build is to compile the hot path
(docs/adr/0047), the hook says first if there is no compiler, and removes what was compiled when it is in the wheel:
Python would go on with it in place of sources that have changed since.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import io
import os
import shlex
import shutil
import sys
import sysconfig
import tarfile
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a script
    BuildHookInterface = object  # type: ignore[assignment, misc, unused-ignore]

ROOT = Path(__file__).parents[1]
PINS = Path(__file__).with_name("vendor.toml")
PRODUCT = ROOT / "tricklecast" / "app" / "web" / "vendor"
"""By the link in a checkout; an sdist has the folder itself there, and no other."""
DEVELOPMENT = ROOT / ".venv" / "npm"
WITHIN_S = 60
ATTEMPTS = 3
REGISTRY = "npm_config_registry"
"""The variable that npm uses, too."""


class CannotVendor(Exception):
    """A package cannot be had, or is not what was pinned."""


def vendor(folder: Path, packages: dict[str, dict[str, Any]]) -> None:
    """Bring a folder to what the pins name.

    Args:
        folder: gets a folder for each package.
        packages: by name: ``version``, ``integrity`` as npm writes it, and patterns of the ``files`` that are wanted.

    Raises:
        CannotVendor: a package cannot be fetched, is not the pinned one, or lacks a file.
    """
    for name, pin in packages.items():
        stamp = folder / name / "VERSION"
        said = f"{pin['version']} {pin['integrity']}\n{' '.join(pin['files'])}\n"
        if stamp.is_file() and stamp.read_text() == said:
            continue
        archive = _fetch(name, pin["version"], pin["integrity"])
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            names = [member.name.removeprefix("package/") for member in tar if member.isfile()]
            for pattern in pin["files"]:
                found = fnmatch.filter(names, pattern)
                if not found:
                    raise CannotVendor(f"{name} {pin['version']} holds no file {pattern}")
                for file in found:
                    target = folder / name / Path(file).name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    content = tar.extractfile(f"package/{file}")
                    assert content is not None, "it is a file"
                    target.write_bytes(content.read())
        stamp.write_text(said)


def _fetch(name: str, version: str, integrity: str) -> bytes:
    registry = os.environ.get(REGISTRY, "https://registry.npmjs.org").rstrip("/")
    url = f"{registry}/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
    for attempt in range(ATTEMPTS):
        try:
            with urllib.request.urlopen(url, timeout=WITHIN_S) as answer:
                data: bytes = answer.read()
            break
        except (OSError, urllib.error.URLError) as error:
            if attempt == ATTEMPTS - 1:
                raise CannotVendor(
                    f"cannot fetch {url}: {error}. The web pages need it; "
                    f"set {REGISTRY} to a registry that can be reached, or build from an sdist"
                ) from None
    algorithm, _, digest = integrity.partition("-")
    if base64.b64encode(hashlib.new(algorithm, data).digest()).decode() != digest:
        raise CannotVendor(f"{url} is not the package that scripts/vendor.toml names: its {algorithm} differs")
    return data


class CannotCompile(Exception):
    """The hot path is to be compiled, and something is missing for that."""


def check_compiler() -> None:
    """Find the C compiler that setuptools would call, and Python's headers.

    Raises:
        CannotCompile: one of them is not there.
    """
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    missing = []
    if shutil.which(shlex.split(command)[0]) is None:
        missing.append(f"the C compiler {command}")
    if not (header := Path(sysconfig.get_path("include"), "Python.h")).is_file():
        missing.append(str(header))
    if missing:
        raise CannotCompile(
            f"HATCH_BUILD_HOOKS_ENABLE compiles the hot path, and this is missing: {', '.join(missing)}. "
            "Install it (Debian: apt-get install gcc python3-dev), or unset HATCH_BUILD_HOOKS_ENABLE: "
            "tricklecast needs no compiler"
        )


class Hook(BuildHookInterface):  # type: ignore[type-arg, unused-ignore]
    """Fetches the product's packages before hatch builds, and looks after a build that compiles."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatch before each build, and before the hook that compiles."""
        if "mypyc" in self.build_config.hook_config:
            check_compiler()
        vendor(PRODUCT, tomllib.loads(PINS.read_text())["product"])

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatch after each build. An editable install goes on to use what was compiled."""
        if version != "editable" and "mypyc" in self.build_config.hook_config:
            for pattern in build_data["artifacts"]:
                for compiled in ROOT.glob(pattern.lstrip("/")):
                    compiled.unlink()
            for compiled in build_data["force_include"]:
                Path(compiled).unlink()


def main(arguments: list[str]) -> int:
    """Run as a command."""
    pins = tomllib.loads(PINS.read_text())
    try:
        vendor(PRODUCT, pins["product"])
        if arguments == ["--dev"]:
            vendor(DEVELOPMENT, pins["development"])
    except CannotVendor as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
