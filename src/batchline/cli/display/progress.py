"""The progress display of a batch: done of total, rate, time left, items by state, tokens.

On a terminal it is a bar. Elsewhere it is a line every few seconds.
"""

import time
from collections import deque
from typing import Self
from uuid import UUID

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from batchline.cli.display.console import finalize_trouble, printable
from batchline.cli.display.failures import failure_lines
from batchline.model import Batch, BatchStatus, CauseCount, ItemCounts
from batchline.store import batches, failures
from batchline.store.session import Session

_PLAIN_EVERY = 5.0
_RATE_WINDOW = 10.0
# Causes of failures that are shown while the batch runs.
_CAUSES = 3


class Snapshot(msgspec.Struct, frozen=True):
    """The progress of a batch at one moment."""

    status: BatchStatus
    counts: ItemCounts
    tokens: int
    rate: float
    note: str = ""
    # Completed items whose answers were copied from earlier batches.
    reused: int = 0
    causes: tuple[CauseCount, ...] = ()

    @property
    def total(self) -> int:
        return self.counts.total

    @property
    def done(self) -> int:
        return self.counts.completed + self.counts.failed

    @property
    def seconds_left(self) -> float | None:
        return (self.total - self.done) / self.rate if self.rate > 0 else None


class Gauge:
    """Reads a batch and measures its rate."""

    def __init__(self, session: Session, batch_id: UUID) -> None:
        self._session = session
        self._batch_id = batch_id
        self._marks: deque[tuple[float, int]] = deque()

    async def read(self, note: str = "") -> tuple[Batch, Snapshot]:
        batch = await batches.get(self._session, self._batch_id)
        if batch is None:
            raise batches.FileNotFound(f"there is no batch {self._batch_id}")
        return batch, Snapshot(
            status=batch.status,
            counts=batch.counts,
            tokens=batch.input_tokens + batch.output_tokens,
            rate=self._rate(batch.finished),
            note=note or finalize_trouble(batch) or "",
            reused=batch.reused,
            causes=tuple(await failures.causes(self._session, batch)),
        )

    def _rate(self, done: int) -> float:
        now = time.monotonic()
        self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[0][0] > _RATE_WINDOW:
            self._marks.popleft()
        (first, before), (last, after) = self._marks[0], self._marks[-1]
        return (after - before) / (last - first) if last > first else 0.0


class Display:
    """Shows nothing: with `--json`, stdout is for the document."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return

    def show(self, snapshot: Snapshot) -> None:
        return


class LiveDisplay(Display):
    """A bar on a terminal."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = title
        self._live = Live(console=console, refresh_per_second=8, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        grid = Table.grid(padding=(0, 2))
        grid.add_row(
            Text(self._title, style="bold"),
            ProgressBar(total=snapshot.total, completed=snapshot.done, width=32),
            Text(f"{snapshot.done:,} of {snapshot.total:,}", style="bold"),
            Text(f"{100 * snapshot.done / snapshot.total:.0f}%"),
        )
        why = [Text(f"  {line}", overflow="ellipsis", no_wrap=True) for line in _failures(snapshot)]
        self._live.update(Group(grid, _facts(snapshot), *why))


class PlainDisplay(Display):
    """A line every few seconds, and one whenever the status changes."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._next = 0.0
        self._last: tuple[BatchStatus, str, list[str]] | None = None

    def show(self, snapshot: Snapshot) -> None:
        causes = sorted(each.key for each in snapshot.causes[:_CAUSES])
        now, key = time.monotonic(), (snapshot.status, snapshot.note, causes)
        if now < self._next and key == self._last:
            return
        self._next, self._last = now + _PLAIN_EVERY, key
        line = f"{self._title}: {snapshot.done:,} of {snapshot.total:,} done, {_facts(snapshot).plain}"
        self._console.print("\n  ".join([line, *_failures(snapshot)]), markup=False)


def display(console: Console, title: str, *, silent: bool = False) -> Display:
    if silent:
        return Display()
    return LiveDisplay(console, title) if console.is_terminal else PlainDisplay(console, title)


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(number: int) -> str:
    """1,234 below a hundred thousand, then 123 k, 1.2 M, 3.4 G."""
    if number < 100_000:
        return f"{number:,}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if number < 1_000 * size or unit == "G":
            return f"{number / size:.3g} {unit}"
    raise AssertionError(number)


def _failures(snapshot: Snapshot) -> list[str]:
    return [printable(line) for line in failure_lines(snapshot.causes, _CAUSES)]


def _facts(snapshot: Snapshot) -> Text:
    text = Text()
    text.append(snapshot.status.value, style="cyan")
    text.append(f"  {snapshot.rate:,.0f}/s")
    left = snapshot.seconds_left
    if left is not None and snapshot.done < snapshot.total:
        text.append(f"  {duration(left)} left")
    counts = snapshot.counts
    text.append(f"  {counts.pending:,} pending  {counts.in_progress:,} in progress")
    text.append(f"  {counts.retrying:,} retrying", style="yellow" if counts.retrying else "")
    text.append(f"  {counts.failed:,} failed", style="red" if counts.failed else "")
    if snapshot.reused:
        text.append(f"  {snapshot.reused:,} reused")
    for name, never_run in (("cancelled", counts.cancelled), ("expired", counts.expired)):
        if never_run:
            text.append(f"  {never_run:,} {name}", style="yellow")
    text.append(f"  {count(snapshot.tokens)} tokens")
    if snapshot.note:
        text.append(f"  {snapshot.note}", style="yellow")
    return text
