"""What to paste against an incident: valid in its syntax, about its client and path, harmless whatever a name is."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.analytics.report.sample import sample_incident
from tests.analytics.report.test_forms import HOSTILE
from tests.support.waiting import WITHIN_S
from tricklecast.analytics.report.build import summary
from tricklecast.analytics.report.mitigate import BACK_OFF, GRPC, mitigations
from tricklecast.analytics.report.model import Mitigation
from tricklecast.analytics.rules.classes import StormClass
from tricklecast.analytics.rules.incidents import Incident

S = StormClass
PARTS = re.compile(r"# In http \{ \}:\n(.*)\n# In server [^\n]*\n(.*)", re.DOTALL)


def some(storm: StormClass, formats: tuple[str, ...] = ("tricklecast",), **changes: Any) -> dict[str, list[Mitigation]]:
    """What is said against an incident, by kind."""
    found: dict[str, list[Mitigation]] = {}
    for one in mitigations(summary(replace(sample_incident(storm), **changes)), formats):
        found.setdefault(one.kind, []).append(one)
    return found


def nginx_program() -> str:
    """Where it is; without it the test is skipped."""
    found = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if found is None:
        pytest.skip("nginx is not installed")
    return found


def checked_by_nginx(folder: Path, snippets: list[str]) -> None:
    """``nginx -t`` with each snippet in a server of its own."""
    nginx = nginx_program()
    http = []
    for number, snippet in enumerate(snippets):
        parts = PARTS.fullmatch(snippet)
        assert parts is not None
        http += [parts[1], f"server {{ listen unix:{folder}/{number}.sock; location / {{ {parts[2]}\n}} }}"]
    http.insert(0, f"map_hash_bucket_size 512; access_log off; client_body_temp_path {folder}/body;")
    conf = folder / "nginx.conf"
    conf.write_text(f"pid {folder}/pid; error_log stderr; events {{}}\nhttp {{\n" + "\n".join(http) + "\n}\n")
    done = subprocess.run([nginx, "-t", "-c", conf, "-p", folder], capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr


CASES: dict[str, dict[str, Any]] = {
    "address": {"clients": ("203.0.113.7#ab12cd34",), "channels": ("GET /api/v1.0/token 401",)},
    "ipv6": {"clients": ("2001:db8::7", "2001:db8::8"), "channels": ("GET / 401", "POST /b{2};c\"d'\\ 404")},
    "networks": {"clients": ("192.0.2.0/24",), "named": False, "channels": ("GET /a 404",)},
    "names": {"clients": ("player-1", "player 2"), "channels": ("film", "film 2/x")},
    "hash": {"clients": ("b1bdf81d75958da6",), "channels": ("film",), "ua": 'a"b\\c${x} {y}; (z)'},
    "crowd": {"clients": tuple(f"10.0.0.{n}" for n in range(60)), "channels": ()},
    "long": {"clients": ("x" * 256,), "channels": ("\N{BEETLE}" * 256,)},
    **{f"hostile {n}": {"clients": (name,), "channels": (name,), "ua": name} for n, name in enumerate(HOSTILE)},
    **{
        f"hostile path {n}": {"clients": ("::1",), "channels": (f"GET /{name[:256]} 404",)}
        for n, name in enumerate(HOSTILE)
    },
}


def test_nginx_takes_it(tmp_path: Path) -> None:
    """Whatever the names of clients and paths are."""
    made = [
        some(S.WEB_LOOP, ("tricklecast",), id=f"0a{number:02}-2", **case)["nginx"][0].code
        for number, case in enumerate(CASES.values())
    ]
    assert all(code.isascii() and code.replace("\n", "").isprintable() for code in made)
    checked_by_nginx(tmp_path, made)


def test_nginx_refuses_the_storm_and_nothing_else(tmp_path: Path) -> None:
    """Its client on its path gets 429 with Retry-After; another path is served, and so is another client."""
    nginx = nginx_program()
    made = [
        some(S.WEB_LOOP, ("nginx",), id=name, clients=(client,), channels=("GET /poll 204",), mean_rps=9.0)["nginx"][0]
        for name, client in (("a", "127.0.0.1"), ("b", "203.0.113.7"))
    ]
    http, servers, ports = [], [], []
    for one in made:
        parts = PARTS.fullmatch(one.code)
        assert parts is not None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
        http.append(parts[1])
        servers.append(f"server {{ listen 127.0.0.1:{ports[-1]}; root {tmp_path}; {parts[2]}\n}}")
    for name in ("poll", "other"):
        (tmp_path / name).write_text("x")
    tmp_path.chmod(0o755)
    conf = tmp_path / "nginx.conf"
    conf.write_text(
        f"daemon off; master_process off; pid {tmp_path}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {tmp_path}/body;\n" + "\n".join([*http, *servers]) + "\n}\n"
    )
    with subprocess.Popen([nginx, "-c", conf, "-p", tmp_path], stderr=subprocess.DEVNULL) as process:
        try:
            with httpx.Client(transport=httpx.HTTPTransport(retries=9)) as client:
                storm = [client.get(f"http://127.0.0.1:{ports[0]}/poll?n={n}") for n in range(20)]
                others = [client.get(f"http://127.0.0.1:{ports[0]}/other") for n in range(20)]
                others += [client.get(f"http://127.0.0.1:{ports[1]}/poll") for n in range(20)]
        finally:
            process.terminate()
    refused = [answer.headers.get("Retry-After") for answer in storm if answer.status_code == 429]
    assert len(refused) >= 10
    assert set(refused) == {"5"}
    assert storm[0].status_code == 200
    assert {(answer.status_code, answer.headers.get("Retry-After")) for answer in others} == {(200, None)}


@pytest.mark.parametrize("name", list(CASES))
def test_envoy_s_is_yaml_of_its_own_keys_only(name: str) -> None:
    """No name becomes a key or a value of another kind."""
    (one,) = some(S.WEB_LOOP, ("envoy",), **CASES[name])["envoy"]
    assert one.code.isascii()
    filters, routes = one.code.split("# In the virtual host or route:\n")
    (added,) = yaml.safe_load(filters)
    config = added["typed_config"]
    assert set(added) == {"name", "typed_config"}
    assert config["@type"].endswith("local_ratelimit.v3.LocalRateLimit")
    assert all(set(each) == {"entries", "token_bucket"} for each in config["descriptors"])
    (limits,) = yaml.safe_load(routes)["rate_limits"]
    told = [key for action in limits["actions"] for key in action]
    assert [entry["key"] for entry in config["descriptors"][0]["entries"]] == [
        {"header_value_match": "header_match"}.get(key, key) for key in told
    ]
    header, *agent = limits["actions"][-1]["header_value_match"]["headers"]
    assert all(set(each) == {"name", "string_match"} and each["name"] == "user-agent" for each in agent)
    re.compile(header["string_match"]["safe_regex"]["regex"])


def test_only_this_client_and_this_path() -> None:
    """The key matches the requests of the incident, with a query or not, and no others."""
    code = some(S.WEB_LOOP, ("combined",), **CASES["address"])["nginx"][0].code
    assert "    203.0.113.7 1;" in code
    (key,) = re.findall(r'"~(.*)" \$binary_remote_addr;', code)
    for line, expected in (
        ("1 GET /api/v1.0/token", True),
        ("1 GET /api/v1.0/token/?x=1", True),
        ("1 GET /api/v1.0/tokens", False),
        ("1 GET /api/v1-0/token", False),
        ("1 POST /api/v1.0/token", False),
        ("0 GET /api/v1.0/token", False),
    ):
        assert bool(re.search(key, line)) == expected, line
    channel = re.findall(r'"~(.*)" \$binary', some(S.ENDED_LOOP)["nginx"][0].code)[0]
    assert re.search(channel, "player-1 GET /trickle/film/17")
    assert not re.search(channel, "player-1 GET /trickle/film2/17")


@pytest.mark.parametrize(
    ("formats", "kinds"),
    [
        (("tricklecast",), ["tricklecast", "nginx", "client"]),
        (("combined",), ["nginx", "client"]),
        (("envoy-text",), ["envoy", "client"]),
        (("haproxy",), ["client"]),
        ((), ["client"]),
    ],
)
def test_the_server_that_wrote_the_log(formats: tuple[str, ...], kinds: list[str]) -> None:
    """Gets a snippet in its own syntax, and no other one."""
    assert list(some(S.OVERLOAD_CLIENT, formats)) == kinds


def test_a_crowd_is_not_listed() -> None:
    """Each address is limited by itself, and they are told to come back at different times."""
    code = some(S.OVERLOAD_AMPLIFICATION, ("nginx",), **CASES["crowd"])["nginx"][0].code
    assert "10.0.0." not in code
    assert "split_clients" in code
    assert "retry_budget" in some(S.OVERLOAD_AMPLIFICATION, ("envoy",), **CASES["crowd"])["envoy"][0].code


def test_the_guard_is_not_advised_where_it_worked() -> None:
    """A channel is ended with its name quoted for a shell."""
    assert "--storm-guard on" in some(S.ENDED_LOOP)["tricklecast"][0].code
    assert "tricklecast" not in some(S.ENDED_LOOP, held_s=3.0)
    (one,) = some(S.ZERO_BYTE_LOOP, held_s=3.0, channels=("a'; rm -rf $HOME #",))["tricklecast"]
    assert shlex.split(one.code)[:3] == ["curl", "-X", "DELETE"]
    assert "$HOME" not in one.code


@pytest.mark.parametrize("storm", list(StormClass))
def test_the_client_s_rule_is_python_that_parses(storm: StormClass) -> None:
    """And there is one for each class; gRPC has a service config."""
    for one in some(storm)["client"]:
        ast.parse(f"async def client():\n  while True:\n{re.sub('^', '    ', one.code, flags=re.MULTILINE)}\n    pass")
    (told,) = some(S.SERVER_ERROR_LOOP, ua="grpc-go/1.62")["client"]
    assert told.code == GRPC
    assert json.loads(GRPC)["retryThrottling"] == {"maxTokens": 10, "tokenRatio": 0.1}


def test_pauses_are_jittered_and_wait_for_retry_after() -> None:
    """Full jitter above the floor; the longest is bounded."""
    names: dict[str, Any] = {}
    exec(BACK_OFF, names)
    pauses = [names["pause_s"](attempt, 5.0) for attempt in (1, 3, 50) for _ in range(50)]
    assert min(pauses) >= 5.0
    assert max(pauses) <= 35.0
    assert len(set(pauses)) > 100


def test_no_incident_lacks_the_final_word(tmp_path: Path) -> None:
    """A final answer of a web server is a reason to stop, a failure one to back off."""
    one: Incident = replace(sample_incident(S.WEB_LOOP), channels=("GET /a 404",))
    stop, back_off = mitigations(summary(one), ("haproxy",))
    assert "return" in stop.code
    assert "Lp-Trickle" not in stop.code
    assert back_off.code == BACK_OFF
    (only,) = mitigations(summary(replace(one, channels=("GET /a 502",))), ("haproxy",))
    assert only.code == BACK_OFF
