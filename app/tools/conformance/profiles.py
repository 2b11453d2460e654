"""Server configurations that cases need.

Most rules show in every configuration. Others show in a special one only, for example without autocreate, with a small
segment limit, or with graces that are short enough to wait for. A profile is a configuration with a name and the flags
of ``tricklecast serve`` that make it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of ``tricklecast serve`` that cases depend on, with their defaults."""

    channel_drain_s: float = 10.0
    publisher_grace_s: float = 5.0
    skip_grace_s: float = 2.0
    idle_timeout_s: float = 300.0
    max_segment_bytes: int = 64 << 20
    window_segments: int = 256
    max_channels: int = 10_000
    max_readers: int = 50_000


@dataclass(frozen=True, slots=True)
class Profile:
    """A configuration with a name, one line about it, and the server's settings that differ from the defaults."""

    name: str
    summary: str
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)

    @property
    def flags(self) -> tuple[str, ...]:
        """The arguments of ``tricklecast serve``."""
        flags: list[str] = []
        for name, value in self.options.items():
            option = name.replace("_", "-")
            if isinstance(value, bool):
                flags.append(f"--{option}" if value else f"--no-{option}")
            else:
                flags += [f"--{option}", str(value)]
        return tuple(flags)

    @property
    def settings(self) -> ServerSettings:
        known = {name: value for name, value in self.options.items() if name in ServerSettings.__dataclass_fields__}
        return replace(ServerSettings(), **known)  # type: ignore[arg-type]


_SHORT: Final = {"channel_drain_s": 1, "publisher_grace_s": 1, "skip_grace_s": 0.5}
_LONG: Final = {"channel_drain_s": 600, "publisher_grace_s": 600, "skip_grace_s": 600}

PROFILES: Final[dict[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile("default", "the server's defaults"),
        Profile("root", "base path /", {"base_path": "/"}),
        Profile("quick", "graces that are short enough to wait for", _SHORT),
        Profile("patient", "graces that do not end by accident", _LONG),
        Profile("no-autocreate", "publishing creates no channels", {"autocreate": False}),
        Profile("no-drain", "the server forgets an ended channel at once", {"channel_drain_s": 0}),
        Profile("small-segments", "segments of at most 64 KiB", {"max_segment_bytes": 65_536}),
        Profile("small-window", "a channel keeps four segments", {"window_segments": 4}),
        Profile("idle", "channels expire after two seconds without a byte", {"idle_timeout_s": 2}),
        Profile("few-channels", "at most eight channels", {"max_channels": 8, "channel_drain_s": 0}),
        Profile("ten-readers", "at most ten readers", {"max_readers": 10}),
        Profile("few-readers", "at most four readers", {"max_readers": 4}),
    )
}

ANY: Final = ("default", "root")
"""For a rule that shows in every ordinary configuration."""

QUICK: Final = ("quick", *ANY)
"""For a case that waits until a grace ends: best with short graces."""

PATIENT: Final = ("patient", *ANY)
"""For a case that must be over before a grace ends: best with long graces."""
