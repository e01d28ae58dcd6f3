"""Passes on what the listener hears to those parts of the worker that it concerns."""

from uuid import UUID

from batchline.store.events import Event
from batchline.worker.outbox import Outbox
from batchline.worker.poller import Poller
from batchline.worker.producers import Producers


class NotificationRouter:
    def __init__(self, producers: Producers, poller: Poller, outbox: Outbox) -> None:
        self._producers = producers
        self._poller = poller
        self._outbox = outbox

    def heard(self, event: Event) -> None:
        match event.kind:
            case "listening":
                # Whatever was announced meanwhile was not heard.
                self._opened(None)
            case "open":
                self._opened(event.batch_id)
            case "closed" if event.batch_id is not None:
                for producer in self._producers:
                    producer.give_back(event.batch_id)
                self._poller.call()
            case "ended":
                # One that fails while validating ends without a worker that would tell of it.
                self._outbox.call()

    def _opened(self, batch_id: UUID | None) -> None:
        for claimer in self._producers.claimers:
            claimer.announce(batch_id)
