"""Hands the events of a client to its program and to the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar, dataclass_transform

E = TypeVar("E")


@dataclass_transform(frozen_default=True)
class Event:
    """Base class of events: values that do not change, with the fields that a subclass annotates.

    They are made, compared, matched and shown as frozen dataclasses are, and type checkers take them for such. But no
    code is generated for them: for twenty classes that would take a tenth of the time in which the clients are loaded.
    """

    __match_args__: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls.__match_args__ = tuple(cls.__annotations__)  # type: ignore[misc]  # of each class its own

    def __init__(self, *values: object, **named: object) -> None:
        fields, own = self.__match_args__, vars(self)
        own.update(zip(fields, values, strict=False))
        for name in fields[len(values) :]:
            if name in named:
                own[name] = named.pop(name)
            elif name in vars(type(self)):
                own[name] = vars(type(self))[name]
        if named or len(values) > len(fields) or len(own) < len(fields):
            raise TypeError(f"{type(self).__name__} has the fields ({', '.join(fields)})")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an event does not change: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an event does not change: {name}")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Reporter(Generic[E]):
    """Reports the events of one client.

    Args:
        logger: gets each event as a sentence.
        channel: the channel's name, for the log.
        on_event: the program's callback. Its exceptions are logged: they must not stop media.
    """

    def __init__(self, logger: logging.Logger, channel: str, on_event: Callable[[E], None] | None) -> None:
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
