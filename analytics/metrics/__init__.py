"""Every figure beside the episodes, from the roll-up alone: how much was wanted, by whom it was wasted, what broke.

:mod:`.wanted` says what a repeat is; the other modules each make small frames from its rows and plain values from
those. :func:`analytics.metrics.measure.measure` runs all of them with two actions, whatever the number of
lines.
"""
