"""Publishes pictures and reads them, one by one and in batches."""

from __future__ import annotations

from typing import assert_type

import numpy as np

from tricklecast.media import Frame, FrameBatch, FrameOptions, FrameReader, MediaPublisher, frames

OPTIONS: FrameOptions = {"start": "earliest", "size": (32, 16), "reconnect_s": 5}


async def publish(url: str, count: int) -> None:
    """Publish dark pictures."""
    async with MediaPublisher(url, when_full="wait", takeover=True) as publisher:
        for _ in range(count):
            await publisher.write(np.zeros((64, 96, 3), np.uint8))


async def read(url: str) -> list[float]:
    """Return the times of all pictures; each batch has three or, at the end, less."""
    found: list[float] = []
    reader = frames(url, **OPTIONS)
    assert_type(reader, FrameReader[Frame])
    async for frame in reader:
        assert_type(frame, Frame)
        found.append(frame.time)
    batches = frames(url, batch=3, **OPTIONS)
    assert_type(batches, FrameReader[FrameBatch])
    async for batch in batches:
        assert_type(batch, FrameBatch)
        assert batch.array.shape == (len(batch), 16, 32, 3)
    return found
