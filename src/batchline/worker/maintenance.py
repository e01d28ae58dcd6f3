"""Runs maintenance when a poll says that some is due.

It has a session of its own, so that a long clean-up delays no poll, and closes it afterwards: most of the
time there is nothing to maintain.
"""

import structlog

from batchline.batches import maintenance
from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.store.session import Session, StoreUnavailable
from batchline.worker.service import Service

_log = structlog.get_logger("batchline.maintenance")


class Maintenance(Service):
    name = "maintenance"

    def __init__(
        self,
        session: Session,
        objects: Objects,
        settings: WorkerSettings,
        on_found: maintenance.OnFound = maintenance.not_counted,
    ) -> None:
        super().__init__()
        self._session = session
        self._objects = objects
        self._settings = settings
        self._on_found = on_found

    def stop(self) -> None:
        # Any worker may do it later.
        self.idle.set()

    async def _work(self) -> None:
        try:
            await maintenance.run_due(
                self._session,
                self._objects,
                self._settings.results_retention,
                self._settings.operations_retention,
                self._settings.events_retention,
                on_found=self._on_found,
            )
        except StoreUnavailable as error:
            # It stays due, and the next poll says so.
            _log.warning("cannot run maintenance", reason=str(error))
        finally:
            await self._session.close()
