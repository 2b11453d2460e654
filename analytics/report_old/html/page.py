"""The whole page: one file that needs no other and no network, and that runs nothing but its own script."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from tricklecast.analytics.report.formats import date_and_time
from tricklecast.analytics.report_old.html.episodes import episodes_section
from tricklecast.analytics.report_old.html.fineprint import glossary_section, params_section, quality_section
from tricklecast.analytics.report_old.html.markup import Markup, element, joined
from tricklecast.analytics.report_old.html.overview import tiles_section, timeline_section, verdict_section
from tricklecast.analytics.report_old.html.traffic import (
    budgets_section,
    comparison_section,
    offenders_section,
    shares_section,
)

if TYPE_CHECKING:
    from tricklecast.analytics.report_old.model import Report


def as_html(report: Report) -> str:
    """The report as an HTML document, to be written as UTF-8.

    Every name in it comes from whoever sent the requests: it is text, wherever it stands, and a content security
    policy with the hashes of the page's own style and script lets the browser run nothing else.
    """
    style, script = _asset("report.css"), _asset("report.js")
    sections = _sections(report)
    links = [element("a", title, href=f"#{key}") for key, title, _ in sections]
    body = element(
        "body",
        element("a", "Skip to the episodes", href="#episodes", class_="skip") if report.episodes else None,
        element("header", element("strong", "Retry storms"), element("nav", links, aria_label="Sections")),
        element(
            "main",
            verdict_section(report),
            tiles_section(report),
            [_section(key, title, content) for key, title, content in sections],
        ),
        element("footer", element("p", "Made by tricklecast storms. All times are UTC.")),
        element("script", script),
    )
    page = element("html", _head(report, style, script), body, lang="en")
    return f"<!doctype html>\n{page}\n"


def policy(style: str, script: str) -> str:
    """The content security policy of a page with this style and this script, and nothing else that is active."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_digest(style)}'",
            f"script-src '{_digest(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        )
    )


def _head(report: Report, style: str, script: str) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", _title(report)),
        element("style", Markup(style)),
    )


def _sections(report: Report) -> list[tuple[str, str, Markup]]:
    sections = (
        ("timeline", "Timeline", timeline_section(report)),
        ("episodes", "Episodes", episodes_section(report) if report.episodes else None),
        ("offenders", "Offenders", offenders_section(report)),
        ("budgets", "Budgets broken", budgets_section(report)),
        ("amplification", "Where it amplifies", shares_section(report)),
        ("comparison", "Before and after", comparison_section(report)),
        ("quality", "Data quality", quality_section(report)),
        ("reading", "How to read this", joined(glossary_section(), params_section(report))),
    )
    return [(key, title, content) for key, title, content in sections if content is not None]


def _section(key: str, title: str, content: Markup) -> Markup:
    return element("section", element("h2", title, id=f"{key}-title"), content, id=key, aria_labelledby=f"{key}-title")


def _title(report: Report) -> str:
    began = report.totals.first_us
    return "Retry storms" if began is None else f"Retry storms, {date_and_time(began)} UTC"


def _asset(name: str) -> Markup:
    return Markup((files("analytics.report_old.html") / "assets" / name).read_text(encoding="utf-8"))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
