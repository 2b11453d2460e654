"""Hands the events of a client to its program and to the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar, dataclass_transform

from tricklecast.trickle.errors import Fields, InvalidInput, TrickleError

E = TypeVar("E")


@dataclass_transform(frozen_default=True)
class Event(Fields):
    """Base class of events: values that do not change."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an event does not change: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an event does not change: {name}")

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), self._values()))


class Retrying(Event):
    """A request failed, and is made again; of publishers and subscribers.

    Attributes:
        error: why it failed.
        delay_s: how many seconds the client waits before it; less if another of its requests shows meanwhile that the
            server is back.
        attempt: the number of the attempt that follows; the first request was 1.
        seq: the segment that a publisher's request is for; ``None`` for a question about the channel, and for a
            subscriber.
    """

    error: TrickleError
    delay_s: float
    attempt: int
    seq: int | None = None

    def __str__(self) -> str:
        return f"{self.error}; attempt {self.attempt} in {self.delay_s:.2f} s"


class Reporter(Generic[E]):
    """Reports the events of one client.

    Args:
        logger: gets each event as a sentence.
        channel: the channel's name, for the log.
        on_event: the program's callback. Its exceptions are logged: they must not stop media.

    Raises:
        InvalidInput: ``on_event`` is no function.
    """

    def __init__(self, logger: logging.Logger, channel: str, on_event: Callable[[E], None] | None) -> None:
        if on_event is not None and not callable(on_event):
            raise InvalidInput(f"on_event must be a function, not {on_event!r}")
        self._logger = logger
        self._channel = channel
        self._on_event = on_event

    def report(self, event: E, level: int) -> None:
        """Log an event at a level of ``logging``, and tell the program."""
        self._logger.log(level, "%s: %s", self._channel, event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                self._logger.exception("%s: on_event failed at %s", self._channel, event)
