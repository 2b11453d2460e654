"""Finds retry storms in access logs with Spark: what looped, since when, against what, why, and what to do.

The way of a line: ``sources`` (read, normalise, name the kind of answer) → ``rollup`` (one scan, one ``groupBy``) →
``episodes`` (islands in time, thresholds) and ``fleet`` (many clients at once) → ``triggers`` (what happened just
before) → ``causes`` (words) → ``report``. Every transform is ``DataFrame -> DataFrame`` and uses Spark's own functions
only: no Python UDF, no RDD, and no window or sort above raw lines. ``job`` runs them; ``cli`` is the command.
"""
