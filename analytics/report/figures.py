"""Figures of a report: ``figures.sql``, and its rows as values."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from tricklecast.analytics.report.formats import counted, date_and_time, number, percent, size, span, times
from tricklecast.analytics.report.model import Curve, Figures, Heat, Marker, Offender, Rate, Tile, Timeline, WorstMinute
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.report.words import product

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

BUSY: Final = 1000
"""Requests in a minute from which on its amplification says something."""

MAX_STEPS: Final = 480
"""Of the timeline."""

MAX_POINTS: Final = 120
"""Of an incident's curve."""

MAX_HEAT_STEPS: Final = 60
MAX_HEAT_ROWS: Final = 20

MAX_EVENTS: Final = 200

_MINUTE: Final = 60_000_000
_EXCHANGES: Final = "answer NOT IN ('event', 'unparsable', 'future')"


def prepare(connection: DuckDBPyConnection) -> None:
    """Makes the tables of ``figures.sql`` on a connection on which the rules have run."""
    connection.execute(files(__package__).joinpath("figures.sql").read_text(encoding="utf-8"))


def figures(connection: DuckDBPyConnection) -> Figures:
    """The cost of the incidents."""
    total = _rows(connection, "SELECT * FROM figure_totals")[0]
    seen = _rows(
        connection, f"SELECT min(first_us) AS since, max(last_us) AS until FROM quality WHERE {_EXCHANGES} AND n > 0"
    )[0]
    worst = _rows(
        connection,
        f"SELECT * FROM figure_minutes WHERE n >= {BUSY} ORDER BY amplification DESC, n DESC, minute_us, node LIMIT 1",
    )
    return Figures(
        requests=total["requests"],
        failures=total["failures"],
        in_incidents=total["in_incidents"],
        wasted_requests=total["wasted"],
        wasted_bytes=total["wasted_bytes"],
        wasted_handler_s=None if total["wasted_s"] is None else round(total["wasted_s"], 6),
        amplification=round(max(1, total["requests"]) / max(1, total["requests"] - total["wasted"]), 6),
        retry_ratio=round(total["wasted"] / max(1, total["requests"]), 6),
        worst_minute=WorstMinute(
            worst[0]["node"], worst[0]["minute_us"], worst[0]["n"], round(worst[0]["amplification"], 6)
        )
        if worst
        else None,
        offenders=tuple(
            Offender(
                row["kind"], row["name"], product(row["release"], row["ua"]), row["n"], round(row["share"] or 0.0, 6)
            )
            for row in _rows(connection, "SELECT * FROM figure_offenders")
        ),
        nodes=tuple(total["nodes"] or ()),
        since_us=seen["since"],
        until_us=seen["until"],
    )


def timeline(connection: DuckDBPyConnection) -> Timeline | None:
    """All traffic over time; ``None`` without any."""
    first, last = connection.execute("SELECT min(minute_us), max(minute_us) FROM figure_minutes").fetchall()[0]
    if first is None:
        return None
    minutes = (last - first) // _MINUTE + 1
    step = _MINUTE * -(-minutes // MAX_STEPS)
    rows = connection.execute(
        f"""SELECT (minute_us - {first}) // {step}, CAST(sum(n) AS BIGINT), CAST(sum(failed) AS BIGINT),
            CAST(round(sum(in_incidents)) AS BIGINT) FROM figure_minutes GROUP BY ALL"""
    ).fetchall()
    columns = [[0] * ((last - first) // step + 1) for _ in range(3)]
    for place, *counts in rows:
        for column, count in zip(columns, counts, strict=True):
            column[place] = count
    requests, failures, stormy = (tuple(column) for column in columns)
    return Timeline(first, step, requests, failures, stormy, _events(connection))


def curves(connection: DuckDBPyConnection) -> dict[int, Curve]:
    """The requests of each incident over time, by its key in the tables of the rules."""
    spans = {
        row[0]: (row[1], -(-((row[2] - row[1]) // 1_000_000 + 1) // MAX_POINTS) * 1_000_000)
        for row in connection.execute(
            "SELECT incident, min(second_us), max(second_us) FROM figure_seconds GROUP BY incident"
        ).fetchall()
    }
    counts = connection.execute(
        f"""WITH spans AS (
            SELECT incident, min(second_us) AS start_us,
                ((max(second_us) - min(second_us)) // 1000000 + {MAX_POINTS}) // {MAX_POINTS} * 1000000 AS step_us
            FROM figure_seconds GROUP BY incident
        )
        SELECT incident, (second_us - start_us) // step_us AS place, CAST(round(sum(n)) AS BIGINT) AS n
        FROM figure_seconds JOIN spans USING (incident) GROUP BY incident, place ORDER BY incident, place"""
    ).fetchall()
    found: dict[int, list[int]] = {}
    for incident, place, count in counts:
        column = found.setdefault(incident, [])
        column += [0] * (place - len(column))
        column.append(count)
    return {incident: Curve(*spans[incident], tuple(column)) for incident, column in found.items()}


def heat(connection: DuckDBPyConnection, incident: int) -> Heat | None:
    """The requests of an incident by client and time; ``None`` of one client.

    Args:
        incident: its key in the tables of the rules.
    """
    found = _rows(
        connection,
        f"""WITH crowd AS (
            SELECT unnest(f.busiest, recursive := true)
            FROM episodes e JOIN fleets f ON f.answer = e.answer AND f.node = e.place AND f.first_us = e.first_us
            WHERE incident = {int(incident)} AND e.fleet
        ),
        pulse AS (
            FROM crowd
            UNION ALL BY NAME
            SELECT clients[1] AS client, unnest(pulse, recursive := true) FROM episodes
            WHERE incident = {int(incident)} AND NOT fleet AND NOT EXISTS (FROM crowd)
        ),
        span AS (
            SELECT min(from_us) - min(from_us) % 1000000 AS start_us,
                ((max(until_us) - start_us) // {MAX_HEAT_STEPS}000000 + 1) * 1000000 AS step_us FROM pulse
        ),
        cells AS (
            SELECT client, n / (until_us // 1000000 - from_us // 1000000 + 1.0) AS n, start_us, step_us,
                (unnest(range(from_us // 1000000, until_us // 1000000 + 1)) * 1000000 - start_us) // step_us AS place
            FROM pulse, span
        ),
        busiest AS (SELECT client FROM cells GROUP BY client ORDER BY sum(n) DESC, client LIMIT {MAX_HEAT_ROWS})
        SELECT client, place, ceil(sum(n)) AS n, any_value(start_us) AS start_us, any_value(step_us) AS step_us
        FROM cells JOIN busiest USING (client) GROUP BY client, place
        ORDER BY sum(sum(n)) OVER (PARTITION BY client) DESC, client, place""",
    )
    clients = list(dict.fromkeys(row["client"] for row in found))
    if len(clients) < 2:
        return None
    columns = {client: [0] * (max(row["place"] for row in found) + 1) for client in clients}
    for row in found:
        columns[row["client"]][row["place"]] = int(row["n"])
    return Heat(found[0]["start_us"], found[0]["step_us"], tuple(clients), tuple(map(tuple, columns.values())))


def gaps(connection: DuckDBPyConnection) -> list[str]:
    """Holes in a busy server's log, one sentence each."""
    return [
        f"The log of {plain(row['node'])} has no lines from {date_and_time(row['from_us'])} to"
        f" {date_and_time(row['until_us'])} UTC, though the server was busy before and after."
        for row in _rows(connection, "SELECT * FROM figure_gaps")
    ]


def skews(connection: DuckDBPyConnection) -> list[str]:
    """Servers whose clocks may differ, one sentence each."""
    query = "SELECT node, other, median(skew_us) AS us FROM skews GROUP BY node, other ORDER BY node, other"
    return [
        f"The clock of {plain(row['node'])} may be {span(row['us'] / 1e6)} ahead of {plain(row['other'])}'s: the same"
        " clients did the same there, for as long, only later. It is told as one incident."
        for row in _rows(connection, query)
    ]


def tiles(found: Figures) -> tuple[Tile, ...]:
    """The figures that a report leads with."""
    worst = found.worst_minute
    at = f"{plain(worst.node)}, {date_and_time(worst.minute_us)[:16]} UTC" if worst else ""
    return (
        Tile("Requests", f"{found.requests:,}", f"{percent(found.failures / max(1, found.requests))} of them failed"),
        Tile(
            "Amplification",
            times(found.amplification),
            f"requests per wanted request; {percent(found.retry_ratio)} of all were repeats",
        ),
        Tile(
            "Wasted",
            counted(found.wasted_requests, "request"),
            ", ".join(
                (
                    "bytes not known" if found.wasted_bytes is None else size(found.wasted_bytes),
                    f"{span(found.wasted_handler_s)} of handling"
                    if found.wasted_handler_s is not None
                    else "the log has no durations",
                )
            ),
        ),
        Tile(
            "Worst minute",
            times(worst.amplification) if worst else "\N{EN DASH}",
            f"{at}, {worst.requests:,} requests" if worst else f"no server had {BUSY:,} requests in a minute",
        ),
    )


def compare(here: Figures, incidents: int, before: Figures, incidents_before: int) -> tuple[Rate, ...]:
    """Rates of two logs."""

    def hours(one: Figures) -> float:
        return max(1.0, ((one.until_us or 0) - (one.since_us or 0)) / 3.6e9)

    def thousands(one: Figures) -> float:
        return max(1, one.requests) / 1000

    requests, per = (thousands(before), thousands(here)), "1,000 requests"
    return (
        _rate("Requests in incidents", per, (before.in_incidents, here.in_incidents), requests),
        _rate("Failures", per, (before.failures, here.failures), requests),
        _rate("Incidents", "hour", (incidents_before, incidents), (hours(before), hours(here))),
    )


def _rate(name: str, per: str, counts: tuple[int, int], by: tuple[float, float]) -> Rate:
    """A rate before and here, and one sentence on both."""
    before, here = (round(count / amount, 6) for count, amount in zip(counts, by, strict=True))
    ratio = round(here / before, 6) if before else None
    told = " and ".join(
        f"{count:,} {when} ({number(rate)} per {per})" if count else f"none {when}"
        for count, rate, when in zip(counts, (before, here), ("before", "here"), strict=True)
    )
    if any(counts):
        told += ": new" if ratio is None else f": {times(ratio)} as many" if here else ": gone"
    return Rate(name, per, here, before, ratio, f"{name}: {told}")


def _events(connection: DuckDBPyConnection) -> tuple[Marker, ...]:
    """Triggers of incidents and the servers' own events, the rarest kinds first where there are too many."""
    rows = _rows(
        connection,
        f"""SELECT DISTINCT ts_us, event, node, channel FROM (
            SELECT h.*, event NOT IN ('channel_create', 'channel_end') AS of_server,
                (event, ts_us) IN (SELECT (trigger, trigger_us) FROM incidents WHERE trigger IS NOT NULL) AS triggers
            FROM happened h
            WHERE of_server OR triggers
            ORDER BY triggers DESC, ts_us LIMIT {MAX_EVENTS}
        ) ORDER BY ts_us, event, node, channel""",
    )
    return tuple(Marker(row["ts_us"], row["event"], row["node"], row["channel"]) for row in rows)


def _rows(connection: DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    answer = connection.execute(sql)
    names = [column[0] for column in answer.description or ()]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
