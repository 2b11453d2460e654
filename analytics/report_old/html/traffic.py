"""Who and where: offenders, budgets, amplification by channel, release and node, and before against after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.report.formats import UNKNOWN, percent, size, times
from tricklecast.analytics.report_old.change import change, interval_words
from tricklecast.analytics.report_old.html.bars import bar, interval, reach
from tricklecast.analytics.report_old.html.markup import Markup, element, joined, name, time
from tricklecast.analytics.report_old.html.tables import Column, table

if TYPE_CHECKING:
    from tricklecast.analytics.report_old.figures import Comparison, Offender, Share
    from tricklecast.analytics.report_old.model import Report

_OFFENDER: Final = (
    Column("Repeats", "number", "Requests that asked again for what had been asked for"),
    Column("Share", "number", "Of all repeats"),
    Column("Adds up to", "number", "With those of all above"),
    Column("", "drawing"),
    Column("Episodes", "number", "In how many episodes it is named"),
)
_SHARE: Final = (
    Column("Amplification", "number", "Requests per wanted request; 1 is healthy"),
    Column("", "drawing"),
    Column("Requests", "number"),
    Column("Repeats", "number"),
    Column("Wasted bytes", "number"),
    Column("Clients", "number", "About"),
)
_BUDGET: Final = (
    Column("Client or node"),
    Column("Of"),
    Column("Minute (UTC)"),
    Column("Requests", "number"),
    Column("Retries", "number"),
    Column("Retry share", "number"),
    Column("", "drawing"),
)
_RATIO: Final = (
    Column("What"),
    Column("Before", "number", "How often, in how many requests"),
    Column("After", "number", "How often, in how many requests"),
    Column("Ratio of rates", "number", "Rate after divided by rate before"),
    Column("95 % interval", "number"),
    Column("", "drawing", "Logarithmic; the line in the middle is 1"),
    Column("That is"),
)


def offenders_section(report: Report) -> Markup | None:
    """Who sent the repeats, by client, release and network."""
    groups = (
        ("Clients", report.offending_clients),
        ("Releases", report.offending_releases),
        ("Networks", report.offending_networks),
    )
    tables = [_offenders(title, found) for title, found in groups if found]
    intro = "Who sent what was too much. A few names that add up to nearly all of it are where to begin."
    return joined(element("p", intro), tables) if tables else None


def _offenders(title: str, found: Sequence[Offender]) -> Markup:
    rows = [
        (
            name(each.name),
            f"{each.repeats:,}",
            percent(each.share),
            percent(each.cumulative),
            bar(each.share, each.cumulative - each.share),
            f"{each.episodes:,}",
        )
        for each in found
    ]
    return table(title, (Column(title.removesuffix("s")), *_OFFENDER), rows)


def budgets_section(report: Report) -> Markup | None:
    """Minutes in which retries exceeded their budget."""
    found, params = report.budget_breaks, report.params
    if not found:
        return None
    rows = [
        (
            name(each.name),
            each.scope,
            time(each.minute_us),
            f"{each.requests:,}",
            f"{each.retries:,}",
            percent(each.ratio),
            bar(each.ratio),
        )
        for each in found
    ]
    budget = (
        f"A client may spend {params.client_budget * 100:g} % of a minute's requests on retries, a server"
        f" {params.node_budget * 100:g} % and {params.node_budget_rps:g}/s."
    )
    more = (
        f" The worst {len(found):,} of {report.n_budget_breaks:,} are listed."
        if report.n_budget_breaks > len(found)
        else ""
    )
    return joined(element("p", budget + more), table("Budgets broken", _BUDGET, rows))


def shares_section(report: Report) -> Markup | None:
    """Amplification by node, release and channel."""
    groups = (("Nodes", report.by_node), ("Releases", report.by_release), ("Channels", report.by_channel))
    tables = [_shares(title, found) for title, found in groups if found]
    return joined(tables) if tables else None


def _shares(title: str, found: Sequence[Share]) -> Markup:
    most = max((each.amplification for each in found), default=1.0)
    rows = [
        (
            name(each.name),
            times(each.amplification),
            # What is beyond 1 is the waste: it has the colour, the wanted request is the light part before it.
            bar((each.amplification - 1) / most, 1 / most),
            f"{each.requests:,}",
            f"{each.repeats:,}",
            size(each.wasted_bytes),
            f"{each.clients:,}",
        )
        for each in found
    ]
    return table(title, (Column(title.removesuffix("s")), *_SHARE), rows)


def comparison_section(report: Report) -> Markup | None:
    """How rates changed, with how sure that is."""
    found = report.comparison
    if found is None:
        return None
    far = reach(found.ratios)
    rows = [
        (
            name(each.name),
            f"{each.before:,} / {each.before_of:,}",
            f"{each.after:,} / {each.after_of:,}",
            UNKNOWN if each.ratio is None else times(each.ratio),
            interval_words(each),
            interval(each, far),
            change(each),
        )
        for each in found.ratios
    ]
    return joined(element("p", _sides(found)), table("Before and after", _RATIO, rows))


def _sides(found: Comparison) -> Markup:
    sides = (name(found.before), " (before) against ", name(found.after), " (after)")
    hint = ". Below 1 is better; where the interval holds 1, the change may be chance."
    return joined(f"By {found.by}: ", sides, hint)
