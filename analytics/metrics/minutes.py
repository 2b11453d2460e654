"""The worst minute of a node, and the minutes in which retries exceeded their budget.

A budget bounds amplification whatever the clients do: with retries at most 10 % of a client's requests (Google SRE
book, "Handling Overload") it stays near 1.1; across a whole server, Linkerd and Envoy allow 20 %. A share alone would
be broken by the single retry of a quiet minute; so some are free: of a client ``client_budget_floor`` a minute, of a
node ``node_budget_rps`` a second (Linkerd's ``minRetriesPerSecond``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tricklecast.analytics.report_old.figures import BudgetBreak, NodeMinute

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tricklecast.analytics.metrics.parts import Row


def worst_minute(rows: Iterable[Row]) -> NodeMinute | None:
    """The cube's row about the busy minute with the highest amplification; ``None`` if no busy one has a repeat."""
    for row in rows:
        return NodeMinute(row["name"], row["at"], row["requests"], row["repeats"])
    return None


def budget_breaks(nodes: Iterable[Row], clients: Iterable[Row]) -> tuple[BudgetBreak, ...]:
    """The cube's rows about broken budgets, the most retries first."""
    scoped = [("node", row) for row in nodes] + [("client", row) for row in clients]
    found = [BudgetBreak(scope, row["name"], row["at"], row["requests"], row["repeats"]) for scope, row in scoped]
    return tuple(sorted(found, key=lambda one: (-one.retries, one.minute_us, one.scope, one.name or "")))
