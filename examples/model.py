"""Give a model the newest pictures, eight at once: ``python examples/model.py http://127.0.0.1:2939/trickle/cam``."""

import sys

import anyio
import numpy as np
from anyio import to_thread

from tricklecast.media import frames


def model(pictures: np.ndarray) -> np.ndarray:  # 8 x 224 x 224 x 3, uint8; less of them at the end
    means: np.ndarray = pictures.mean(axis=(1, 2, 3))
    return means


async def main(url: str) -> None:
    async with frames(url, size=(224, 224), batch=8, when_full="drop") as reader:
        async for batch in reader:
            results = await to_thread.run_sync(model, batch.array)  # the event loop goes on meanwhile
            for time, result in zip(batch.times, results, strict=True):
                print(f"{time:.3f} s: {result:.1f}", flush=True)
        print(f"{reader.statistics().dropped} pictures were dropped", file=sys.stderr)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
