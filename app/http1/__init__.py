"""HTTP/1.1: a connection parses requests, begins their exchanges in the data plane, and replays others to FastAPI."""
