"""HTTP to the core and back: the only hot code.

A published byte goes from the socket to :mod:`app.http1.connection` (parsed body), ``upload``, the writer token, the
segment (which encodes the frame once), each ``reader`` and their sockets. That is one synchronous call chain: no queue,
no task, no step back. docs/explanation/architecture.md draws a GET and a POST.
"""
