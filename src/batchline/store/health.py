"""Whether the database can be used."""

from batchline.store.session import Session
from batchline.store.statements import statement


async def ping(session: Session) -> None:
    """Raises StoreUnavailable where it cannot."""
    await session.rows(statement("ping"), {})
