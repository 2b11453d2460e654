"""Benchmarks: what a delivered chunk costs, beside a floor and beside plain FastAPI."""
