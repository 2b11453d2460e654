"""The browser of the tests of the web pages."""

from __future__ import annotations

from tests.support.browser import Watched, browser, tab, tabs

__all__ = ["Watched", "browser", "tab", "tabs"]
