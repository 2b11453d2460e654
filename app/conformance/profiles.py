"""What a case may need the server to be configured as.

Most rules hold in every configuration. Some can only be seen with another one (no autocreate, a small segment
limit, graces that are short enough to wait for or long enough not to end by accident). Each such configuration is a
profile with a name and the flags of ``tricklecast serve`` that make it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The server's settings as far as a case's deadlines depend on them; the defaults are the server's.

    Attributes:
        channel_drain_s: how long an ended channel stays readable, in seconds.
        publisher_grace_s: how long a publisher that broke off may take to resume, in seconds.
        skip_grace_s: how long an overtaken preconnect may take to begin, in seconds.
        interim_interval_s: time between two ``100 Continue`` on an idle preconnect, in seconds.
        idle_timeout_s: how long a channel may stay without any byte, in seconds.
        max_segment_bytes: the largest segment.
        window_segments: how many segments are kept.
        max_channels: how many channels there may be.
        max_readers: how many readers there may be.
    """

    channel_drain_s: float = 10.0
    publisher_grace_s: float = 5.0
    skip_grace_s: float = 2.0
    interim_interval_s: float = 10.0
    idle_timeout_s: float = 300.0
    max_segment_bytes: int = 64 << 20
    window_segments: int = 256
    max_channels: int = 10_000
    max_readers: int = 50_000


@dataclass(frozen=True, slots=True)
class Profile:
    """A configuration with a name.

    Attributes:
        name: as ``--profile`` takes it.
        what: one line about it.
        options: settings of the server that differ from its defaults.
    """

    name: str
    what: str
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)

    @property
    def flags(self) -> tuple[str, ...]:
        """The arguments of ``tricklecast serve``."""
        flags: list[str] = []
        for name, value in self.options.items():
            option = name.replace("_", "-")
            flags += (
                [f"--{option}" if value else f"--no-{option}"]
                if isinstance(value, bool)
                else [
                    f"--{option}",
                    str(value),
                ]
            )
        return tuple(flags)

    @property
    def settings(self) -> Settings:
        """The settings that cases look at."""
        known = {name: value for name, value in self.options.items() if name in Settings.__dataclass_fields__}
        return replace(Settings(), **known)  # type: ignore[arg-type]


_LONG_S: Final = 600
_SHORT: Final = {"channel_drain_s": 1, "publisher_grace_s": 1, "skip_grace_s": 0.5, "interim_interval_s": 0.25}

PROFILES: Final[dict[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile("default", "the server's defaults"),
        Profile("root", "base path /", {"base_path": "/"}),
        Profile("quick", "graces that are short enough to wait for", _SHORT),
        Profile(
            "patient",
            "graces that do not end by accident",
            {"channel_drain_s": _LONG_S, "publisher_grace_s": _LONG_S, "skip_grace_s": _LONG_S},
        ),
        Profile("no-autocreate", "channels are not created by publishing", {"autocreate": False}),
        Profile("no-drain", "an ended channel is forgotten at once", {"channel_drain_s": 0}),
        Profile("small-segments", "segments of at most 64 KiB", {"max_segment_bytes": 65_536}),
        Profile("small-window", "four segments are kept", {"window_segments": 4}),
        Profile("idle", "channels expire after two seconds without a byte", {"idle_timeout_s": 2}),
        Profile("few-channels", "at most eight channels", {"max_channels": 8, "channel_drain_s": 0}),
        Profile("ten-readers", "at most ten readers", {"max_readers": 10}),
        Profile("few-readers", "at most four readers", {"max_readers": 4}),
    )
}

ANY: Final = ("default", "root")
"""Holds in every ordinary configuration."""

QUICK: Final = ("quick", "default", "root")
"""Waits for a grace to end: best where it is short."""

PATIENT: Final = ("patient", "default", "root")
"""Must be done before a grace ends: best where it is long."""
