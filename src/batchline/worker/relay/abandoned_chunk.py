"""Cancels a chunk at its provider whose batch was cancelled or deleted, or has expired, without it."""

import structlog

from batchline.store import provider_chunks
from batchline.store.provider_chunks import LostChunk
from batchline.store.session import Session
from batchline.upstreams.relay.batch_api import BatchApi, ChunkOrder
from batchline.upstreams.relay.connection import NoAnswer, NotSent, RelayConnection, RequestRefused

# A provider refuses so to cancel a batch that has ended.
ENDED_ALREADY = frozenset({400, 404, 409})
# A creation takes no longer than the provider's answer may, and then it is listed after `batch_recheck`.
_ANSWER_LIMIT = 60.0
# One that cannot be searched for is given up after this long: its creator has noted its name by then.
_UNNAMED = 900.0

_log = structlog.get_logger("batchline.relay")


async def cancel_abandoned(
    session: Session, api: BatchApi, connection: RelayConnection, recheck: float, task_id: str
) -> bool:
    """False: try again later."""
    chunk = provider_chunks.chunk_of(task_id)
    found = await provider_chunks.abandoned(session, chunk)
    if found is None:
        return True
    try:
        over = await _cancel(api, connection, recheck, found)
    except (NotSent, NoAnswer, RequestRefused) as error:
        _log.warning("cannot cancel a chunk", chunk=chunk.hex, reason=str(error))
        return False
    if over:
        await provider_chunks.forget(session, chunk)
    return over


async def _cancel(api: BatchApi, connection: RelayConnection, recheck: float, chunk: LostChunk) -> bool:
    """Whether nothing of it is left at the provider."""
    if chunk.state == "creating":
        batch = await _search(api, connection, chunk)
        if batch is None:
            patience = recheck + _ANSWER_LIMIT if api.searchable else _UNNAMED
            return (chunk.creating_for or 0.0) > patience
    elif chunk.state in ("submitted", "ended"):
        batch = chunk.provider_batch or ""
    else:
        return True
    try:
        await api.cancel(connection, batch)
    except RequestRefused as refused:
        if refused.status not in ENDED_ALREADY:
            raise
    return True


async def _search(api: BatchApi, connection: RelayConnection, chunk: LostChunk) -> str | None:
    if not api.searchable:
        return None
    order = ChunkOrder(chunk.id.hex, "", chunk.created_at, chunk.file_id, chunk.refused)
    return await api.find(connection, order)
