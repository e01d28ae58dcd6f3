"""The PostgreSQL of the harness, with durable settings, which can be killed and restarted."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, LiteralString, Protocol

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict

from batchline.embedded import EmbeddedPostgres
from batchline.store import migrate
from chaos.disk import Disk
from chaos.installed import Installed

# Dead connections count too until the server notices.
_SETTINGS = {"max_connections": "300"}
_END_CONNECTIONS = """
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class _Server(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def pid(self) -> int | None: ...

    def start(self) -> None:
        """Start the server, even after it was killed, and wait until it has recovered."""

    def stop(self) -> None: ...


class _Embedded:
    """Batchline's embedded PostgreSQL."""

    def __init__(self, folder: Path) -> None:
        self._server = EmbeddedPostgres.start(folder, settings=_SETTINGS)
        self.url = self._server.url
        self.pid = self._server.postmaster_pid

    def start(self) -> None:
        # Joining starts the server if it is down. Leaving does not stop it, because `_server` still uses it.
        joined = EmbeddedPostgres.start(self._server.data_dir, settings=_SETTINGS)
        self.pid = joined.postmaster_pid
        joined.stop()

    def stop(self) -> None:
        self._server.stop()


def _start(folder: Path, programs: Path | None) -> _Server:
    if programs is None:
        return _Embedded(folder)
    server = Installed.make(programs, folder, _SETTINGS)
    server.start()
    return server


class Postgres:
    """A PostgreSQL that can fail. `url` connects directly, without a proxy."""

    def __init__(self, server: _Server, disk: Disk) -> None:
        self._server = server
        self._disk = disk
        self._rising: asyncio.Task[None] | None = None
        self.url = server.url
        self.down = False
        self._read_only = False
        self._refusing: asyncio.Task[bool] | None = None
        self._snapshots: list[psycopg.Connection[Any]] = []

    @classmethod
    async def start(cls, folder: Path, programs: Path | None = None) -> "Postgres":
        """Start the embedded PostgreSQL, or that of `programs`, a folder with initdb and pg_ctl."""
        disk = Disk.at(folder)
        server = await asyncio.to_thread(_start, folder, programs)
        await asyncio.to_thread(migrate.up, server.url)
        return cls(server, disk)

    @property
    def socket(self) -> Path:
        address = conninfo_to_dict(self.url)
        return Path(str(address["host"]), f".s.PGSQL.{address.get('port', 5432)}")

    def through(self, port: int) -> str:
        """The URL of the same database through a local port."""
        address = conninfo_to_dict(self.url)
        return f"postgresql://{address['user']}@127.0.0.1:{port}/{address['dbname']}?sslmode=disable"

    def kill(self, how: signal.Signals) -> bool:
        """Send SIGKILL, or SIGQUIT, which is PostgreSQL's immediate stop.

        Return False if it is already down.
        """
        if self.down:
            return False
        self.down = True
        pid = self._server.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        return True

    async def refuse_writes(self) -> bool:
        """Make it read-only, like a server after a failover before its promotion. False if unreachable."""
        self._read_only = True
        setting: LiteralString = "ALTER SYSTEM SET default_transaction_read_only = on"
        self._refusing = asyncio.create_task(asyncio.to_thread(self._change, setting))
        return await asyncio.shield(self._refusing)

    async def accept_writes(self) -> bool:
        """Make it writable again. Return False if it cannot be reached."""
        if self._refusing is not None:
            # A thread that is still about to make it read-only must not be overtaken.
            await asyncio.wait([self._refusing])
        if self._read_only:
            self._read_only = not await asyncio.to_thread(
                self._change, "ALTER SYSTEM RESET default_transaction_read_only"
            )
        return not self._read_only

    def _change(self, setting: LiteralString) -> bool:
        """Change a setting for all sessions, and end all connections."""
        try:
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute(setting)
                connection.execute("SELECT pg_reload_conf()")
                connection.execute(_END_CONNECTIONS)
        except psycopg.OperationalError:
            return False
        return True

    def hold_snapshot(self) -> bool:
        """Begin a transaction that reads, as a backup does. Return False if the server cannot be reached."""
        try:
            connection = psycopg.connect(self.url, connect_timeout=5)
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT count(*) FROM batchline.batches")
        except psycopg.OperationalError:
            return False
        self._snapshots.append(connection)
        return True

    def release_snapshots(self) -> None:
        while self._snapshots:
            self._snapshots.pop().close()

    def fill_disk(self) -> bool:
        return not self.down and self._disk.fill()

    async def free_disk(self) -> None:
        """Free the disk, and restart the server if it has crashed."""
        self._disk.free()
        if self._rising is None and not _lives(self._server.pid):
            self.down = True
        await self.up()

    async def answers(self) -> bool:
        """Whether it accepts connections. If a full disk has ended it meanwhile, restart it."""
        await self.free_disk()
        return await asyncio.to_thread(self._answers)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    async def up(self) -> None:
        """Restart the server if it is down, and wait until it has recovered."""
        if self.down and self._rising is None:
            self._rising = asyncio.create_task(self._rise())
        if self._rising is not None:
            # A cancelled waiter must not cancel the start, which would leave the server half-started.
            await asyncio.shield(self._rising)

    async def _rise(self) -> None:
        # A server cannot start on a full disk.
        self._disk.free()
        await asyncio.to_thread(self._server.start)
        self.down = False
        self._rising = None

    async def stop(self) -> None:
        await self.up()
        await asyncio.to_thread(self._server.stop)
        self._disk.keep_log()
        self._disk.unmount()


def _lives(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
