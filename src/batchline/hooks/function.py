"""Runs a callback of a Python app as a hook: a function in this process, instead of a process of its own.

The app is the user's own program, so nothing of the worker has to be kept from it.
"""

import asyncio
from dataclasses import dataclass

from batchline.model import Batch
from batchline.operations.callbacks import OperationCallback, ended_batch
from batchline.secrets.masking import masked_text
from batchline.store.hooks import HookOutcome, TakenHook

_MAX_ERROR = 1_000


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
    except Exception as error:  # noqa: BLE001
        # The function is the user's, and may raise anything.
        return HookOutcome(False, _reason(error, timeout if limit.expired() else None))
    return HookOutcome(True)


def _reason(error: Exception, timeout: float | None) -> str:
    if timeout is not None:
        return f"it did not end within {timeout:g} s"
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    # PostgreSQL stores no NUL.
    return masked_text(text[:_MAX_ERROR].replace("\0", "�"))
