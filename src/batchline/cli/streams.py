"""Standard streams that were closed before the program started (`>&-`, `<&-`), or cannot be written to."""

import os
import sys
from typing import TextIO


def open_closed_streams() -> None:
    """Open /dev/null as each closed standard stream. Call this before anything else is opened.

    Without this, the next file or socket that the program opens gets the number of a closed stream: a
    database connection becomes "stdout", and libuv aborts on a closed stdin.
    """
    # In this order, because the system assigns the lowest free number.
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)
    # Python has no object for a stream that was closed.
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", errors="replace", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", errors="replace", closefd=False)


def drop_unwritten() -> bool:
    """Drop output that cannot be written; whether there was some on standard output.

    Python tries again to write it at exit, and then ends with a code of its own, 120.
    """
    lost = [stream for stream in (sys.stdout, sys.stderr) if not _flushed(stream)]
    for stream in lost:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return sys.stdout in lost


def _flushed(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True
