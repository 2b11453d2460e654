"""Variables of the environment that look like settings, and are none."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from tricklecast.app.settings import Settings
from tricklecast.trickle.terminal import TOKEN_VARIABLE

PREFIX: Final = Settings.model_config["env_prefix"]
KNOWN: Final = frozenset({name.upper() for name in Settings.model_fields} | {TOKEN_VARIABLE.removeprefix(PREFIX)})
"""A server's settings, and what its clients on the same machine take; without the prefix."""

ALIKE: Final = 0.75
"""A letter or two that are wrong, one too many or one missing (:func:`difflib.get_close_matches`)."""

NAMED: Final = 5
LONGEST: Final = 64
"""So many variables are named, with so many characters of each: nobody reads more."""


def overlooked(names: Iterable[str]) -> str | None:
    """What to say of variables with our prefix that nobody reads: a misspelt limit is none.

    It is no error, since the prefix may be somebody else's, too. (For a service ``tricklecast`` Kubernetes sets
    ``TRICKLECAST_SERVICE_HOST``.) Only names are told, no values.

    Args:
        names: of all variables, whatever their case.

    Returns:
        One line, with the name that each is nearest to, if there is one; ``None`` if there is nothing to say.
    """
    ours = [name for name in names if name.upper().startswith(PREFIX)]
    unknown = sorted(name for name in ours if name[len(PREFIX) :].upper() not in KNOWN)
    if not unknown:
        return None
    named = ", ".join(map(_with_nearest, unknown[:NAMED]))
    more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
    return f"no setting, and ignored: {named}{more}"


def _with_nearest(name: str) -> str:
    nearest = get_close_matches(name[len(PREFIX) : LONGEST].upper(), sorted(KNOWN), n=1, cutoff=ALIKE)
    # A name may hold anything, line ends included.
    return ascii(name)[1:-1][:LONGEST] + (f" (did you mean {PREFIX}{nearest[0]}?)" if nearest else "")
