"""The storm report by a scheduler: what systemd, Kubernetes and Airflow are told is what the programs take."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.deploy.support import ROOT
from tests.deploy.test_systemd import UNITS, analyze
from tricklecast.app.cli import cli

DAG = ROOT / "deploy" / "airflow" / "storms.py"
EVENT = '{"ts_us":1760000000000000,"kind":"event","event":"server_start"}\n'


def test_systemd_understands_the_report_and_its_timer(tmp_path: Path) -> None:
    """Every key and value is known, and the service may do little."""
    for name in ("tricklecast-storms.service", "tricklecast-storms.timer"):
        (tmp_path / name).write_text(
            (UNITS / name).read_text().replace("/opt/tricklecast/bin/tricklecast", "/bin/true")
        )
    analyze("verify", "--man=no", *tmp_path.iterdir())
    analyze("security", "--offline=true", "--no-pager", "--threshold=20", tmp_path / "tricklecast-storms.service")


def test_systemd_understands_the_stream(tmp_path: Path) -> None:
    """Every key and value is known, the service may do little, and all options of its command are."""
    unit = (UNITS / "tricklecast-stream.service").read_text()
    (tmp_path / "tricklecast-stream.service").write_text(unit.replace("/opt/tricklecast/bin/tricklecast", "/bin/true"))
    analyze("verify", "--man=no", *tmp_path.iterdir())
    analyze("security", "--offline=true", "--no-pager", "--threshold=30", *tmp_path.iterdir())
    (command,) = re.findall(r"^ExecStart=\S+/tricklecast (.*)$", unit, re.M)
    done = CliRunner().invoke(cli, [*shlex.split(command), "--set", "fast_hit=3"])
    assert "did you mean 'fast_hits'" in " ".join(done.output.split()), done.output


def test_the_units_command_makes_a_report(tmp_path: Path) -> None:
    """Run as it stands, in other folders."""
    (command,) = re.findall(
        r"^ExecStart=\S+/tricklecast (.*)$", (UNITS / "tricklecast-storms.service").read_text(), re.M
    )
    (tmp_path / "access-1.jsonl").write_text(EVENT)
    command = command.replace("${STATE_DIRECTORY}", str(tmp_path)).replace("${LOGS_DIRECTORY}", str(tmp_path))
    done = CliRunner().invoke(cli, shlex.split(command), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert {path.suffix for path in tmp_path.iterdir()} == {".jsonl", ".html", ".json"}


def test_the_pods_run_commands() -> None:
    """Their options are known: what is told is the threshold that does not exist."""
    job = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "storms-report.yaml").read_text())
    stream = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "storms-stream.yaml").read_text())
    for template in (job["spec"]["jobTemplate"]["spec"]["template"], stream["spec"]["template"]):
        (container,) = template["spec"]["containers"]
        done = CliRunner().invoke(cli, [*container["args"], "--set", "fast_hit=3"])
        assert "did you mean 'fast_hits'" in " ".join(done.output.split()), done.output


def test_kubernetes_and_airflow_run_one_job_alike() -> None:
    """The same arguments and as much memory, for a driver of 1 GiB and for Python beside Java."""
    spark = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "storms.yaml").read_text())["spec"]["template"]
    call = next(
        node for node in ast.walk(ast.parse(DAG.read_text())) if isinstance(node, ast.Call) and len(node.keywords) > 6
    )
    given = {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg}
    assert given["application_args"] == spark["arguments"]
    assert given["conf"]["spark.executor.memoryOverhead"] == spark["executor"]["memoryOverhead"]
    assert (given["driver_memory"], given["executor_memory"]) == (
        spark["driver"]["memory"],
        spark["executor"]["memory"],
    )


def test_airflow_loads_the_dag() -> None:
    """Where it is installed."""
    models = pytest.importorskip("airflow.models")
    bag = models.DagBag(str(DAG.parent), include_examples=False)
    assert not bag.import_errors
    assert [task.task_id for task in bag.dags["storms"].tasks] == ["incidents"]
