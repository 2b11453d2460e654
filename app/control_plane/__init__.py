"""The control plane: management, health and metrics, outside the base path. FastAPI; nothing here is hot."""
