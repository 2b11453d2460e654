"""How the site is built: Markdown pages, and an API reference that is read off the docstrings.

``scripts/docs`` builds it into ``build/site``; every warning is an error.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Final

import typer
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from storm_tables import parameter_table, report_tables

from tricklecast.analytics.report.model import Alert, Report, schema
from tricklecast.app.cli import COMMANDS, Command, load
from tricklecast.trickle import __version__
from tricklecast.trickle.errors import Fields

project = "tricklecast"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"tricklecast {__version__}"
html_copy_source = False
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

COMMANDS_HERE: Final = "<!-- commands -->"
REPORT_HERE: Final = "<!-- report.json -->"
PARAMETERS_HERE: Final = "<!-- parameters -->"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _fill_in)
    app.connect("build-finished", _write_schemas)
    app.connect("autodoc-process-signature", _signature)


def _signature(app: Sphinx, what: str, name: str, shown: object, *rest: object) -> tuple[str, str] | None:
    """An event is made with its fields, and so are most errors."""
    has_fields = isinstance(shown, type) and issubclass(shown, Fields) and "__init__" not in vars(shown)
    fields = getattr(shown, "__match_args__", ()) if has_fields else ()
    return (f"({', '.join(fields)})", "") if fields else None


def _write_schemas(app: Sphinx, error: Exception | None) -> None:
    """The JSON Schemas of reports and alerts stand beside the pages."""
    for name, kind in (("report", Report), ("alert", Alert)):
        Path(app.outdir, f"{name}.schema.json").write_text(json.dumps(schema(kind), indent=1) + "\n", encoding="utf-8")


def _fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    """What a page says of commands, fields and thresholds comes from those themselves: it cannot say anything else."""
    if COMMANDS_HERE in source[0]:
        sections = (_section(name, load(name)) for name in COMMANDS)
        source[0] = source[0].replace(COMMANDS_HERE, "\n\n".join(sections))
    for mark, tables in ((REPORT_HERE, report_tables), (PARAMETERS_HERE, parameter_table)):
        if mark in source[0]:
            source[0] = source[0].replace(mark, tables())


def _section(name: str, command: Command) -> str:
    """A command's help: its description, its examples as code, and a table for each group of options."""
    context = typer.Context(command, info_name=f"tricklecast {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    text, _, examples = inspect.cleandoc(command.help or "").partition("Examples:\n\n\b\n")
    blocks = [f"## {name}", text.strip(), f"```text\ntricklecast {name} {usage}\n```"]
    if examples:
        blocks.append(f"```bash\n{dedent(examples).strip()}\n```")
    for heading, records in command.grouped(context).items():
        rows = [f"| `{_cell(option)}` | {_cell(meaning).replace('<', '&lt;')} |" for option, meaning in records]
        blocks.append("\n".join([f"| {heading} | |", "|---|---|", *rows]))
    return "\n\n".join(blocks)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
