"""All cases, in the order of the protocol: their names and rules, read from top to bottom, are the protocol.

A chapter is a module of groups. A case gets ``c``, a channel of its own that the server does not know yet.
"""

from __future__ import annotations

from typing import Final

from tricklecast.app.tools.conformance.cases import end, http, publish, read, routes
from tricklecast.app.tools.conformance.runner import Case, Group

GROUPS: Final[tuple[type[Group], ...]] = tuple(
    group
    for chapter in (routes, publish, read, end, http)
    for group in vars(chapter).values()
    if isinstance(group, type) and issubclass(group, Group) and group is not Group
)

CASES: Final[tuple[Case, ...]] = tuple(case for group in GROUPS for case in group.cases())
