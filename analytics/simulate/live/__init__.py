"""Misbehaving clients against a real server: storms of every class, bounded, so that logs of real ones exist.

``stage`` is what an act has to work with, ``acts`` are the misbehaviours, ``run`` plays them and writes down what was
done. Nothing here asks the server for more than it was told to: every act has a number of requests and a pace.
"""
