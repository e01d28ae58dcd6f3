"""Runs the hooks of a batch that has ended."""

import asyncio

import structlog

from batchline.cli.run.patience import patiently
from batchline.hooks.delivery import deliver, lease
from batchline.hooks.hook import Hooks
from batchline.model import Batch
from batchline.store import hooks as hook_store
from batchline.store.hooks import HookDelivery, TakenHook
from batchline.store.session import Session, StoreUnavailable

_REFRESH = 0.25

_log = structlog.get_logger("batchline.run")


async def run_hooks(hooks: Hooks, session: Session, batch: Batch) -> tuple[HookDelivery, ...]:
    """Run each hook once, after the files are written, unless it has had the event before.

    No worker needs to have these hooks: if this process dies, the same command again runs them. The batch is
    done, so not even a lost database makes the command fail here.
    """
    if not hooks.names:
        return ()
    try:
        await patiently(lambda: hook_store.request(session, hooks.names, batch.id))
        while (taken := await patiently(lambda: _take_hook(hooks, session, batch))) is not None:
            await deliver(session, hooks, taken)
        found = await patiently(lambda: hook_store.deliveries(session, limit=1000, batch_id=batch.id))
    except StoreUnavailable as error:
        _log.error("hooks did not run; the same command again runs them", reason=str(error))
        return ()
    return tuple(each for each in found if each.hook in hooks.names)


async def _take_hook(hooks: Hooks, session: Session, batch: Batch) -> TakenHook | None:
    """A delivery to run now. Waits for one that another process runs: it may have been killed, and nobody
    knows before its lease ends."""
    said = False
    while True:
        taken = await hook_store.take(session, hooks.names, lease=lease(hooks), batch_id=batch.id)
        if taken is not None:
            return taken
        found = await hook_store.deliveries(session, limit=1000, batch_id=batch.id)
        busy = [each.hook for each in found if each.hook in hooks.names and each.state == "running"]
        if not busy:
            return None
        if not said:
            _log.warning("another process runs a hook of this batch; waiting for it", hooks=busy)
        said = True
        await asyncio.sleep(_REFRESH)
