"""Lines that may have crashed an upstream, as all workers see them."""

from uuid import UUID

from batchline.store.session import Session
from batchline.store.statements import statement


async def held_elsewhere(session: Session, worker_id: UUID, crashes: int) -> bool:
    """Whether another worker holds a line that was in flight at so many crashes."""
    params = {"worker": worker_id, "crashes": crashes}
    ((held,),) = await session.rows(statement("suspects_elsewhere"), params)
    return bool(held)
