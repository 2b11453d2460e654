"""A DAG: incidents of the last two hours as rows of a table, every hour (examples/storms_table.py).

Put it into Airflow's folder of DAGs, storms_table.py and the package where the cluster reads them, and make the
connection spark_default (Airflow's provider apache-airflow-providers-apache-spark).
"""

from datetime import datetime, timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

with DAG(
    "storms",
    schedule="17 * * * *",
    start_date=datetime(2025, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 1, "retry_delay": timedelta(minutes=5), "execution_timeout": timedelta(minutes=50)},
):
    SparkSubmitOperator(
        task_id="incidents",
        name="storms",
        application="s3a://jobs/storms_table.py",
        py_files="s3a://jobs/tricklecast.zip",
        deploy_mode="cluster",
        application_args=["s3a://logs/access", "s3a://tables/incidents", "--hours", "2"],
        driver_memory="1g",
        executor_memory="1g",
        executor_cores=2,
        num_executors=4,
        # DuckDB and Python take their memory beside Java's.
        conf={"spark.executor.memoryOverhead": "3g"},
    )
