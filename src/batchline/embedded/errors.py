"""Errors of the embedded server."""


class EmbeddedPostgresError(Exception):
    """Creating, starting or stopping the embedded PostgreSQL failed. The message says why and what to do."""


class EmbeddedDiskFull(EmbeddedPostgresError):
    """The disk of the embedded PostgreSQL is full. Once there is space, it starts and recovers by itself."""
