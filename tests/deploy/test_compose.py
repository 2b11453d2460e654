"""docker-compose.yml, as far as it can be told without a container engine."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.deploy.support import DEPLOY, ROOT, load
from tricklecast.app.cli import load as load_command
from tricklecast.app.settings import unknown_variables
from tricklecast.trickle.bearer import TOKEN_VARIABLE

COMPOSE: dict[str, Any] = load(ROOT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """What is mounted, by its place in the container."""
    return {place: source for source, place, *_ in (volume.split(":") for volume in service.get("volumes", []))}


@pytest.mark.parametrize("name", list(SERVICES))
def test_what_a_service_needs_is_there(name: str) -> None:
    """Volumes are declared, files and folders exist, other services too, and images have a version."""
    service = SERVICES[name]
    for source in mounts(service).values():
        assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    for other in service.get("depends_on", []):
        assert other in SERVICES
    assert "build" in service or re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"])


def test_monitoring_is_a_profile_of_its_own() -> None:
    """Whoever does not ask for it gets none of it."""
    monitoring = {name for name, service in SERVICES.items() if service.get("profiles") == ["monitoring"]}
    assert monitoring == {"prometheus", "grafana", "storms", "storms-exporter"}
    assert {name for name, service in SERVICES.items() if "profiles" not in service} == {
        "server",
        "publisher",
        "subscriber",
    }


@pytest.mark.parametrize("name", [name for name, service in SERVICES.items() if "ports" in service])
def test_only_this_machine_is_let_in(name: str) -> None:
    """Ports are bound to this machine, until a user says otherwise."""
    assert all(
        re.match(r"(127\.0\.0\.1|\$\{TRICKLECAST_ADDRESS:-127\.0\.0\.1\}):", port) for port in SERVICES[name]["ports"]
    )


def test_the_demo_channel_never_ends() -> None:
    """Its source has no duration, and is started again whatever happens; its subscriber fills no disk."""
    assert SERVICES["publisher"]["command"][-1] == "testsrc"
    assert SERVICES["publisher"]["restart"] == "always"
    command = SERVICES["subscriber"]["command"]
    assert command[command.index("-o") + 1] == "/dev/null"


def test_the_docs_open_it_with_tokens() -> None:
    """The file that they show changes services that exist, with settings that exist."""
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(# docker-compose.override.yml\n.*?)```", page, re.S)
    override = yaml.safe_load(block)
    assert set(override["services"]) <= set(SERVICES)
    variables = {name for service in override["services"].values() for name in service["environment"]}
    assert variables == {"TRICKLECAST_JWT_SECRET_FILE", "TRICKLECAST_METRICS_OPEN", TOKEN_VARIABLE}
    assert unknown_variables(variables) is None


def test_prometheus_scrapes_services_of_the_same_file() -> None:
    """The server, and the exporter of the storm report; the job's name is the one that rules ask for."""
    jobs = load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    targets = {job["job_name"]: urlsplit(f"//{job['static_configs'][0]['targets'][0]}") for job in jobs}
    assert {name: target.hostname for name, target in targets.items()} == {
        "tricklecast": "server",
        "tricklecast-storms": "storms-exporter",
    }
    (port,) = SERVICES["server"]["ports"]
    assert port.endswith(f":{targets['tricklecast'].port}:{targets['tricklecast'].port}")
    assert mounts(SERVICES["prometheus"])["/etc/prometheus"] == "./deploy/prometheus"


def test_prometheus_finds_the_nodes_that_run() -> None:
    """All nodes of the file, at the port that they advertise, under their names. Those of a profile may not run."""
    (job,) = (
        one for one in load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"] if "dns_sd_configs" in one
    )
    (found,) = job["dns_sd_configs"]
    advertised = {
        str(service["environment"]["TRICKLECAST_ADVERTISE_URL"])
        for service in SERVICES.values()
        if "TRICKLECAST_ADVERTISE_URL" in (service.get("environment") or {})
    }
    assert {f"http://{name}:{found['port']}" for name in found["names"]} == advertised
    assert (job["job_name"], found["type"]) == ("tricklecast", "A")
    (named,) = job["relabel_configs"]
    assert (named["source_labels"], named["target_label"]) == (["__meta_dns_name"], "instance")


def test_grafana_finds_what_is_provisioned() -> None:
    """The folders are mounted where its configuration looks, and it asks the Prometheus of the same file."""
    found = mounts(SERVICES["grafana"])
    assert found["/etc/grafana/provisioning"] == "./deploy/grafana/provisioning"
    assert found["/etc/grafana/dashboards"] == "./deploy/grafana/dashboards"
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DEPLOY / "grafana" / "dashboards" / home.rpartition("/")[2]).is_file()
    (source,) = load(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    assert urlsplit(source["url"]).hostname in SERVICES


def test_the_cluster_and_its_driver_see_the_log() -> None:
    """Executors read the files that the report names, under the same path."""
    command = SERVICES["report"]["command"]
    known = {option for parameter in load_command("storms").params for option in parameter.opts}
    assert {option for option in command if option.startswith("--")} <= known
    assert mounts(SERVICES["report"])[command[0]] == mounts(SERVICES["spark-worker"])[command[0]] == "logs"


def test_the_storm_report_lands_where_its_exporter_looks() -> None:
    """The options exist, and the file ends in .prom."""
    (command,) = SERVICES["storms"]["command"]
    known = {option for parameter in load_command("storms").params for option in parameter.opts}
    assert set(re.findall(r" (--?[a-z-]+)", command)) <= known
    file = re.search(r"--prom (\S+)", command)
    assert file is not None
    folder, _, name = file[1].rpartition("/")
    assert name.endswith(".prom")
    assert f"--collector.textfile.directory={folder}" in SERVICES["storms-exporter"]["command"]
    assert mounts(SERVICES["storms"])[folder] == mounts(SERVICES["storms-exporter"])[folder]
    assert f"chown tricklecast /logs {folder}" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
