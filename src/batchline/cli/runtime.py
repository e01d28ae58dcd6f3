"""Where a command works: a database with its schema in place, and the folder of output files."""

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import structlog

from batchline.cli.display.console import CommandError
from batchline.cli.log_stream import is_terminal, stderr_logger
from batchline.cli.written import WrittenFiles
from batchline.config.settings import Settings
from batchline.embedded import EmbeddedDiskFull, EmbeddedPostgres, EmbeddedPostgresError, default_data_dir
from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.host.disk import full_message, has_no_room, is_full, says_full
from batchline.host.private import FolderNotPrivate, data_folder
from batchline.secrets.masking import masked_text
from batchline.store import migrate, schema
from batchline.store.errors import StoreUnavailable
from batchline.store.schema import DatabaseUnreachable

Result = TypeVar("Result")

_log = structlog.get_logger("batchline.runtime")


_LOOK_AFTER_SERVER = 1.0


@dataclass(frozen=True, slots=True)
class Runtime:
    url: str
    objects: Objects
    # None when the database is somebody else's.
    server: EmbeddedPostgres | None = None

    @asynccontextmanager
    async def kept_running(self, *, patient: bool = True) -> AsyncIterator[None]:
        """While this lasts, an embedded server that was killed is started again.

        Where its disk is full, the impatient end with CommandError; the others go on once there is room.
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
                raise CommandError(str(keeping.exception())) from keeping.exception()
            raise
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])


async def _keep_running(server: EmbeddedPostgres, patient: bool) -> None:
    """Looks at the process alone, so that an idle server is left in peace."""
    pid = server.postmaster_pid
    while True:
        await asyncio.sleep(_LOOK_AFTER_SERVER)
        if _alive(pid):
            continue
        try:
            # Joining starts it where it is gone. Leaving does not stop it: `server` still uses it.
            joined = await asyncio.to_thread(EmbeddedPostgres.start, server.data_dir)
            pid = joined.postmaster_pid
            await asyncio.to_thread(joined.stop)
        except (EmbeddedPostgresError, OSError) as error:
            if isinstance(error, EmbeddedDiskFull) and not patient:
                raise
            _log.error("the embedded PostgreSQL does not start", reason=str(error))


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def open_runtime(
    database: str | None,
    data_dir: Path | None,
    *,
    objects: str | None = None,
    migrated: bool = True,
    to_work: bool = False,
) -> Iterator[Runtime]:
    """The database, started if it is our own, with the newest schema unless told otherwise.

    `to_work` is for commands that wait while the database is away: they must not wait for a standby, which
    never takes writes.
    """
    settings = Settings(folder_of(data_dir), database)
    server = None
    with ExitStack() as stack:
        try:
            data_folder(settings.data_dir)
            if settings.database is None:
                server = stack.enter_context(EmbeddedPostgres.start(settings.data_dir))
            runtime = _ready(settings, server, objects, migrated, to_work)
        except OSError as error:
            if is_full(error):
                raise CommandError(full_message(settings.data_dir)) from error
            raise CommandError(f"data folder {settings.data_dir}: {error.strerror or error}") from error
        except FolderNotPrivate as error:
            raise CommandError(str(error)) from error
        except (EmbeddedPostgresError, DatabaseUnreachable, ObjectStoreUnavailable) as error:
            raise CommandError(_explained(error, server, settings)) from error
        try:
            yield runtime
        except StoreUnavailable as error:
            if _lacks_room(error, server):
                raise CommandError(full_message(settings.data_dir)) from error
            raise


def _explained(error: Exception, server: EmbeddedPostgres | None, settings: Settings) -> str:
    return full_message(settings.data_dir) if _lacks_room(error, server) else str(error)


def _lacks_room(error: Exception, server: EmbeddedPostgres | None) -> bool:
    """Whether our own server fails because its disk is full. It may end before it can say so."""
    return server is not None and (says_full(str(error)) or has_no_room(server.data_dir))


def folder_of(data_dir: Path | None) -> Path:
    return (data_dir or default_data_dir()).expanduser().absolute()


def written_files(data_dir: Path | None) -> WrittenFiles:
    return WrittenFiles(folder_of(data_dir) / "written")


def _ready(
    settings: Settings, server: EmbeddedPostgres | None, objects: str | None, migrated: bool, to_work: bool
) -> Runtime:
    url = settings.database if server is None else server.url
    assert url is not None
    if migrated and _checked(url, server).standby and to_work:
        raise CommandError(
            "the database is a standby, which is read-only; give the primary's address with --database"
        )
    return Runtime(url, Objects.at(objects or settings.objects_dir), server)


def _checked(url: str, server: EmbeddedPostgres | None) -> schema.SchemaStatus:
    """Our own database gets the newest tables; somebody else's only by `batchline migrate up`."""
    return schema.check(url) if server is None else migrate.ensure(url)


def run_async(main: Coroutine[Any, Any, Result]) -> Result:
    """Run on uvloop where there is one.

    What was imported is left out of garbage collection, and the rest is looked at less often: a worker makes
    and drops thousands of small objects a second, of which none is ever part of a cycle.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def _without_secrets(_logger: Any, _method: str, line: Any) -> str:
    """The last to see a line: what an error quotes, such as a database's of the row that it refused."""
    return masked_text(str(line))


def set_up_logging(verbose: bool = False) -> None:
    """Logs go to stderr, so that stdout holds nothing but what was asked for."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            # Without local variables: they hold prompts and keys.
            structlog.dev.ConsoleRenderer(
                colors=is_terminal(), exception_formatter=structlog.dev.plain_traceback
            ),
            _without_secrets,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO if verbose else logging.WARNING),
        logger_factory=stderr_logger,
        cache_logger_on_first_use=False,
    )
