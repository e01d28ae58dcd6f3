"""A worker for the requests of one batch, in this process."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from batchline.app.runtime import Runtime
from batchline.config.settings import WorkerSettings
from batchline.executors.http import HttpExecutor
from batchline.executors.provider import ProviderExecutor
from batchline.model import Batch, RunSettings
from batchline.model.concurrency import typical_concurrency
from batchline.store.spans import Scope
from batchline.traces.tracing import Tracing
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.memory import BodyMemory
from batchline.upstreams.rate_budgets import RateBudgets
from batchline.worker.observer import WorkerObserver
from batchline.worker.producer import ProducerScope
from batchline.worker.relay.relay import RelayScope
from batchline.worker.worker import Worker, WorkerOptions


class ModelWorker(NamedTuple):
    worker: Worker
    upstreams: Upstreams


@dataclass(frozen=True, slots=True)
class Listening:
    """What else a worker reports to."""

    on_ended: Callable[[Batch], None] | None = None
    observer: WorkerObserver = field(default_factory=WorkerObserver)
    # None: nothing is traced.
    tracing: Tracing | None = None
    # Upstreams that get the header of the trace.
    traced: tuple[str, ...] = ()


@asynccontextmanager
async def model_worker(
    runtime: Runtime,
    batch_id: UUID,
    run: RunSettings,
    settings: WorkerSettings,
    listening: Listening | None = None,
    budgets: RateBudgets | None = None,
) -> AsyncIterator[ModelWorker]:
    """A worker for one batch. The caller runs it, and must have stopped it when the context ends."""
    listening = listening or Listening()
    memory = BodyMemory(settings.body_memory, typical_concurrency(settings.concurrency))
    relays = _relays(batch_id, run, settings)
    anthropic = [each.upstream for each in relays if each.run.relay and each.run.relay.api == "anthropic"]
    upstreams = Upstreams(traced=listening.traced, budgets=budgets, anthropic=anthropic)
    executor = ProviderExecutor(HttpExecutor(upstreams, memory=memory))
    scope, max_tasks = _scope(batch_id, run), None if run.provider is None else run.provider.max_tasks
    worker = Worker(
        runtime.url,
        executor,
        runtime.objects,
        settings,
        scope,
        WorkerOptions(
            producers=[] if relays else [ProducerScope(scope, settings.concurrency, run.upstream, max_tasks)],
            relays=relays,
            upstreams=upstreams,
            memory=memory,
            cancel_task=executor.cancel,
            on_ended=listening.on_ended,
            observer=listening.observer,
            tracing=listening.tracing,
        ),
    )
    try:
        yield ModelWorker(worker, upstreams)
    finally:
        await executor.close()


def _relays(batch_id: UUID, run: RunSettings, settings: WorkerSettings) -> list[RelayScope]:
    if run.relay is None or run.upstream is None:
        return []
    return [RelayScope(Scope(None, batch_id), run.upstream, run, settings.concurrency)]


def _scope(batch_id: UUID, run: RunSettings) -> Scope:
    """The batch. Of a provider also its upstream, whose tasks are counted."""
    keys = None if run.provider is None or run.upstream is None else (run.upstream,)
    return Scope(keys, batch_id)
