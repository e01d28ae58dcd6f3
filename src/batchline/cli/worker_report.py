"""What a worker does, as a line now and then: claimed, completed, failed, rate, and what slows it down.

An idle worker prints nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

import msgspec

from batchline.cli.display.slowness import slowness
from batchline.cli.display.units import counted, duration, rate
from batchline.upstreams.view import UpstreamView
from batchline.worker.worker import Worker

_FIRST_PAUSE = 2.0
_PAUSE = 10.0
# Of many upstreams, so many are named.
_DISPLAYED = 3


class WorkerCounts(msgspec.Struct, frozen=True):
    """Items, since the worker's start."""

    claimed: int
    completed: int
    failed: int


def counts_of(worker: Worker) -> WorkerCounts:
    return WorkerCounts(worker.claimed, worker.settler.completed, worker.settler.failed)


def added(one: WorkerCounts, other: WorkerCounts) -> WorkerCounts:
    return WorkerCounts(
        one.claimed + other.claimed, one.completed + other.completed, one.failed + other.failed
    )


@asynccontextmanager
async def reporting(
    worker: Worker, views: Callable[[], list[UpstreamView]], say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Report while the context is open."""
    task = asyncio.create_task(_report(worker, views, say))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _report(
    worker: Worker, views: Callable[[], list[UpstreamView]], say: Callable[[str], None]
) -> None:
    before, at, pause = counts_of(worker), monotonic(), _FIRST_PAUSE
    while True:
        await asyncio.sleep(pause)
        now, counts = monotonic(), counts_of(worker)
        busy = views()
        if counts != before or any(view.in_flight or view.unavailable_for is not None for view in busy):
            say(report_line(before, counts, now - at, busy))
        before, at, pause = counts, now, _PAUSE


def report_line(before: WorkerCounts, counts: WorkerCounts, seconds: float, views: list[UpstreamView]) -> str:
    """One line about the last `seconds`."""
    done = counts.completed + counts.failed - before.completed - before.failed
    in_flight = sum(view.in_flight for view in views)
    facts = [
        f"{counts.claimed - before.claimed:,} claimed",
        f"{counts.completed - before.completed:,} completed",
        f"{counts.failed - before.failed:,} failed in {duration(seconds)}",
        rate(done / seconds),
        f"{in_flight:,} in flight",
        f"{counts.completed + counts.failed:,} done in total",
    ]
    slow = [f"{view.url}: {found.text}" for view in views if (found := slowness(view)) is not None]
    more = [f"and {len(slow) - _DISPLAYED} more upstreams"] if len(slow) > _DISPLAYED else []
    return "  ".join([*facts, *slow[:_DISPLAYED], *more])


def last_line(counts: WorkerCounts) -> str:
    """What it did, from the start to the end."""
    items = counted(counts.claimed, "item")
    return f"worked on {items}: {counts.completed:,} completed, {counts.failed:,} failed"
