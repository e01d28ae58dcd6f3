"""Errors in logs without their messages: a message may quote a prompt, an answer or a secret of an item."""

import traceback


def traceback_of(error: BaseException) -> str:
    """Where the error was raised and what kind it is, and so for its causes."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        frames = "".join(traceback.format_tb(cause.__traceback__))
        parts.insert(0, f"{frames}{type(cause).__module__}.{type(cause).__qualname__} (message not shown)")
        cause = cause.__cause__
    return "\n\nwhich led to:\n\n".join(parts)
