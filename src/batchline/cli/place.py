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

from batchline.cli.console import CommandError
from batchline.cli.log_stream import is_terminal, stderr_logger
from batchline.config import Settings
from batchline.embedded import EmbeddedPostgres, EmbeddedPostgresError, default_data_dir
from batchline.engine.masking import masked_text
from batchline.engine.objects import Objects, ObjectStoreUnavailable
from batchline.store import migrate
from batchline.store.migrate import DatabaseUnreachable

Result = TypeVar("Result")

_log = structlog.get_logger("batchline.place")


_LOOK_AFTER_SERVER = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    url: str
    objects: Objects
    # None when the database is somebody else's.
    server: EmbeddedPostgres | None = None

    @asynccontextmanager
    async def kept_running(self) -> AsyncIterator[None]:
        """While this lasts, an embedded server that was killed is started again."""
        if self.server is None:
            yield
            return
        keeping = asyncio.create_task(_keep_running(self.server))
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])


async def _keep_running(server: EmbeddedPostgres) -> None:
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
        except EmbeddedPostgresError as error:
            _log.error("the embedded PostgreSQL does not start", reason=str(error))


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def open_place(
    database: str | None, data_dir: Path | None, *, objects: str | None = None, migrated: bool = True
) -> Iterator[Place]:
    """The database, started if it is our own, with the newest schema unless told otherwise."""
    settings = Settings(folder_of(data_dir), database)
    with ExitStack() as stack:
        try:
            settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            server = None
            if settings.database is None:
                server = stack.enter_context(EmbeddedPostgres.start(settings.data_dir))
            place = _ready(settings, server, objects, migrated)
        except OSError as error:
            raise CommandError(f"data folder {settings.data_dir}: {error.strerror or error}") from error
        except (EmbeddedPostgresError, DatabaseUnreachable, ObjectStoreUnavailable) as error:
            raise CommandError(str(error)) from error
        yield place


def folder_of(data_dir: Path | None) -> Path:
    return (data_dir or default_data_dir()).expanduser().absolute()


def _ready(settings: Settings, server: EmbeddedPostgres | None, objects: str | None, migrated: bool) -> Place:
    url = settings.database if server is None else server.url
    assert url is not None
    if migrated:
        migrate.ensure(url)
    return Place(url, Objects.at(objects or settings.objects_dir), server)


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
