"""Records requests that users try at an upstream without a batch. What they send and get is not recorded."""

from batchline.governance.access import Actor
from batchline.store import audit
from batchline.store.audit import AuditEvent
from batchline.store.session import Session


async def record(
    session: Session, actor: Actor, model: str, endpoint: str, upstream: str | None, status: int | None
) -> None:
    detail = {"model": model, "endpoint": endpoint, "upstream": upstream, "status": status}
    event = AuditEvent(actor.tenant, actor.user, "playground.requested", detail=detail)
    async with session.transaction() as connection:
        await audit.add(connection, event)
