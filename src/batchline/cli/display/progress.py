"""The progress of a batch, as displays render it."""

import time
from collections import deque
from uuid import UUID

import msgspec

from batchline.cli.display.console import finalize_trouble
from batchline.cli.display.money import money
from batchline.cli.display.slowness import Slowness, slowness
from batchline.cli.display.steps import waiting_line
from batchline.model import Batch, BatchStatus, CauseCount, ItemCounts
from batchline.store import batches, failures
from batchline.store.session import Session
from batchline.upstreams.view import UpstreamView

_RATE_WINDOW = 10.0
# Causes of failures that are shown while the batch runs.
_CAUSES = 3


class DisplayedProgress(msgspec.Struct, frozen=True):
    """The progress of a batch at one moment. What is None is not known, and not displayed."""

    status: BatchStatus
    counts: ItemCounts
    tokens: int
    # Items per second.
    rate: float
    # Only the lines of the sample may run.
    sampling: bool = False
    # Lines go through the upstream's batch API.
    relayed: bool = False
    # What keeps the batch from going on, for a person.
    trouble: str = ""
    # When the next step begins, if the last one has ended.
    waiting: str = ""
    # Only the process that sends the requests knows it.
    upstream: UpstreamView | None = None
    # Lines whose answer was taken from an earlier batch.
    reused: int | None = None
    # So far, with its currency.
    cost: str | None = None
    # Causes of failures, the most frequent first.
    causes: tuple[CauseCount, ...] = ()

    @property
    def total(self) -> int:
        return self.counts.total

    @property
    def done(self) -> int:
        return self.counts.completed + self.counts.failed

    @property
    def in_provider_batches(self) -> int:
        """Lines that are claimed and not sent one by one."""
        direct = 0 if self.upstream is None else self.upstream.in_flight
        return max(self.counts.in_progress - direct, 0) if self.relayed else 0

    @property
    def seconds_left(self) -> float | None:
        if self.done >= self.total or self.rate <= 0 or self.status is not BatchStatus.IN_PROGRESS:
            return None
        if self.sampling:
            # Whether the rest runs is not decided.
            return None
        if self.upstream is not None and self.upstream.unavailable_for is not None:
            # The rate is that of the time before.
            return None
        return (self.total - self.done) / self.rate

    @property
    def slowness(self) -> Slowness | None:
        """Why it is not faster."""
        if self.trouble:
            return Slowness("trouble", self.trouble, trouble=True)
        if self.waiting:
            return Slowness("steps", self.waiting)
        if self.status is not BatchStatus.IN_PROGRESS or self.upstream is None:
            return None
        if (found := slowness(self.upstream)) is not None:
            return found
        if self.counts.retrying and not self.upstream.in_flight and not self.counts.pending:
            return Slowness("retries", f"{self.counts.retrying:,} wait for their next attempt")
        return None


class Gauge:
    """Reads a batch and measures its rate."""

    def __init__(self, session: Session, batch_id: UUID) -> None:
        self._session = session
        self._batch_id = batch_id
        self._marks: deque[tuple[float, int]] = deque()

    async def read(self) -> tuple[Batch, DisplayedProgress]:
        batch = await batches.get(self._session, self._batch_id)
        if batch is None:
            raise batches.FileNotFound(f"there is no batch {self._batch_id}")
        return batch, DisplayedProgress(
            status=batch.status,
            counts=batch.counts,
            tokens=batch.input_tokens + batch.output_tokens,
            rate=self._rate(batch.finished),
            sampling=batch.sampling,
            relayed=batch.settings.relay is not None,
            trouble=finalize_trouble(batch) or "",
            waiting=waiting_line(batch) or "",
            reused=batch.reused or None,
            cost=_cost(batch),
            causes=tuple(await failures.causes(self._session, batch)),
        )

    def _rate(self, done: int) -> float:
        now = time.monotonic()
        self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[0][0] > _RATE_WINDOW:
            self._marks.popleft()
        (first, before), (last, after) = self._marks[0], self._marks[-1]
        return (after - before) / (last - first) if last > first else 0.0


def _cost(batch: Batch) -> str | None:
    spending = batch.settings.spending
    return money(batch.cost) if spending is not None and spending.prices else None
