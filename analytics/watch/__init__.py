"""Tells of retry storms while they happen: the roll-up and the rules of the report over the last minutes.

:mod:`~tricklecast.analytics.watch.followed` gives the lines that the logs have gained,
:mod:`~tricklecast.analytics.watch.window` keeps their roll-up and runs the rules,
:mod:`~tricklecast.analytics.watch.alerts` compares what they find with what was known, and
:mod:`~tricklecast.analytics.watch.deliver` tells it. There is no second set of rules.
"""
