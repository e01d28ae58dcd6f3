"""Maintenance tasks that any worker may run: expire overdue batches, conclude abandoned ones, begin steps,
repair, sweep.

Batches end without these tasks unless a process crashes.
"""

from datetime import timedelta
from typing import Protocol

import structlog

from batchline.batches import erasure, retention
from batchline.batches.finalize import sweep_objects
from batchline.files import uploads
from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.model import ids
from batchline.store import batches, bulk_actions, hooks, maintenance, steps
from batchline.store.session import Session

# A longer upload has lost its lease, or is not recorded (RECORD_WITHIN).
GARBAGE_AGE = timedelta(hours=6)
# A hook that no worker has had for so long is forgotten.
HOOKS_KEPT = timedelta(days=7)
# Actions on many batches that have ended. The audit log keeps what they did.
ACTIONS_KEPT = timedelta(days=30)

_log = structlog.get_logger("batchline.maintenance")


class OnFound(Protocol):
    """Called with what maintenance found and repaired or removed: the kind, and how many."""

    def __call__(self, kind: str, count: int, /) -> None: ...


def not_counted(kind: str, count: int, /) -> None:
    return


# What can be found.
EXPIRED, UNFROZEN, GARBAGE_OBJECTS = "expired_batches", "unfrozen_batches", "garbage_objects"
ORPHAN_ROWS, UPLOAD_PARTS, LOST_HOOKS = "orphan_rows", "upload_parts", "lost_hook_deliveries"
FINDINGS = (EXPIRED, UNFROZEN, GARBAGE_OBJECTS, ORPHAN_ROWS, UPLOAD_PARTS, LOST_HOOKS)


async def run_due(
    session: Session,
    objects: Objects,
    keep_results: float | None = None,
    keep_operations: float | None = None,
    keep_events: float | None = None,
    *,
    on_found: OnFound = not_counted,
) -> None:
    """Run all tasks that are due. `keep_…`: how many seconds results of ended batches, governed batches, and
    delivered events are kept; None: no limit."""
    for batch_id in await maintenance.overdue(session):
        # So that they do not expire because of others that are late.
        await steps.answer_early(session, batch_id)
        if await batches.close(session, batch_id, "expire"):
            on_found(EXPIRED, 1)
            _log.info("batch expired", batch=ids.show(ids.BATCH, batch_id))
    for batch_id in await maintenance.unconcluded(session):
        await batches.conclude(session, batch_id)
    for batch_id in await steps.due(session):
        await steps.begin(session, batch_id)
    unfinished: list[str] = []
    while (name := await maintenance.take_task(session)) is not None:
        try:
            kept = (keep_results, keep_operations, keep_events)
            if not await _perform(name, session, objects, *kept, on_found):
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
    on_found: OnFound,
) -> bool:
    """True when the task is done; False if it should run again soon."""
    match name:
        case "sweep":
            await maintenance.forget_workers(session)
            await bulk_actions.forget(session, ACTIONS_KEPT)
            if abandoned := await hooks.forget(session, HOOKS_KEPT.total_seconds()):
                on_found(LOST_HOOKS, abandoned)
                _log.warning("abandoned deliveries to hooks that no worker has", deliveries=abandoned)
            removed = await sweep_objects(session, objects, GARBAGE_AGE)
            if removed:
                on_found(GARBAGE_OBJECTS, removed)
                _log.info("swept", objects=removed)
        case "unfrozen":
            for batch_id in await maintenance.unfrozen(session):
                if await maintenance.freeze_finished(session, batch_id):
                    on_found(UNFROZEN, 1)
                    _log.warning(
                        "all lines had ended but not the batch; finalizing it",
                        batch=ids.show(ids.BATCH, batch_id),
                    )
        case "orphans":
            while dropped := await maintenance.drop_orphan_lines(session):
                on_found(ORPHAN_ROWS, dropped)
            # Batches that were deleted, by a command that was interrupted or by hand.
            return await retention.drop_deleted_batches(session)
        case "erasure":
            return await erasure.run_due(session, objects)
        case "retention":
            return await retention.enforce(session, objects, keep_results, keep_operations, keep_events)
        case "uploads":
            removed = await uploads.clear_all(session, objects)
            if removed:
                on_found(UPLOAD_PARTS, removed)
                _log.info("removed parts of ended uploads", parts=removed)
        case _:
            # A newer schema may have tasks that this worker does not know; newer workers run them.
            _log.warning("unknown maintenance task", task=name)
    return True
