"""Logging of all commands: to stderr, as text or as JSON, without secrets. Stdout is for results."""

import logging
from collections.abc import MutableMapping
from typing import Any

import msgspec
import structlog
from structlog.processors import TimeStamper, add_log_level, format_exc_info

from batchline.cli.log_stream import StderrLogger, is_terminal, stderr_logger
from batchline.secrets.masking import MASK, is_secret_name, masked_text


def set_up_logging(verbose: bool = False, as_json: bool = False) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_log_level,
            TimeStamper(fmt="iso"),
            # Neither shows local variables: they hold prompts and keys.
            *([format_exc_info, _json_line] if as_json else [_text_renderer(), _without_secrets]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO if verbose else logging.WARNING),
        logger_factory=stderr_logger,
        cache_logger_on_first_use=False,
    )
    if as_json:
        # The embedded server and libraries use the standard library's loggers.
        logging.basicConfig(handlers=[_Forwarding()], force=True)


def _text_renderer() -> structlog.typing.Processor:
    return structlog.dev.ConsoleRenderer(
        colors=is_terminal(), exception_formatter=structlog.dev.plain_traceback
    )


def _without_secrets(_logger: Any, _method: str, line: Any) -> str:
    """Mask secrets in the finished line. Errors quote data, such as the row that the database refused."""
    return masked_text(str(line))


def _json_line(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    """Secrets are masked value by value, so that the line stays JSON."""
    return msgspec.json.encode({name: _masked(name, value) for name, value in event.items()}).decode()


def _masked(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    return MASK if is_secret_name(name) else masked_text(str(value))


class _Forwarding(logging.Handler):
    """Writes records of the standard library's loggers as JSON, too."""

    def emit(self, record: logging.LogRecord) -> None:
        event = {"event": record.getMessage(), "logger": record.name, "level": record.levelname.lower()}
        StderrLogger().msg(_json_line(None, "", TimeStamper(fmt="iso")(None, "", event)))
