"""The part of the HTTP API for administrators, under /api/v1/admin."""
