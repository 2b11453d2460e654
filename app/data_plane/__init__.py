"""HTTP to the core and back: the only hot code.

The way of a published byte: socket → ``connection`` (parsed body) → ``upload`` → writer token → segment (frame encoded
once) → each ``reader`` → sockets. One synchronous call chain: no queue, no task, no step back.
docs/explanation/architecture.md draws a GET and a POST.
"""
