"""The cutover: which batches can be adopted, and what they become."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from batchline.store.adoption.records import CutoverSettings, LeftOut, PossiblySent
from batchline.store.session import StoreConnection, run
from batchline.store.statements import statement

# Ordinals that one span covers at most.
_SPAN_ITEMS = 10_000


async def living_daemons(
    connection: StoreConnection, seconds: float, *, by_claims: bool
) -> list[tuple[str, datetime]]:
    """Old daemons that were seen within so many seconds. `by_claims`: also those that have no heartbeat."""
    params = {"seconds": seconds, "by_claims": by_claims}
    rows = await run(connection, statement("living_daemons"), params)
    return [(name, seen_at) for name, seen_at in rows]


async def judge(connection: StoreConnection) -> None:
    await run(connection, statement("judge_batches"), {})


async def left_out(connection: StoreConnection) -> list[LeftOut]:
    return [LeftOut(*row) for row in await run(connection, statement("left_out"), {})]


async def create_adopted(connection: StoreConnection, settings: CutoverSettings) -> tuple[int, int]:
    """Create files, batches, lanes, spans and history. Returns how many batches, and how many unfinished."""
    owner = {"tenant": settings.tenant, "by_owner": settings.by_owner}
    await run(connection, statement("create_adopted_files"), owner)
    await run(connection, statement("measure_adopted_lanes"), {})
    upstream = {"upstream": settings.upstream}
    params = {**owner, **upstream, "grace": settings.grace}
    ((batches, unfinished, _),) = await run(connection, statement("create_adopted_batches"), params)
    await run(connection, statement("create_adopted_lanes"), upstream)
    await run(connection, statement("create_adopted_spans"), {"span_items": _SPAN_ITEMS})
    await run(connection, statement("add_adopted_history"), {})
    await run(connection, statement("add_in_flight"), {})
    return int(batches), int(unfinished)


async def missing_results(connection: StoreConnection) -> list[tuple[UUID, int]]:
    """Batches that were just created with fewer results than finished requests, and how many are missing."""
    rows = await run(connection, statement("missing_results"), {})
    return [(batch_id, missing) for batch_id, missing in rows]


async def possibly_sent(
    connection: StoreConnection, found_by: Literal["cutover", "rollback"] | None = None
) -> list[PossiblySent]:
    rows = await run(connection, statement("list_in_flight"), {"found_by": found_by})
    return [PossiblySent(*row) for row in rows]
