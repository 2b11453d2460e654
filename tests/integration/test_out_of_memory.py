"""A server that cannot get memory: requests that need more are refused, all else goes on, and it ends in order."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest

from tests.support.logs import matching, read_log
from tests.support.server import serve

MIB = 1 << 20


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limit of another process can be set on Linux only")
def test_a_server_that_is_out_of_memory(tmp_path: Path) -> None:
    """503 with Retry-After, counted, `degraded`, told once; what is stored can be read; SIGTERM ends it with 0."""
    errors, log = tmp_path / "stderr", tmp_path / "access.jsonl"
    options = ("--max-total-bytes", "4GiB", "--window-bytes", "1GiB")
    with (
        errors.open("w") as stderr,
        serve(*options, access_log=log, stderr=stderr, fork=False) as server,
        server.client() as target,
    ):
        assert target.ask("GET", "/api/v1/channels").status == 200
        used_kib = re.search(r"VmSize:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
        assert used_kib is not None
        allowed = (int(used_kib[1]) << 10) + 64 * MIB
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (allowed, allowed))
        refused = None
        for seq in range(100):
            answer = target.ask("POST", target.channel("c").at(seq), body=bytes(4 * MIB))
            if answer.status == 503:
                refused = answer
                break
            assert answer.status == 200
        assert refused is not None
        assert refused.body == b"The server is out of memory"
        assert 1 <= int(refused.get("Retry-After") or 0) <= 5
        assert target.ask("GET", "/readyz").body == b'{"status":"degraded","reasons":["memory"]}'
        metrics = target.ask("GET", "/metrics").body.decode()
        assert float(re.findall(r'^tricklecast_refusals_total\{limit="memory"\} (.*)$', metrics, re.MULTILINE)[0]) >= 1
        assert float(re.findall(r"^tricklecast_memory_errors_total (.*)$", metrics, re.MULTILINE)[0]) >= 1
        assert float(re.findall(r"^tricklecast_faults_total (.*)$", metrics, re.MULTILINE)[0]) == 0
        assert target.ask("GET", target.channel("c").at(0)).body == bytes(4 * MIB)
        assert server.stop() == 0
    assert matching(read_log(log), op="publish", status=503, reason="limit:memory")
    told = errors.read_text()
    assert told.count("out of memory") == 1
    assert "Traceback" not in told
