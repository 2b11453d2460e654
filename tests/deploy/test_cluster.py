"""A cluster by Docker Compose, HAProxy and Kubernetes: the files agree, and programs accept what concerns them."""

from __future__ import annotations

import re
import shutil
import socketserver
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from tests.deploy.support import DEPLOY, ROOT, load
from tests.support.local import LocalServer, local_server
from tests.support.nats import BINARY
from tests.support.ports import free_port
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.cli import cli
from tricklecast.app.shutdown import LAST_S

HAPROXY: Final = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin")
BALANCER: Final = (DEPLOY / "haproxy" / "haproxy.cfg").read_text(encoding="utf-8")
NATS: Final = DEPLOY / "nats" / "nats.conf"
SERVICES: Final[dict[str, dict[str, Any]]] = load(ROOT / "docker-compose.yml")["services"]
NODES: Final = ("node-1", "node-2", "node-3")
MANIFESTS: Final = [
    pytest.param(manifest, id=f"{path.stem}-{manifest['kind']}")
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
CLUSTER: Final[dict[Any, dict[str, Any]]] = {}
for one in yaml.safe_load_all((DEPLOY / "kubernetes" / "cluster.yaml").read_text(encoding="utf-8")):
    CLUSTER[one["kind"]] = CLUSTER[one["kind"], one["metadata"]["name"]] = one


def config(arguments: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The settings that a command line and an environment make, as `serve --show-config` prints them."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(cli, [*arguments, "--show-config"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(re.findall(r"^(\w+)\s*=\s*(\S.*?)\s*(?:#.*)?$", done.output, re.MULTILINE))


# Compose.


@pytest.mark.parametrize("name", NODES)
def test_a_node_of_compose_is_told_its_own_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are such as `serve` takes, and it is given the time to move its channels and to drain."""
    service = SERVICES[name]
    shown = config(service["command"], service["environment"], monkeypatch)
    assert service["hostname"] == name
    assert shown["advertise_url"] == f'"http://{name}:2939"'
    assert shown["ack"] == '"quorum"'
    grace_s = float(service["stop_grace_period"].removesuffix("s"))
    assert grace_s > float(shown["shutdown_deadline_s"]) + LAST_S


def test_nodes_balancer_and_nats_of_compose_find_each_other() -> None:
    """Each name that one of the files mentions is a service, and NATS has room for the histories."""
    cluster = {name for name, service in SERVICES.items() if service.get("profiles") == ["cluster"]}
    servers = {name for name in cluster if SERVICES[name].get("image", "").startswith("nats:")}
    assert cluster == {*NODES, *servers, "balancer"}
    assert set(re.findall(r"^    server (\S+) \1:2939$", BALANCER, re.MULTILINE)) == set(NODES)
    text = NATS.read_text(encoding="utf-8")
    assert set(re.findall(r"nats://([\w-]+):6222", text)) == servers
    assert {SERVICES[name]["hostname"] for name in servers} == servers
    assert all(SERVICES[name]["command"][1] == name for name in servers)
    for name in NODES:
        environment = SERVICES[name]["environment"]
        assert set(re.findall(r"nats://([\w-]+):4222", environment["TRICKLECAST_CLUSTER"])) == servers
        reserved = int(environment["TRICKLECAST_CLUSTER_HISTORY_BYTES"].removesuffix("GiB"))
        assert reserved < int(re.findall(r"max_file_store: (\d+)GiB", text)[0])


def test_nats_accepts_its_configuration() -> None:
    """The server checks it."""
    done = subprocess.run([BINARY, "-t", "-c", NATS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_image_can_be_a_node() -> None:
    """It has the extra."""
    assert all(
        "--extra cluster" in line
        for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
        if "uv sync" in line
    )


# The balancer, before one server, which stands for two nodes, and a node that dies at each request.


class Dying(socketserver.ThreadingTCPServer):
    """A node that is ready, breaks off at every request, and answers 503 if it is asked again.

    Attributes:
        got: the request lines.
    """

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), DyingOne)
        self.got: list[str] = []


class DyingOne(socketserver.StreamRequestHandler):
    server: Dying

    def handle(self) -> None:
        line = self.rfile.readline().decode()
        while self.rfile.readline().strip():
            pass
        if " /readyz " in line:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        elif line:
            if "?again" in line:
                self.wfile.write(b"HTTP/1.1 503 Drains\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.server.got.append(line.rpartition(" ")[0])


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with local_server() as running:
        yield running


@pytest.fixture(scope="module")
def dying() -> Iterator[Dying]:
    with Dying() as node:
        threading.Thread(target=node.serve_forever, args=(0.01,), daemon=True).start()
        yield node
        node.shutdown()


@pytest.fixture(scope="module")
def balancer(server: LocalServer, dying: Dying, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of the balancer."""
    if HAPROXY is None:
        pytest.skip("haproxy is not installed")
    folder, port = tmp_path_factory.mktemp("haproxy"), free_port()
    text = BALANCER.replace("bind :2939", f"bind 127.0.0.1:{port}")
    for name, node in zip(NODES, (server.port, dying.server_address[1], server.port), strict=True):
        text = text.replace(f" {name}:2939", f" 127.0.0.1:{node}")
    (folder / "haproxy.cfg").write_text(text, encoding="utf-8")
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen([HAPROXY, "-db", "-f", folder / "haproxy.cfg"], stdout=said, stderr=said)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WITHIN_S) as client:
            eventually(lambda: process.poll() is not None or _answers(client), what="a balancer that answers")
            assert process.poll() is None, (folder / "said").read_text()
            yield client
    finally:
        process.kill()
        process.wait(WITHIN_S)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.HTTPError:
        return False


CHANNELS: Final = [f"channel-{number}" for number in range(16)]


def test_a_read_survives_the_death_of_its_node(balancer: httpx.Client, server: LocalServer, dying: Dying) -> None:
    """All requests for one channel go to one node; what it does not answer, or with 503, goes to the next one."""
    for name in CHANNELS:
        assert httpx.post(f"http://127.0.0.1:{server.port}/trickle/{name}/0", content=b"x").status_code == 200
    dying.got.clear()
    for name in CHANNELS:
        for path in (f"/trickle/{name}/0", f"/trickle/{name}/0?again"):
            assert balancer.get(path).content == b"x"
    each = Counter(re.findall(r"(channel-\d+)", "".join(dying.got)))
    assert set(each.values()) == {2}
    assert len(each) < len(CHANNELS)


def test_a_segment_is_never_sent_twice(balancer: httpx.Client, server: LocalServer, dying: Dying) -> None:
    """The balancer cannot know whether the node has taken it: it says 502, and the publisher decides."""
    dying.got.clear()
    alone = {"Connection": "close"}  # otherwise the connection just closes, behind an earlier answer
    answered = {name: balancer.post(f"/trickle/new-{name}/0", content=b"x", headers=alone) for name in CHANNELS}
    refused = {name for name, answer in answered.items() if answer.status_code == 502}
    assert sorted(dying.got) == sorted(f"POST /trickle/new-{name}/0" for name in refused)
    assert refused
    assert {answered[name].status_code for name in set(CHANNELS) - refused} == {200}
    known = server.inside(lambda: set(server.plane.registry.channels))
    assert {f"new-{name}" for name in CHANNELS} - known == {f"new-{name}" for name in refused}


# Kubernetes.


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_kubernetes_knows_each_field(manifest: dict[str, Any]) -> None:
    """By the schema of the newest version that the package knows; it has none of other projects' resources."""
    validate = pytest.importorskip("kubernetes_validate")
    try:
        validate.validate(manifest, "1.34", strict=True)
    except validate.SchemaNotFoundError:
        assert manifest["apiVersion"] == "sparkoperator.k8s.io/v1beta2"


def test_a_pod_is_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told its own name, and is found by it; probes ask the paths that there are; its end is not cut short."""
    stateful, headless = CLUSTER["StatefulSet"], CLUSTER["Service", "tricklecast"]
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    arguments = [str(one).replace("$(POD_NAME)", "tricklecast-0") for one in container["args"]]
    assert [one["name"] for one in container["env"]] == ["POD_NAME", "TRICKLECAST_CLUSTER"]
    shown = config(arguments, {"TRICKLECAST_CLUSTER": "nats://nats:4222"}, monkeypatch)
    (port,) = (one["containerPort"] for one in container["ports"])
    assert shown["node"] == '"tricklecast-0"'
    assert shown["advertise_url"] == f'"http://tricklecast-0.{stateful["spec"]["serviceName"]}:{port}"'
    assert headless["metadata"]["name"] == stateful["spec"]["serviceName"]
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"], (
        "a node that drains has to be reached by those that it drains to"
    )
    for selector in (
        headless["spec"]["selector"],
        CLUSTER["Service", "trickle"]["spec"]["selector"],
        CLUSTER["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        stateful["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= stateful["spec"]["template"]["metadata"]["labels"].items()
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    pause_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    least_s = pause_s + float(shown["shutdown_deadline_s"]) + LAST_S
    assert pod["terminationGracePeriodSeconds"] > least_s
