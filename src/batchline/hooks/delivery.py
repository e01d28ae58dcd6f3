"""Delivers one event to one hook, and records the outcome.

The lease of a delivery is longer than the hook may run. So no other process runs it meanwhile, and if this
one dies, another delivers the event again.
"""

import random
from collections.abc import Mapping
from typing import Any

import msgspec

from batchline.batches.batch_details import batch_details
from batchline.hooks.function import FunctionHook, run_function
from batchline.hooks.hook import Hooks
from batchline.hooks.process import run_hook
from batchline.model import Batch
from batchline.model.ids import EVENT, show
from batchline.store import batches, hooks
from batchline.store.hooks import HookOutcome, TakenHook
from batchline.store.session import Session
from batchline.upstreams.retry import Backoff

# To start the process, to kill it and to record the outcome takes less than this.
_MARGIN = 30.0
# About a day, as delays reach an hour after ten attempts and are three quarters of that on average.
MAX_ATTEMPTS = 40
_RETRY = Backoff(minimum=5.0, maximum=3600.0)


class Delivered(msgspec.Struct, frozen=True):
    """What became of an attempt, and in how many seconds the next one is due."""

    outcome: HookOutcome
    delay: float
    abandoned: bool


def lease(known: Hooks) -> float:
    return known.timeout + _MARGIN


async def deliver(session: Session, known: Hooks, taken: TakenHook) -> Delivered:
    """Run the hook once. Raises StoreUnavailable if the outcome cannot be recorded; the lease then ends."""
    batch = await batches.get(session, taken.batch_id)
    if batch is None:
        outcome, max_attempts = HookOutcome(False, "the batch does not exist any more"), 0
    else:
        outcome, max_attempts = await _run(session, known, taken, batch), MAX_ATTEMPTS
    delay = 0.0 if outcome.delivered else _delay(taken.attempt)
    abandoned = await hooks.settle(session, taken, outcome, delay=delay, max_attempts=max_attempts)
    return Delivered(outcome, delay, bool(abandoned))


async def _run(session: Session, known: Hooks, taken: TakenHook, batch: Batch) -> HookOutcome:
    hook = known.named(taken.hook)
    if isinstance(hook, FunctionHook):
        return await run_function(hook, taken, batch, timeout=known.timeout)
    content = event_content(taken, await batch_details(session, batch))
    return await run_hook(hook, content, timeout=known.timeout, environment=known.environment or {})


def event_content(taken: TakenHook, details: Mapping[str, Any]) -> bytes:
    """What the hook reads: a webhook's message, with the whole batch and the number of the attempt."""
    return msgspec.json.encode(
        {
            "id": show(EVENT, taken.event_id),
            "object": "event",
            "type": taken.type,
            "created_at": int(taken.occurred_at.timestamp()),
            "attempt": taken.attempt,
            "data": details,
        }
    )


def _delay(attempt: int) -> float:
    """At least half of the longest: a program that has just failed is not started again at once."""
    longest = _RETRY.ceiling(attempt)
    return random.uniform(longest / 2, longest)
