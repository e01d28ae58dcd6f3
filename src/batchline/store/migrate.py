"""The schema's versions: up, down, and where it stands.

Alembic takes a quarter of a second to import, so it is loaded only when there is something to migrate.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from batchline.store.errors import summary, translate

HEAD = "0010"
_HERE = Path(__file__).parent / "migrations"
# Any number: all who migrate one database ask for the same lock, and it ends with their transaction.
_LOCK = 0x6261746368
_FIRST_LOOK = "SELECT to_regclass('alembic_version')::text, pg_is_in_recovery()"
_USUAL_REMEDY = "check the host, the port and the names in --database"
_REMEDIES = (
    ("authentication failed", "check the user and the password in --database, or the password file"),
    ("password", "check the user and the password in --database, or the password file"),
    ("too many", "raise max_connections, or put a pooler in front of the database"),
    ("remaining connection slots", "raise max_connections, or put a pooler in front of the database"),
    ("the database system is", "try again when it has started"),
    ("does not exist", "create it, or correct --database"),
)

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    current: str | None
    head: str
    # A standby replays what its primary writes, and takes no writes of its own.
    standby: bool = False

    @property
    def up_to_date(self) -> bool:
        return self.current == self.head


class DatabaseUnreachable(Exception):
    """No connection to the database could be made. The message says what a person can do."""


class UnknownRevision(Exception):
    """There is no such version of the schema, or no way to it from here."""


def status(url: str) -> SchemaStatus:
    with _connect(url, autocommit=True) as connection:
        try:
            row = connection.execute(_FIRST_LOOK).fetchone()
            assert row is not None
            table, standby = row
            return SchemaStatus(None if table is None else _current(connection), HEAD, standby)
        except psycopg.Error as error:
            raise translate(error) from error


def ensure(url: str) -> SchemaStatus:
    """Bring the schema up to date; a single quick read when it is already."""
    found = status(url)
    if not found.up_to_date:
        _check_known(found)
        up(url)
    return found


def up(url: str, revision: str = "head") -> None:
    _migrate(url, "upgrade", revision)


def down(url: str, revision: str) -> None:
    _migrate(url, "downgrade", revision)


def _current(connection: psycopg.Connection[Row]) -> str | None:
    row = connection.execute(sql.SQL("SELECT version_num FROM alembic_version")).fetchone()
    return str(row[0]) if row else None


def _check_known(found: SchemaStatus) -> None:
    if found.current is None or any((_HERE / "versions").glob(f"{found.current}_*.py")):
        return
    if found.current.isdecimal() and found.current > HEAD:
        raise UnknownRevision(
            f"the schema is at version {found.current}, and this Batchline knows versions up to {HEAD}:"
            f" upgrade Batchline, or run `batchline migrate down {HEAD}` with the newer one"
        )
    raise UnknownRevision(
        f"the table alembic_version holds {found.current!r}, which is no version of Batchline's schema:"
        " it belongs to another program; give Batchline a database or a schema of its own"
    )


def _migrate(url: str, direction: str, revision: str) -> None:
    _check_known(status(url))
    import sqlalchemy
    from alembic import command
    from alembic.config import Config
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(_HERE).replace("%", "%%"))
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: _connect(url))
    try:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            config.attributes["connection"] = connection
            getattr(command, direction)(config, revision)
    except CommandError as error:
        raise UnknownRevision(str(error)) from error
    except sqlalchemy.exc.DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise translate(error.orig) from error
        raise
    finally:
        engine.dispose()


def _connect(url: str, *, autocommit: bool = False) -> psycopg.Connection[Row]:
    # Nothing is prepared: a pooler may stand between, and nothing here is run twice.
    options: dict[str, Any] = {"connect_timeout": 10, "prepare_threshold": None}
    try:
        return psycopg.connect(url, autocommit=autocommit, **options)
    except psycopg.OperationalError as error:
        said = summary(error)
        raise DatabaseUnreachable(f"cannot connect to the database: {said}; {_remedy(said)}") from error
    except psycopg.ProgrammingError as error:
        raise DatabaseUnreachable(
            f"--database is no database URL: {summary(error)}; give one such as postgresql://user@host/name"
        ) from error


def _remedy(said: str) -> str:
    """libpq gives no code for an error while connecting, only the server's words."""
    return next((remedy for words, remedy in _REMEDIES if words in said), _USUAL_REMEDY)
