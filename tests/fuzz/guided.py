"""Lets atheris look for inputs that reach more of the code: `scripts/fuzz FUNCTION --atheris`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tests.fuzz.own import CORPUS, MAX_BYTES

WATCHED = ["trickle", "tricklecast.app.data_plane", "tricklecast.analytics.logs"]


def main(target: str, minutes: float) -> int:
    """The command; what is worth keeping goes to the corpus, an input that fails to the current folder."""
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        print("atheris is not installed here: pip install 'atheris>=3', or leave --atheris out", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=WATCHED):
        targets = importlib.import_module("tests.fuzz.functions").TARGETS
    if target not in targets:
        print("--atheris is for functions: " + ", ".join(targets), file=sys.stderr)
        return 2
    options = [f"-max_total_time={60 * minutes:.0f}", f"-max_len={MAX_BYTES}"]
    atheris.Setup([sys.argv[0], str(CORPUS / target), *options], targets[target])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
