"""The message while the embedded PostgreSQL starts, so that no command seems to hang."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.live import Live
from rich.text import Text

from batchline.cli.display.console import SafeConsole, err
from batchline.cli.display.screen import can_redraw


@contextmanager
def starting_postgresql(folder: Path, *, lasting: bool) -> Iterator[None]:
    """Say so on stderr. On a terminal the message is removed afterwards; elsewhere it is a line: for
    the first start, which takes seconds, and for commands whose log somebody keeps (`lasting`)."""
    first = not (folder / "postgres").exists()
    message = f"starting PostgreSQL with a new database in {folder}…" if first else "starting PostgreSQL…"
    console = err()
    if not can_redraw(console):
        if lasting or first:
            console.print(message, markup=False)
        yield
        return
    # Without the console's soft wrapping: a line that the terminal wraps would not be erased.
    line = Text(message, no_wrap=True, overflow="ellipsis")
    with Live(line, console=SafeConsole(file=console.file), auto_refresh=False, transient=True):
        yield
