"""What lies outside the base path: management, health, metrics. FastAPI; nothing here is hot."""
