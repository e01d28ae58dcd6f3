"""What any worker does for all: close what is overdue, conclude what was left, sweep.

Nothing here is needed for a batch to end when nobody crashes. It is what makes it end all the same.
"""

from datetime import timedelta

import structlog

from batchline.batches import retention
from batchline.batches.finalize import sweep_objects
from batchline.files import uploads
from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.store import batches, maintenance, webhooks
from batchline.store.session import Session

# An upload that takes longer than this has lost its lease long ago, or is not recorded (RECORD_WITHIN).
GARBAGE_AGE = timedelta(hours=6)
# How long one can look up what was said to a webhook.
DELIVERIES_KEPT = timedelta(days=30)

_log = structlog.get_logger("batchline.maintenance")


async def attend(
    session: Session,
    objects: Objects,
    keep_results: float | None = None,
    keep_operations: float | None = None,
) -> None:
    """Do all that is due now. What ended batches leave is kept for so many seconds; None: for ever."""
    for batch_id in await maintenance.overdue(session):
        if await batches.close(session, batch_id, "expire"):
            _log.info("batch expired", batch=str(batch_id))
    for batch_id in await maintenance.unconcluded(session):
        await batches.conclude(session, batch_id)
    unfinished: list[str] = []
    while (name := await maintenance.take_task(session)) is not None:
        try:
            if not await _perform(name, session, objects, keep_results, keep_operations):
                unfinished.append(name)
        except ObjectStoreUnavailable as error:
            # It comes round again, and no batch waits for it.
            _log.warning("cannot run a maintenance task", task=name, reason=str(error))
    for name in unfinished:
        await maintenance.flush(session, name)


async def _perform(
    name: str,
    session: Session,
    objects: Objects,
    keep_results: float | None,
    keep_operations: float | None,
) -> bool:
    """True when it is done; False when it has had its turn and wants another one soon."""
    match name:
        case "sweep":
            await maintenance.forget_workers(session)
            while await webhooks.drop_old(session, DELIVERIES_KEPT.total_seconds()):
                pass
            removed = await sweep_objects(session, objects, GARBAGE_AGE)
            if removed:
                _log.info("swept", objects=removed)
        case "orphans":
            while await maintenance.drop_orphan_lines(session):
                pass
        case "retention":
            return await retention.enforce(session, objects, keep_results, keep_operations)
        case "uploads":
            removed = await uploads.clear_all(session, objects)
            if removed:
                _log.info("removed parts of ended uploads", parts=removed)
        case _:
            # A newer schema may have tasks that this worker does not know; newer workers run them.
            _log.warning("unknown maintenance task", task=name)
    return True
