"""Pass each picture of a channel through a function: ``python examples/frame_relay.py SOURCE_URL TARGET_URL``."""

import asyncio
import sys

import numpy as np

from tricklecast.media import RelayStatistics, relay


def inverted(picture: np.ndarray) -> np.ndarray:  # height x width x 3, uint8; runs in a worker thread
    return 255 - picture


def main(source: str, target: str) -> None:
    counts = RelayStatistics()
    try:
        asyncio.run(relay(source, target, inverted, reconnect=True, statistics=counts))
    except KeyboardInterrupt:  # the relay has ended its target
        print(f"stopped: {counts.frames} pictures, {counts.dropped} dropped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main(*sys.argv[1:])
