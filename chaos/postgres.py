"""The PostgreSQL of the harness, with Batchline's durable settings, killed and started again."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from psycopg.conninfo import conninfo_to_dict

from batchline.embedded import EmbeddedPostgres
from batchline.store import migrate
from chaos.installed import Installed

# Connections that nobody has noticed to be dead count too.
_SETTINGS = {"max_connections": "300"}


class _Server(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def start(self) -> None:
        """Also after it was killed; returns when it has recovered."""

    def stop(self) -> None: ...


class _Embedded:
    """The one that Batchline brings along."""

    def __init__(self, folder: Path) -> None:
        self._server = EmbeddedPostgres.start(folder, settings=_SETTINGS)
        self.url = self._server.url
        self.pid = self._server.postmaster_pid

    def start(self) -> None:
        # Joining starts it where it is gone; leaving does not stop it, for `_server` still uses it.
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
    """Started by `start`; `url` reaches it directly, past every proxy."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._rising: asyncio.Task[None] | None = None
        self.url = server.url
        self.down = False

    @classmethod
    async def start(cls, folder: Path, programs: Path | None = None) -> "Postgres":
        """The embedded one; or that of `programs`, a folder with initdb and pg_ctl."""
        server = await asyncio.to_thread(_start, folder, programs)
        await asyncio.to_thread(migrate.up, server.url)
        return cls(server)

    @property
    def socket(self) -> Path:
        place = conninfo_to_dict(self.url)
        return Path(str(place["host"]), f".s.PGSQL.{place.get('port', 5432)}")

    def through(self, port: int) -> str:
        """The same database behind a port of this machine."""
        place = conninfo_to_dict(self.url)
        return f"postgresql://{place['user']}@127.0.0.1:{port}/{place['dbname']}?sslmode=disable"

    def kill(self, how: signal.Signals) -> bool:
        """SIGKILL, or SIGQUIT, which is PostgreSQL's immediate stop. False if it is down already."""
        if self.down:
            return False
        self.down = True
        with suppress(ProcessLookupError):
            os.kill(self._server.pid, how)
        return True

    async def up(self) -> None:
        """Start it again, if it is down, and wait until it has recovered."""
        if self.down and self._rising is None:
            self._rising = asyncio.create_task(self._rise())
        if self._rising is not None:
            # Whoever stops waiting does not stop it: it would be left half-way.
            await asyncio.shield(self._rising)

    async def _rise(self) -> None:
        await asyncio.to_thread(self._server.start)
        self.down = False
        self._rising = None

    async def stop(self) -> None:
        await self.up()
        await asyncio.to_thread(self._server.stop)
