"""What the producers of one worker share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from batchline.config.settings import WorkerSettings
from batchline.executors.executor import Executor
from batchline.store.session import Session
from batchline.traces.lines import LineTracer
from batchline.upstreams.memory import BodyMemory
from batchline.upstreams.rate_budgets import RateBudgets
from batchline.worker.announced_batch import AnnouncedBatch
from batchline.worker.clock import Clock
from batchline.worker.item_budget import ItemBudget
from batchline.worker.lease import Lease
from batchline.worker.observer import WorkerObserver
from batchline.worker.reconciler import Reconciler
from batchline.worker.settler import Settler


@dataclass(frozen=True, slots=True)
class ProducerContext:
    """`session` is for claims. `max_request_bytes` is how many bytes of requests one producer may hold.
    `on_claimed` is called after each claim that found items."""

    session: Session
    executor: Executor
    settler: Settler
    lease: Lease
    reconciler: Reconciler
    settings: WorkerSettings
    memory: BodyMemory
    clock: Clock
    max_request_bytes: int
    budget: ItemBudget
    on_claimed: Callable[[], None]
    announced: AnnouncedBatch = field(default_factory=AnnouncedBatch)
    observer: WorkerObserver = field(default_factory=WorkerObserver)
    # Requests and tokens per minute.
    rates: RateBudgets = field(default_factory=RateBudgets)
    # None: nothing is traced.
    tracer: LineTracer | None = None
