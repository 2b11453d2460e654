"""HTTP to the core and back: the only hot code.

The way of a published byte: socket -> ``protocol`` (parsed body) -> ``publish`` -> writer token -> segment (frame
encoded once) -> each ``reader`` -> sockets. One synchronous call chain: no queue, no task, no step back.
"""
