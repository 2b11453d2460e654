"""The contracts between tricklecast's server, clients and analytics: pure, standard library only.

Nothing here reads a clock, draws a random number or opens a file; what needs one takes it as an argument.
"""

__version__ = "0.1.0"
