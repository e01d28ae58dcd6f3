"""The log of the library in a program of somebody else."""

import logging
from collections.abc import MutableMapping
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
            _as_text,
            _without_secrets,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _as_text(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> str:
    """A sentence with its details, and a traceback in lines of its own."""
    event, trace = fields.pop("event", ""), fields.pop("exception", None)
    details = ", ".join(f"{name} {value}" for name, value in fields.items())
    text = f"{event} ({details})" if details else str(event)
    return text if trace is None else f"{text}\n{trace}"


def _without_secrets(_logger: Any, _method: str, line: Any) -> tuple[tuple[str, str], dict[str, Any]]:
    # As an argument, so that a percent sign in it means nothing.
    return ("%s", masked_text(str(line))), {}
