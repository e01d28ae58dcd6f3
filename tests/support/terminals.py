"""A command on a real terminal: a pty whose output an emulator interprets, so tests see what people see."""

import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby

import pyte

from tests.support.processes import PYTHON
from tests.support.waiting import LIMIT


class Terminal:
    """The screen, and all bytes that were written to it."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int, columns: int, rows: int) -> None:
        self.process = process
        self.raw = b""
        self._descriptor = descriptor
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self._screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def lines(self) -> list[str]:
        """What a person sees, without empty lines at the end."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip().split("\n")

    def styled(self) -> list[list[tuple[str, str]]]:
        """The same lines as texts with their styles, as Rich names them."""
        rows = [
            [self._screen.buffer[row][column] for column in range(len(line))]
            for row, line in enumerate(self.lines)
        ]
        return [
            [("".join(cell.data for cell in cells), style) for style, cells in groupby(row, _style)]
            for row in rows
        ]

    def press_ctrl_c(self) -> None:
        self.type("\x03")

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def wait_until(self, what: str, fact: Callable[[list[str]], object], limit: float = LIMIT) -> list[str]:
        """The lines of the first screen for which `fact` holds."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            if fact(self.lines):
                return self.lines
            if not self._read(0.1):
                break
        if fact(self.lines):
            return self.lines
        raise AssertionError(f"waited in vain for {what} on the screen:\n" + "\n".join(self.lines))

    def until_ended(self) -> list[str]:
        """The screen that the command leaves behind."""
        deadline = time.monotonic() + LIMIT
        while self._read(0.1):
            assert time.monotonic() < deadline, "the command does not end"
        self.process.wait(timeout=LIMIT)
        return self.lines

    def _read(self, seconds: float) -> bool:
        """False when the command has closed the terminal."""
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if not ready:
            return True
        try:
            block = os.read(self._descriptor, 65_536)
        except OSError:
            # Linux says so when no process has the terminal open any more.
            return False
        self.raw += block
        self._stream.feed(self._decoder.decode(block))
        return bool(block)


def _style(cell: pyte.screens.Char) -> str:
    colour = "" if cell.fg == "default" else f"#{cell.fg}" if len(cell.fg) == 6 else cell.fg
    return " ".join(filter(None, ("bold" if cell.bold else "", colour.replace("brown", "yellow"))))


@contextmanager
def on_terminal(*arguments: str, columns: int = 80, rows: int = 40, **environment: str) -> Iterator[Terminal]:
    """`batchline` on a terminal of this size; killed at the latest when the test is over."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    skipped = ("BATCHLINE_", "CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(skipped)}
    process = subprocess.Popen(
        [PYTHON, "-m", "batchline", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm-256color", **environment},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours, columns, rows)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(timeout=LIMIT)
        os.close(ours)
