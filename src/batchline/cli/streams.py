"""Standard streams that were closed before the program started (`>&-`, `<&-`).

Without this, the next file or socket that the program opens gets the number of a closed stream: a database
connection becomes "stdout", and libuv aborts on a closed stdin.
"""

import os
import sys


def open_closed_streams() -> None:
    """Open /dev/null as each closed standard stream. Call this before anything else is opened."""
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
