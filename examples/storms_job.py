"""The storm report as a Spark job: spark-submit --master MASTER storms_job.py LOG... [OPTIONS of tricklecast storms]

spark-submit decides where the job runs, how many executors it gets and which storage it can read.
"""

import sys

from tricklecast.app.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "storms")
    main()
