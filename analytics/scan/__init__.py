"""From lines of any engine to a roll-up, and from the roll-up to what the rules read.

:mod:`~analytics.scan.normalise` tells what each line is, :mod:`~analytics.scan.rollup` adds lines up,
:mod:`~analytics.scan.reduce` keeps what could belong to a storm. All three are SQL in a subset that DuckDB and Spark
read alike; :mod:`~analytics.scan.embedded` and :mod:`~analytics.scan.spark` only read, run and write.
"""
