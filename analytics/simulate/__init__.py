"""Logs with known truth: a believable fleet, storms of every class, look-alikes that are none, and a judge of reports.

They are written from the protocol and the definition of the classes, not from the rules: what was planted is the
truth, whatever a report says. :func:`analytics.simulate.run.simulate_logs` writes, :mod:`analytics.simulate.score`
compares.
"""
