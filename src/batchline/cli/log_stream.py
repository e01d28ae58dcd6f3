"""Where log lines go: to standard error, whatever becomes of it."""

import sys
from typing import TextIO


class StderrLogger:
    """Writes log lines to the `sys.stderr` of the moment, and never raises because of it.

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
            # The one error that is not raised: whoever read the log is gone (EPIPE), its disk is full, or the
            # stream is closed (ValueError). There is nowhere left to report that, and raising it would end
            # the worker: its batches matter more than its log. Later lines are tried again.
            return

    log = debug = info = warn = warning = error = err = critical = fatal = failure = exception = msg


def stderr_logger(*_names: object) -> StderrLogger:
    """Make a logger, as structlog asks for it."""
    return StderrLogger()


def is_terminal() -> bool:
    """Whether standard error is a terminal, as far as there is one."""
    stream: TextIO | None = sys.stderr
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False
