"""The log's settings are the process's, and many tests share one."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def log_settings_restored() -> Iterator[None]:
    """Whatever is set up in here does not outlast it: not for the next test, in whatever order they run."""
    configured, settings = structlog.is_configured(), structlog.get_config()
    try:
        yield
    finally:
        structlog.contextvars.clear_contextvars()
        structlog.reset_defaults()
        if configured:
            structlog.configure(**settings)
