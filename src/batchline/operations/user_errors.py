"""What functions of the user raise on the worker's event loop: handlers, schedules and callbacks."""

import asyncio

from batchline.secrets.masking import masked_text

# A function must not end its worker, neither by `sys.exit` nor by a CancelledError of its own.
RAISED_BY_USERS = (Exception, SystemExit, asyncio.CancelledError)
_MAX_ERROR = 1_000


def is_cancellation(error: BaseException) -> bool:
    """Whether this task was cancelled, or is being closed. A function may raise CancelledError by itself."""
    if isinstance(error, GeneratorExit):
        return True
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def stored_reason(error: BaseException) -> str:
    """The error in a few words, as PostgreSQL stores text: UTF-8 without NUL."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001
        # The class is the user's, and may raise anything.
        message = ""
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return masked_text(text[:_MAX_ERROR].encode("utf-8", "replace").decode().replace("\0", "�"))
