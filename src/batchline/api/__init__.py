"""The HTTP API: FastAPI over the engine."""
