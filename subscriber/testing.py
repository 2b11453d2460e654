"""A real server for the tests of programs that subscribe: one process, on a free port, with its access log.

A fixture for pytest, without any plugin::

    @pytest.fixture(scope="session")
    def trickle_server():
        with subscriber.testing.server() as server:
            yield server

``server.url("cam")`` is a channel's URL, ``server.restart()`` what happens in production, and ``server.records()``
what was asked of the server. This needs the server's dependencies, which every installation of tricklecast has.
"""

from tricklecast.app.testing import ServerFailed, TestServer, server

__all__ = ["ServerFailed", "TestServer", "server"]
