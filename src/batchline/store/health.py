"""Whether the database can be used."""

from batchline.store.errors import StoreReadOnly
from batchline.store.session import Session
from batchline.store.statements import statement


async def ping(session: Session) -> None:
    """Raises StoreUnavailable where it cannot be used, StoreReadOnly where it takes no writes."""
    if await _read_only(session):
        # Perhaps it was so only when this connection was opened.
        await session.close()
        if await _read_only(session):
            raise StoreReadOnly("transactions are read-only")


async def _read_only(session: Session) -> bool:
    ((read_only, _),) = await session.rows(statement("ping"), {})
    return bool(read_only)
