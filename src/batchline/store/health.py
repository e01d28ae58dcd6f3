"""Health check of the database."""

from batchline.store.errors import StoreReadOnly
from batchline.store.session import Session
from batchline.store.statements import statement


async def ping(session: Session) -> None:
    """Check the database. Raises StoreUnavailable, or StoreReadOnly if it accepts no writes."""
    if await _read_only(session):
        # The connection may be one to a server that was a standby when it was opened: try a new one.
        await session.close()
        if await _read_only(session):
            raise StoreReadOnly("transactions are read-only")


async def _read_only(session: Session) -> bool:
    ((read_only, _),) = await session.rows(statement("ping"), {})
    return bool(read_only)
