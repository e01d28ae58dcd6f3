"""What all parts of an app share: its operations, and a database that is opened when it is first needed."""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from batchline.app import runtime
from batchline.app.background import Background
from batchline.app.errors import translated
from batchline.app.governed import GovernedCatalog
from batchline.app.logs import use_standard_logging
from batchline.app.loops import LoopResources, Loops
from batchline.app.runtime import Runtime
from batchline.operations.callbacks import CallbackCatalog
from batchline.operations.catalog import OperationCatalog
from batchline.operations.importing import check_not_importing
from batchline.operations.schedules import ScheduleCatalog
from batchline.store.session import Session

_log = structlog.get_logger("batchline.app")


@dataclass(frozen=True, slots=True)
class AppLocation:
    """Where the data of an app is, and whose it is."""

    database: str | None
    data_dir: Path | None
    objects: str | None
    tenant: str

    @property
    def url(self) -> str | None:
        """None: the embedded database."""
        return self.database or os.environ.get("BATCHLINE_DATABASE_URL") or None


@dataclass(frozen=True, slots=True)
class OpenedApp:
    runtime: Runtime
    loops: Loops
    # Closes the runtime.
    stack: ExitStack


class AppCore:
    """Usable from several threads and event loops. After `close`, the next use opens it again."""

    def __init__(self, location: AppLocation) -> None:
        self.location = location
        self.catalog = OperationCatalog()
        self.governed = GovernedCatalog()
        self.schedules = ScheduleCatalog()
        self.callbacks = CallbackCatalog()
        self.background = Background()
        # The user was informed that items run in this process.
        self.reported_here = False
        # A worker of a Python app was connected when this was looked up last.
        self.worker_seen = False
        self._lock = threading.Lock()
        self._opened: OpenedApp | None = None

    async def opened(self) -> OpenedApp:
        """Raises DatabaseUnavailable."""
        found = self._opened
        if found is not None:
            return found
        with translated():
            return await asyncio.to_thread(self._open)

    async def resources(self) -> LoopResources:
        """Those of the event loop that runs."""
        return (await self.opened()).loops.here()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A session for a few short statements. Errors are those of the library."""
        resources = await self.resources()
        with translated():
            async with resources.sessions.one() as session:
                yield session

    async def close(self) -> None:
        opened = self._taken()
        if opened is not None:
            await opened.loops.close()
        await asyncio.to_thread(self._shut, opened)

    def close_blocking(self) -> None:
        """As `close`, for a thread without an event loop."""
        opened = self._taken()
        if opened is not None and len(opened.loops):
            self.background.run(opened.loops.close())
        self._shut(opened)

    def _open(self) -> OpenedApp:
        with self._lock:
            if self._opened is None:
                check_not_importing("A call that needs the database")
                use_standard_logging()
                stack, location = ExitStack(), self.location
                opening = runtime.opened(
                    location.url,
                    location.data_dir,
                    objects=location.objects,
                    to_work=True,
                    starting=_logged_start,
                )
                found = stack.enter_context(opening)
                self._opened = OpenedApp(found, Loops(found.url), stack)
                # The last thing that is registered runs first: connections close before the server stops.
                atexit.register(_close_at_exit, weakref.ref(self))
            return self._opened

    def _taken(self) -> OpenedApp | None:
        with self._lock:
            opened, self._opened = self._opened, None
            return opened

    def _shut(self, opened: OpenedApp | None) -> None:
        self.background.close()
        if opened is not None:
            opened.stack.close()


@contextmanager
def _logged_start(folder: Path) -> Iterator[None]:
    """The first start in a folder takes seconds, so it is a warning: that is visible by default."""
    if (folder / "postgres").exists():
        _log.info("starting the embedded PostgreSQL", folder=str(folder))
    else:
        _log.warning("creating an embedded PostgreSQL; this takes some seconds, once", folder=str(folder))
    yield


def _close_at_exit(core: "weakref.ref[AppCore]") -> None:
    if (found := core()) is not None:
        found.close_blocking()
