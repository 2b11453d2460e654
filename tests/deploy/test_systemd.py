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

UNITS = ROOT / "deploy" / "systemd"
SERVICE = (UNITS / "tricklecast.service").read_text(encoding="utf-8")


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
    """Every key and value is known."""
    (tmp_path / "tricklecast.service").write_text(SERVICE.replace("/opt/tricklecast/bin/tricklecast", "/bin/true"))
    shutil.copy(UNITS / "tricklecast.socket", tmp_path)
    analyze("verify", "--man=no", tmp_path / "tricklecast.service", tmp_path / "tricklecast.socket")


def test_the_server_knows_the_units_options() -> None:
    """The command line of the unit is one that `serve` takes."""
    (command,) = re.findall(r"^ExecStart=\S+/tricklecast (.*)$", SERVICE, re.MULTILINE)
    arguments = shlex.split(command.replace("${STATE_DIRECTORY}", "state").replace("${LOGS_DIRECTORY}", "logs"))
    done = CliRunner().invoke(cli, [*arguments, "--show-config"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    stop_s, deadline_s = (
        float(re.search(rf"^{name}\s*=\s*([\d.]+)", text, re.MULTILINE)[1])  # type: ignore[index]
        for name, text in (("TimeoutStopSec", SERVICE), ("shutdown_deadline_s", done.output))
    )
    assert stop_s > deadline_s + 30, "the server's own last resort comes before systemd's SIGKILL"
