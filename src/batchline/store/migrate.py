"""The schema's versions: up, down, and where it stands.

Alembic takes a quarter of a second to import, so it is loaded only when there is something to migrate.
"""

from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

HEAD = "0010"
_HERE = Path(__file__).parent / "migrations"
# Any number: all who migrate one database ask for the same lock, and it ends with their transaction.
_LOCK = 0x6261746368


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    current: str | None
    head: str

    @property
    def up_to_date(self) -> bool:
        return self.current == self.head


class DatabaseUnreachable(Exception):
    """No connection to the database could be made."""


class UnknownRevision(Exception):
    """There is no such version of the schema, or no way to it from here."""


def status(url: str) -> SchemaStatus:
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            return SchemaStatus(_current(connection), HEAD)
    except psycopg.OperationalError as error:
        raise DatabaseUnreachable(f"cannot reach the database: {str(error).strip()}") from error
    except psycopg.ProgrammingError as error:
        raise DatabaseUnreachable(f"cannot read the database URL: {str(error).strip()}") from error


def ensure(url: str) -> None:
    """Bring the schema up to date; a single quick read when it is already."""
    if not status(url).up_to_date:
        up(url)


def up(url: str, revision: str = "head") -> None:
    _migrate(url, "upgrade", revision)


def down(url: str, revision: str) -> None:
    _migrate(url, "downgrade", revision)


def _current(connection: psycopg.Connection[tuple[str]]) -> str | None:
    found = connection.execute("SELECT to_regclass('alembic_version')::text").fetchone()
    if found is None or found[0] is None:
        return None
    row = connection.execute(sql.SQL("SELECT version_num FROM alembic_version")).fetchone()
    return row[0] if row else None


def _migrate(url: str, direction: str, revision: str) -> None:
    import sqlalchemy
    from alembic import command
    from alembic.config import Config
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(_HERE).replace("%", "%%"))
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    try:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            config.attributes["connection"] = connection
            getattr(command, direction)(config, revision)
    except CommandError as error:
        raise UnknownRevision(str(error)) from error
    finally:
        engine.dispose()
