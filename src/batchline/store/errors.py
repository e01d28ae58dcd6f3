"""What the database's errors mean for Batchline.

`StoreUnavailable` passes by itself, so a worker waits and connects again. `StoreUnusable` lasts until a
person changes the database or the URL. `StatementRefused` concerns one value. Any other error is a bug and
keeps its type.
"""

import psycopg
from psycopg import errors

# The server ends the connection with these: it stops, it starts, has too many, or an administrator said so.
_FATAL = ("FATAL", "PANIC")


class StoreUnavailable(Exception):
    """The database did not answer: not there, restarting, or silent for too long. Trying again may help."""


class StoreReadOnly(StoreUnavailable):
    """The database takes no writes now: it is a standby, or a failover is under way."""


class StoreFull(StoreUnavailable):
    """The database has no room on its disk."""


class StoreUnusable(Exception):
    """The database lacks what Batchline needs. The message says what, and what a person can do."""


class StatementRefused(Exception):
    """The database will not take a value; trying again cannot help."""


def translate(error: psycopg.Error) -> Exception:
    """What the error means; the error itself where it means a bug."""
    said = summary(error)
    match error:
        case errors.ReadOnlySqlTransaction():
            return StoreReadOnly(said)
        case errors.DuplicatePreparedStatement() | errors.InvalidSqlStatementName():
            # Somebody reset or shares the server's connection. A new one is examined anew.
            return StoreUnavailable(f"prepared statements are not kept: {said}")
        case errors.DiskFull():
            return StoreFull(f"disk full: {said}")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return StoreUnavailable(said)
        case _ if error.diag.severity_nonlocalized in _FATAL:
            return StoreUnavailable(said)
        case psycopg.DataError():
            return StatementRefused(str(error).strip())
        # Not that of a trigger, such as the audit log's, which refuses a change to everybody.
        case errors.InsufficientPrivilege() if error.diag.context is None:
            return StoreUnusable(
                f"the database user lacks a privilege: {said}; let an administrator grant it, such as"
                " GRANT CREATE ON DATABASE … TO that user before `batchline migrate up`,"
                " or make the user the owner of the schema and its tables"
            )
        case errors.InvalidSchemaName():
            return StoreUnusable(
                f"the schema of Batchline's tables is missing: {said};"
                " run `batchline migrate up`, or correct ?schema=NAME in --database"
            )
        case errors.DuplicateTable() | errors.DuplicateObject() | errors.DuplicateFunction():
            return StoreUnusable(
                f"the database holds something of the same name that is not Batchline's: {said};"
                " give Batchline another schema with ?schema=NAME in --database"
            )
        case errors.UndefinedTable() | errors.UndefinedColumn() | errors.UndefinedFunction():
            return StoreUnusable(
                f"the tables are not those of this version of Batchline: {said};"
                " check --database, and see `batchline migrate status`"
            )
        case _:
            return error


def summary(error: psycopg.Error) -> str:
    """The error in one line, without the statement that it quotes."""
    return error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
