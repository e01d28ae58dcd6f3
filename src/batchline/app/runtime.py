"""The runtime of a command or an app: a migrated database, the object store and the event loop."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import structlog

from batchline.embedded import EmbeddedDiskFull, EmbeddedPostgres, EmbeddedPostgresError, default_data_dir
from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.host.disk import full_message, has_no_room, is_full, says_full
from batchline.host.private import FolderNotPrivate, data_folder
from batchline.store import migrate, schema
from batchline.store.errors import StoreUnavailable
from batchline.store.schema import DatabaseUnreachable

Returned = TypeVar("Returned")

_CHECK_SERVER_EVERY = 1.0

_log = structlog.get_logger("batchline.runtime")


class RuntimeUnavailable(Exception):
    """The database or the object store cannot be used. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Runtime:
    url: str
    objects: Objects
    # None if the database is not embedded.
    server: EmbeddedPostgres | None = None

    @asynccontextmanager
    async def kept_running(self, *, patient: bool = True) -> AsyncIterator[None]:
        """Restart the embedded server if it is killed.

        If its disk is full, patient callers wait for room; for the others this raises RuntimeUnavailable.
        """
        if self.server is None:
            yield
            return
        caller = asyncio.current_task()
        assert caller is not None
        keeping = asyncio.create_task(_keep_running(self.server, patient))
        keeping.add_done_callback(lambda kept: None if kept.cancelled() else caller.cancel())
        try:
            yield
        except asyncio.CancelledError:
            if keeping.done() and not keeping.cancelled():
                caller.uncancel()
                raise RuntimeUnavailable(str(keeping.exception())) from keeping.exception()
            raise
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])


async def _keep_running(server: EmbeddedPostgres, patient: bool) -> None:
    """Checks only the process, so that an idle server stays idle."""
    pid = server.postmaster_pid
    while True:
        await asyncio.sleep(_CHECK_SERVER_EVERY)
        if _alive(pid):
            continue
        try:
            # start() joins a running server or starts it. stop() does not stop it: `server` still uses it.
            joined = await asyncio.to_thread(EmbeddedPostgres.start, server.data_dir)
            pid = joined.postmaster_pid
            await asyncio.to_thread(joined.stop)
        except (EmbeddedPostgresError, OSError) as error:
            if isinstance(error, EmbeddedDiskFull) and not patient:
                raise
            _log.error("cannot start the embedded PostgreSQL", reason=str(error))


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def opened(
    database: str | None,
    data_dir: Path | None,
    *,
    objects: str | None = None,
    migrated: bool = True,
    to_work: bool = False,
    starting: Callable[[Path], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> Iterator[Runtime]:
    """Open the database and the object store; start the embedded database if no other is given, within
    `starting`.

    `migrated`: with the newest schema. `to_work`: for those that wait while the database cannot be used. They
    must not wait for a standby, which never accepts writes. Raises RuntimeUnavailable.
    """
    folder = folder_of(data_dir)
    server, url = None, database
    with ExitStack() as stack:
        try:
            data_folder(folder)
            if url is None:
                with starting(folder):
                    server = stack.enter_context(EmbeddedPostgres.start(folder))
                url = server.url
            if migrated and _checked(url, server).standby and to_work:
                raise RuntimeUnavailable(
                    "the database is a read-only standby; give the primary's address with --database"
                )
            runtime = Runtime(url, Objects.at(objects or folder / "objects"), server)
        except OSError as error:
            if is_full(error):
                raise RuntimeUnavailable(full_message(folder)) from error
            raise RuntimeUnavailable(f"data folder {folder}: {error.strerror or error}") from error
        except FolderNotPrivate as error:
            raise RuntimeUnavailable(str(error)) from error
        except (EmbeddedPostgresError, DatabaseUnreachable, ObjectStoreUnavailable) as error:
            raise RuntimeUnavailable(
                full_message(folder) if _lacks_room(error, server) else str(error)
            ) from error
        try:
            yield runtime
        except StoreUnavailable as error:
            if _lacks_room(error, server):
                raise RuntimeUnavailable(full_message(folder)) from error
            raise


def _lacks_room(error: Exception, server: EmbeddedPostgres | None) -> bool:
    """Whether the embedded server fails because its disk is full. It may stop before it can report that."""
    return server is not None and (says_full(str(error)) or has_no_room(server.data_dir))


def folder_of(data_dir: Path | None) -> Path:
    return (data_dir or default_data_dir()).expanduser().absolute()


def _checked(url: str, server: EmbeddedPostgres | None) -> schema.SchemaStatus:
    """Migrate the embedded database, or check any other: only `batchline migrate up` changes that."""
    return schema.check(url) if server is None else migrate.ensure(url)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """One of uvloop if it is available."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


def run_async(main: Coroutine[Any, Any, Returned]) -> Returned:
    """Run the main coroutine of a process.

    Imported modules are left out of garbage collection, and collections are rare: a worker creates thousands
    of small objects per second, and none of them is part of a cycle.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
