"""How long a publisher begins nothing."""

from __future__ import annotations

import anyio


class Pause:
    """A time in which no request is made; those that are under way go on.

    ``Retry-After`` is said to whoever asked, and meant for all that it would ask: one segment that was sent away is a
    pause for the channel.

    Attributes:
        until: when it is over, on the event loop's clock.
    """

    def __init__(self) -> None:
        self.until = 0.0

    @property
    def is_on(self) -> bool:
        """Whether it is not over yet."""
        return anyio.current_time() < self.until

    def extend(self, delay_s: float) -> None:
        """It lasts so many seconds from now, or longer if it did."""
        self.until = max(self.until, anyio.current_time() + delay_s)
