"""Attack a server, or the functions that read what strangers write: `scripts/fuzz --help`."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Callable

from tests.app.hostile.support import Watched, watched
from tests.app.hostile.test_requests import send
from tests.fuzz.campaign import campaign
from tests.fuzz.functions import TARGETS
from tests.fuzz.own import corpus, inputs
from tests.fuzz.requests import Requests

ROUND_S = 2.0
"""How long one seed lasts: a finding is seen again after that at most."""


def main() -> int:
    """The command; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("target", choices=["server", *TARGETS], nargs="?", default="server")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (1)")
    parser.add_argument("--seed", type=int, help="begin with this one, as a finding names it; random if not given")
    parser.add_argument(
        "--campaign", type=int, metavar="N", help="so many random sessions of clients against server processes, instead"
    )
    parser.add_argument("--atheris", action="store_true", help="guided by coverage; for functions, not for the server")
    arguments = parser.parse_args()
    if arguments.atheris:
        # Another process: atheris must be there before what it watches is imported.
        command = [sys.executable, "-m", "tests.fuzz.guided", arguments.target, str(arguments.minutes)]
        return subprocess.run(command, check=False).returncode
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    if arguments.campaign:
        return campaign(arguments.campaign, seed)
    return rounds(arguments.target, seed, time.monotonic() + 60 * arguments.minutes)


def rounds(target: str, seed: int, until: float) -> int:
    """One seed after the other."""
    count = 0
    while time.monotonic() < until:
        print(f"{target}: seed {seed}, {count} inputs so far", flush=True)
        stop = min(until, time.monotonic() + ROUND_S)
        try:
            count += attack(seed, stop) if target == "server" else call(TARGETS[target], target, seed, stop)
        except Exception:
            print(f"found by: scripts/fuzz {target} --seed {seed}", file=sys.stderr, flush=True)
            raise
        seed += 1
    print(f"{target}: nothing found in {count} inputs")
    return 0


def attack(seed: int, stop: float) -> int:
    """A server of its own for each seed; how many requests it was sent."""
    count = 0
    with watched(max_channels=64, max_total_bytes=1 << 20, max_segment_bytes=1 << 16, channel_drain_s=0) as server:
        rng = random.Random(seed)
        requests = Requests(rng)
        while time.monotonic() < stop:
            count += _connections(server, requests, rng)
            server.check()
    return count


def _connections(server: Watched, requests: Requests, rng: random.Random) -> int:
    count = 0
    for _ in range(50):
        good = rng.choice((0, 0, 1, 5, 30))
        data = b"".join([*(requests.valid() for _ in range(good)), requests.any()])
        answers = send(server.server, requests.packets(data), rng.choice(("half close", "close", "reset")))
        assert b"HTTP/1.1 500 " not in answers, f"an error of the server's, after {data!r}"
        count += good + 1
    return count


def call(function: Callable[[bytes], None], name: str, seed: int, stop: float) -> int:
    """A function with inputs of its own; how many."""
    make = inputs(random.Random(seed), corpus(name))
    count = 0
    while time.monotonic() < stop:
        data = make()
        try:
            function(data)
        except Exception:
            print(f"found with: {data!r}", file=sys.stderr)
            raise
        count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
