"""From lines of any engine to a roll-up, and from the roll-up to what the rules read.

:mod:`~analytics.scan.normalise` tells what each line is, :mod:`~analytics.scan.rollup` adds lines up,
:mod:`~analytics.scan.reduce` keeps what could belong to a storm. All three are DuckDB's SQL:
:mod:`~analytics.scan.embedded` runs it over all lines in one process, :mod:`~analytics.spark.scan` in each executor
over a part of them.
"""
