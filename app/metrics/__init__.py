"""Prometheus metrics: each scrape reads what the server counts anyway."""
