"""The units for systemd: what systemd itself says of them, and that the server knows their options."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.deploy.support import ROOT
from tricklecast.app.cli import cli
from tricklecast.app.shutdown import LAST_S

UNITS = ROOT / "deploy" / "systemd"
SERVICE = (UNITS / "tricklecast.service").read_text(encoding="utf-8")
NODE = (UNITS / "tricklecast-node.conf").read_text(encoding="utf-8")
PROGRAM = "/opt/tricklecast/bin/tricklecast"


def analyze(*arguments: str | Path) -> None:
    """Run `systemd-analyze`; what it does not accept fails the test."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Unknown" not in done.stderr


def test_systemd_rates_the_service_ok() -> None:
    """An exposure of 1.3; up to 2 is allowed, where 10 is a service without any hardening."""
    analyze("security", "--offline=true", "--no-pager", "--threshold=20", UNITS / "tricklecast.service")


def test_systemd_understands_the_units(tmp_path: Path) -> None:
    """Every key and value is known, also of a node of a cluster."""
    node = tmp_path / "node" / "tricklecast.service"
    (node.parent / "tricklecast.service.d").mkdir(parents=True)
    node.write_text(SERVICE.replace(PROGRAM, "/bin/true"))
    (node.parent / "tricklecast.service.d" / "node.conf").write_text(NODE.replace(PROGRAM, "/bin/true"))
    analyze("verify", "--man=no", node)
    (tmp_path / "tricklecast.service").write_text(SERVICE.replace(PROGRAM, "/bin/true"))
    shutil.copy(UNITS / "tricklecast.socket", tmp_path)
    analyze("verify", "--man=no", tmp_path / "tricklecast.service", tmp_path / "tricklecast.socket")


@pytest.mark.parametrize("unit", [SERVICE, NODE], ids=["server", "node"])
def test_the_server_knows_the_units_options(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line and the environment of the unit are such as `serve` takes, also of a node."""
    for name, value in re.findall(r"^Environment=(TRICKLECAST_\w+)=(\S+)$", unit, re.MULTILINE):
        monkeypatch.setenv(name, value)
    (command,) = re.findall(r"^ExecStart=\S+/tricklecast (.*)$", unit, re.MULTILINE)
    for placeholder, value in {"${STATE_DIRECTORY}": "state", "${LOGS_DIRECTORY}": "logs", "%H": "box-1"}.items():
        command = command.replace(placeholder, value)
    done = CliRunner().invoke(cli, [*shlex.split(command), "--show-config"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    stop_s, deadline_s = (
        float(re.search(rf"^{name}\s*=\s*([\d.]+)", text, re.MULTILINE)[1])  # type: ignore[index]
        for name, text in (("TimeoutStopSec", SERVICE), ("shutdown_deadline_s", done.output))
    )
    assert stop_s > deadline_s + LAST_S, "the server's own last resort comes before systemd's SIGKILL"
