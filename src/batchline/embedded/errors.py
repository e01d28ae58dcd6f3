"""The one error of the embedded server."""


class EmbeddedPostgresError(Exception):
    """The embedded PostgreSQL cannot be made, started or stopped; the message says why and what to do."""
