"""The sequencer: all state changes of all channels, synchronous, deterministic and sans-IO.

Nothing in this package knows of sockets, HTTP messages, event loops, clocks or randomness: ``now`` (seconds of any
monotonic clock) is an argument, and who must hear of a change is an object that the caller passed in.
"""
