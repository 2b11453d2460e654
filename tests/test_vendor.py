"""The packages from npm: what is pinned is fetched once, and nothing else is taken for it."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def vendoring() -> ModuleType:
    """scripts/vendor.py as a module."""
    spec = importlib.util.spec_from_file_location("vendoring", Path(__file__).parents[1] / "scripts" / "vendor.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """A registry with one package, and the pin that fits it."""
    archive = tmp_path / "registry" / "player" / "-" / "player-1.0.0.tgz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("dist/player.js", "dist/player.js.map", "LICENSE"):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    monkeypatch.setenv("npm_config_registry", (tmp_path / "registry").as_uri())
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    return {"player": {"version": "1.0.0", "integrity": f"sha512-{digest}", "files": ["dist/*.js", "LICENSE"]}}


def test_the_pinned_files_are_fetched_once(vendoring: ModuleType, pins: dict[str, Any], tmp_path: Path) -> None:
    """Only those that are wanted; what is there already needs no registry."""
    folder = tmp_path / "vendor"
    vendoring.vendor(folder, pins)
    assert sorted(path.name for path in (folder / "player").iterdir()) == ["LICENSE", "VERSION", "player.js"]
    (tmp_path / "registry" / "player" / "-" / "player-1.0.0.tgz").unlink()
    vendoring.vendor(folder, pins)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"integrity": "sha512-AAAA"}, "is not the package that scripts/vendor.toml names"),
        ({"files": ["dist/other.js"]}, "holds no file dist/other.js"),
        ({"version": "2.0.0"}, "cannot fetch"),
    ],
)
def test_anything_else_is_refused(
    vendoring: ModuleType, pins: dict[str, Any], tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    """A package that is not the pinned one, lacks a file, or cannot be had leaves nothing that looks complete."""
    pins["player"].update(change)
    with pytest.raises(vendoring.CannotVendor, match=problem):
        vendoring.vendor(tmp_path / "vendor", pins)
    assert not (tmp_path / "vendor" / "player" / "VERSION").exists()
