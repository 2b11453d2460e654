"""A folder of hourly roll-ups, so that a daily report reads the new logs and kilobytes of what it knew before.

The folder has one Parquet file per hour, each row knowing the log that it came from, and a manifest that says which
files count. New files are written first, then the manifest is switched in one step, then the old files go: whatever
interrupts a run, the folder is as it was before it or as it is after it.
"""
