"""The storm report as a Spark job: spark-submit --master MASTER storms_job.py LOG... [OPTIONS of tricklecast storms]

Where the job runs, how many executors it gets and which storage it can read is spark-submit's business.
"""

import sys

from tricklecast.app.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "storms")
    main()
