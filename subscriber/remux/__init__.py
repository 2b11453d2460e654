"""Segments of media joined into one file that players can seek in, without re-encoding.

Everything but :mod:`tricklecast.subscriber.remux.output` blocks, and runs in a worker thread.
"""
