"""Logs as people have them, in wrappings, compressed and encoded, are read right or refused."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest

from tests.analytics.lines.traffic import NATIVE, START_US, as_line, read_each, read_files, write
from tests.support.long import mostly_long
from tricklecast.analytics.lines import BadFormat, UnknownFormat, recognise
from tricklecast.analytics.lines.files import BLOCK, sample_of
from tricklecast.analytics.lines.inferred import columns_of
from tricklecast.analytics.lines.mapped import load_map, parse_map
from tricklecast.analytics.lines.recognise import SAMPLE_LINES
from tricklecast.analytics.lines.records import MAX_LINE
from tricklecast.analytics.lines.wrapping import Unwrapper

CLF: Final = "09/Oct/2025:08:53:20 +0000"
ISO: Final = "2025-10-09T08:53:20"
US: Final = START_US
MS250: Final = START_US + 250_000

WORDS: Final = "203.0.113.7 - - [" + CLF + '] "GET /api/v1?x=1 HTTP/1.1" 401 10 "-" "bad/1"'
CADDY: Final[dict[str, Any]] = {
    "level": "info",
    "ts": US / 1e6,
    "msg": "handled request",
    "request": {
        "remote_ip": "203.0.113.7",
        "method": "GET",
        "uri": "/api/v1?x=1",
        "headers": {"User-Agent": ["bad/1"]},
    },
    "duration": 0.02,
    "size": 10,
    "status": 401,
}
NGINX: Final[dict[str, Any]] = {
    "time": ISO + ".250Z",
    "remote_addr": "203.0.113.7",
    "request": "GET /api/v1?x=1 HTTP/1.1",
    "status": 401,
    "request_time": "0.020",
}


def caddy(**fields: Any) -> str:
    return json.dumps({key: value for key, value in (CADDY | fields).items() if value is not None})


def nginx(**fields: Any) -> str:
    return json.dumps({key: value for key, value in (NGINX | fields).items() if value is not None})


# name: (lines, when the request began, how long it took, whose it is)
Case = tuple[list[str], int, int | None, str]
TEN_MS: Final = 20_000
IP: Final = "203.0.113.7"
IP6: Final = "2001:db8::7"
ISTIO: Final = (
    f'[{ISO}.250Z] "GET /api/v1?x=1 HTTP/2" 401 - via_upstream - "-" 0 10 20 19 "{{}}" "bad/1" "4c7a" "shop" '
    '"10.0.0.3:80" outbound|80||shop 10.0.0.1:44 10.0.0.2:80 203.0.113.7:5555 - default'
)
ALB: Final = (
    f"h2 {ISO}.270000Z app/lb/5 203.0.113.7:2817 10.0.0.1:80 0.001 0.018 0.001 401 401 34 10 "
    '"GET https://shop.example:443/api/v1?x=1 HTTP/2.0" "bad/1" ECDHE TLSv1.2 arn:aws "Root=1" "shop" "-" 0'
)
HAPROXY: Final = (
    "203.0.113.7:33317 [09/Oct/2025:08:53:20.250] http-in~ app/srv1 1/0/2/16/20 401 10 - - ---- 1/1/1/1/0 0/0 "
    '{shop|bad/1} {} "GET /api/v1?x=1 HTTP/1.1"'
)
CLOUDFRONT: Final = (
    "date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(User-Agent) time-taken"
)
IIS: Final = (
    "date time s-ip cs-method cs-uri-stem c-ip cs(User-Agent) sc-status sc-substatus sc-win32-status time-taken"
)

CASES: Final[dict[str, Case]] = {
    "combined": ([WORDS], US, None, IP),
    "common": ([WORDS.rpartition(' "-"')[0]], US, None, IP),
    "main behind a balancer": ([WORDS.replace(IP, "10.0.0.5") + ' "203.0.113.7, 10.1.1.1"'], US, None, IP),
    "main behind a balancer, IPv6": ([WORDS.replace(IP, "10.0.0.5") + f' "{IP6}, 10.1.1.1"'], US, None, IP6),
    "main without a balancer": ([WORDS + ' "-"'], US, None, IP),
    "forwarded first": ([WORDS.replace(IP, "203.0.113.7, 10.1.1.1 10.0.0.5")], US, None, IP),
    "forwarded first, quoted": (['"203.0.113.7" ' + WORDS.replace(IP, "10.0.0.5")], US, None, IP),
    "virtual host": (["shop.example:443 " + WORDS], US, None, IP),
    "virtual host without a port": (["shop.example " + WORDS], US, None, IP),
    "request_time": ([WORDS + " 1.020"], US - 1_000_000, 1_020_000, IP),
    "upstream first": ([WORDS + " 0.001 1.020"], US - 1_000_000, 1_020_000, IP),
    "upstream last": ([WORDS + " 1.020 0.001"], US - 1_000_000, 1_020_000, IP),
    "several upstreams": ([WORDS + ' 1.020 "0.001, 0.300"'], US - 1_000_000, 1_020_000, IP),
    "labels": ([WORDS + ' "-" rt=1.020 uct="0.000" urt="0.400"'], US - 1_000_000, 1_020_000, IP),
    "msec": ([WORDS + f" 0.020 {(US + 270_000) / 1e6:.3f}"], MS250, TEN_MS, IP),
    "time_iso8601": ([WORDS.replace(CLF, ISO + "+00:00")], US, None, IP),
    "Apache %D": ([WORDS + " 1020000"], US, 1_020_000, IP),
    "Apache %T %D": ([WORDS + " 1 1020000"], US, 1_020_000, IP),
    "a number without a unit": ([WORDS + " 20"], US, None, IP),
    "bytes with headers": ([WORDS + " 310"], US, None, IP),
    "msec in brackets": ([f'[{(US + 270_000) / 1e6:.3f}] {IP} "GET /api/v1?x=1 HTTP/1.1" 401 0.020 "bad/1"'],
                         MS250, TEN_MS, IP),
    "between bars": ([f'{IP} | {ISO}+00:00 | "GET /api/v1?x=1 HTTP/1.1" | 401 | 10 | 1.020 | "bad/1"'],
                     US - 1_000_000, 1_020_000, IP),
    "every column in quotes": ([f'"{CLF}" "{IP}" "GET /api/v1?x=1 HTTP/1.1" "401" "10" "1.020" "bad/1"'],
                               US - 1_000_000, 1_020_000, IP),
    "through a socket": ([WORDS.replace(IP, "unix:") + f' "{IP}" "unix:/run/a.sock" 1.020'],
                         US - 1_000_000, 1_020_000, IP),
    "morgan": ([WORDS + " 1020.000 ms"], US - 1_000_000, 1_020_000, IP),
    "labels with colons": ([WORDS + f' response_time:1.020 x_forwarded_for:"{IP}, 10.0.0.1"'], US - 1_000_000,
                           1_020_000, IP),
    "hypercorn": ([f"[{ISO} +0000] [7] [INFO] [{IP6}]:5555 - - [{CLF}]{WORDS.partition(']')[2]}"], US, None, IP6),
    "uvicorn with times": ([f'{ISO.replace("T", " ")},250 - INFO - {IP}:5 - "GET /api/v1 HTTP/1.1" 401'],
                           MS250, None, IP),
    "werkzeug": ([f'{IP} - - [09/Oct/2025 08:53:20] "GET /api/v1 HTTP/1.1" 401 -'], US, None, IP),
    "Squid": ([f"{(MS250 + TEN_MS) / 1e6:.3f}     20 {IP} TCP_MISS/401 10 GET http://a/api/v1 - DIRECT/a text/html"],
              MS250, TEN_MS, IP),
    "Gin": ([f'[GIN] 2025/10/09 - 08:53:20 | 401 |     1.020s |     {IP} | GET      "/api/v1?x=1"'],
            US - 1_000_000, 1_020_000, IP),
    "logfmt": ([f'time={ISO}.270Z level=info msg="a status=200 b" method=GET path="/api/v1?x=1" status=401 took_ms=20 '
                f"remote_addr={IP}"], MS250, TEN_MS, IP),
    "Heroku": ([f'{ISO}.270+00:00 heroku[router]: at=info method=GET path="/api/v1" fwd="{IP}" connect=1ms '
                "service=20ms status=401"], MS250, TEN_MS, IP),
    "Apache msec_frac": ([WORDS.replace(":20 +0000", ":20.250 +0000")], MS250, None, IP),
    "Traefik CLF": ([WORDS + ' 7 "web@docker" "http://10.0.0.3:80" 1020ms'], US, 1_020_000, IP),
    "nginx JSON": ([nginx()], MS250 - TEN_MS, TEN_MS, IP),
    "nginx JSON, forwarded": ([nginx(http_x_forwarded_for=IP, remote_addr="10.0.0.5")], MS250 - TEN_MS, TEN_MS, IP),
    "nginx JSON, not forwarded": ([nginx(http_x_forwarded_for="-")], MS250 - TEN_MS, TEN_MS, IP),
    "nginx JSON, IPv6": ([nginx(http_x_forwarded_for="2001:db8::7, 10.0.0.1")], MS250 - TEN_MS, TEN_MS, "2001:db8::7"),
    "RFC 7239": ([nginx(remote_addr="10.0.0.5", http_forwarded=f'for="[{IP6}]:4711";proto=https, for=10.0.0.1')],
                 MS250 - TEN_MS, TEN_MS, IP6),
    "an address by its label": ([WORDS.replace(IP, "10.0.0.5") + f" real_ip={IP} 1.020"], US - 1_000_000, 1_020_000,
                                IP),
    "a name of the zone": ([nginx(time=ISO.replace("T", " ") + ".250 UTC")], MS250 - TEN_MS, TEN_MS, IP),
    "elapsed": ([json.dumps({"time": ISO + ".270Z", "verb": "GET", "url": "/api/v1", "status": 401, "ip": IP,
                             "time_elapsed_usec": 20_000})], MS250, TEN_MS, IP),
    "nginx JSON, unescaped": ([nginx(http_user_agent="QQ").replace("QQ", "a\\x22b\\x5C")], MS250 - TEN_MS, TEN_MS, IP),
    "nginx JSON, bare -": ([nginx(upstream="QQ").replace('"QQ"', "-")], MS250 - TEN_MS, TEN_MS, IP),
    "nginx JSON, bare list": ([nginx(upstream="QQ").replace('"QQ"', "0.1, 0.2")], MS250 - TEN_MS, TEN_MS, IP),
    "+0000": ([nginx(time=ISO + ".250+0000")], MS250 - TEN_MS, TEN_MS, IP),
    "+0200": ([nginx(time="2025-10-09T10:53:20.250+0200")], MS250 - TEN_MS, TEN_MS, IP),
    "comma": ([nginx(time="2025-10-09 08:53:20,250")], MS250 - TEN_MS, TEN_MS, IP),
    "milliseconds": ([nginx(time=MS250 // 1000)], MS250 - TEN_MS, TEN_MS, IP),
    "20ms": ([nginx(request_time="20ms")], MS250 - TEN_MS, TEN_MS, IP),
    "PT0.02S": ([nginx(request_time="PT0.02S")], MS250 - TEN_MS, TEN_MS, IP),
    "0.02s": ([nginx(request_time="0.02s")], MS250 - TEN_MS, TEN_MS, IP),
    "JSON of one's own": (
        [json.dumps({"ts": ISO + ".270Z", "method": "GET", "path": "/api/v1?x=1", "status_code": 401}
                    | {"client_ip": IP, "duration_ms": 20})], MS250, TEN_MS, IP
    ),
    "names in other words": (
        [json.dumps({"timeStamp": ISO + ".270Z", "upstream": {"status": 200}, "status": "ok",
                     "properties": {"httpMethod": "GET", "requestUri": "/api/v1", "httpStatus": 401},
                     "props": {"clientIP": IP, "timeTakenMs": 20}})], MS250, TEN_MS, IP,
    ),
    "start by its name": (
        [json.dumps({"startedAt": MS250 // 1000, "latency_human": "20ms", "latency": 20_000_000, "remote_ip": IP,
                     "res": {"statusCode": 401}, "req": {"method": "GET", "url": "/api/v1?x=1"}})], MS250, TEN_MS, IP,
    ),
    "seconds that are none": ([nginx(request_time=20)], MS250, None, IP),
    "seconds by their name": (
        [json.dumps({"time": ISO + ".250Z", "method": "GET", "path": "/api/v1", "response_code": 401, "ip_address": IP,
                     "request_time": 20})], MS250, None, IP,
    ),
    "nginx JSON behind Cloudflare": (
        [nginx(remote_addr="10.0.0.5", http_cf_connecting_ip=IP)], MS250 - TEN_MS, TEN_MS, IP
    ),
    "Envoy text": ([ISTIO.replace(' via_upstream - "-"', "").replace("{}", IP)], MS250, TEN_MS, IP),
    "Istio": ([ISTIO.replace("{}", IP)], MS250, TEN_MS, IP),
    "Istio, not forwarded": ([ISTIO.replace("{}", "-")], MS250, TEN_MS, IP),
    "Istio JSON": (
        [json.dumps({"start_time": ISO + ".250Z", "method": "GET", "path": "/api/v1?x=1", "response_code": 401}
                    | {"duration": 20, "downstream_remote_address": IP + ":55", "x_forwarded_for": None})],
        MS250, TEN_MS, IP,
    ),
    "Caddy": ([caddy()], US - TEN_MS, TEN_MS, IP),
    "Caddy 2.4": ([caddy(request=CADDY["request"] | {"remote_ip": None, "remote_addr": "203.0.113.7:4000"})],
                  US - TEN_MS, TEN_MS, IP),
    "Caddy, duration text": ([caddy(duration="20ms")], US - TEN_MS, TEN_MS, IP),
    "Caddy, milliseconds": ([caddy(duration=20)], US - TEN_MS, TEN_MS, IP),
    "Caddy, nanoseconds": ([caddy(duration=20_000_000)], US - TEN_MS, TEN_MS, IP),
    "Caddy, iso8601": ([caddy(ts=ISO + ".250+0000")], MS250 - TEN_MS, TEN_MS, IP),
    "Caddy, wall_milli": ([caddy(ts="2025/10/09 08:53:20.250")], MS250 - TEN_MS, TEN_MS, IP),
    "Caddy, unix_milli_float": ([caddy(ts=MS250 / 1000)], MS250 - TEN_MS, TEN_MS, IP),
    "Caddy, unix_nano": ([caddy(ts=MS250 * 1000)], MS250 - TEN_MS, TEN_MS, IP),
    "Caddy console": (
        ["2025/10/09 08:53:20.250\tINFO\thttp.log.access.log0\thandled request\t" + caddy(ts=None, msg=None),
         "2025/10/09 08:53:21.000\tWARN\thttp\tsomething else\t{}"],
        MS250 - TEN_MS, TEN_MS, IP,
    ),
    "Traefik JSON": (
        [json.dumps({"ClientHost": IP, "DownstreamStatus": 401, "Duration": 20_000_000, "RequestMethod": "GET"}
                    | {"RequestPath": "/api/v1?x=1", "StartUTC": ISO + ".250123456Z"})], MS250 + 123, TEN_MS, IP
    ),
    "HAProxy": ([HAPROXY], MS250, TEN_MS, IP),
    "ALB": ([ALB], MS250, TEN_MS, IP),
    "classic ELB": ([ALB.removeprefix("h2 ").partition(" ECDHE")[0]], MS250, TEN_MS, IP),
    "ALB, not passed on": ([ALB.replace("0.001 0.018 0.001", "-1 -1 -1")], MS250 + TEN_MS, None, IP),
    "CloudFront": (
        ["#Version: 1.0", "#Fields: " + CLOUDFRONT,
         f"2025-10-09\t08:53:20\tFRA2\t10\t{IP}\tGET\td.example\t/api/v1\t401\tbad/1%20(x)\t1.020"],
        US - 1_000_000, 1_020_000, IP,
    ),
    "IIS": (
        ["#Software: Microsoft Internet Information Services 10.0", "#Fields: " + IIS,
         f"2025-10-09 08:53:20 10.0.0.1 GET /api/v1 {IP} bad/1+(x) 401 0 0 1020"], US - 1_000_000, 1_020_000, IP,
    ),
    "Cloudflare": (
        [json.dumps({"EdgeStartTimestamp": ISO + ".250Z", "EdgeEndTimestamp": ISO + ".270Z", "ClientIP": IP}
                    | {"ClientRequestMethod": "GET", "ClientRequestURI": "/api/v1?x=1", "EdgeResponseStatus": 401})],
        MS250, TEN_MS, IP,
    ),
    "Cloudflare, nanoseconds": (
        [json.dumps({"EdgeStartTimestamp": MS250 * 1000, "EdgeEndTimestamp": (MS250 + TEN_MS) * 1000, "ClientIP": IP}
                    | {"ClientRequestMethod": "GET", "ClientRequestURI": "/api/v1?x=1", "EdgeResponseStatus": 401})],
        MS250, TEN_MS, IP,
    ),
    "GCP": (
        [json.dumps({"httpRequest": {"requestMethod": "GET", "requestUrl": "https://shop.example/api/v1?x=1",
                                     "status": 401, "remoteIp": IP, "latency": "0.020000s"},
                     "timestamp": ISO + ".250Z", "severity": "INFO"})], MS250, TEN_MS, IP,
    ),
    "ECS": (
        [json.dumps({"@timestamp": ISO + ".270Z",
                     "http": {"request": {"method": "GET"}, "response": {"status_code": 401}},
                     "url": {"original": "/api/v1?x=1"},
                     "client": {"ip": IP}, "event": {"duration": 20_000_000}})],
        MS250, TEN_MS, IP,
    ),
    "ECS, dotted": (
        [json.dumps({"@timestamp": ISO + ".270Z", "http.request.method": "GET", "http.response.status_code": 401,
                     "url.path": "/api/v1", "source.ip": IP, "event.duration": 20_000_000})], MS250, TEN_MS, IP,
    ),
    "Kong": (
        [json.dumps({"started_at": MS250 // 1000, "client_ip": IP, "latencies": {"request": 20},
                     "request": {"method": "GET", "uri": "/api/v1?x=1"}, "response": {"status": 401}})],
        MS250, TEN_MS, IP,
    ),
}  # fmt: skip


def one_row(path: str, **reading: Any) -> dict[str, Any]:
    rows, lines = read_files(path, **reading)
    assert (lines.counts.bad, len({json.dumps(row["status"]) for row in rows})) == (0, 1)
    return rows[0]


def check(row: dict[str, Any], case: Case) -> None:
    _, ts_us, dur_us, ip = case
    assert (row["ts_us"], row["dur_us"], row["ip"]) == (ts_us, dur_us, ip)
    assert (row["method"], row["path"], row["status"]) == ("GET", "/api/v1", 401)
    assert row["client"].startswith(ip)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The first row of each case, all of them read from one folder."""
    folder = tmp_path_factory.mktemp("cases")
    for number, (lines, *_) in enumerate(CASES.values()):
        write(folder / f"{number:03}.log", [line.encode() for line in lines])
    found, lines_read = read_each(folder)
    assert (lines_read.counts.bad, lines_read.counts.doubled) == (0, 0)
    return {name: found[f"{number:03}.log"][0] for number, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_every_format(name: str, rows: dict[str, dict[str, Any]]) -> None:
    """Time, duration, status, path and client of each format are right without a setting."""
    check(rows[name], CASES[name])


def _docker(line: str) -> str:
    text = json.dumps(line + "\n")
    return f'{{"log":{text},"stream":"stdout","time":"2025-10-09T08:53:29.1Z"}}'


def _docker_pieces(line: str) -> str:
    head, tail = json.dumps(line[:40]), json.dumps(line[40:] + "\n")
    return "\n".join(f'{{"log":{text},"stream":"stdout","time":"2025-10-09T08:53:29.1Z"}}' for text in (head, tail))


WRAPPINGS: Final[dict[str, Callable[[str], str]]] = {
    "docker json-file": _docker,
    "docker json-file, pieces": _docker_pieces,
    "CRI": lambda line: f"2025-10-09T08:53:29.123456789Z stdout F {line}",
    "CRI, pieces": lambda line: (
        f"2025-10-09T08:53:29.1Z stdout P {line[:30]}\n2025-10-09T08:53:29.1Z stderr F a word\n"
        f"2025-10-09T08:53:29.1Z stdout P {line[30:60]}\n2025-10-09T08:53:29.2Z stdout F {line[60:]}"
    ),
    "journald JSON": lambda line: json.dumps({"__REALTIME_TIMESTAMP": "1", "_PID": "7", "MESSAGE": line}),
    "journald JSON, bytes": lambda line: json.dumps({"MESSAGE": list(line.encode()), "_PID": "7"}),
    "journald export": lambda line: f"__CURSOR=s=1\n__REALTIME_TIMESTAMP=1\n_PID=7\nMESSAGE={line}\n",
    "syslog": lambda line: f"Oct  9 08:53:29 web-1 nginx[17]: {line}",
    "syslog, RFC 3164": lambda line: f"<190>Oct  9 08:53:29 web-1 nginx: {line}",
    "syslog, RFC 5424": lambda line: f'<190>1 2025-10-09T08:53:29.003Z web-1 nginx 17 - [a@1 b="c"] {line}',
    "rsyslog": lambda line: f"2025-10-09T08:53:29.003+02:00 web-1 nginx[17]: {line}",
    "kubectl --prefix": lambda line: f"[pod/web-7d9-x2/nginx] {line}",
    "kubectl --prefix --timestamps": lambda line: f"[pod/web-7d9-x2/nginx] 2025-10-09T08:53:29.1Z {line}",
    "docker compose": lambda line: f"web-1  | {line}",
    "docker compose, colours": lambda line: f"\x1b[36mweb-1  | \x1b[0m{line}",
    "colours": lambda line: f"\x1b[32m{line[:9]}\x1b[0m{line[9:]}\x1b[K",
    "CloudWatch export": lambda line: f"2025-10-09T08:53:29.100Z {line}",
    "aws logs tail": lambda line: f"2025-10-09T08:53:29.100000+00:00 web/nginx/7 {line}",
    "aws logs filter-log-events": lambda line: (
        f'        {{\n            "logStreamName": "a",\n            "message": {json.dumps(line)},\n        }},'
    ),
    "CloudWatch Insights CSV": lambda line: '2025-10-09 08:53:29.100,"' + line.replace('"', '""') + '"',
    "journalctl -o short-unix": lambda line: f"1760000401.123456 web-1 nginx[17]: {line}",
    "journalctl -o short-precise": lambda line: f"Oct 09 09:00:01.123456 web-1 nginx[17]: {line}",
    "syslog with octets": lambda line: f"99 <190>1 2025-10-09T09:00:01.003Z web-1 nginx 17 - - {line}",
    "Heroku's drain": lambda line: f"2025-10-09T09:00:01.1+00:00 app[web.1]: {line}",
    "fly logs": lambda line: f"2025-10-09T09:00:01Z app[5683]  fra [info] {line}",
    "stern": lambda line: f"\x1b[36mweb-7d9f8b-x2\x1b[0m \x1b[96mnginx\x1b[0m {line}",
    "logcli": lambda line: f'2025-10-09T09:00:01Z {{app="x", pod="y"}} {line}',
    "Grafana's download": lambda line: f"1760000401123\t2025-10-09T09:00:01.123Z\t{line}",
    "Elasticsearch": lambda line: json.dumps({"_id": "1", "_source": {"log": {"offset": 1}, "message": line}}),
    "Splunk": lambda line: json.dumps({"result": {"_raw": line}}),
    "GELF": lambda line: json.dumps({"version": "1.1", "short_message": line, "timestamp": 1760000401.1}),
    "Fluent Bit": lambda line: json.dumps({"log": line, "kubernetes": {"pod_name": "a"}}),
    "Filebeat": lambda line: json.dumps({"@timestamp": "2025-10-09T08:53:29.1Z", "message": line}),
    "syslog in CRI": lambda line: f"2025-10-09T08:53:29.1Z stdout F Oct  9 08:53:29 web-1 nginx[17]: {line}",
}
WRAPPED: Final = ("combined", "nginx JSON", "Caddy", "Istio", "HAProxy", "ALB", "Traefik CLF")


@pytest.mark.parametrize("wrapping", mostly_long(WRAPPINGS, 3))
def test_every_wrapping(wrapping: str) -> None:
    """The wrappings of containers around web servers' logs and our own; what else a container says is counted apart."""
    wrap = WRAPPINGS[wrapping]
    logs = {name: CASES[name][0] for name in WRAPPED} | {"tricklecast": [NATIVE.decode()]}
    wrapped = {name: "\n".join(map(wrap, (*lines, "ready for start up"))).encode() for name, lines in logs.items()}
    for name, lines in logs.items():
        plain = [line.encode() for line in lines]
        found = recognise(name, [line for line in wrapped[name].split(b"\n") if line.strip()])
        assert replace(found, wrapping=()) == recognise(name, plain)
        assert set(plain) <= set(Unwrapper(found.wrapping).feed(wrapped[name]).split(b"\n"))
    # From there on all of them have one way, which some go below: test_three_wrappings_and_no_more().


def test_a_socket_is_nobody(tmp_path: Path) -> None:
    """Where only the name of a proxy's socket is logged, requests have no client, and the report says so."""
    for line in (WORDS.replace(IP, "unix:"), nginx(remote_addr="unix:"), nginx(remote_addr="@")):
        rows, lines = read_files(write(tmp_path / "a.log", [line.encode()]))
        assert (rows[0]["ip"], rows[0]["client"], lines.counts.unnamed) == (None, None, 1)


def test_lines_without_a_time_get_that_of_their_wrapping(tmp_path: Path) -> None:
    """Uvicorn writes no time; a container does, in JSON or before the line."""
    line = f'INFO:     {IP}:5123 - "GET /api/v1?x=1 HTTP/1.1" 401 Unauthorized'
    for wrapped in (
        json.dumps({"log": line + "\n", "stream": "stdout", "time": ISO + ".250Z"}),
        json.dumps({"MESSAGE": line, "__REALTIME_TIMESTAMP": str(MS250)}),
        f"{ISO}.250Z stdout F {line}",
        f"{ISO}.250Z {line}",
    ):
        check(one_row(write(tmp_path / "a.log", [wrapped.encode()])), ([], MS250, None, IP))
    with pytest.raises(UnknownFormat, match="no time"):
        recognise("a.log", [line.encode()])


def _zst(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, "zstd", asbytes=True)
    return packed


def _lz4(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as packed:
        packed.write(data)
    return bytes(sink.getvalue())


PACKED: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gz of several members": lambda data: b"".join(gzip.compress(line) for line in data.splitlines(keepends=True)),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": _zst,
    "zst of several frames": lambda data: b"".join(_zst(line) for line in data.splitlines(keepends=True)),
    "lz4": _lz4,
    "zeros before it": lambda data: bytes(5000) + data,
    "byte order marks of joined files": lambda data: data.replace(b"\n", b"\n\xef\xbb\xbf").removesuffix(
        b"\xef\xbb\xbf"
    ),
    "a JSON array": lambda data: b"[\n" + data.rstrip().replace(b"\n", b",\n") + b",\n]\n",
    "byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "CR": lambda data: data.replace(b"\n", b"\r"),
    "UTF-16 with a mark": lambda data: data.decode().encode("utf-16"),
    "UTF-16 BE": lambda data: data.decode().encode("utf-16-be"),
    "UTF-16 in gz": lambda data: gzip.compress(data.decode().encode("utf-16-le")),
}


def test_compressed_and_encoded(tmp_path: Path) -> None:
    """The first bytes say how a file is compressed and encoded: its name does not."""
    case = CASES["nginx JSON"]
    data = "".join(f"{line}\n" for line in case[0] * 3).encode()
    for number, (name, pack) in enumerate(PACKED.items()):
        (tmp_path / name).mkdir()
        # A log that stands there twice is read once.
        (tmp_path / name / "access.log").write_bytes(pack(data.replace(b"x=1", b"x=%d" % number)))
    found, lines = read_each(tmp_path)
    assert (lines.counts.bad, lines.damaged) == (0, ())
    assert {name: len(rows) for name, rows in found.items()} == {f"{name}/access.log": 3 for name in PACKED}
    for rows in found.values():
        check(rows[0], case)


def test_plain_text_that_is_called_compressed(tmp_path: Path) -> None:
    """A file called .gz that is plain text is read; Latin-1 and garbage are lines like others."""
    log = [line.encode("latin-1") for line in (WORDS.replace("bad/1", "caf\xe9"), WORDS)]
    rows, lines = read_files(write(tmp_path / "access.log.gz", [*log, b"\xff\xfe\x00garbage"]))
    assert (len(rows), lines.counts.bad) == (2, 1)


def test_a_line_beyond_a_mebibyte_is_counted(tmp_path: Path) -> None:
    """It is never held as a whole, and the lines around it are read."""
    long = b'{"a":"' + b"x" * (9 << 20) + b'"}'
    rows, lines = read_files(write(tmp_path / "a.log", [nginx().encode(), long, nginx().encode()]))
    assert (len(rows), lines.counts.bad) == (2, 1)


def test_headers_that_come_late(tmp_path: Path) -> None:
    """A header that the first lines do not have is read, and the format is not blind for it."""
    traefik = json.loads(CASES["Traefik JSON"][0][0])
    first = as_line(traefik | {"downstream_Lp-Trickle-Seq": "4"})
    late = as_line(traefik | {"downstream_Lp-Trickle-Closed": "terminated", "request_Trickle-Client": "player-1"})
    rows, _ = read_files(write(tmp_path / "a.log", [first] * 500 + [late]))
    assert [row["eos"] for row in rows if row["client"] == "player-1"] == [True]
    assert not any("eos" in row["blind"] for row in rows)


def test_an_id_that_lines_share_is_no_requests(tmp_path: Path) -> None:
    """A trace's id stands in each retry: it leaves out no line."""
    rows, lines = read_files(write(tmp_path / "a.log", [f"{WORDS} {'ab' * 16}".encode()] * 250))
    assert (len(rows), lines.counts.doubled) == (250, 0)
    same = nginx(request_id="ab" * 16).encode()
    rows, lines = read_files(write(tmp_path / "a.log", [same] * 250))
    assert (len(rows), lines.counts.doubled) == (250, 0)


GRPC: Final[dict[str, tuple[str, int | None]]] = {
    "nginx": (nginx(upstream_http_grpc_status="14"), 14),
    "nginx, none": (nginx(grpc_status="-"), None),
    "Envoy": (
        as_line({"start_time": ISO + "Z", "method": "POST", "path": "/a.B/C", "response_code": 200}
                | {"grpc_status": "DeadlineExceeded"}).decode(), 4
    ),
    "Envoy text": (ISTIO + " grpc_status=UNAVAILABLE", 14),
    "words": (WORDS + ' rt=0.020 grpc_status="8"', 8),
    "dotted": (as_line({"ts": US, "method": "POST", "path": "/a", "status": 200, "grpc.code": "Canceled"}).decode(), 1),
    "nested": (as_line({"ts": US, "method": "POST", "path": "/a", "status": 200, "grpc": {"status": 0}}).decode(), 0),
    "out of range": (nginx(grpc_status=99), None),
}  # fmt: skip


def test_grpc_status(tmp_path: Path) -> None:
    """A gRPC call fails with HTTP status 200; its own status is a number or a name."""
    for name, (line, _) in GRPC.items():
        write(tmp_path / f"{name}.log", [line.encode()])
    found, lines = read_each(tmp_path)
    assert lines.counts.bad == 0
    assert {name: [row["grpc"] for row in rows] for name, rows in found.items()} == {
        f"{name}.log": [status] for name, (_, status) in GRPC.items()
    }


REFUSED: Final[list[tuple[list[str], str]]] = [
    ([nginx(status=None)], "without a status"),
    ([nginx(time=None)], "without a time"),
    ([nginx(request=None)], "without a request"),
    (['203.0.113.7 "GET / HTTP/1.1" 200'], "no time"),
    ([f"[{CLF}] 203.0.113.7 200"], "cannot tell the format"),
    (["#Fields: date time c-ip cs-method cs-uri-stem", "2025-10-09 08:53:20 1.2.3.4 GET /"], "no sc-status"),
    ([f'[{CLF}] "GET / HTTP/1.1" ok'], "no status"),
    ([f'- [{CLF}] "GET / HTTP/1.1" 0 - "a b"'], "no status"),
    (["PK\x03\x04access.log" + WORDS], "a zip archive"),
    (["access.log" + "0" * 240 + "ustar  root" + WORDS], "a tar archive"),
    (["{", '"time": 1760000000,'], "one object in each line"),
    ([json.dumps([NGINX])], "one object in each line"),
]


@pytest.mark.parametrize(("lines", "told"), REFUSED)
def test_what_is_missing_is_named(lines: list[str], told: str) -> None:
    """A log that lacks what a request needs is refused, and the message says what it lacks."""
    with pytest.raises(UnknownFormat, match=told):
        recognise("some.log", [line.encode() for line in lines])


SPLIT: Final = """
layout = "words"
columns = ["when", "where", "request", "status", "times"]
[fields]
ts_us = { from = "when", unit = "epoch" }
request = "request"
status = { from = "status", split = "/", part = -1 }
ip = { from = "where", split = "|", part = 2 }
dur_us = { from = "times", split = "/", part = 1, unit = "ms", plus = { from = "times", split = "/", part = 3 } }
"""


def test_a_map_splits_adds_and_converts(tmp_path: Path) -> None:
    """A column's piece is a field, several add up, and a pattern takes any line apart."""
    (tmp_path / "a.toml").write_text(SPLIT)
    line = f'{MS250 // 1000} edge|{IP} "GET /api/v1 HTTP/1.1" x/401 15/-1/5'
    check(one_row(write(tmp_path / "a.log", [line.encode()]), format=str(tmp_path / "a.toml")),
          ([], MS250 - TEN_MS, TEN_MS, IP))  # fmt: skip
    (tmp_path / "b.toml").write_text(
        'layout = "pattern"\nstamped = "start"\n'
        r"pattern = '''^(?P<at>\S+) (?P<ip>\S+) (?P<verb>[A-Z]+) (?P<path>\S+) -> (?P<code>\d+) in (?P<took>\S+)$'''"
        '\n[fields]\nts_us = {from="at", unit="time"}\nip="ip"\nmethod="verb"\npath="path"\nstatus="code"\n'
        'dur_us={from="took", unit="stated"}\n'
    )
    line = f"{ISO}.250 {IP} GET /api/v1 -> 401 in 20ms"
    check(one_row(write(tmp_path / "a.log", [line.encode()]), format=str(tmp_path / "b.toml")),
          ([], MS250, TEN_MS, IP))  # fmt: skip
    with pytest.raises(BadFormat, match="named groups"):
        parse_map("layout='pattern'\npattern='(a)'\n[fields]\nts_us={from='a',unit='s'}\nrequest='b'", "a.toml")
    (tmp_path / "c.toml").write_text(
        "layout='pattern'\npattern='(?=x)(?P<a>.)'\n[fields]\nts_us={from='a',unit='s'}\nrequest='a'"
    )
    with pytest.raises(BadFormat, match=r"pattern: .*invalid perl operator"):
        load_map(str(tmp_path / "c.toml"))


TRAEFIK: Final = {
    "ClientHost": IP,
    "DownstreamStatus": 401,
    "RequestMethod": "GET",
    "RequestPath": "/a",
    "StartUTC": ISO,
}
PLAIN: Final = {"ts": US, "method": "GET", "path": "/a", "status": 401, "ip": IP}
LATE: Final[dict[str, tuple[str, str]]] = {
    "Traefik": (
        json.dumps(TRAEFIK),
        json.dumps(TRAEFIK | {"request_User-Agent": "late/1", "downstream_Grpc-Status": "14"}),
    ),
    "Caddy": (
        caddy(),
        caddy(request=CADDY["request"] | {"headers": {"User-Agent": ["late/1"]}}, resp_headers={"Grpc-Status": ["14"]}),
    ),
    "nginx JSON": (nginx(), nginx(http_user_agent="late/1", http_x_forwarded_for=IP6, grpc_status="14")),
    "JSON": (
        json.dumps(PLAIN), json.dumps(PLAIN | {"user_agent": "late/1", "duration_ms": 20, "grpc_status": 14})
    ),
    "logfmt": (f"time={ISO}Z method=GET path=/a status=401 ip={IP}",
               f'time={ISO}Z method=GET path=/a status=401 ip={IP} user_agent="late/1" duration=20ms grpc_status=14'),
    "combined": (WORDS + ' "-"', WORDS.replace("bad/1", "late/1") + f' "{IP6}, 10.0.0.1"'),
}  # fmt: skip


@pytest.mark.parametrize("name", mostly_long(LATE, 3))
def test_the_order_of_lines_changes_nothing(name: str, tmp_path: Path) -> None:
    """Keys that the sample does not have count when they come; so they do in any order, and over several files."""
    usual, late = (line.encode() for line in LATE[name])
    lines = [usual] * 3_000 + [late] * 3
    mixed = [late, *lines[:-1]]
    columns = ("ts_us", "status", "dur_us", "ip", "ua", "client", "grpc")
    found = []
    for folder, parts in enumerate(([lines], [mixed], [lines[:2_000], lines[2_000:]])):
        (tmp_path / str(folder)).mkdir()
        for part, some in enumerate(parts):
            write(tmp_path / str(folder) / f"access.{part}.log", some)
        rows, _ = read_files(str(tmp_path / str(folder)))
        found.append(Counter(tuple(row[column] for column in columns) for row in rows))
    assert found[0] == found[1] == found[2]
    assert sorted(found[0].values()) == [3, 3_000]
    (odd,) = (key for key, count in found[0].items() if count == 3)
    assert "late/1" in odd


def test_the_sample_is_bounded(tmp_path: Path) -> None:
    """400 lines from all over the first 4 MiB, each of which is cut at 64 KiB."""
    path = write(tmp_path / "a.log", [b"%d " % number + b"x" * 1000 for number in range(10_000)])
    sample = sample_of(path)
    assert len(sample) <= SAMPLE_LINES == 400
    last = int(sample[-1].split()[0])
    assert 3_900 < last < BLOCK // 1000
    assert [len(line) for line in sample_of(write(tmp_path / "b.log", [b"y" * (1 << 20)] * 3))] == [1 << 16] * 3


@pytest.mark.parametrize(("wrapping", "begin"), [("cri", "2025-10-09T08:53:20Z stdout P "), ("envelope", "")])
def test_pieces_of_a_line_are_bounded(wrapping: str, begin: str) -> None:
    """Of a line that a container has cut into pieces, 1 MiB is held for each of its two streams."""
    unwrapper = Unwrapper((wrapping,))
    piece = "z" * 100_000
    line = f"{begin}{piece}" if begin else json.dumps({"log": piece, "stream": "stdout"})
    unwrapper.feed(json.dumps({"log": "whole\n"}).encode() + b"\n")
    for _ in range(30):
        assert unwrapper.feed(line.encode() + b"\n").strip() == b""
    held = unwrapper._steps[0].__self__._begun  # type: ignore[attr-defined]  # the method's object
    assert list(map(len, held.values())) == [MAX_LINE + 1]
    assert set(held) <= {b"stdout", b"stderr"}


def test_three_wrappings_and_no_more(tmp_path: Path) -> None:
    """What is around a line is taken off three times."""
    line = WORDS
    for wrap in ("kubectl --prefix", "docker json-file", "syslog"):
        line = WRAPPINGS[wrap](line)
    check(one_row(write(tmp_path / "a.log", [line.encode()])), CASES["combined"])
    for _ in range(3):
        line = WRAPPINGS["docker json-file"](line)
    with pytest.raises(UnknownFormat):
        recognise("a.log", [line.encode()])


def test_keys_of_a_sample_are_bounded() -> None:
    """Of JSON's keys 400 are looked at, and four levels of objects."""
    deep: dict[str, Any] = {"status": 401}
    for _ in range(50):
        deep = {"a": deep}
    columns = columns_of([{f"k{number}": number for number in range(1000)}, deep])
    assert len(columns) == 400
    assert columns_of([deep]) == {}
