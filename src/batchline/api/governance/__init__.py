"""The part of the HTTP API for governed operations, under /api/v1."""
