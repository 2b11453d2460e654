"""Configuration to paste against an incident: a limit at the proxy, a command for our server, a rule for the client.

Names in a log come from whoever sent the requests, and a snippet is pasted where it is obeyed. So every name is escaped
for the place where it stands: in nginx as a regular expression of plain ASCII, in YAML as a string of plain ASCII, in a
shell quoted. A name that has no place in a syntax (an address that is none) is left out there.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from tricklecast.analytics.report.model import Mitigation
from tricklecast.analytics.rules.classes import Side, StormClass

if TYPE_CHECKING:
    from tricklecast.analytics.report.model import Summary

MAX_LISTED: Final = 20
"""Clients that a snippet lists; of more, and of a fleet, each address is limited by itself."""

MAX_PLACES: Final = 8
"""Paths or channels that a snippet lists; of more, all are limited."""

LONG: Final = 240
"""Bytes of a name that are compared: nginx takes no longer texts, and the report may have cut it."""

LONG_UA: Final = 120
"""Characters of a user agent; the report has cut a longer one."""

OURS: Final = frozenset({"tricklecast", "parquet"})
NGINX: Final = OURS | {"nginx", "combined", "json"}
ENVOY: Final = frozenset({"envoy", "envoy-text"})

_S = StormClass
_FLEETS: Final = (_S.OVERLOAD_AMPLIFICATION, _S.THUNDERING_HERD)
_ROUTE: Final = re.compile(r"(\S+) (/.*?)(?: \d{3})?", re.DOTALL)
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_%~=,:@-")
_HASH: Final = re.compile(r"[0-9a-f]{16}")

STOP: Final = """\
# After each answer: these say that asking again changes nothing.
if response.headers.get("Lp-Trickle-Closed") or response.status_code in (400, 401, 403, 404, 405, 410):
    return  # end here; on a 401 fetch a new token first, and ask once more"""

ADVANCE: Final = """\
# After each answer: the next segment is the server's to tell, not the last one again.
if response.headers.get("Lp-Trickle-Closed"):
    return
if response.status_code == 470:
    seq = int(response.headers["Lp-Trickle-Latest"])
elif response.status_code == 200:
    seq = int(response.headers["Lp-Trickle-Seq"]) + 1"""

BACK_OFF: Final = """\
import random

def pause_s(attempt: int, retry_after_s: float = 0.0) -> float:
    \"\"\"Seconds before an attempt (1, 2, 3 ...): Retry-After is the floor; full jitter, so that clients part.\"\"\"
    return retry_after_s + random.uniform(0.0, min(30.0, 0.5 * 2**attempt))

# Give up after 5 attempts, and when more than one request in ten is a retry."""

GRPC: Final = """\
{
  "methodConfig": [{
    "name": [{}],
    "retryPolicy": {
      "maxAttempts": 4, "initialBackoff": "0.5s", "maxBackoff": "30s", "backoffMultiplier": 2,
      "retryableStatusCodes": ["UNAVAILABLE"]
    }
  }],
  "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}
}"""

POST_ONCE: Final = """\
# One key for all attempts at one segment; a 409 says that the server has it.
headers["Idempotency-Key"] = f"{run_id}-{seq}"
if response.status_code in (200, 409):
    seq += 1"""

WAIT: Final = """\
# The server answers when the next segment begins: wait longer than a segment lasts.
timeout = httpx.Timeout(connect=5.0, read=60.0, write=10.0, pool=5.0)"""

_CLIENT: Final[dict[StormClass, str]] = {
    _S.ZERO_BYTE_LOOP: ADVANCE,
    _S.SAME_SEGMENT_LOOP: ADVANCE,
    _S.SEQ_BEHIND_LOOP: ADVANCE,
    _S.SEQ_AHEAD_SWEEP: ADVANCE,
    _S.ENDED_LOOP: STOP,
    _S.NOT_FOUND_LOOP: STOP,
    _S.NOT_FOUND_DRIP: STOP,
    _S.REJECTED_LOOP: STOP,
    _S.REPOST_LOOP: POST_ONCE,
    _S.ABANDONED_LOOP: WAIT,
}
"""The rule that a client lacks; where there is none of its own, it is to back off."""


def mitigations(one: Summary, formats: Sequence[str]) -> tuple[Mitigation, ...]:
    """The mitigations that fit the class, the side and the server, the most helpful first.

    Args:
        formats: of the files that the incident was found in: they tell the server.
    """
    written, found = set(formats), []
    if written and written <= OURS:
        found += _our_server(one)
    if not written.isdisjoint(NGINX):
        found.append(_nginx(one, ours=written <= OURS))
    if not written.isdisjoint(ENVOY):
        found.append(_envoy(one))
    return (*found, *_in_the_client(one))


# --- where it is from, and where it goes


def _crowd(one: Summary) -> bool:
    return one.storm in _FLEETS or one.n_clients > MAX_LISTED


def _addresses(one: Summary) -> list[str]:
    """The clients as addresses or networks; empty if one is none."""
    found = []
    for key in one.clients:
        try:
            found.append(str(ipaddress.ip_network(re.split(r"[#+]", key, maxsplit=1)[0])))
        except ValueError:
            return []
    return [one.removesuffix("/32").removesuffix("/128") for one in dict.fromkeys(found)]


def _names(one: Summary) -> list[str]:
    """The clients as names that they give themselves; empty if one is a checksum."""
    return [] if any(map(_HASH.fullmatch, one.clients)) else list(one.clients)


def _program(one: Summary) -> str | None:
    """The user agent of all of its clients; ``None`` of a crowd, and where they have several."""
    return one.ua[:LONG_UA] if one.ua and not _crowd(one) and (one.release or one.n_clients == 1) else None


def _places(one: Summary) -> list[tuple[str, str, bool]]:
    """Method, path and whether that is the whole path; empty if there are too many to list."""
    found = []
    for channel in one.channels:
        if route := _ROUTE.fullmatch(channel):
            found.append((route[1], route[2], True))
        else:
            found.append(("POST" if one.storm is _S.REPOST_LOOP else "GET", f"/{quote(channel, safe='')}", False))
    found = list(dict.fromkeys(found))
    return found if one.n_channels == len(one.channels) and len(found) <= MAX_PLACES else []


def _regex(text: str, end: str = "", rest: str = "") -> str:
    """A regular expression, in a quoted string of nginx or not, that matches this text's bytes.

    Args:
        end: what follows it. rest: what follows in its place where the text is too long to be compared.
    """
    data = text.encode("utf-8", "surrogatepass")
    plain = (chr(byte) if byte in _PLAIN else "\\." if byte == 0x2E else f"\\x{byte:02X}" for byte in data[:LONG])
    return "".join(plain) + (end if len(data) <= LONG else rest)


def _uri(path: str, *, whole: bool) -> str:
    """A regular expression for the URIs of a path, or of a channel below any prefix."""
    if whole:
        return _regex(path.rstrip("/"), r"/?(\?|$)")
    return "[^?]*" + _regex(path, r"(/|\?|$)")


def _name(one: Summary) -> str:
    return "storm_" + re.sub(r"\W", "_", one.id, flags=re.ASCII)


def _whom(one: Summary) -> str:
    return "each address" if _crowd(one) else "this client" if one.n_clients == 1 else "these clients"


# --- proxies


def _nginx(one: Summary, *, ours: bool) -> Mitigation:
    """A key that is empty for every other request: nginx does not count these."""
    name, crowd = _name(one), _crowd(one)
    lines, subject, who = ["# In http { }:"], "", [""]
    if not crowd and (addresses := _addresses(one)):
        lines += ["# (behind a balancer with realip, so that $remote_addr is the client)"]
        lines += [f"geo ${name}_client {{", "    default 0;", *(f"    {each} 1;" for each in addresses), "}"]
        subject, who = f"${name}_client ", ["1 "]
    elif not crowd and ours and (names := _names(one)):
        subject, who = "$http_trickle_client ", [_regex(each, "\\x20", ".*\\x20") for each in names]
    elif ua := _program(one):
        lines += ["# (nginx cannot tell this client by the log's key: all with its user agent are limited, by address)"]
        end = "\\x20" if len(ua) < LONG_UA else ".*\\x20"
        subject, who = "$http_user_agent ", [_regex(ua, end, ".*\\x20")]
    what = [f"{_regex(method)} {_uri(path, whole=whole)}" for method, path, whole in _places(one)] or [""]
    rate, burst = ("2r/s", 10) if crowd else ("1r/s", 5) if one.mean_rps >= 2 * one.n_clients else ("6r/m", 2)
    lines += [
        f'map "{subject}$request_method $request_uri" ${name} {{',
        '    default "";',
        *(f'    "~^{client}{each}" $binary_remote_addr;' for client in who for each in what),
        "}",
        f"limit_req_zone ${name} zone={name}:10m rate={rate};",
    ]
    wait = "5"
    if crowd:
        wait = f"${name}_spread"
        spread = [f"    {share}% {seconds};" for share, seconds in ((25, 2), (25, 4), (25, 6))]
        lines += [f'split_clients "$request_id" {wait} {{', *spread, "    * 8;", "}"]
    lines += [
        f'map $limit_req_status ${name}_wait {{ default ""; REJECTED {wait}; }}',
        "",
        "# In server { }, and in each location that has a limit_req or add_header of its own:",
        f"limit_req zone={name} burst={burst} nodelay;",
        "limit_req_status 429;",
        f"add_header Retry-After ${name}_wait always;",
    ]
    return Mitigation("nginx", f"nginx: at most {rate} from {_whom(one)}", "\n".join(lines))


def _quoted(text: str) -> str:
    """A string of YAML, plain ASCII. JSON's would do but for pairs of surrogates, which not every YAML reader takes."""
    plain = (
        f"\\{char}" if char in '"\\' else char if " " <= char <= "~" else f"\\U{ord(char):08X}"
        for char in text.encode("utf-8", "replace").decode("utf-8")
    )
    return f'"{"".join(plain)}"'


def _envoy(one: Summary) -> Mitigation:
    """A filter before the router, and what the routes tell it."""
    crowd, text = _crowd(one), _quoted
    places = _places(one)
    addresses = [] if crowd else _addresses(one)
    kind = "remote_address" if one.named else "masked_remote_address"
    bits = "" if one.named else "v4_prefix_mask_len: 24, v6_prefix_mask_len: 48"
    actions = [f"  - {kind}: {{{bits}}}"] if addresses else []
    keys = [[(kind, each)] for each in addresses] or [[]]
    match = "|".join(_uri(path, whole=whole) for _, path, whole in places) or ".*"
    actions += [
        "  - header_value_match:",
        f"      descriptor_value: {_name(one)}",
        "      headers:",
        f'      - {{name: ":path", string_match: {{safe_regex: {{regex: {text(f"^({match}).*$")}}}}}}}',
    ]
    if not addresses and (ua := _program(one)):
        how = "exact" if len(ua) < LONG_UA else "prefix"
        actions.append(f'      - {{name: "user-agent", string_match: {{{how}: {text(ua)}}}}}')
    rate = 1 if addresses else max(10, one.n_clients // 5)
    descriptors = []
    for key in keys:
        entries = [*key, ("header_match", _name(one))]
        descriptors += [
            "    - entries:",
            *(f"      - {{key: {name}, value: {text(value)}}}" for name, value in entries),
            f"      token_bucket: {{max_tokens: {5 * rate}, tokens_per_fill: {rate}, fill_interval: 1s}}",
        ]
    lines = [
        "# http_filters, before the router:",
        "- name: envoy.filters.http.local_ratelimit",
        "  typed_config:",
        '    "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit',
        f"    stat_prefix: {_name(one)}",
        "    filter_enabled: {default_value: {numerator: 100, denominator: HUNDRED}}",
        "    filter_enforced: {default_value: {numerator: 100, denominator: HUNDRED}}",
        "    token_bucket: {max_tokens: 1000000, tokens_per_fill: 1000000, fill_interval: 1s}  # all else",
        "    response_headers_to_add:",
        '    - {append_action: OVERWRITE_IF_EXISTS_OR_ADD, header: {key: retry-after, value: "5"}}',
        "    descriptors:",
        *descriptors,
        "",
        "# In the virtual host or route:",
        "rate_limits:",
        "- actions:",
        *actions,
    ]
    if one.storm in (*_FLEETS, _S.SERVER_ERROR_LOOP, _S.OVERLOAD_CLIENT):
        lines += [
            "",
            "# In the cluster: Envoy's own retries are at most a fifth of its requests.",
            "circuit_breakers:",
            "  thresholds:",
            "  - retry_budget: {budget_percent: {value: 20.0}, min_retry_concurrency: 3}",
        ]
    whom = _whom(one) if addresses else "all of them together"
    return Mitigation("envoy", f"Envoy: at most {rate}/s from {whom}", "\n".join(lines))


# --- both ends


def _our_server(one: Summary) -> list[Mitigation]:
    found = []
    if not one.held_s:
        found.append(
            Mitigation(
                "tricklecast",
                "The storm guard: at most one fruitless request a second",
                "# Add to the server's options (it is on unless it was switched off; this log shows no delays):\n"
                "tricklecast serve --storm-guard on",
            )
        )
    if one.storm in (_S.OVERLOAD_AMPLIFICATION, _S.THUNDERING_HERD, _S.OVERLOAD_CLIENT):
        found.append(
            Mitigation(
                "tricklecast",
                "Limits of each address",
                "# Add to the server's options; multiply by the people behind one address:\n"
                "tricklecast serve --per-ip-requests-per-s 10 --per-ip-burst 50",
            )
        )
    if one.storm in (_S.ZERO_BYTE_LOOP, _S.SAME_SEGMENT_LOOP):
        channels = [quote(channel, safe="") for channel in one.channels[:MAX_PLACES]]
        found.append(
            Mitigation(
                "tricklecast",
                "End the channel, and start its publisher anew",
                "\n".join(f'curl -X DELETE "$SERVER"/{shlex.quote(channel)}' for channel in channels),
            )
        )
    return found


def _in_the_client(one: Summary) -> list[Mitigation]:
    own = _CLIENT.get(one.storm, BACK_OFF)
    final = one.channels and all(re.search(r" (?:40[0134569]|410)$", channel) for channel in one.channels)
    if one.storm is _S.WEB_LOOP and final:
        own = STOP.replace('response.headers.get("Lp-Trickle-Closed") or ', "")
    found = []
    if own is BACK_OFF and "grpc" in f"{one.ua} {one.words.cause}".lower():
        found.append(Mitigation("client", "The client: its service config (gRPC)", GRPC))
    else:
        who = "publisher" if one.side is Side.PUBLISHER else "client"
        found.append(Mitigation("client", f"The {who}: the rule that it lacks (Python)", own))
        if own is not BACK_OFF and one.storm is not _S.REPOST_LOOP:
            found.append(Mitigation("client", "The client: pauses between attempts (Python)", BACK_OFF))
    return found
