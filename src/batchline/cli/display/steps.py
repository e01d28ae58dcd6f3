"""Where a batch that runs in steps stands, for people."""

from datetime import UTC, datetime

from batchline.cli.display.units import duration
from batchline.model import Batch, BatchStatus


def step_line(batch: Batch) -> str | None:
    """None: it does not run in steps, or has ended."""
    if batch.settings.steps is None or batch.finalizing_at is not None:
        return None
    name = "sample" if batch.step == 0 else f"step {batch.step}"
    if batch.step_total is None:
        return f"{name}: all lines may run" if batch.step else None
    if batch.step_began_at is None:
        return "no step has begun"
    running = f"{name}: {batch.step_total:,} of {batch.total:,} lines may run so far"
    waiting = waiting_line(batch)
    return running if waiting is None else f"{name} has ended; {waiting}"


def waiting_line(batch: Batch) -> str | None:
    """When the next step begins; None: it has no steps, one runs, or it is paused."""
    if batch.settings.steps is None or batch.next_step_at is None:
        return None
    if batch.status is not BatchStatus.IN_PROGRESS:
        return None
    left = (batch.next_step_at - datetime.now(UTC)).total_seconds()
    return "the next step begins now" if left < 1 else f"the next step begins in {duration(left)}"
