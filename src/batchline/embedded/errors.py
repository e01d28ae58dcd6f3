"""The errors of the embedded server."""


class EmbeddedPostgresError(Exception):
    """The embedded PostgreSQL cannot be made, started or stopped; the message says why and what to do."""


class EmbeddedDiskFull(EmbeddedPostgresError):
    """The embedded PostgreSQL has no room on its disk. Once there is, it starts and recovers by itself."""
