"""A new PostgreSQL with Batchline's durable settings, and databases that last for one comparison."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from batchline.embedded import EmbeddedPostgres
from batchline.store import migrate

_REPORTED = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "wal_compression",
    "max_wal_size",
    "checkpoint_timeout",
    "shared_buffers",
    "jit",
    "autovacuum",
)
_KNOWN = sql.SQL("SELECT 1 FROM pg_database WHERE datname = %(name)s")


@dataclass(frozen=True, slots=True)
class BenchServer:
    url: str
    log: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)
    # One lock per template: in some contests all contestants run at once, each in a thread.
    _templates: dict[str, Lock] = field(default_factory=dict, repr=False)

    @contextmanager
    def database(self, *, migrated: bool = True, template: str = "template1") -> Iterator[str]:
        """Create a database as a copy of the template, return its URL, and drop it afterwards."""
        name = f"contest_{next(self._numbers)}"
        self._create(name, template)
        try:
            url = make_conninfo(self.url, dbname=name)
            if migrated:
                migrate.ensure(url)
            yield url
        finally:
            execute(self.url, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def template(self, name: str, fill: Callable[[str], None]) -> str:
        """A database to copy: filled on first use, and kept as long as the server runs."""
        with self._templates.setdefault(name, Lock()):
            if not execute(self.url, _KNOWN, {"name": name}):
                self._create(name, "template1")
                fill(make_conninfo(self.url, dbname=name))
        return name

    def url_of(self, name: str) -> str:
        return make_conninfo(self.url, dbname=name)

    def _create(self, name: str, template: str) -> None:
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        execute(self.url, create.format(sql.Identifier(name), sql.Identifier(template)))

    def settle_down(self) -> None:
        """Write the dirty pages of earlier turns to disk, so that this turn does not pay for them."""
        execute(self.url, sql.SQL("CHECKPOINT"))

    def settings(self) -> dict[str, str]:
        with psycopg.connect(self.url) as connection:
            rows = connection.execute("SELECT name, current_setting(name) FROM pg_settings").fetchall()
        known: dict[str, str] = dict(rows)
        return {name: known[name] for name in ("server_version", *_REPORTED)}


@contextmanager
def a_server(folder: Path, **settings: str) -> Iterator[BenchServer]:
    with EmbeddedPostgres.start(folder, settings=settings) as server:
        yield BenchServer(server.url, server.data_dir / "postgres.log")


def execute(url: str, query: sql.SQL | sql.Composed, params: dict[str, Any] | None = None) -> list[Any]:
    """Run one statement on a separate connection."""
    with psycopg.connect(url, autocommit=True, application_name="benchmark") as connection:
        cursor = connection.execute(query, params)
        return cursor.fetchall() if cursor.description else []


def vacuum(url: str) -> None:
    """Vacuum the database, as autovacuum would."""
    execute(url, sql.SQL("VACUUM ANALYZE"))
