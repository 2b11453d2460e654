"""`tricklecast health`: it finds the server of its machine, whatever that was told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.deploy.support import ROOT
from tests.support.local import local_server
from tests.support.server import serve as running
from tricklecast.app.cli import cli
from tricklecast.app.health import Unhealthy, ask, remove_address, write_address
from tricklecast.app.server import serve
from tricklecast.app.settings import Settings
from tricklecast.trickle.errors import InvalidInput


def health(file: Path) -> Any:
    """Run the command as a container does: with nothing but its environment."""
    return CliRunner().invoke(cli, ["health"], env={"TRICKLECAST_HEALTH_FILE": str(file)})


@pytest.mark.parametrize("way", ["plain", "TLS control plane"])
def test_the_server_is_asked_where_it_listens(way: str, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    """The control plane's port where there is one, TLS where it is spoken; afterwards the note is gone."""
    file = tmp_path / "health"
    arguments = ["--health-file", str(file)]
    scheme = "http" if way == "plain" else "https"
    if way != "plain":
        arguments += ["--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1]), "--control-port", "0"]
    with running(*arguments, scheme=scheme) as server:
        address = file.read_text().strip()
        assert address.startswith(f"{scheme}://127.0.0.1:")
        assert (address == server.url) == (way == "plain")
        done = health(file)
        assert (done.exit_code, done.output) == (0, "ok\n")
        assert server.stop() == 0
    assert not file.exists()


def test_a_server_that_listens_everywhere_is_asked_here() -> None:
    """0.0.0.0 and :: are no addresses to connect to."""
    with local_server() as server:
        ask(f"http://0.0.0.0:{server.port}")
    with pytest.raises(Unhealthy, match=r"no answer from http://\[::\]:1: [A-Z]"):
        ask("http://[::]:1")


def test_there_is_no_server(tmp_path: Path) -> None:
    """None was started, one has gone without a word, or something else answers: an error that says which."""
    done = health(tmp_path / "none")
    assert isinstance(done.exception, Unhealthy)
    assert str(done.exception).startswith("no server has written its address: cannot read ")
    file = tmp_path / "stale"
    with local_server(control_port=0) as server:
        write_address(file, f"http://127.0.0.1:{server.port}")
        assert str(health(file).exception) == f"http://127.0.0.1:{server.port} answers 404"
    assert str(health(file).exception).startswith(f"no answer from http://127.0.0.1:{server.port}: ")


def test_the_note_of_a_later_server_stays(tmp_path: Path) -> None:
    """The former one ends after its successor has begun, and removes only its own."""
    file = tmp_path / "note"
    write_address(file, "http://127.0.0.1:1")
    write_address(file, "http://127.0.0.1:2")
    remove_address(file, "http://127.0.0.1:1")
    assert file.read_text() == "http://127.0.0.1:2\n"
    remove_address(file, "http://127.0.0.1:2")
    remove_address(file, "http://127.0.0.1:2")
    assert not file.exists()


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"ftp://x:1\n", b"http://x:99999\n", b"http://[::1:80\n", b"http://a:1\nmore\n"]
)
def test_a_note_that_is_damaged(text: bytes, tmp_path: Path) -> None:
    """One line with the name of the file, or with the address that is none."""
    file = tmp_path / "note"
    file.write_bytes(text)
    error = health(file).exception
    assert isinstance(error, Unhealthy)
    assert str(error).startswith((f"{file} does not hold the address of a server", "http://"))


def test_a_note_that_cannot_be_left_keeps_a_server_from_starting(tmp_path: Path) -> None:
    """One line with the setting."""
    settings = Settings.model_validate({"port": 0, "health_file": tmp_path / "none" / "file"})
    with pytest.raises(InvalidInput, match=r"^health_file: cannot write .*: No such file or directory$"):
        serve(settings, lambda address: None)


def test_a_folder_is_no_health_file(tmp_path: Path) -> None:
    """One line, and no second error on the way out."""
    settings = Settings.model_validate({"port": 0, "health_file": tmp_path})
    with pytest.raises(InvalidInput, match=r"^health_file: cannot write .*: Is a directory$"):
        serve(settings, lambda address: None)


def test_a_file_of_somebody_else_is_kept(tmp_path: Path) -> None:
    """A file that no server has written is neither overwritten nor removed; one of a killed server is overwritten."""
    file = tmp_path / "precious"
    for content in ("notes\n", "http://127.0.0.1:1/path\n", "http://127.0.0.1:1\nmore\n"):
        file.write_text(content)
        settings = Settings.model_validate({"port": 0, "health_file": file})
        with pytest.raises(InvalidInput, match=r"^health_file: .*precious exists and was not written by a server"):
            serve(settings, lambda address: None)
        assert file.read_text() == content
    with pytest.raises(InvalidInput, match="/dev/null exists and was not written by a server"):
        write_address(Path("/dev/null"), "http://127.0.0.1:1")
    for content in ("", "https://[::1]:7\n"):
        file.write_text(content)
        write_address(file, "http://127.0.0.1:1")
        assert file.read_text() == "http://127.0.0.1:1\n"


def test_the_image_asks_so() -> None:
    """Its health check knows no port."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert 'CMD ["tricklecast", "health"]' in dockerfile
    assert "ENV TRICKLECAST_HEALTH_FILE=/tmp/" in dockerfile
