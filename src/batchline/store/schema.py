"""The schema version of a database, and whether this program can use it."""

from dataclasses import dataclass
from typing import Any

import psycopg

from batchline.store.address import InvalidSchemaName, parse
from batchline.store.errors import summary, translate

# The newest version that this program knows.
HEAD = "0032"
# The oldest version that it can use. While a change is rolled out in two halves, this is older than HEAD.
OLDEST_USABLE = "0032"

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


class DatabaseUnreachable(Exception):
    """Connecting to the database failed. The message says how to fix it."""


class WrongSchema(DatabaseUnreachable):
    """The tables are missing or of a version that this program cannot use. The message says what to do."""


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    current: str | None
    """The schema version; None if there are no tables."""
    compatible_from: str | None = None
    """The oldest program that may use the schema, identified by the newest version that it knows."""
    standby: bool = False
    """Whether the server is a standby, which accepts no writes."""

    @property
    def up_to_date(self) -> bool:
        return self.current == HEAD

    @property
    def newer(self) -> bool:
        """Whether a later version of Batchline created the schema."""
        return self.current is not None and self.current.isdecimal() and self.current > HEAD

    @property
    def usable(self) -> bool:
        if self.newer:
            return self.compatible_from is not None and self.compatible_from <= HEAD
        return self.current is not None and OLDEST_USABLE <= self.current <= HEAD


def status(url: str) -> SchemaStatus:
    with connect(url, autocommit=True) as connection:
        try:
            (standby,) = _row(connection, "SELECT pg_is_in_recovery()")
            schema = parse(url).schema
            return SchemaStatus(
                _value(connection, schema, "alembic_version", "version_num"),
                _value(connection, schema, "schema_compatibility", "compatible_from"),
                standby,
            )
        except psycopg.Error as error:
            raise translate(error) from error


def _value(connection: psycopg.Connection[Row], schema: str, table: str, column: str) -> str | None:
    """Read the value of a table's only row; None if the table or the row is missing."""
    # The schema's name is checked, so it is safe in the text of a statement.
    name = f"{schema}.{table}"
    if _row(connection, f"SELECT to_regclass('{name}') IS NULL")[0]:
        return None
    value: str | None = _row(connection, f"SELECT max({column})::text FROM {name}")[0]
    return value


def _row(connection: psycopg.Connection[Row], text: str) -> Row:
    row = connection.execute(text.encode()).fetchone()
    assert row is not None
    return row


def check(url: str) -> SchemaStatus:
    """Raise WrongSchema unless this program can use the tables. Changes nothing."""
    found = status(url)
    if found.usable:
        return found
    schema = parse(url).schema
    if found.current is None:
        raise WrongSchema(
            f"the database has no Batchline tables in schema {schema};"
            " run `batchline migrate up` with the same --database first"
        )
    if found.newer:
        raise WrongSchema(newer_message(schema, found.current))
    raise WrongSchema(
        f"schema {schema} is at version {found.current}, and this Batchline needs {OLDEST_USABLE};"
        " run `batchline migrate up` with the same --database"
    )


def newer_message(schema: str, current: str) -> str:
    return (
        f"schema {schema} is at version {current}, and this Batchline knows versions up to {HEAD};"
        f" upgrade Batchline, or run `batchline migrate down {HEAD}` with the newer one"
    )


def connect(url: str, *, autocommit: bool = False) -> psycopg.Connection[Row]:
    # Prepare nothing: there may be a pooler in between, and no statement here runs twice.
    options: dict[str, Any] = {"connect_timeout": 10, "prepare_threshold": None, "client_encoding": "utf8"}
    try:
        return psycopg.connect(parse(url).conninfo, autocommit=autocommit, **options)
    except psycopg.OperationalError as error:
        said = summary(error)
        raise DatabaseUnreachable(f"cannot connect to the database: {said}; {_remedy(said)}") from error
    except InvalidSchemaName as error:
        raise DatabaseUnreachable(f"--database: {error}") from error
    except psycopg.ProgrammingError as error:
        raise DatabaseUnreachable(
            f"--database is not a database URL: {summary(error)}; use one like postgresql://user@host/name"
        ) from error


def _remedy(said: str) -> str:
    """Find advice by the words of the message: libpq has no error codes for failed connections."""
    return next((remedy for words, remedy in _REMEDIES if words in said), _USUAL_REMEDY)
