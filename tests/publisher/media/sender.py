"""Sends a clip as encoders do: ``python -m tests.publisher.media.sender URL FORMAT CLIP [KEY=VALUE …]``.

A process of its own, since PyAV connects without releasing the interpreter.
"""

from __future__ import annotations

import sys
import time

import av

ATTEMPTS = 100
PAUSE_S = 0.1


def send(url: str, format_: str, clip: str, options: dict[str, str]) -> None:
    """Connect, as soon as somebody listens, and send the clip to its end."""
    for attempt in range(ATTEMPTS):
        with av.open(clip, "r") as source, av.open(url, "w", format=format_, options=options) as target:
            copies = {stream.index: target.add_stream_from_template(stream) for stream in source.streams}
            try:
                target.start_encoding()
            except OSError:
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(PAUSE_S)
                continue
            for packet in source.demux():
                if packet.size:
                    packet.stream = copies[packet.stream_index]
                    target.mux_one(packet)
            return


if __name__ == "__main__":
    pairs = (text.partition("=") for text in sys.argv[4:])
    send(sys.argv[1], sys.argv[2], sys.argv[3], {key: value for key, _, value in pairs})
