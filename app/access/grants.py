"""Who somebody is and what they may, until when; and why a token gives nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tricklecast.app.access.rules import Rights

MAX_SUBJECT: Final = 256
"""Characters of a subject, as of every other client key in the access log."""


class Rejected(Exception):
    """A token that cannot be believed.

    Attributes:
        why: one word for the access log: ``malformed signature key audience issuer early claim expired``. The client is
            not told, except of ``expired``, which only the holder of a genuine token gets to hear.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class Grant:
    """A token that was believed.

    Attributes:
        subject: whom it was given to, if it says.
        rights: what it allows.
        expires_at: until when, in seconds since the epoch, leeway included.
    """

    subject: str | None
    rights: Rights
    expires_at: float
