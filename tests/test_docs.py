"""The documentation: it builds without a warning, every link leads somewhere, and the reference is complete.

Its code is real: each Python block runs, each command exists with the options that are shown, and each TOML, JSON and
YAML block can be read. Programs of more than a few lines are files in ``examples/``, which `tests/examples` runs.
The pages about the code name files and functions that exist, and each walk through it passes five files at most.
"""

from __future__ import annotations

import ast
import html
import inspect
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import getmembers, iscoroutinefunction, isfunction, signature
from pathlib import Path

import pytest
import yaml

import tricklecast.trickle.errors
from tests.support.forked import python
from tricklecast import media, publisher, subscriber, sync, testing
from tricklecast.app.cli import COMMANDS, load
from tricklecast.publisher.client import WriterOptions
from tricklecast.subscriber.client import ReaderOptions
from tricklecast.subscriber.core import Start

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 300
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.M | re.S)
ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"
WALK = re.compile(r"^### Walk \d: (.+)\n((?:(?!#).*\n)*)", re.M)
STEP = re.compile(r"^\d\. `(.+?)`: (.*(?:\n   .*)*)", re.M)
CALL = re.compile(r"`([\w.]+)\([^`]*\)`")
CLASS = re.compile(r"`([A-Z][a-z][A-Za-z]+)`")
DEFINITION = re.compile(r"^( *)(class|(?:async )?def) (\w+)", re.M)
FILE = re.compile(r"`([\w/]+\.(?:py|js))`")

QUICK_SPHINX = """
import gc, sys
from docutils.nodes import literal_block
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.cmd.build import main

def write(builder, page, tree, whole=StandaloneHTMLBuilder.write_doc):
    if page.startswith("reference/"):
        whole(builder, page, tree)
    for block in () if page.startswith("reference/") else tree.findall(literal_block):
        builder.highlighter.highlight_block(block.astext(), block.get("language", "default"), location=block)

gc.disable()
StandaloneHTMLBuilder.search = False
StandaloneHTMLBuilder.write_doc = write
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference, and every link and code block of the other pages: what else makes the site takes half of the time.

    It has a plainer theme than readers have it in, no search, no typographic quotes, and the other pages' HTML is not
    written.
    """
    folder = tmp_path_factory.mktemp("site")
    strict = ["--fail-on-warning", "--keep-going", "-q"]
    command = [
        python(),
        "-c",
        QUICK_SPHINX,
        *strict,
        "-b",
        "html",
        "-D",
        "html_theme=basic",
        "-D",
        "smartquotes=0",
    ]
    done = subprocess.run(
        [*command, str(ROOT / "docs"), str(folder)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_reference_has_every_public_name(site: Path) -> None:
    """What a package exports has an entry, read off its docstring."""
    for package, page in ((publisher, "publisher"), (subscriber, "subscriber")):
        text = (site / "reference" / "api" / f"{page}.html").read_text(encoding="utf-8")
        found = {name: getattr(package, name) for name in package.__all__}
        named = [name for name, one in found.items() if inspect.isclass(one) or inspect.isfunction(one)]
        missing = [name for name in named if f'id="tricklecast.{page}.{name}"' not in text]
        assert missing == []
    errors = (site / "reference" / "api" / "errors.html").read_text(encoding="utf-8")
    assert [name for name in ERRORS if f'id="tricklecast.trickle.errors.{name}"' not in errors] == []


API = ROOT / "docs" / "reference" / "api"
PUBLIC = {
    "publisher": publisher.__all__,
    "subscriber": subscriber.__all__,
    "media": media.__all__,
    "testing": testing.__all__,
    "channel": ["Channel", "Channels", "ChannelInfo", "Head", "list_channels", *sync.__all__],
}


@pytest.mark.parametrize("page", PUBLIC)
def test_a_page_of_the_api_has_every_name_before_it_is_built(page: str) -> None:
    """Who reads the repository sees what there is, and what for; the docstrings come in with the site."""
    text = (API / f"{page}.md").read_text(encoding="utf-8")
    assert [name for name in PUBLIC[page] if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    ("page", "name", "kind"),
    [
        ("publisher", "publisher", publisher.Publisher),
        ("publisher", "segment", publisher.SegmentWriter),
        ("publisher", "out", publisher.JsonLines),
        ("subscriber", "subscriber", subscriber.Subscriber),
        ("subscriber", "segment", subscriber.Segment),
        ("channel", "channel", tricklecast.Channel),
    ],
)
def test_a_page_of_the_api_says_which_calls_are_awaited(page: str, name: str, kind: type) -> None:
    """Each method, with `await` or without it; and each property."""
    text = (API / f"{page}.md").read_text(encoding="utf-8")
    for method, found in getmembers(kind):
        if not method.startswith("_"):
            call = f"{'await ' * iscoroutinefunction(found)}{name}.{method}{'(' * isfunction(found)}"
            assert re.search(rf"(?<!await ){re.escape(call)}", text), call


def _raised(*modules: str) -> set[str]:
    """The errors of `trickle/errors.py` that these modules name."""
    trees = [ast.parse((ROOT / f"{module}.py").read_text(encoding="utf-8")) for module in modules]
    return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)} & set(ERRORS)


ERRORS = [
    name
    for name, kind in vars(tricklecast.trickle.errors).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and not name.startswith("_")
]
ALWAYS = {"InvalidInput", "InvalidURL", "InvalidChannelName", "Refused", "RemoteProtocolError", "ConnectionLost"}
RAISED = {
    "Publisher": _raised(*(f"publisher/{name}" for name in ("client", "core", "segments", "lines"))),
    "Subscriber": _raised(*(f"subscriber/{name}" for name in ("client", "core", "segment"))) - {"InvalidSeq"},
    "Channel": _raised("trickle/client/channel"),
}
FAMILIES = {"TrickleError", "BrokenByPeer"}


def test_the_table_of_errors_says_who_raises_which() -> None:
    """It is compared with the names in the clients' modules; what they raise through others is in `ALWAYS`."""
    lines = (API / "errors.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    assert {row[0].strip("`") for row in rows} == set(ERRORS) - FAMILIES
    for at, client in enumerate(RAISED, 1):
        assert {row[0].strip("`") for row in rows if row[at]} == (RAISED[client] | ALWAYS) - FAMILIES, client


def test_what_to_do_is_said_of_each_error_of_a_publisher() -> None:
    """But for kinds of an argument's error: their family is there."""
    page = (ROOT / "docs" / "how-to" / "overlap-and-recover.md").read_text(encoding="utf-8")
    table = page.partition("## Which errors to catch\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert (RAISED["Publisher"] | ALWAYS) - FAMILIES - {"InvalidURL", "InvalidChannelName"} - named == set()


def test_the_table_of_starts_says_where_a_reader_goes_on() -> None:
    """`on_lag`, if it is not given, follows from the start."""
    text = (API / "subscriber.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \| .*? \| \**`\"(live|earliest)\"`", text, re.M)
    starts = [(literal, policy) for cell, policy in rows for literal in re.findall(r"`(.+?)`", cell)]
    assert len(starts) == 11
    for literal, policy in starts:
        start = eval(literal, {"Position": subscriber.Position})
        assert Start.parse(start).reads_all == (policy == "earliest"), literal


def test_the_list_of_commands_is_there_before_it_is_built() -> None:
    """With what each does."""
    text = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `tricklecast (.+?)` \| (.*?) \|$", text, re.M)
    assert rows == [(name, mount.summary) for name, mount in COMMANDS.items()]


def test_the_reference_has_every_option_of_media(site: Path) -> None:
    """Its tables have the arguments and defaults of the code; each public name has an entry."""
    page = (ROOT / "docs" / "reference" / "api" / "media.md").read_text(encoding="utf-8")
    for name, function, passed_on in (
        ("frames()", media.frames, ReaderOptions),
        ("MediaPublisher", media.MediaPublisher, WriterOptions),
    ):
        section = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| `(\w+)` \| .*? \|(?: `([^`]*)`)? \|", section, re.M)
        arguments = [one for one in signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD]
        assert [(one, default.replace('"', "'")) for one, default in rows] == [
            (one.name, "" if one.default is one.empty else repr(one.default)) for one in arguments
        ]
        others = re.search(r"The other options are those of .*?: (.*?)\.\s", section)
        assert others is not None
        assert set(re.findall(r"\w+", others[1])) == passed_on.__optional_keys__
    own = signature(media.frames).parameters.keys() - {"url", "batch", "subscriber"}
    assert own | ReaderOptions.__optional_keys__ == media.FrameOptions.__optional_keys__
    text = (site / "reference" / "api" / "media.html").read_text(encoding="utf-8")
    public = [name for name in media.__all__ if callable(getattr(media, name)) and not name.endswith("Options")]
    assert [name for name in public if f'id="tricklecast.media.{name}"' not in text] == []


def test_the_reference_has_every_command_and_option(site: Path) -> None:
    """The page of commands is made from the commands themselves."""
    text = html.unescape((site / "reference" / "commands.html").read_text(encoding="utf-8"))
    for name in COMMANDS:
        assert f"tricklecast {name} " in text
    assert "--on-lag" in text
    assert "--content-type" in text


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda path: path.name
)
def test_links_of_the_front_pages_lead_somewhere(path: Path) -> None:
    """The site's own links are checked while it is built; these pages are not part of it."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (ROOT / target).exists()] == []


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def _blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            body = "".join(line.removeprefix(found[1]) for line in found[3].splitlines(keepends=True))
            yield Block(page, text.count("\n", 0, found.start()) + 1, found[2], body)


BLOCKS = list(_blocks())
PROGRAMS = {path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")}


def _of(*languages: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in languages], ids=str)


@pytest.mark.filterwarnings("ignore:Using `httpx` with")  # of Starlette's test client
@_of("python")
def test_python_blocks_run(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is no program of `examples/` is compiled; its imports and definitions are executed.

    What else stands at its top level (calls, loops) is for the reader's program: names in it may be the reader's.
    """
    if block.text in PROGRAMS:
        return
    monkeypatch.syspath_prepend(str(ROOT / "examples"))  # a test of a program imports it
    tree = compile(block.text, str(block), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    kept: list[ast.stmt] = [
        node
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for node in kept:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.decorator_list = []
    future = "from __future__ import annotations\n"
    exec(compile(future + ast.unparse(ast.Module(kept, [])), str(block), "exec"), {})


def _commands(block: Block) -> Iterator[list[str]]:
    """The words of each `tricklecast` command in a shell block, up to a pipe or a redirection."""
    text = block.text.replace("\\\n", " ")
    lines = text.splitlines()
    if block.language == "console":  # others are output
        lines = [line for line in lines if line.startswith("$ ")]
    for line in lines:
        for found in re.finditer(r"(?:^|[|;&(]\s*|\$ |\s)tricklecast ([a-z].*)", line):
            words = shlex.shlex(found[1], posix=True, punctuation_chars=True)
            words.whitespace_split = True
            words.commenters = "#"
            command = []
            for word in words:
                if word[0] in "|&;<>()":
                    break
                command.append(word)
            yield command


SHELL = [
    pytest.param(command, id=f"{block}: {' '.join(command)[:60]}")
    for block in BLOCKS
    if block.language in ("bash", "sh", "console")
    for command in _commands(block)
]


@pytest.mark.parametrize("words", SHELL)
def test_commands_exist_with_their_options(words: list[str]) -> None:
    """Each command in the docs is one of tricklecast's, and knows every option that is shown."""
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    assert name in COMMANDS
    command = load(name)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert given - known - {"--help"} == set()


@_of("toml")
def test_toml_blocks_can_be_read(block: Block) -> None:
    """Each is a whole TOML document."""
    tomllib.loads(block.text)


@_of("json")
def test_json_blocks_can_be_read(block: Block) -> None:
    """Each is a whole JSON document."""
    json.loads(block.text)


@_of("yaml")
def test_yaml_blocks_can_be_read(block: Block) -> None:
    """Each is a whole YAML document."""
    yaml.safe_load(block.text)


def _functions(path: Path) -> set[str]:
    """The classes, functions and methods of a file, the last also as ``Class.method``."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        return set(re.findall(r"^ *(?:export )?(?:async )?(?:function )?(\w+)\(.*\) \{$", text, re.M))
    found: set[str] = set()
    around: list[tuple[int, str]] = []  # how far classes and functions are indented; the name of a class, or nothing
    for indent, kind, name in DEFINITION.findall(text):
        while around and around[-1][0] >= len(indent):
            around.pop()
        found.add(name)
        if around and around[-1][1]:
            found.add(f"{around[-1][1]}.{name}")
        around.append((len(indent), name if kind == "class" else ""))
    return found


@pytest.fixture(scope="module")
def functions() -> dict[str, set[str]]:
    """The classes and functions of each file of the packages, by path."""
    packages = ("app", "trickle", "tricklecast", "publisher", "subscriber", "analytics")
    found = (path for name in packages for kind in ("*.py", "*.js") for path in (ROOT / name).rglob(kind))
    return {str(path.relative_to(ROOT)): _functions(path) for path in found if "vendor" not in path.parts}


WALKS = WALK.findall(ARCHITECTURE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("title", "text"), WALKS, ids=[title for title, _ in WALKS])
def test_each_walk_passes_five_files_whose_functions_exist(
    title: str, text: str, functions: dict[str, set[str]]
) -> None:
    """A step names a file and functions of it, or ``module.function()`` of another file."""
    steps = STEP.findall(text)
    assert 1 < len({path for path, _ in steps}) <= 5
    for path, said in steps:
        for call in CALL.findall(said):
            module, _, name = call.rpartition(".")
            elsewhere = {known for file, names in functions.items() if Path(file).stem == module for known in names}
            assert call in functions[path] or name in elsewhere, f"{path} has no {call}()"


def test_there_are_walks() -> None:
    """A POST, its permission and its way to a worker, a GET, a playlist, a dashboard event, and a stored segment."""
    assert len(WALKS) == 7


@pytest.mark.parametrize("page", [ARCHITECTURE, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_pages_about_the_code_name_what_exists(page: Path, functions: dict[str, set[str]]) -> None:
    """Each class, function and file that they name is there."""
    text = page.read_text(encoding="utf-8")
    known = set().union(*functions.values())
    calls = CALL.findall(text)
    assert [call for call in calls if call not in known and call.rpartition(".")[2] not in known] == []
    assert [call for call in calls if call[0].isupper() and "." in call and call not in known] == []
    assert [name for name in CLASS.findall(text) if name not in known and name != "Protocol"] == []
    ours = [name for name in FILE.findall(text) if not name.startswith("tests/")]
    assert [name for name in ours if not any(f"/{path}".endswith(f"/{name}") for path in functions)] == []
