"""What the data plane relies on in uvicorn and httptools, so that an incompatible release fails here, and says why.

`TrickleProtocol` is a subclass of `HttpToolsProtocol`. Every name below is used by it; none of them is promised by
uvicorn beyond the option `http=`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from functools import partial
from typing import Any, cast

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import Server, ServerState

from tricklecast.app.data_plane.connection import TrickleProtocol

CALLBACKS = (
    "on_message_begin",
    "on_url",
    "on_header",
    "on_headers_complete",
    "on_chunk_header",
    "on_body",
    "on_chunk_complete",
    "on_message_complete",
)


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers everything."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


class Transport(asyncio.Transport):
    """A transport that only remembers what was done to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 4711), "sockname": ("192.0.2.2", 80)})
        self.written = b""
        self.calls: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.calls.append("close")

    def is_closing(self) -> bool:
        return "close" in self.calls

    def pause_reading(self) -> None:
        self.calls.append("pause_reading")

    def resume_reading(self) -> None:
        self.calls.append("resume_reading")


def config(**options: Any) -> uvicorn.Config:
    """uvicorn's configuration as the server makes it, as far as the protocol is concerned."""
    return uvicorn.Config(hello, loop="none", ws="none", lifespan="off", interface="asgi3", log_config=None, **options)


async def connected(**options: Any) -> tuple[HttpToolsProtocol, Transport]:
    """uvicorn's own protocol on a fake transport."""
    transport = Transport()
    protocol = HttpToolsProtocol(config(**options), ServerState(), {}, asyncio.get_running_loop())
    protocol.connection_made(transport)
    return protocol, transport


def test_the_version_is_in_the_tested_range() -> None:
    """The range in pyproject.toml is what this file has passed against."""
    major, minor = (int(part) for part in uvicorn.__version__.split(".")[:2])
    assert (0, 34) <= (major, minor) < (0, 55), "widen the range in pyproject.toml only with this file passing"


def test_http_takes_a_factory_that_is_called_by_keyword() -> None:
    """`http=` accepts any callable, which gets config, server_state, app_state and _loop by keyword."""
    loaded = config(http=cast(Any, partial(TrickleProtocol, cast(Any, None))))
    loaded.load()
    assert isinstance(loaded.http_protocol_class, partial)
    source = inspect.getsource(Server.startup)
    for argument in ("config=config", "server_state=self.server_state", "app_state=self.lifespan.state", "_loop=_loop"):
        assert argument in source, f"uvicorn.Server no longer makes protocols with {argument}"


def test_the_constructor_has_the_signature_that_is_passed_on() -> None:
    """`TrickleProtocol.__init__` hands its arguments on by position."""
    parameters = list(inspect.signature(HttpToolsProtocol.__init__).parameters)
    assert parameters == ["self", "config", "server_state", "app_state", "_loop"]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("connection_made", ["transport"]),
        ("connection_lost", ["exc"]),
        ("data_received", ["data"]),
        ("pause_writing", []),
        ("resume_writing", []),
        ("on_response_complete", []),
        ("on_message_begin", []),
        ("on_url", ["url"]),
        ("on_header", ["name", "value"]),
        ("on_headers_complete", []),
        ("on_body", ["body"]),
        ("on_message_complete", []),
        ("_unset_keepalive_if_required", []),
        ("_should_upgrade", []),
        ("handle_websocket_upgrade", []),
    ],
)
def test_the_methods_that_are_overridden_or_called(name: str, parameters: list[str]) -> None:
    """Each method exists and takes what it is given."""
    method = getattr(HttpToolsProtocol, name, None)
    assert method is not None, f"uvicorn's HttpToolsProtocol has no {name} any more"
    assert list(inspect.signature(method).parameters)[1:] == parameters


def _vars_set_in(cls: type) -> set[str]:
    """Attributes that a class's constructor sets on `self`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls.__init__)))  # type: ignore[misc]
    targets = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return {node.attr for node in targets if isinstance(node.value, ast.Name) and node.value.id == "self"}


def test_nothing_of_ours_hides_something_of_uvicorns_by_accident() -> None:
    """What the data plane overrides is what it means to override; a new name in uvicorn must not collide."""
    meant = {
        "connection_made", "connection_lost", "data_received", "pause_writing", "resume_writing",
        "on_response_complete", "on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "pipeline",
        "on_message_complete",
    }  # fmt: skip
    bases = [base for base in TrickleProtocol.__mro__ if base.__module__.startswith("app.")]
    ours = {name for base in bases for name in vars(base)}
    for base in bases:
        ours |= _vars_set_in(base) if "__init__" in vars(base) else set()
    theirs = set(dir(HttpToolsProtocol)) | _vars_set_in(HttpToolsProtocol)
    assert "exchange" in ours
    assert "cycle" in theirs
    assert {name for name in ours & theirs if not name.startswith("__")} <= meant


@pytest.mark.parametrize(
    "name",
    [
        "transport",
        "flow",
        "parser",
        "server_state",
        "cycle",
        "pipeline",
        "timeout_keep_alive_task",
        "timeout_keep_alive",
        "timeout_keep_alive_handler",
        "client",
        "loop",
    ],
)
def test_the_attributes_that_are_read(name: str) -> None:
    """A connection has them from the moment that it is made."""

    async def main() -> None:
        protocol, _ = await connected()
        assert hasattr(protocol, name), f"uvicorn's HttpToolsProtocol has no {name} any more"

    asyncio.run(main())


def test_the_attributes_have_the_expected_kinds() -> None:
    """They are what their use in the data plane takes them for."""

    async def main() -> None:
        protocol, transport = await connected()
        assert protocol.transport is transport
        assert set(vars(FlowControl)) <= set(dir(protocol.flow)), "what takes the flow control's place can do the same"
        assert isinstance(protocol.parser, httptools.HttpRequestParser)
        assert isinstance(protocol.server_state.default_headers, list)
        assert protocol.cycle is None
        assert not protocol.pipeline
        assert protocol.timeout_keep_alive_task is None
        assert protocol.client == ("192.0.2.1", 4711)
        assert protocol in protocol.server_state.connections
        protocol.connection_lost(None)
        assert protocol not in protocol.server_state.connections

    asyncio.run(main())


def test_a_request_makes_a_cycle_and_its_end_arms_the_keep_alive() -> None:
    """`cycle.response_complete` tells whether FastAPI is done; then `on_response_complete` arms the timer."""

    async def main() -> None:
        protocol, transport = await connected(timeout_keep_alive=75)
        completed = []
        protocol.on_response_complete = lambda: completed.append(protocol.cycle.response_complete)  # type: ignore[method-assign]
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert isinstance(protocol.cycle, RequestResponseCycle)
        assert protocol.cycle.response_complete is False
        await asyncio.gather(*protocol.server_state.tasks)
        assert completed == [True]
        assert transport.written.endswith(b"\r\n\r\nhi")
        HttpToolsProtocol.on_response_complete(protocol)
        assert protocol.timeout_keep_alive_task is not None
        protocol._unset_keepalive_if_required()
        assert protocol.timeout_keep_alive_task is None

    asyncio.run(main())


def test_pipelined_requests_wait_at_the_right_end() -> None:
    """`cycle` is the last one that came; `pipeline[-1]` is the one that is begun next; `disconnected` silences one."""

    async def main() -> None:
        protocol, transport = await connected()
        protocol.data_received(b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
        first = protocol.cycle
        protocol.data_received(b"GET /2 HTTP/1.1\r\nHost: x\r\n\r\nGET /3 HTTP/1.1\r\nHost: x\r\n\r\n")
        waiting = [cycle.scope["path"] for cycle, _ in protocol.pipeline]
        assert (first.scope["path"], waiting, protocol.cycle.scope["path"]) == ("/1", ["/3", "/2"], "/3")
        first.disconnected = True
        await asyncio.gather(*protocol.server_state.tasks)
        assert transport.written == b""

    asyncio.run(main())


def test_the_end_of_a_response_resumes_reading() -> None:
    """`on_response_complete` resumes what `flow.pause_reading` has paused: the data plane counts on it."""

    async def main() -> None:
        protocol, transport = await connected()
        protocol.flow.pause_reading()
        protocol.on_response_complete()
        assert transport.calls == ["pause_reading", "resume_reading"]
        protocol.flow.resume_reading()
        assert transport.calls == ["pause_reading", "resume_reading"], "resuming twice must do nothing"
        protocol._unset_keepalive_if_required()

    asyncio.run(main())


def test_the_date_header_is_a_new_list_each_time() -> None:
    """The cache of the common header lines knows a new date by the identity of the list."""
    source = inspect.getsource(Server.on_tick)
    assert "self.server_state.default_headers = date_header + self.config.encoded_headers" in source


def test_the_server_has_the_hooks_that_are_overridden() -> None:
    """`app.server.Server` begins and ends with these, and stops by `should_exit` and `force_exit`."""
    assert list(inspect.signature(Server.startup).parameters) == ["self", "sockets"]
    assert list(inspect.signature(Server.shutdown).parameters) == ["self", "sockets"]
    assert list(inspect.signature(Server.handle_exit).parameters) == ["self", "sig", "frame"]
    assert list(inspect.signature(Server.on_tick).parameters) == ["self", "counter"]
    server = Server(config())
    assert (server.should_exit, server.force_exit) == (False, False)


class Recorder:
    """Notes the parser's callbacks."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in CALLBACKS:
            raise AttributeError(name)
        return lambda *arguments: self.calls.append((name, arguments))


def test_the_parser_calls_back_in_this_order() -> None:
    """httptools reports a chunked request head, chunk by chunk, and its end."""
    recorder = Recorder()
    httptools.HttpRequestParser(recorder).feed_data(
        b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"
    )
    assert recorder.calls == [
        ("on_message_begin", ()),
        ("on_url", (b"/a",)),
        ("on_header", (b"Transfer-Encoding", b"chunked")),
        ("on_headers_complete", ()),
        ("on_chunk_header", ()),
        ("on_body", (b"abc",)),
        ("on_chunk_complete", ()),
        ("on_chunk_header", ()),
        ("on_body", (b"d",)),
        ("on_chunk_complete", ()),
        ("on_chunk_header", ()),
        ("on_chunk_complete", ()),
        ("on_message_complete", ()),
    ]


def test_a_chunk_in_parts_is_reported_in_parts() -> None:
    """`on_chunk_complete` comes once, after the last part: so parts can be put together again."""
    recorder = Recorder()
    parser = httptools.HttpRequestParser(recorder)
    for part in (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nab", b"cd", b"ef\r\n"):
        parser.feed_data(part)
    assert [name for name, _ in recorder.calls[4:]] == ["on_chunk_header", *["on_body"] * 3, "on_chunk_complete"]


def test_an_upgrade_is_raised_with_the_offset_of_what_follows() -> None:
    """A request that offers another protocol ends parsing; its exception says where."""
    recorder = Recorder()
    parser = httptools.HttpRequestParser(recorder)
    head = b"POST /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as upgrade:
        parser.feed_data(head + b"abc")
    assert upgrade.value.args[0] == len(head)
    assert parser.should_upgrade()
    assert parser.get_method() == b"POST"


def test_the_parser_tells_version_and_keep_alive() -> None:
    """What a request's head means for its connection comes from the parser."""
    parser = httptools.HttpRequestParser(Recorder())
    parser.feed_data(b"GET /a HTTP/1.0\r\n\r\n")
    assert (parser.get_http_version(), parser.should_keep_alive()) == ("1.0", False)


def test_errors_of_the_parser_are_of_one_family() -> None:
    """Malformed bytes, and an exception in a callback, are both `HttpParserError`; an upgrade is none."""
    with pytest.raises(httptools.HttpParserError):
        httptools.HttpRequestParser(Recorder()).feed_data(b"nonsense\r\n\r\n")
    assert not issubclass(httptools.HttpParserUpgrade, httptools.HttpParserError)
    assert issubclass(httptools.HttpParserCallbackError, httptools.HttpParserError)
