"""A generator of bytes for functions: what the corpus holds, damaged and mixed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.fuzz.requests import PIECES

CORPUS: Final = Path(__file__).parent / "corpus"
MAX_BYTES: Final = 4096


def corpus(name: str) -> list[bytes]:
    """What is kept of a target: inputs from which others are made."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))] or [b""]


def inputs(rng: random.Random, kept: list[bytes]) -> Callable[[], bytes]:
    """Makes inputs from those that are kept."""

    def make() -> bytes:
        data = rng.choice(kept)
        for _ in range(rng.randrange(4)):
            at, to = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
            match rng.randrange(6):
                case 0:
                    data = data[:at] + rng.randbytes(rng.randrange(1, 5)) + data[at:]
                case 1:
                    data = data[:at] + data[to:]
                case 2:
                    data = data[:to] + data[at:to] * rng.randrange(1, 4) + data[to:]
                case 3:
                    data = data[:at] + rng.choice(PIECES) + data[at:]
                case 4:
                    other = rng.choice(kept)
                    data = data[:at] + other[rng.randrange(len(other) + 1) :]
                case _:
                    data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        return data[:MAX_BYTES]

    return make
