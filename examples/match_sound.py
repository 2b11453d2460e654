"""Show how loud each picture is: ``python examples/match_sound.py http://127.0.0.1:2939/trickle/cam``."""

import sys
from collections import deque
from collections.abc import AsyncIterator

import anyio
import numpy as np
from av import AudioFrame

from tricklecast.media import Frame, frames


async def with_sound(url: str) -> AsyncIterator[tuple[Frame, list[Frame]]]:
    """Each picture, and the pieces of sound that begin before the next one."""
    pictures, sounds = deque[Frame](maxlen=300), deque[Frame](maxlen=3000)  # should one of them be missing
    async for frame in frames(url, audio=True, start="earliest"):
        (pictures if frame.kind == "video" else sounds).append(frame)
        while len(pictures) > 1 and sounds and sounds[-1].time >= pictures[1].time:
            picture = pictures.popleft()
            yield picture, [sounds.popleft() for _ in range(sum(one.time < pictures[0].time for one in sounds))]


async def main(url: str) -> None:
    async for picture, sounds in with_sound(url):
        data = [sound.data.to_ndarray() for sound in sounds if isinstance(sound.data, AudioFrame)]
        loudest = max((np.abs(samples).max() for samples in data), default=0)
        print(f"{picture.time:.3f} s: {len(sounds)} pieces of sound, loudest {loudest:.2f}", flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
