"""Logs for benchmarks/storms.py, and the processes that it measures beside the command."""
