"""The progress of a batch: how many items of it, and of each stage, are in which state."""

from collections.abc import Mapping

import msgspec

from batchline.model import Batch, ItemCounts
from batchline.model.emission import PYTHON
from batchline.store import stages
from batchline.store.session import Session
from batchline.store.stages import StageCounts


class StageProgress(msgspec.Struct, frozen=True):
    """Items of one stage by state. The other seven add up to `total`."""

    total: int
    completed: int
    failed: int
    pending: int
    running: int
    retrying: int
    cancelled: int
    expired: int


class BatchProgress(msgspec.Struct, frozen=True):
    """Items of a batch by state, in all stages, and in each by its operation's name."""

    status: str
    total: int
    completed: int
    failed: int
    pending: int
    running: int
    retrying: int
    cancelled: int
    expired: int
    stages: Mapping[str, StageProgress] = {}
    ended: bool = False

    @property
    def finished(self) -> int:
        """Completed or failed."""
        return self.completed + self.failed


async def progress_of(session: Session, batch: Batch) -> BatchProgress:
    counts = _of_counts(batch.counts)
    names = [url.removeprefix(PYTHON) for url in batch.settings.stages]
    if len(names) == 1:
        # Nothing else has to be read: this is the whole batch.
        by_name = {names[0]: counts}
    else:
        closed = batch.cancelling_at is not None or batch.expiring_at is not None
        found = await stages.counts(session, batch.id, ended=closed and batch.finalizing_at is not None)
        by_name = {each.url.removeprefix(PYTHON): _of_stage(batch, each) for each in found}
    return BatchProgress(
        batch.status.value,
        **msgspec.structs.asdict(counts),
        stages=by_name,
        ended=batch.ended_at is not None,
    )


def _of_counts(counts: ItemCounts) -> StageProgress:
    return StageProgress(
        total=counts.total,
        completed=counts.completed,
        failed=counts.failed,
        pending=counts.pending,
        running=counts.in_progress,
        retrying=counts.retrying,
        cancelled=counts.cancelled,
        expired=counts.expired,
    )


def _of_stage(batch: Batch, stage: StageCounts) -> StageProgress:
    finished = stage.completed + stage.failed
    claimed = finished if batch.finalizing_at is not None else finished + stage.held
    unclaimed = stage.total - claimed
    cancelling, expiring = batch.cancelling_at is not None, batch.expiring_at is not None
    return StageProgress(
        total=stage.total,
        completed=stage.completed,
        failed=stage.failed,
        pending=stage.returned + (0 if cancelling or expiring else unclaimed),
        running=claimed - finished - stage.retrying - stage.returned,
        retrying=stage.retrying,
        cancelled=unclaimed if cancelling else 0,
        expired=unclaimed if expiring and not cancelling else 0,
    )
