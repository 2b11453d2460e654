"""Everything that Spark does: :mod:`~analytics.spark.session` starts it, :mod:`~analytics.spark.lines` reads with it,
:mod:`~analytics.spark.scan` adds up and reduces on executors, :mod:`~analytics.spark.frames` is the Python API,
:mod:`~analytics.spark.stream` the watch for more than one machine.
Nothing elsewhere imports pyspark.

Spark hands out work and brings rows together; parsing, roll-up and rules are the SQL of the embedded engine, run by a
DuckDB in each Python worker (docs/adr/0020). No ``sparkContext``, RDD or private name of pyspark: a session may be one
of Spark Connect, or the user's own.
"""
