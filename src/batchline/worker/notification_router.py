"""Wakes the services that an event concerns: a notification, a poll, a settle, the end of a batch.

This is the one place that says which service wakes which.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

from batchline.model import Batch, PollResult, Settled
from batchline.store.events import Event
from batchline.worker.bulk_runner import BulkRunner
from batchline.worker.finalizer import Finalizer
from batchline.worker.hook_runner import HookRunner
from batchline.worker.maintenance import Maintenance
from batchline.worker.outbox import Outbox
from batchline.worker.poller import Poller
from batchline.worker.producers import Producers
from batchline.worker.relay.relays import Relays
from batchline.worker.retry_timer import RetryTimer
from batchline.worker.task_canceller import TaskCanceller


class NotificationRouter:
    """The worker makes it first and fills in the services later, because they call it."""

    producers: Producers
    relays: Relays
    poller: Poller
    finalizer: Finalizer
    outbox: Outbox
    hooks: HookRunner
    maintenance: Maintenance
    bulk: BulkRunner
    canceller: TaskCanceller

    def __init__(self, on_ended: Callable[[Batch], None] | None) -> None:
        self._on_ended = on_ended
        self.retries = RetryTimer(self.retry_due)

    def heard(self, event: Event) -> None:
        """The listener received a notification."""
        match event.kind:
            case "listening":
                # Earlier notifications were missed.
                self._opened(None)
            case "open":
                self._opened(event.batch_id)
            case "closed" if event.batch_id is not None:
                self._give_back(event.batch_id)
                self.poller.wake()
            case "changed" | "action":
                # The poll returns the new concurrency of a batch, and actions that are due.
                self.poller.wake()
            case "ended" | "event":
                # A server has failed a batch while validating, or has decided on one: it delivers no events.
                self.outbox.wake()
            case "abandoned":
                # A batch was deleted while providers worked on it.
                self.canceller.wake()
            case "hook":
                # Another worker may have created deliveries to hooks of this one.
                self.hooks_due()

    def found(self, result: PollResult) -> None:
        """A poll has returned."""
        for batch_id, limit in zip(result.changed, result.limits, strict=True):
            for producer in self.producers:
                if batch_id in producer.buffer.batch_limits():
                    producer.buffer.change_limit(batch_id, limit)
        if result.claimable:
            self.look_for_work()
        if result.finalizable:
            self.finalizer.wake()
        if result.news:
            self.outbox.wake()
        if result.hooks_due:
            self.hooks_due()
        if result.actions_due:
            self.bulk.wake()
        if result.maintenance_due:
            self.maintenance.wake()
            self.canceller.wake()

    def claimed(self) -> None:
        """A claim has found items, so there may soon be more."""
        self.poller.reset()

    def settled(self, settled: Sequence[Settled], earliest_retry: float | None) -> None:
        """Verdicts are stored; the first of them that is tried again is so in `earliest_retry` seconds."""
        for row in settled:
            if row.paused:
                # Do not wait for the notification: lines in the buffer would be sent and fail, too.
                self._give_back(row.batch_id)
        if any(row.emitted for row in settled):
            self.look_for_work()
        if any(row.finished for row in settled):
            self.finalizer.wake()
        # A poll returns when the next step begins.
        if any(row.closing or row.step_ended for row in settled):
            self.poller.wake()
        if earliest_retry is not None:
            self.retries.expect(earliest_retry)

    def retry_due(self) -> None:
        self.look_for_work()
        # A poll returns when the next retry is due.
        self.poller.wake()

    def ended(self, batch: Batch) -> None:
        """The finalizer has ended a batch."""
        self.outbox.wake()
        if batch.finished < batch.total:
            self.canceller.wake()
        if self._on_ended is not None:
            self._on_ended(batch)

    def hooks_due(self) -> None:
        """There are deliveries to hooks."""
        self.hooks.wake()

    def look_for_work(self) -> None:
        for claimer in self.producers.claimers:
            claimer.wake()
        self.relays.wake()

    def _give_back(self, batch_id: UUID) -> None:
        """Of a batch that is closed, give back what was not sent."""
        for producer in self.producers:
            producer.dispatcher.give_back(batch_id)
        self.relays.closed(batch_id)

    def _opened(self, batch_id: UUID | None) -> None:
        for claimer in self.producers.claimers:
            claimer.announce(batch_id)
        self.relays.wake()
