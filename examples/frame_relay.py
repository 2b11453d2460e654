"""Pass each picture of a channel through a function: ``python examples/frame_relay.py SOURCE_URL TARGET_URL``."""

import sys

import anyio

from tricklecast.media import relay


def inverted(picture):  # height x width x 3, uint8; runs in a worker thread
    return 255 - picture


if __name__ == "__main__":
    print(anyio.run(relay, sys.argv[1], sys.argv[2], inverted))
