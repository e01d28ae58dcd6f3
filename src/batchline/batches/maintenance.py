"""Maintenance tasks that any worker may run: expire overdue batches, conclude abandoned ones, repair, sweep.

Batches end without these tasks unless a process crashes.
"""

from datetime import timedelta

import structlog

from batchline.batches import retention
from batchline.batches.finalize import sweep_objects
from batchline.files import uploads
from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.store import batches, hooks, maintenance
from batchline.store.session import Session

# A longer upload has lost its lease, or is not recorded (RECORD_WITHIN).
GARBAGE_AGE = timedelta(hours=6)
# A hook that no worker has had for so long is forgotten.
HOOKS_KEPT = timedelta(days=7)

_log = structlog.get_logger("batchline.maintenance")


async def run_due(
    session: Session,
    objects: Objects,
    keep_results: float | None = None,
    keep_operations: float | None = None,
    keep_events: float | None = None,
) -> None:
    """Run all tasks that are due. `keep_…`: how many seconds results of ended batches, governed batches, and
    delivered events are kept; None: no limit."""
    for batch_id in await maintenance.overdue(session):
        if await batches.close(session, batch_id, "expire"):
            _log.info("batch expired", batch=str(batch_id))
    for batch_id in await maintenance.unconcluded(session):
        await batches.conclude(session, batch_id)
    unfinished: list[str] = []
    while (name := await maintenance.take_task(session)) is not None:
        try:
            if not await _perform(name, session, objects, keep_results, keep_operations, keep_events):
                unfinished.append(name)
        except ObjectStoreUnavailable as error:
            # It will be due again, and no batch waits for it.
            _log.warning("cannot run a maintenance task", task=name, reason=str(error))
    for name in unfinished:
        await maintenance.repeat_task(session, name)


async def _perform(
    name: str,
    session: Session,
    objects: Objects,
    keep_results: float | None,
    keep_operations: float | None,
    keep_events: float | None,
) -> bool:
    """True when the task is done; False if it should run again soon."""
    match name:
        case "sweep":
            await maintenance.forget_workers(session)
            if abandoned := await hooks.forget(session, HOOKS_KEPT.total_seconds()):
                _log.warning("abandoned deliveries to hooks that no worker has", deliveries=abandoned)
            removed = await sweep_objects(session, objects, GARBAGE_AGE)
            if removed:
                _log.info("swept", objects=removed)
        case "unfrozen":
            for batch_id in await maintenance.unfrozen(session):
                if await maintenance.freeze_finished(session, batch_id):
                    _log.warning("all lines had ended but not the batch; finalizing it", batch=str(batch_id))
        case "orphans":
            while await maintenance.drop_orphan_lines(session):
                pass
            # Batches that were deleted, by a command that was interrupted or by hand.
            return await retention.drop_deleted_batches(session)
        case "retention":
            return await retention.enforce(session, objects, keep_results, keep_operations, keep_events)
        case "uploads":
            removed = await uploads.clear_all(session, objects)
            if removed:
                _log.info("removed parts of ended uploads", parts=removed)
        case _:
            # A newer schema may have tasks that this worker does not know; newer workers run them.
            _log.warning("unknown maintenance task", task=name)
    return True
