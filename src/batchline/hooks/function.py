"""Runs a callback of a Python app as a hook: a function in this process, instead of a process of its own.

The app is the user's own program, so nothing of the worker has to be kept from it.
"""

import asyncio
from dataclasses import dataclass

from batchline.model import Batch
from batchline.operations.callbacks import OperationCallback, ended_batch
from batchline.operations.user_errors import RAISED_BY_USERS, is_cancellation, stored_reason
from batchline.store.hooks import HookOutcome, TakenHook


@dataclass(frozen=True, slots=True)
class FunctionHook:
    """A hook whose body is a function."""

    callback: OperationCallback

    @property
    def name(self) -> str:
        return self.callback.hook


async def run_function(hook: FunctionHook, taken: TakenHook, batch: Batch, *, timeout: float) -> HookOutcome:
    """Call the function once, unless the batch is of another operation: a worker of an older version makes
    deliveries of all batches."""
    if batch.endpoint != hook.callback.url:
        return HookOutcome(True)
    try:
        async with asyncio.timeout(timeout) as limit:
            await hook.callback.callback.function(ended_batch(batch, taken.type, taken.attempt))
    except RAISED_BY_USERS as error:
        if is_cancellation(error):
            raise
        late = f"it did not end within {timeout:g} s" if limit.expired() else None
        return HookOutcome(False, late or stored_reason(error))
    return HookOutcome(True)
