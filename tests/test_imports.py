"""What a program loads with the clients: nothing of a command line, a server or a report."""

from __future__ import annotations

import subprocess
import sys

import pytest

NOT_FOR_CLIENTS = (
    *("typer", "click", "rich", "pygments", "pydantic", "pydantic_settings", "fastapi", "starlette", "uvicorn"),
    *("httptools", "uvloop", "jinja2", "aiofiles", "cachetools", "prometheus_client", "orjson"),
    *("httpx", "httpcore", "certifi", "aiohappyeyeballs", "email", "http"),
    *("av", "numpy", "duckdb", "pyspark", "pyarrow", "pandas", "msgspec", "stamina", "nats", "jwt"),
)


def loaded_by(program: str) -> set[str]:
    """The names of the packages that a program loads."""
    shown = f"{program}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules if sys.modules[name]}})"
    done = subprocess.run([sys.executable, "-c", shown], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "program",
    [
        "import tricklecast",
        "from tricklecast import Channel, Publisher, Subscriber",
        "from tricklecast.subscriber import record",
        "from tricklecast import list_channels",
        "import tricklecast.trickle.client.control",
        "import tricklecast.media",  # with PyAV when it is used
    ],
)
def test_clients_load_no_commands_and_no_server(program: str) -> None:
    """Whatever is installed: loading it would make each program that publishes or subscribes start later."""
    assert loaded_by(program) & set(NOT_FOR_CLIENTS) == set()


def test_clients_without_async_load_no_more() -> None:
    """But what reads JSON, for `messages()` and `lines()`."""
    assert loaded_by("import tricklecast.sync") & set(NOT_FOR_CLIENTS) == {"orjson"}


def test_the_clients_load_no_event_loop() -> None:
    """The program loads the one that it runs."""
    assert loaded_by("from tricklecast import Channel, Publisher, Subscriber") & {"asyncio", "trio"} == set()


def test_the_name_alone_loads_no_client() -> None:
    """Every command imports it."""
    assert loaded_by("import tricklecast") & {"httpx", "anyio", "asyncio", "ssl"} == set()
