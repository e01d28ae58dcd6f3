"""Errors in logs without their messages: a message may quote a prompt, an answer or a secret of an item."""

import traceback

# Of an error and its causes. Those that were raised last are kept, and so are the innermost frames.
_MAX_CAUSES = 20
_MAX_FRAMES = 100


def traceback_of(error: BaseException) -> str:
    """Where the error was raised and what kind it is, and so for its causes."""
    parts: list[str] = []
    # `raise error from error` makes an error its own cause.
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen and len(seen) < _MAX_CAUSES:
        seen.add(id(cause))
        frames = "".join(traceback.format_tb(cause.__traceback__, -_MAX_FRAMES))
        parts.insert(0, f"{frames}{type(cause).__module__}.{type(cause).__qualname__} (message not shown)")
        cause = cause.__cause__
    return "\n\nwhich led to:\n\n".join(parts)
