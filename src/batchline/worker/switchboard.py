"""Passes on what the listener hears to those parts of the worker that it concerns."""

from collections.abc import Sequence
from uuid import UUID

from batchline.store.events import Event
from batchline.worker.attendant import Attendant
from batchline.worker.crew import Crew
from batchline.worker.messenger import Messenger


class Switchboard:
    def __init__(self, crews: Sequence[Crew], attendant: Attendant, messenger: Messenger) -> None:
        self._crews = crews
        self._attendant = attendant
        self._messenger = messenger

    def heard(self, event: Event) -> None:
        match event.kind:
            case "listening":
                # Whatever was announced meanwhile was not heard.
                self._opened(None)
            case "open":
                self._opened(event.batch_id)
            case "closed" if event.batch_id is not None:
                for crew in self._crews:
                    crew.give_back(event.batch_id)
                self._attendant.call()
            case "ended":
                # One that fails while validating ends without a worker that would tell of it.
                self._messenger.call()

    def _opened(self, batch_id: UUID | None) -> None:
        for crew in self._crews:
            crew.claimer.announce(batch_id)
