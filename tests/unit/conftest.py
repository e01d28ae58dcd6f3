"""Unit tests use no database and start no process, so that all of them run in seconds."""

from io import StringIO

import pytest
import structlog


@pytest.fixture(scope="session")
def server_url() -> str:
    """Refuses the database that the other folders share."""
    pytest.fail("tests/unit has no database; a test that needs one goes into another folder", pytrace=False)


@pytest.fixture
def log() -> StringIO:
    """What a person would see of the log, tracebacks with their local variables included."""
    stream = StringIO()
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.dev.ConsoleRenderer(colors=False)],
        logger_factory=structlog.PrintLoggerFactory(stream),
    )
    return stream
