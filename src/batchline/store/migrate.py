"""Upgrade and downgrade the schema.

Workers and servers may run meanwhile. While a migration waits for a table, everybody else waits behind it. So
it waits for less time than a lease lasts, lets the others through, and begins again.

Importing Alembic takes a quarter of a second, so it is imported only when there is something to migrate.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any

import psycopg

from batchline.store import schema
from batchline.store.address import parse
from batchline.store.errors import StoreUnusable, summary, translate
from batchline.store.schema import SchemaStatus

_HERE = Path(__file__).parent / "migrations"
# An arbitrary number: all migrations of a database take the same lock, until the transaction ends.
_LOCK = 0x6261746368
# A worker stops sending 12 s after its last renewal, by default.
_LOCK_TIMEOUT = "5s"
_TRIES = 10
_PAUSE = 2.0


class UnknownRevision(Exception):
    """The schema version does not exist, or cannot be reached from the current one."""


class TablesInUse(Exception):
    """Other transactions kept the tables locked. The message says what to do."""


class NotRolling(Exception):
    """Programs of the version before could not use the new schema. The message says what to do."""


def ensure(url: str) -> SchemaStatus:
    """Bring the schema up to date, unless it is usable already."""
    found = schema.status(url)
    if not found.up_to_date and not (found.newer and found.usable):
        up(url)
    return found


def up(url: str, revision: str = "head", *, rolling: bool = False) -> None:
    """`rolling`: programs of the version before may be running. Raises NotRolling if they could not go on.

    A newer schema that this program can use stays as it is: an older image was deployed again.
    """
    found = schema.status(url)
    if revision == "head" and found.newer and found.usable:
        return

    def upgrade() -> None:
        with _migration(url) as migration:
            migration.prepare()
            before = migration.version()
            migration.upgrade(revision)
            if rolling:
                migration.check_rolling(before)

    _patiently(upgrade)


def down(url: str, revision: str) -> None:
    def downgrade() -> None:
        with _migration(url) as migration:
            migration.set_search_path()
            migration.downgrade(revision)

    _patiently(downgrade)


def _patiently(migrate: Callable[[], None]) -> None:
    """Try again while other transactions hold locks; nothing was changed then."""
    for _ in range(_TRIES - 1):
        try:
            return migrate()
        except TablesInUse:
            sleep(_PAUSE)
    migrate()


@dataclass(frozen=True, slots=True)
class _Migration:
    """Migrations in one transaction, with the schema as the search path."""

    connection: Any
    config: Any
    schema: str

    def upgrade(self, revision: str) -> None:
        from alembic import command

        command.upgrade(self.config, revision)

    def downgrade(self, revision: str) -> None:
        from alembic import command

        command.downgrade(self.config, revision)

    def version(self) -> str | None:
        return self._value("alembic_version", "version_num")

    def check_rolling(self, before: str | None) -> None:
        """Raise NotRolling unless programs that know version `before` may use the schema as it is now."""
        needed = self._value("schema_compatibility", "compatible_from")
        if before is None or (needed is not None and needed <= before):
            return
        raise NotRolling(
            f"schema {self.schema} stays at version {before}: programs made for it cannot use version"
            f" {self.version()}, which needs programs made for {needed or 'a newer version'} or later;"
            " stop all servers and workers, then run `batchline migrate up` without --rolling"
        )

    def _value(self, table: str, column: str) -> str | None:
        name = f"{self.schema}.{table}"
        if not self._exists(f"to_regclass('{name}')"):
            return None
        value: str | None = self.connection.exec_driver_sql(
            f"SELECT max({column})::text FROM {name}"
        ).scalar()
        return value

    def remove(self) -> None:
        self.downgrade("base")
        self.connection.exec_driver_sql(f"DROP TABLE {self.schema}.alembic_version")

    def prepare(self) -> None:
        """Create the schema, and move the tables of version 0.1.0 into it, if there are any."""
        from batchline.store import relocation

        first = not self._exists(f"to_regclass('{self.schema}.alembic_version')")
        old = relocation.find_version_table(self.connection) if first else None
        # CREATE SCHEMA IF NOT EXISTS needs the right to create schemas, even if an administrator created it.
        if not self._exists(f"to_regnamespace('{self.schema}')"):
            self.connection.exec_driver_sql(f"CREATE SCHEMA {self.schema}")
        self.set_search_path()
        if old is not None:
            relocation.relocate(self.connection, old, self.schema, self)

    def knows(self, revision: str | None) -> bool:
        return is_known(revision)

    def set_search_path(self) -> None:
        self.connection.exec_driver_sql(f"SET LOCAL search_path = {self.schema}")

    def _exists(self, expression: str) -> bool:
        return bool(self.connection.exec_driver_sql(f"SELECT {expression} IS NOT NULL").scalar())


def is_known(revision: str | None) -> bool:
    """Whether the revision is a Batchline version that this program knows."""
    return (
        revision is not None and revision.isdecimal() and any((_HERE / "versions").glob(f"{revision}_*.py"))
    )


def _check_known(name: str, found: SchemaStatus) -> None:
    if found.current is None or is_known(found.current):
        return
    if found.newer:
        raise UnknownRevision(schema.newer_message(name, found.current))
    raise UnknownRevision(
        f"the table {name}.alembic_version contains {found.current!r}, which is not a Batchline version;"
        " another program uses this schema: choose another one with ?schema=NAME in --database"
    )


def _explained(error: psycopg.Error, name: str) -> Exception:
    """The error for a person. A migration may meet any tables, so an unknown error need not be a bug."""
    if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
        return TablesInUse(
            f"other transactions use the tables of schema {name}, and nothing was changed: {summary(error)};"
            " try again when they have ended: pg_stat_activity shows them, such as a backup or a long query"
        )
    meaning = translate(error)
    if meaning is not error:
        return meaning
    return StoreUnusable(
        f"schema {name} is not what the migrations expect, and nothing was changed: {summary(error)};"
        " if another program uses this schema, choose another one with ?schema=NAME in --database"
    )


@contextmanager
def _migration(url: str) -> Iterator[_Migration]:
    address = parse(url)
    _check_known(address.schema, schema.status(url))
    import sqlalchemy
    from alembic.config import Config
    from alembic.util.exc import CommandError

    from batchline.store.relocation import NotOurs

    config = Config()
    config.set_main_option("script_location", str(_HERE).replace("%", "%%"))
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: schema.connect(url))
    try:
        with engine.begin() as connection:
            # Migrations wait for each other as long as it takes.
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
            config.attributes.update(connection=connection, schema=address.schema)
            yield _Migration(connection, config, address.schema)
    except CommandError as error:
        raise UnknownRevision(str(error)) from error
    except NotOurs as error:
        raise StoreUnusable(str(error)) from error
    except sqlalchemy.exc.DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise _explained(error.orig, address.schema) from error
        raise
    finally:
        engine.dispose()
