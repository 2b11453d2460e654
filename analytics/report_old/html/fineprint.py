"""The end of the page: how far the log can be trusted, what counted as a storm, and what the words mean."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.report.formats import counted
from tricklecast.analytics.report_old.caveats import caveats
from tricklecast.analytics.report_old.html.markup import Markup, element, joined, name, phrase
from tricklecast.analytics.report_old.html.tables import Column, table

if TYPE_CHECKING:
    from tricklecast.analytics.report_old.model import Report

MAX_INPUTS: Final = 50

_UNITS: Final = {"_s": "s", "_rps": "per second", "_share": "0 to 1", "_ratio": "times"}

_GLOSSARY: Final = (
    ("retry storm", "requests that are made again because of failures, and that keep those failures alive"),
    ("wanted request", "one that would have been enough; all others for the same thing are repeats"),
    ("amplification", "requests per wanted request: 1 is healthy, from 2 on half of the work is for nothing"),
    ("hit", "a request that was too many for any healthy client"),
    ("episode", "one storm: one kind of answer, again and again, on one channel or to one fleet of clients"),
    ("severity", "warn or critical: how many hits, and how fast; the parameters below are the limits"),
    ("trigger", "the event of the server or channel that the storm followed, or that ended it"),
    ("rhythm", "how a client paced itself; hot_loop is less than 100 ms between requests"),
    ("Retry-After", "how long a refused client was told to wait; honoured or ignored"),
    ("outcome", "recovered (served afterwards), gave_up (not served again), ongoing (the log ends first)"),
    ("blast radius", "how long healthy clients of the same server waited, during the storm and before it"),
    ("retry budget", "the share of requests that may be retries, so that an outage cannot multiply the load"),
    ("seq, head", "the number of a segment; the number after the newest segment that has begun"),
)


def quality_section(report: Report) -> Markup:
    """What was read, and every reason not to believe all of it."""
    quality, inputs = report.quality, report.inputs
    read = [counted(quality.lines, "line"), f"{quality.unparsable:,} unreadable", counted(quality.events, "event")]
    found = caveats(quality)
    listed = [element("li", name(each, 200)) for each in inputs[:MAX_INPUTS]]
    rest = element("li", f"and {len(inputs) - MAX_INPUTS:,} more") if len(inputs) > MAX_INPUTS else None
    return joined(
        element("p", ", ".join(read) + "."),
        element("ul", [element("li", phrase(words, 200)) for words in found], class_="caveats")
        if found
        else element(
            "p", "Nothing speaks against the log: all lines could be read, and none is missing as far as it shows."
        ),
        element(
            "details", element("summary", f"Read from {counted(len(inputs), 'file')}"), element("ul", listed, rest)
        ),
    )


def params_section(report: Report) -> Markup:
    """Every number that decided anything."""
    rows = [(element("code", key), _number(value), _unit(key)) for key, value in asdict(report.params).items()]
    columns = (Column("Parameter"), Column("Value", "number"), Column("Unit"))
    return element(
        "details",
        element("summary", "Parameters: what counted as a storm"),
        table("Parameters", columns, rows),
    )


def glossary_section() -> Markup:
    """How to read the page, for somebody who has not seen one before."""
    words = [(element("dt", term), element("dd", meaning)) for term, meaning in _GLOSSARY]
    order = (
        "Read from the top: the verdict, then whether the storm began at an event and outlived it (timeline), then the"
        " worst episode's evidence and advice. The server can be changed at once; where the clients have to be, look at"
        " the offenders: often one release or one network accounts for most of it."
    )
    return joined(element("p", order), element("dl", words, class_="glossary"))


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def _unit(key: str) -> str:
    return next((unit for ending, unit in _UNITS.items() if key.endswith(ending)), "")
