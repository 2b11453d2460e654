"""The trickle protocol as executable rules: a black-box suite for any server, over raw sockets.

``tricklecast conformance URL`` runs it; ``tricklecast conformance --list`` is the protocol in one-line rules. It
needs the standard library and the contracts only, shares no code with the server, and judges by what goes over the
wire.
"""
