"""Requests as a client that means harm, or has lost its way, would send them: the grammar first, then damage to it."""

from __future__ import annotations

import random
from typing import Final

CONTROL: Final = "control"
"""A channel that is only ever read: whatever becomes of a request, it must not change this one."""

SCRATCH: Final = ("scratch", "sc%72atch-2", "a%20b", "%C3%A4", "x" * 255)
BAD_NAMES: Final = (
    "..", ".", "%2e%2e", "a%2Fb", "a%5cb", "%00", "%ff", "%", "%zz", "x" * 256, "_changes", "_x", "a%0d%0aX:y",
    "%F0%9F", "a b", "",
)  # fmt: skip
SEQS: Final = ("0", "1", "2", "3", "-1", "next", "00", "999999999999999")
BAD_SEQS: Final = ("-2", "-3", "-0", "1e3", "+1", "1.0", "%30", "9999999999999999", "-", "abc", "%EF%BC%91", "0x1", "")
METHODS: Final = ("GET", "POST", "DELETE", "HEAD", "OPTIONS")
BAD_METHODS: Final = ("PUT", "PATCH", "CONNECT", "TRACE", "FETCH", "get", "PRI", "PROPFIND", "SOURCE", "")
CONTROL_PLANE: Final = ("/healthz", "/readyz", "/api/v1/channels", f"/api/v1/channels/{CONTROL}", "/nothing", "*", "/")
VERSIONS: Final = ("HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.2", "HTTP/11", "ICY/1.1", "")
FIELDS: Final = (
    "Content-Type: video/mp2t", "Content-Type: \x7f", "Idempotency-Key: k", f"Idempotency-Key: {'k' * 300}",
    "Lp-Trickle-Reset: 1", "Lp-Trickle-Truncated: 1", "Trickle-Attempt: 2", "Trickle-Attempt: -99999999999",
    "Trickle-Client: me", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "traceparent: ---",
    "Expect: 100-continue", "Expect: nothing", "Expect-Content: text/plain", "Expect-Content: \xe4", "Origin: http://y",
    "Connection: close", "Connection: keep-alive", "Connection: Upgrade\r\nUpgrade: h2c", "Upgrade: websocket",
    "Authorization: Bearer x", "Host: y", "A:", ": b", "A b: c", "A: b\r\n c", "A: \0", "A: b\nB: c", "A: b\rB: c",
    "X-Forwarded-For: 1.2.3.4, ::1, x", "Range: bytes=0-", "User-Agent: " + "u" * 300, "Cookie: " + "c" * 2000,
)  # fmt: skip
LENGTHS: Final = (
    "Content-Length: 5\r\nTransfer-Encoding: chunked", "Content-Length: 5\r\nContent-Length: 6", "Content-Length: +5",
    "Content-Length: 99999999999", "Content-Length: 18446744073709551616", "Content-Length: 0005", "Content-Length:",
    "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked, chunked", "Transfer-Encoding: identity",
    "Transfer-Encoding:\tchunked ", "Transfer-Encoding : chunked",
)  # fmt: skip
SIZES: Final = (
    "5",
    "05",
    "5;a=b",
    '5;a="b"',
    "5 ",
    "-5",
    "0x5",
    "5;" + "e" * 300,
    "ffffffffffffffff",
    "F" * 20,
    "",
    "g",
)
TRAILERS: Final = ("", "T: u\r\n", "Content-Length: 5\r\n", "Host: z\r\n", "T\r\n", "T: " + "u" * 3000 + "\r\n")
PIECES: Final = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"0",
    b"\xff",
    b"\r\n\r\n",
    b"GET ",
    b"HTTP/1.1",
    b"%",
)


class Requests:
    """Makes requests.

    Args:
        rng: whatever is made follows from its seed.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def valid(self) -> bytes:
        """A request that is in order, does not wait, and leaves its connection open for the next one."""
        rng = self._rng
        body = b"x" * rng.randrange(1, 20)
        path = f"/trickle/{rng.choice(SCRATCH)}"
        match rng.randrange(6):
            case 0:
                return self._head("GET", f"/trickle/{CONTROL}/{rng.choice(('0', '1', 'next', '9', '-2'))}")
            case 1:
                return self._head("GET", f"{path}/next")
            case 2:
                return self._head(rng.choice(("HEAD", "OPTIONS")), f"{path}/{rng.choice(SEQS)}")
            case 3:
                return self._head("DELETE", path if rng.random() < 0.05 else f"{path}/{rng.choice(SEQS[:4])}")
            case 4:
                return self._head("POST", f"{path}/-1", f"Content-Length: {len(body)}") + body
            case _:
                chunk = b"%x\r\n%b\r\n" % (len(body), body)
                return self._head("POST", f"{path}/-1", "Transfer-Encoding: chunked") + chunk + b"0\r\n\r\n"

    def strange(self) -> bytes:
        """A request in which each part may be out of order."""
        rng = self._rng
        method = rng.choice(BAD_METHODS if rng.random() < 0.1 else METHODS)
        target = self._target(method)
        version = rng.choice(VERSIONS) if rng.random() < 0.1 else "HTTP/1.1"
        lines = [f"{method} {target} {version}"]
        if rng.random() < 0.95:
            lines.append("Host: x")
        lines += rng.sample(FIELDS, rng.choice((0, 0, 1, 2, 3)))
        body = b""
        match rng.randrange(5 if method == "POST" else 8):
            case 0:
                lines.append(rng.choice(LENGTHS))
                body = b"5\r\nhello\r\n0\r\n\r\n"
            case 1 | 2:
                body = rng.randbytes(rng.randrange(0, 60))
                lines.append(f"Content-Length: {len(body)}")
            case 3 | 4:
                lines.append("Transfer-Encoding: chunked")
                body = self._chunks()
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def damaged(self, data: bytes) -> bytes:
        """The same bytes with some of them lost, doubled, exchanged or added."""
        rng = self._rng
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            at, to = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
            match rng.randrange(6):
                case 0:
                    data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
                case 1:
                    data = data[:at] + rng.choice(PIECES) + data[at:]
                case 2:
                    data = data[:at] + data[min(to, at + 8) :]
                case 3:
                    data = data[:to] + data[at:to] + data[to:]
                case 4:
                    data = data[:to]
                case _:
                    data = data[:at] + rng.randbytes(4) + data[at:]
        return data

    def any(self) -> bytes:
        """One of all kinds; most of them end their connection."""
        chance = self._rng.random()
        if chance < 0.3:
            return self.strange()
        return self.damaged(self.strange() if chance < 0.6 else self.valid())

    def packets(self, data: bytes) -> list[bytes]:
        """The same bytes, in as many packets as a network might make of them."""
        rng = self._rng
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 0, 1, 3))))
        return [data[at:to] for at, to in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def _head(self, method: str, target: str, *fields: str) -> bytes:
        return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: x", *fields, "", ""]).encode()

    def _target(self, method: str) -> str:
        rng = self._rng
        if rng.random() < 0.1:
            return rng.choice(CONTROL_PLANE if method == "GET" else CONTROL_PLANE[:2])
        names = SCRATCH if method != "GET" else (*SCRATCH, CONTROL)
        name = rng.choice(BAD_NAMES if rng.random() < 0.15 else names)
        seq = rng.choice(BAD_SEQS if rng.random() < 0.15 else SEQS)
        target = f"/trickle/{name}/{seq}"
        match rng.randrange(20):
            case 0:
                return f"/trickle/{name}"
            case 1:
                return f"//trickle//{name}//{seq}"
            case 2:
                return f"http://x{target}"
            case 3:
                return f"{target}?q={'x' * rng.randrange(50)}#f"
            case 4:
                return f"/trickle/{name}/{seq}/more{'/x' * rng.randrange(200)}"
            case 5:
                return target + "x" * 9000 if rng.random() < 0.1 else f"/trickle/../{name}/{seq}"
            case _:
                return target

    def _chunks(self) -> bytes:
        rng = self._rng
        wire = b""
        for _ in range(rng.randrange(0, 4)):
            if rng.random() < 0.7:
                wire += b"5\r\nhello\r\n"
            else:
                end = rng.choice(("\r\n", "\r\n", "\n", ""))
                wire += f"{rng.choice(SIZES)}\r\nhello{end}".encode()
        return wire + f"0\r\n{rng.choice(TRAILERS) if rng.random() < 0.2 else ''}\r\n".encode()
