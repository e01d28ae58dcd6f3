"""Searches the audit log of the actor's tenant. Only governance reads and writes it."""

from collections.abc import Sequence
from datetime import datetime

from batchline.governance.access import Actor
from batchline.store import audit
from batchline.store.audit import AuditSearch, Entry
from batchline.store.session import Session


async def search(
    session: Session,
    actor: Actor,
    *,
    words: str | None = None,
    by: str | None = None,
    action: str | None = None,
    since: datetime | None = None,
    before: datetime | None = None,
    after: int | None = None,
    limit: int,
) -> tuple[Sequence[Entry], int | None]:
    """Entries, newest first, and the id to continue after."""
    wanted = AuditSearch(words, by, action, since, before)
    return await audit.search(session, actor.tenant, wanted, after=after, limit=limit)
