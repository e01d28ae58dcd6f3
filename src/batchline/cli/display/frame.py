"""Draws the progress of a batch: a bar and lines of facts that fit the width, or one line of text."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from batchline.cli.display.console import printable
from batchline.cli.display.failures import failure_lines
from batchline.cli.display.progress import DisplayedProgress
from batchline.cli.display.units import count, duration, latency, percent, rate
from batchline.model import BatchStatus

_GAP = "  "
# Causes of failures that are shown while the batch runs.
MAX_CAUSES = 3
# From this width on, all facts are on one line; below, facts must not jump from line to line as they grow.
_WIDE = 130
_ECHO = len("^C")


class Frame:
    """The live area. Each of its lines is at most as wide as the terminal."""

    def __init__(self, title: str, progress: DisplayedProgress) -> None:
        self._title = title
        self._progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        progress = self._progress
        yield self._bar(options.max_width)
        # A terminal writes ^C after the last line. If that wraps, Rich erases one line too few.
        width = max(options.max_width - _ECHO, 1)
        groups = [list(_pace(progress)), list(_details(progress))]
        if options.max_width >= _WIDE:
            groups = [[*groups[0], *groups[1]]]
        for group in groups:
            yield from _flowing(group, width)
        if (slow := progress.slowness) is not None:
            yield _cut(slow.text, width, "yellow" if slow.trouble else "dim")
        for line in _causes(progress):
            yield _cut(line, width, "red")

    def _bar(self, width: int) -> Table:
        progress = self._progress
        title = Text(printable(self._title), style="bold", no_wrap=True)
        title.truncate(max(width // 3, 8), overflow="ellipsis")
        table = Table.grid(padding=(0, 2), expand=True)
        for ratio in (None, 1, None, None):
            table.add_column(ratio=ratio, no_wrap=True)
        table.add_row(
            title,
            ProgressBar(total=max(progress.total, 1), completed=progress.done),
            Text(f"{progress.done:,} of {progress.total:,}", style="bold"),
            Text(percent(progress.done, progress.total)),
        )
        return table


def plain_lines(title: str, progress: DisplayedProgress) -> str:
    """The same for logs: one line, and one for each cause of failures."""
    facts = [text for text, _ in (*_pace(progress), *_details(progress))]
    slow = progress.slowness
    done = f"{progress.done:,} of {progress.total:,} done ({percent(progress.done, progress.total)})"
    parts = [f"{title}: {done}", *facts, *([] if slow is None else [slow.text])]
    lines = [_GAP.join(parts), *(f"  {line}" for line in _causes(progress))]
    return "\n".join(printable(line).replace("\n", " ") for line in lines)


def _pace(progress: DisplayedProgress) -> Iterator[tuple[str, str]]:
    """How far and how fast, each with its style."""
    counts, view = progress.counts, progress.upstream
    if progress.sampling and progress.status in (BatchStatus.IN_PROGRESS, BatchStatus.PAUSED):
        yield "sample", "cyan"
    elif progress.status is not BatchStatus.IN_PROGRESS:
        yield progress.status.value, "cyan"
    yield rate(progress.rate), ""
    if (left := progress.seconds_left) is not None:
        yield f"{duration(left)} left", ""
    if view is not None:
        yield f"{view.in_flight:,} in flight", ""
    elif counts.in_progress and not progress.relayed:
        yield f"{counts.in_progress:,} claimed", ""
    if relayed := progress.in_provider_batches:
        yield f"{relayed:,} in provider batches", ""
    yield f"{counts.retrying:,} retrying", "yellow" if counts.retrying else ""
    yield f"{counts.failed:,} failed", "red" if counts.failed else ""
    for name, never_run in (("cancelled", counts.cancelled), ("expired", counts.expired)):
        if never_run:
            yield f"{never_run:,} {name}", "yellow"
    if progress.reused is not None:
        yield f"{progress.reused:,} reused", ""


def _details(progress: DisplayedProgress) -> Iterator[tuple[str, str]]:
    """How the upstream answers, and what was used."""
    view = progress.upstream
    if view is not None:
        for name, seconds in (("p50", view.p50), ("p95", view.p95), ("oldest", view.oldest)):
            if seconds is not None:
                yield f"{name} {latency(seconds)}", ""
    yield f"{count(progress.tokens)} tokens", ""
    if progress.cost is not None:
        yield progress.cost, ""


def _causes(progress: DisplayedProgress) -> list[str]:
    """Why lines failed. At the end, the command prints it."""
    return failure_lines(progress.causes, MAX_CAUSES) if progress.status is BatchStatus.IN_PROGRESS else []


def _flowing(facts: Sequence[tuple[str, str]], width: int) -> Iterator[Text]:
    """As many lines as it takes. A fact is never divided, unless it is wider than the terminal."""
    line = Text(no_wrap=True)
    for fact, style in facts:
        if line and line.cell_len + len(_GAP) + cell_len(fact) > width:
            yield line
            line = Text(no_wrap=True)
        line.append(_GAP if line else "").append(fact, style=style)
    line.truncate(width, overflow="ellipsis")
    yield line


def _cut(text: str, width: int, style: str) -> Text:
    line = Text(printable(text).replace("\n", " "), style=style, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line
