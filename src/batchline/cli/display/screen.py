"""Where progress is displayed: a live area on a terminal, a line now and then elsewhere, or nowhere.

Messages and log lines appear above the live area, so nothing that happens breaks it.
"""

import os
import sys
import time
from typing import Self

from rich.console import Console
from rich.live import Live

from batchline.cli.display.console import SafeConsole, err
from batchline.cli.display.frame import MAX_CAUSES, Frame, plain_lines
from batchline.cli.display.progress import DisplayedProgress

# Pauses between lines of a log: short at first, longer for batches that take hours.
_FIRST_PAUSE = 5.0
_MAX_PAUSE = 60.0
# After a line, the pause grows to this part of the time since the start.
_GROWTH = 0.1


class Display:
    """Shows nothing: with `--json`, stdout is for the document."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return

    def show(self, progress: DisplayedProgress) -> None:
        return

    def say(self, message: str) -> None:
        """Print a message for a person."""
        return


class LiveDisplay(Display):
    """A live area at the bottom of a terminal. It stays as it was last."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = title
        # Not the console's own soft wrapping: a line that the terminal wraps would not be erased.
        self._console = SafeConsole(file=console.file, highlight=False, width=_given_width(console))
        self._live = Live(
            console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=_on_terminal()
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def show(self, progress: DisplayedProgress) -> None:
        self._live.update(Frame(self._title, progress), refresh=True)

    def say(self, message: str) -> None:
        if _on_terminal():
            self._console.print(message, markup=False, soft_wrap=True)
        else:
            err().print(message, markup=False)


class PlainDisplay(Display):
    """A line now and then, and one whenever the status changes, something goes wrong, or lines fail for a new
    cause."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._started = time.monotonic()
        self._next = 0.0
        self._last: tuple[object, ...] = ()

    def show(self, progress: DisplayedProgress) -> None:
        slow, now = progress.slowness, time.monotonic()
        causes = sorted(each.key for each in progress.causes[:MAX_CAUSES])
        key = (progress.status, slow.kind if slow is not None and slow.trouble else None, causes)
        if now < self._next and key == self._last:
            return
        pause = min(max(_FIRST_PAUSE, _GROWTH * (now - self._started)), _MAX_PAUSE)
        self._next, self._last = now + pause, key
        self._console.print(plain_lines(self._title, progress), markup=False)

    def say(self, message: str) -> None:
        err().print(message, markup=False)


def display(console: Console, title: str, *, silent: bool = False) -> Display:
    if silent:
        return Display()
    return LiveDisplay(console, title) if can_redraw(console) else PlainDisplay(console, title)


def can_redraw(console: Console) -> bool:
    """Whether lines can be drawn over: on a terminal that a person looks at.

    Not where only FORCE_COLOR makes Rich believe in a terminal, and not in CI: its logs keep everything.
    """
    return console.file.isatty() and not console.is_dumb_terminal and not os.environ.get("CI")


def _given_width(console: Console) -> int | None:
    """None: as wide as the terminal, also after it was resized."""
    return None if console.file.isatty() else console.width


def _on_terminal() -> bool:
    return bool(sys.stderr.isatty())
