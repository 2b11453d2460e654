"""A program beside a client: what it is given, what it says, and its end."""

from __future__ import annotations

import logging
import os
import signal
import sys
from threading import Event

import anyio
import pytest

from tricklecast.trickle.client.program import KEPT_BYTES, Program

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


@both
def test_a_program_takes_bytes_and_ends(backend: str) -> None:
    """It reads until its input is closed; its exit code and the end of its standard error are known."""

    async def main() -> None:
        code = "import sys; data = sys.stdin.read(); sys.stderr.write('x' * 5000 + data + '\\n'); sys.exit(3)"
        program = await Program.start(python(code), takes_input=True)
        await program.input.send(b"given")
        await program.input.aclose()
        assert await program.wait() == 3
        words = await program.last_words(60)
        assert words.endswith("xgiven")
        assert len(words) == KEPT_BYTES - 1
        await program.stop()

    anyio.run(main, backend=backend)


@both
def test_a_program_that_runs_is_ended_with_its_children(backend: str) -> None:
    """It gives bytes; none of them has its pipes any more."""

    async def main() -> None:
        code = "import os, time; os.fork() or print('up', flush=True); time.sleep(600)"
        program = await Program.start(python(code))
        assert await program.output.receive() == b"up\n"
        assert await program.last_words(0) == ""
        program.kill()
        with pytest.raises(anyio.EndOfStream):  # neither of them has it open
            await program.output.receive()
        await program.stop()

    anyio.run(main, backend=backend)


@both
def test_a_program_that_has_just_ended_is_left_to_the_event_loop(
    backend: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the loop collects it, and so knows its exit code: it warns of no child that it does not know."""
    collect, may_collect = os.waitpid, Event()

    def later(pid: int, options: int) -> tuple[int, int]:
        may_collect.wait()
        return collect(pid, options)

    monkeypatch.setattr(os, "waitpid", later)  # asyncio's; subprocess has its own

    async def main() -> None:
        program = await Program.start(["sleep", "600"])
        pid = program._process.pid
        os.kill(pid, signal.SIGTERM)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it is dead, and the loop does not know it
        program.kill()
        may_collect.set()
        assert await program.wait() == -signal.SIGTERM
        program.kill()
        await program.stop()

    with caplog.at_level(logging.WARNING):
        anyio.run(main, backend=backend)
    assert caplog.messages == []
