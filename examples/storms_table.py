"""Incidents of the last hours as rows of a table, by a Spark job that needs no local file.

spark-submit --master MASTER --deploy-mode cluster storms_table.py LOG TABLE [--hours N]

LOG is what "tricklecast logs compact" writes; TABLE is a path or URL for Parquet, to which rows are added. Rows of one
incident have the same id: the last one counts.
"""

import argparse
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tricklecast.analytics import incidents


def main() -> None:
    """Reads the records of the last hours, and adds what was found in them to the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log")
    parser.add_argument("table")
    parser.add_argument("--hours", type=float, default=0.0, help="of the log; 0 (the default) is all of it")
    options = parser.parse_args()
    spark = SparkSession.builder.appName("storms").getOrCreate()
    lines = spark.read.option("recursiveFileLookup", "true").option("mergeSchema", "true").parquet(options.log)
    if options.hours:
        lines = lines.where(F.col("ts_us") >= round((time.time() - 3600 * options.hours) * 1e6))
    found = incidents(lines).withColumn("found", F.current_timestamp())
    found.write.mode("append").parquet(options.table)
    print(f"{found.count()} incidents")


if __name__ == "__main__":
    main()
