"""Translation of database errors into errors that callers can handle.

`StoreUnavailable` is temporary, so a worker waits and connects again. `StoreUnusable` lasts until a
person changes the database or the URL. `StatementRefused` concerns one value. `StorageQuotaExceeded` and
`TenantClosed` concern one tenant. Any other error is a bug and keeps its type.
"""

import psycopg
from psycopg import errors

# Errors that end the connection: the server stops or starts, has too many connections, or an administrator
# ended this one.
_FATAL = ("FATAL", "PANIC")


class StoreUnavailable(Exception):
    """The database is unreachable, restarting, or did not answer in time. Trying again may help."""


class StoreReadOnly(StoreUnavailable):
    """The database accepts no writes now: it is a standby, or a failover is in progress."""


class StoreFull(StoreUnavailable):
    """The disk of the database is full."""


class StoreUnusable(Exception):
    """The database lacks something that Batchline needs. The message says what, and how to fix it."""


class StorageQuotaExceeded(Exception):
    """The tenant may not store so many bytes. Nothing was stored. The message is for a person."""


class TenantClosed(Exception):
    """The tenant is being erased or was erased, so nothing was stored. The message is for a person."""


class StatementRefused(Exception):
    """The database rejects a value. Trying again cannot help."""


# Errors that our functions in the database raise: require_tenant, require_room, count_usage.
_RAISED: dict[str | None, type[Exception]] = {"BLQ01": StorageQuotaExceeded, "BLT01": TenantClosed}


def translate(error: psycopg.Error) -> Exception:
    """Translate a psycopg error. An error that indicates a bug is returned unchanged."""
    said = summary(error)
    if error.sqlstate in _RAISED:
        return _RAISED[error.sqlstate](said)
    match error:
        case errors.ReadOnlySqlTransaction():
            return StoreReadOnly(said)
        case errors.DuplicatePreparedStatement() | errors.InvalidSqlStatementName():
            # Another client reset or shares the server connection. A new connection is checked again.
            return StoreUnavailable(f"prepared statements are not kept: {said}")
        case errors.DiskFull():
            return StoreFull(f"disk full: {said}")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return StoreUnavailable(said)
        case _ if error.diag.severity_nonlocalized in _FATAL:
            return StoreUnavailable(said)
        case psycopg.DataError():
            return StatementRefused(str(error).strip())
        # An error with a context comes from a trigger, such as the audit log's, which refuses every user.
        case errors.InsufficientPrivilege() if error.diag.context is None:
            return StoreUnusable(
                f"the database user lacks a privilege: {said}; ask an administrator to grant it, for example"
                " with GRANT CREATE ON DATABASE … before `batchline migrate up`,"
                " or to make the user the owner of the schema and its tables"
            )
        case errors.InvalidSchemaName():
            return StoreUnusable(
                f"the schema of Batchline's tables is missing: {said};"
                " run `batchline migrate up`, or correct ?schema=NAME in --database"
            )
        case errors.DuplicateTable() | errors.DuplicateObject() | errors.DuplicateFunction():
            return StoreUnusable(
                f"the schema contains an object of the same name that is not Batchline's: {said};"
                " choose another schema with ?schema=NAME in --database"
            )
        case errors.InvalidTransactionState():
            return StoreUnusable(
                f"the default isolation of transactions is wrong: {said}; for example, run"
                " ALTER DATABASE … SET default_transaction_isolation = 'read committed'"
            )
        case errors.UndefinedTable() | errors.UndefinedColumn() | errors.UndefinedFunction():
            return StoreUnusable(
                f"the tables do not match this version of Batchline: {said};"
                " check --database and run `batchline migrate status`"
            )
        case _:
            return error


def summary(error: psycopg.Error) -> str:
    """Summarize the error in one line, without the statement that it quotes."""
    return error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
