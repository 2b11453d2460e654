"""Logs with known truth: a believable fleet, storms of every class, look-alikes that are none, and a scorer.

It is written from the protocol and the definition of the classes, not from the report's code: what was planted is the
truth, whatever the report says. :func:`analytics.simulate.run.simulate_logs` writes,
:mod:`analytics.simulate.score` compares.
"""
