"""The command line: how commands are found, loaded and run."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import typer
from typer.testing import CliRunner

import tricklecast.app.cli
from tests.support.compiled import COMPILED
from tests.support.forked import forked
from tests.support.waiting import WITHIN_S
from tricklecast.app.cli import COMMANDS, Mount, is_private, load, main, run, runnable, wanted_help
from tricklecast.trickle import __version__
from tricklecast.trickle.errors import TrickleError

HEAVY = ("asyncio", "fastapi", "uvicorn", "uvloop", "httptools", "av", "pyspark", "httpx",
         "tricklecast.publisher", "tricklecast.subscriber", "tricklecast.analytics")  # fmt: skip

VERSION = f"tricklecast {__version__}{' (compiled)' if COMPILED else ''}\n"


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    return run_apart([sys.executable, "-c", code, *arguments])


def run_apart(started: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a process to its end, without settings of ours in its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
    return subprocess.run(started, capture_output=True, text=True, timeout=WITHIN_S, check=False, env=environment)


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as users do."""
    return run_apart(forked(*arguments))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    """The list of commands is a table: none of them is imported to show it."""
    code = (
        "import sys\nfrom tricklecast.app.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = python(code, *arguments)
    assert result.stdout.splitlines()[-1] == "LOADED []", result.stdout + result.stderr


def test_help_lists_every_command() -> None:
    """Each with its line."""
    result = run_cli("--help")
    assert result.returncode == 0
    for name, mount in COMMANDS.items():
        assert name in result.stdout
        assert mount.summary[:20] in result.stdout


def test_a_name_of_two_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second word chooses another command; where it is none, it is an argument of the first one's."""
    (tmp_path / "worded_module.py").write_text(
        "def speak(what: list[str]) -> None:\n    print('speak', what)\n\n"
        "def loudly(what: list[str]) -> None:\n    print('loudly', what)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "speak", Mount("worded_module", "speak", "Speak."))
    monkeypatch.setitem(COMMANDS, "speak loudly", Mount("worded_module", "loudly", "Speak loudly."))
    for arguments, said in {
        ("speak", "up"): "speak ['up']\n",
        ("speak", "loudly", "up"): "loudly ['up']\n",
        ("speak", "./loudly"): "speak ['./loudly']\n",
    }.items():
        assert CliRunner().invoke(tricklecast.app.cli.cli, arguments).output == said


def test_a_first_word_alone_lists_its_commands() -> None:
    """`tricklecast logs` says what there is; what there is not is a usage error."""
    for arguments in (["logs"], ["logs", "--help"]):
        result = run_cli(*arguments)
        assert "schema" in result.stdout + result.stderr
        assert "Traceback" not in result.stderr
    assert run_cli("logs", "no-such-command").returncode == 2


def test_version() -> None:
    """`--version` prints it, and whether the hot path is compiled."""
    assert run_cli("--version").stdout == VERSION


@pytest.mark.parametrize("arguments", [["no-such-command"], ["--no-such-option"], ["serve", "--no-such-option"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    """Usage errors are 2, as everywhere."""
    result = run_cli(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_a_misspelt_command_is_told_the_nearest_one() -> None:
    """As a misspelt option is."""
    assert "Did you mean 'serve'?" in run_cli("serv").stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["serve", "--port", "x"], "tricklecast: --port: must be a whole number"),
        (["serve", "--config", "/no/such/file"], "tricklecast: config: no such file: /no/such/file"),
        (["serve", "--base-path", "/é"], "tricklecast: --base-path: must be ASCII"),
        (["serve", "--workers", "none"], "tricklecast: --workers: must be a number from 1 to 64"),
    ],
)
def test_errors_are_one_line_and_exit_code_1(arguments: list[str], line: str) -> None:
    """No traceback, no banner: the name of the command and what is wrong."""
    result = run_cli(*arguments)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        *("publish ? testsrc", "subscribe ? -o -", "clip ? -o a.mp4 --since 1m", "channels ?", "check ?"),
        *("relay ? rtmp://host/app/key", "gateway webrtc ?", "ingest srt://:9000 --to ?", "ingest rtmp://:0 --to ?/"),
        *("cluster status --url ?", "cluster move a b --url ?", "cluster drain a --url ?"),
        *("mirror ? folder", "mirror http://host folder --source-api ?", "mirror http://host ?", "mirror back ? ?"),
        *("mirror status ?", "mirror promote ?", "mirror stop ?", "mirror resync ? *", "mirror reverify ? *"),
        *("conformance ?", "stress ?"),
    ],
)
def test_a_url_that_cannot_be_used_is_one_line_and_exit_code_2(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In each command that takes one."""
    monkeypatch.setattr(sys, "argv", ["tricklecast", *command.replace("?", "htp://host/cam").split()])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (2, "")
    assert re.fullmatch(
        "tricklecast: not a usable URL: 'htp://host/cam(/KEY)?': it must begin with http:// .*\n", said.err
    )


def test_a_missing_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose optional dependency is missing names the `pip install` line."""
    (tmp_path / "lonely_module.py").write_text("import no_such_dependency\n\ndef command() -> None: ...\n")
    (tmp_path / "fine_module.py").write_text("def command() -> None:\n    '''Help.'''\n")
    monkeypatch.syspath_prepend(tmp_path)
    needs = ("analytics", "no_such_dependency")
    monkeypatch.setitem(COMMANDS, "lonely", Mount("lonely_module", "command", "", extra=needs))
    monkeypatch.setitem(COMMANDS, "unfit", Mount("fine_module", "command", "", extra=needs))
    for name in ("lonely", "unfit"):
        with pytest.raises(TrickleError) as error:
            load(name)
        assert str(error.value).startswith(f"{name} needs no_such_dependency: pip install '.[analytics]' in a clone")


def test_help_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a command that imports what it needs when it runs: who reads it may decide to install that."""
    needs = ("tokens", "no_such_dependency")
    monkeypatch.setitem(COMMANDS, "schema", Mount("tricklecast.analytics.cli.logs", "schema", "", extra=needs))
    assert load("schema", to_run=False).help
    with pytest.raises(TrickleError, match="schema needs no_such_dependency"):
        load("schema")


def test_a_command_of_the_server_s_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that names no extra of its own is one of the extra `server`."""
    (tmp_path / "needy_module.py").write_text("import no_such_dependency\n\ndef command() -> None: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "needy", Mount("needy_module", "command", ""))
    with pytest.raises(TrickleError, match=r"^needy needs no_such_dependency: pip install '\.\[server\]'") as error:
        load("needy")
    assert run_main(monkeypatch, error.value) == 2


CHANNEL = "http://127.0.0.1:1/trickle/c"


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", CHANNEL, "testsrc"],
        ["publish", CHANNEL, "testsrc", "--ladder", "360p,240p"],
        ["publish", CHANNEL, "rtsp://127.0.0.1:1/cam"],
        ["publish", CHANNEL, __file__, "--transcode"],
        ["ingest", "rtmp://127.0.0.1:0", "--to", "http://127.0.0.1:1/trickle/"],
        ["ingest", "srt://127.0.0.1:1", "--to", CHANNEL],
        ["subscribe", CHANNEL, "-o", "out.mp4"],
        ["clip", CHANNEL, "-o", "out.mp4", "--since", "1m"],
        ["relay", CHANNEL, "rtmp://127.0.0.1:1/live/key"],
    ],
    ids=" ".join,
)
def test_commands_on_media_need_an_extra(arguments: list[str]) -> None:
    """One that was started says so at once, rather than when media comes; and connects to nothing."""
    done = python(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] == 'av':\n"
        "            raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from tricklecast.app.cli import main\nmain()",
        *arguments,
    )
    line = "tricklecast: media needs PyAV: pip install '.[media]' in a clone of tricklecast\n"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(line)
    assert "Traceback" not in done.stderr


def test_all_commands_on_logs_need_the_extra_but_the_schema() -> None:
    """They parse with DuckDB; a server's machine without it gets one line, and no trace."""
    of_logs = {name for name, mount in COMMANDS.items() if mount.module.startswith("tricklecast.analytics")}
    assert {name for name in of_logs if COMMANDS[name].extra is None} == {"logs schema"}


def test_a_broken_installation_is_not_blamed_on_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of our own that is missing is a fault, not something to install."""
    monkeypatch.setitem(COMMANDS, "gone", Mount("tricklecast.app.no_such_module", "command", "", extra=("media", "av")))
    with pytest.raises(ModuleNotFoundError, match=r"app\.no_such_module"):
        load("gone")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded(name: str) -> None:
    """Each mount names a function that exists and has a docstring as its help."""
    assert load(name).help


def run_main(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int | str | None:
    """Run the command line with a command that raises; returns the exit code."""

    def failing(**_: Any) -> None:
        raise error

    monkeypatch.setattr(tricklecast.app.cli, "cli", failing)
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code


def test_errors_of_ours_choose_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1, unless the error says otherwise."""

    class Special(TrickleError):
        exit_code = 3

    assert run_main(monkeypatch, TrickleError("it is so")) == 1
    assert run_main(monkeypatch, Special("otherwise")) == 3
    assert capsys.readouterr().err == "tricklecast: it is so\ntricklecast: otherwise\n"


def test_a_closed_pipe_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tricklecast ... | head` is no error to talk about; the exit code is that of SIGPIPE."""
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    assert run_main(monkeypatch, BrokenPipeError()) == 141


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As in ``tricklecast check URL > report``; what else a system refuses is a bug, and shows where."""
    assert run_main(monkeypatch, OSError(errno.ENOSPC, "No space left on device")) == 1
    assert capsys.readouterr().err == "tricklecast: No space left on device\n"
    with pytest.raises(OSError, match="odd"):
        run_main(monkeypatch, OSError(errno.EINVAL, "odd"))


def test_an_interrupt_is_exit_code_130(tmp_path: Path) -> None:
    """Ctrl-C in a command ends it without a traceback."""
    (tmp_path / "interrupted.py").write_text("def command() -> None:\n    raise KeyboardInterrupt\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport tricklecast.app.cli as c\n"
        "c.COMMANDS['interrupted'] = c.Mount('interrupted', 'command', '')\nc.main()"
    )
    result = python(code, "interrupted")
    assert result.returncode == 130
    assert "Traceback" not in result.stderr


def test_python_m_app_is_the_same_command() -> None:
    """`python -m tricklecast` runs it, too."""
    started = [sys.executable, "-m", "tricklecast", "--version"]
    result = subprocess.run(started, capture_output=True, text=True, timeout=WITHIN_S, check=True)
    assert result.stdout == VERSION


def test_an_early_ctrl_c_leaves_no_trace() -> None:
    """While modules are being loaded there is nothing to clean up, and nothing to say."""
    code = (
        "import sys\nfrom tricklecast.__main__ import main\n"
        "class Interrupted:\n"
        "    def find_spec(self, *_):\n"
        "        raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "main()"
    )
    done = python(code, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_result_comes_through() -> None:
    """The return value of the coroutine is returned."""

    async def main() -> int:
        await anyio.lowlevel.checkpoint()
        return 7

    assert run(main()) == 7


@pytest.fixture
def signals() -> Iterator[None]:
    """A run that a signal has ended leaves the process to its end; this one goes on."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_signals_of_one_moment_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout -s INT` sends two within milliseconds: the second one disturbs neither the clean-up nor the exit."""
    times = iter([100.0, 100.9])
    monkeypatch.setattr("tricklecast.app.cli.monotonic", lambda: next(times, 101.5))
    cleaned: list[str] = []

    async def main() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await anyio.sleep_forever()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(3):
                await asyncio.sleep(0)
            cleaned.append("up")

    with pytest.raises(typer.Exit) as left:
        run(main())
    assert (cleaned, left.value.exit_code) == (["up"], 130)
    os.kill(os.getpid(), signal.SIGINT)  # while the process exits


@pytest.mark.usefixtures("signals")
def test_a_later_signal_cancels_the_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who presses Ctrl-C again after a second does not wait for the end of the command."""
    times = iter([100.0, 101.0])
    monkeypatch.setattr("tricklecast.app.cli.monotonic", lambda: next(times))

    async def main() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await anyio.sleep_forever()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            with anyio.CancelScope(shield=True):
                await anyio.sleep_forever()

    with pytest.raises(typer.Exit) as left:
        run(main())
    assert left.value.exit_code == 130


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_in_order(number: signal.Signals) -> None:
    """The coroutine may clean up, waiting included; the exit code is the shells'."""
    cleaned: list[str] = []

    async def main() -> None:
        os.kill(os.getpid(), number)
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                cleaned.append("up")

    with pytest.raises(typer.Exit) as left:
        run(main())
    assert left.value.exit_code == 128 + number
    assert cleaned == ["up"]


def test_what_was_started_to_outlive_the_terminal_does() -> None:
    """Where SIGHUP is ignored, as under `nohup`, it stays so."""

    async def main() -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        await anyio.lowlevel.checkpoint()
        return 7

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(main()) == 7
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_cancellation_of_its_own_is_an_error() -> None:
    """Without a signal, a cancellation that comes out is a fault, and is not hidden behind an exit code."""

    async def main() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(main())


def test_the_signature_stays() -> None:
    """Options are read off the wrapped function; one that is no coroutine is left as it is."""

    async def command(count: int = 3) -> int:
        await anyio.lowlevel.checkpoint()
        return count

    def plain() -> None: ...

    assert inspect.signature(runnable(command)) == inspect.signature(command)
    assert runnable(command)(count=5) == 5
    assert runnable(plain) is plain


@pytest.mark.parametrize(("mask", "used"), [(0o022, 0o027), (0o077, 0o077)])
def test_private_files(mask: int, used: int) -> None:
    """A command whose files name channels makes none that others can read; a stricter mask of the user's stays."""

    def command() -> int:
        os.umask(found := os.umask(0))
        return found

    before = os.umask(mask)
    try:
        assert (runnable(command, private=True)(), command()) == (used, mask)
    finally:
        os.umask(before)


def test_commands_that_make_private_files() -> None:
    """Those that write data directories, access logs and reports; files of media are the user's own."""
    private = {name for name, mount in COMMANDS.items() if is_private(name, mount)}
    assert {"serve", "storms", "storms watch", "logs compact", "store prune", "simulate"} <= private
    assert not private & {"publish", "subscribe", "check", "ingest", "demo"}


# Help.


def helps() -> dict[str, str]:
    """The help of each command."""
    shown = {}
    for name in COMMANDS:
        command = load(name)
        shown[name] = command.get_help(typer.Context(command, info_name=f"tricklecast {name}"))
    return shown


def test_every_help_has_an_example_and_no_python_types() -> None:
    """An example begins with the command; values have names such as FILE, not ``<str>``; arguments no brackets."""
    for name, text in helps().items():
        assert f"    tricklecast {name}" in text, name
        assert "Exit codes: " in text or name in ("serve", "token create", "logs schema"), name
        usage = text.partition("\n")[0]
        assert not {"<", "{", "......"} & set(usage.split()), usage
        assert not re.search(r"<(str|int|bool|float|file|path|list)|\[required\]|\{[A-Z]|\.{4}", text), name


def test_the_usage_names_what_must_be_given() -> None:
    """Options, too; the others stand for themselves."""
    text = helps()
    assert text["clip"].startswith("Usage: tricklecast clip --output FILE --since TIME [OPTIONS] URL\n")
    assert text["publish"].startswith("Usage: tricklecast publish [OPTIONS] URL INPUT\n")


def test_options_are_in_groups() -> None:
    """The most important options come first, below `Options`; each further group has its own heading."""
    text = helps()["publish"]
    headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings[:3] == ["Arguments:", "Options:", "Segments:"]
    assert headings[-2:] == ["Connection:", "Other options:"]
    options = text[text.index("\nOptions:") : text.index("\nSegments:")]
    assert 1 <= options.count("\n  --") <= 5


def test_an_option_means_the_same_in_all_commands() -> None:
    """An option that is a flag in one command takes a value in no other one.

    The demo's ``--cluster`` runs a cluster of its own; that of a server names the one to enter.
    """
    takes_value: dict[str, dict[str, bool]] = {}
    for name in COMMANDS:
        for param in load(name).params:
            if param.param_type_name == "option":
                for option in param.opts:
                    if (name, option) != ("demo", "--cluster"):
                        takes_value.setdefault(option, {})[name] = not param.is_flag
    assert {option: found for option, found in takes_value.items() if len({*found.values()}) > 1} == {}


def test_help_is_quick() -> None:
    """It imports nothing that takes longer than 0.1 s; only `serve` needs pydantic, for its settings."""
    code = (
        "import sys\nfrom tricklecast.app.cli import COMMANDS, main\n"
        "for name in ['', *COMMANDS]:\n"
        "    if name != 'serve':\n"
        "        sys.argv = ['tricklecast', *name.split(), '--help']\n"
        "        main()\n"
        f"print('LOADED', [name for name in {SLOW!r} if name in sys.modules])"
    )
    result = python(code)
    assert result.stdout.splitlines()[-1] == "LOADED []", result.stdout + result.stderr


SLOW = ("pydantic", "httpx", "anyio", "asyncio", "rich", "jwt", "cryptography", "av", "numpy", "duckdb", "pyspark")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--help"], ""),
        (["publish", "--help"], "publish"),
        (["storms", "watch", "x", "--help"], "storms watch"),
        (["storms", "x", "--help"], "storms"),
        (["storms", "--", "--help"], None),
        (["publish"], None),
        (["logs", "--help"], None),
        ([], None),
    ],
)
def test_which_help_is_wanted(arguments: list[str], wanted: str | None) -> None:
    """That of the command before it; behind ``--`` it is an argument."""
    assert wanted_help(arguments) == wanted
