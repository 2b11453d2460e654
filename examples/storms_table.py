"""Incidents of the last hours as rows of a table, by a Spark job that needs no local file.

spark-submit --master MASTER --deploy-mode cluster storms_table.py LOG TABLE [--hours N]

LOG is the folder that "tricklecast logs compact" writes; TABLE is a path or URL for Parquet, to which rows are added.
Rows of one incident have the same id: the last one counts.
"""

import argparse
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tricklecast.analytics import incidents


def main() -> None:
    """Reads the records of the last hours, and adds what was found in them to the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log")
    parser.add_argument("table")
    parser.add_argument("--hours", type=int, default=0, help="of the log, and the present one; 0 (the default) is all")
    options = parser.parse_args()
    spark = SparkSession.builder.appName("storms").getOrCreate()
    now, where = datetime.now(UTC), options.log
    if options.hours:  # only these folders are listed
        hours = (now - timedelta(hours=back) for back in range(options.hours + 1))
        where += "/{" + ",".join(f"{hour:dt=%Y-%m-%d/hr=%H}" for hour in hours) + "}"
    lines = spark.read.option("recursiveFileLookup", "true").option("mergeSchema", "true").parquet(where)
    found = incidents(lines).withColumn("found", F.current_timestamp()).persist()
    found.write.mode("append").parquet(options.table)
    print(f"{found.count()} incidents")


if __name__ == "__main__":
    main()
