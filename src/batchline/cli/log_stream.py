"""Log lines go to standard error, even if that is closed or full."""

import sys
from typing import TextIO


class StderrLogger:
    """Writes log lines to the current `sys.stderr`. It never raises.

    The stream is looked up for each line, so a replaced or closed stream is never written to again.
    """

    def msg(self, line: str) -> None:
        stream: TextIO | None = sys.stderr
        # None: the process was started without standard error.
        if stream is None:
            return
        try:
            stream.write(f"{line}\n")
            stream.flush()
        except (OSError, ValueError):
            # The log's reader is gone, its disk is full, or the stream is closed (ValueError). An error would
            # stop the worker, and there is nowhere to report it. Later lines are tried again.
            return

    log = debug = info = warn = warning = error = err = critical = fatal = failure = exception = msg


def stderr_logger(*_names: object) -> StderrLogger:
    """The logger factory for structlog."""
    return StderrLogger()


def is_terminal() -> bool:
    """Whether standard error is open and a terminal."""
    stream: TextIO | None = sys.stderr
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False
