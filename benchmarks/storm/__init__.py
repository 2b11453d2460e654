"""The storm report under a stopwatch: made logs, workers with a Spark session of their own, tables."""
