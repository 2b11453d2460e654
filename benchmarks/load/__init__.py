"""The load generator: one process, raw non-blocking sockets, just enough HTTP."""
