"""``report.html``: the report for people, one file that needs no network; :func:`as_html` writes it."""

from tricklecast.analytics.report_old.html.page import as_html

__all__ = ["as_html"]
