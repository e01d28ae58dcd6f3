"""Passes on what the listener hears to those parts of the worker that it concerns."""

import asyncio
from uuid import UUID

from batchline.store.events import Event, Handover
from batchline.worker.attendant import Attendant
from batchline.worker.handovers import Handovers
from batchline.worker.heartbeat import Heartbeat
from batchline.worker.messenger import Messenger
from batchline.worker.producers import Producers
from batchline.worker.strays import Strays

# A request that was made is on its way after this long; far less than what is left of a lease then.
_MOMENT = 0.01


class Switchboard:
    def __init__(
        self,
        producers: Producers,
        handovers: Handovers,
        strays: Strays,
        attendant: Attendant,
        heartbeat: Heartbeat,
        messenger: Messenger,
    ) -> None:
        self._producers = producers
        self._handovers = handovers
        self._strays = strays
        self._attendant = attendant
        self._heartbeat = heartbeat
        self._messenger = messenger
        # The batch that was just handed over, until word comes that it is open.
        self._taken_up: UUID | None = None

    def heard(self, event: Event) -> None:
        match event.kind:
            case "listening":
                # Whatever was said meanwhile was not heard.
                self._taken_up = None
                if self._handovers.willing:
                    self._strays.lost_track()
                self._opened(None)
            case "hearing":
                # What was said before names a channel that nobody listens to any more.
                self._attendant.taken_at_its_word()
                self._attendant.stand_by()
            case "handed":
                self._handed(event.handover())
            case "open" if event.batch_id == self._taken_up:
                self._taken_up = None
            case "open":
                self._opened(event.batch_id)
            case "closed" if event.batch_id is not None:
                for producer in self._producers:
                    producer.give_back(event.batch_id)
                self._attendant.call()
            case "ended":
                # One that fails while validating ends without a worker that would tell of it.
                self._messenger.call()

    def _handed(self, handover: Handover) -> None:
        """The requests go out before anything else is asked."""
        self._attendant.taken_at_its_word()
        if self._handovers.take_up(handover):
            self._taken_up = handover.claim.batch_id
            asyncio.get_running_loop().call_later(_MOMENT, self._follow_up, self._taken_up)

    def _follow_up(self, batch_id: UUID) -> None:
        """Look for more of a batch that was handed over in part, and see to the lease: it began when the
        worker said that it stands by, which may be a while ago."""
        self._heartbeat.call()
        self._opened(batch_id)

    def _opened(self, batch_id: UUID | None) -> None:
        for claimer in self._producers.claimers:
            claimer.announce(batch_id)
