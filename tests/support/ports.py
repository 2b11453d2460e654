"""Ports for programs that cannot be told to take any free one."""

from __future__ import annotations

import random
import socket


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port that nobody has, and that no system gives a client's connection before the program has it."""
    dice = random.SystemRandom()
    while True:
        port = dice.randrange(20_000, 32_000)
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
