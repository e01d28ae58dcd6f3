"""The log of the library in a program of somebody else."""

import logging
from typing import Any

import structlog

from batchline.secrets.masking import masked_text


def use_standard_logging() -> None:
    """Write to the standard library's loggers `batchline.…`, unless the program has set structlog up: by
    default structlog writes everything to stdout."""
    if structlog.is_configured():
        return
    level = logging.getLogger("batchline").getEffectiveLevel()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
            _without_secrets,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _without_secrets(_logger: Any, _method: str, line: Any) -> tuple[tuple[str, str], dict[str, Any]]:
    # As an argument, so that a percent sign in it means nothing.
    return ("%s", masked_text(str(line))), {}
