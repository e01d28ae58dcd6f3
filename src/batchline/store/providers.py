"""What asynchronous providers work on: counts, and tasks that are to be cancelled."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from batchline.model import Claim, Item, RunSettings
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.store.statements import statement


class ProviderCounts(msgspec.Struct, frozen=True):
    """Items of one upstream. `submission_unknown`: the provider may have accepted them without an answer."""

    upstream: str
    processing: int
    submission_unknown: int


async def counts(session: Session, scope: Scope) -> list[ProviderCounts]:
    """By upstream, within the scope. Upstreams with neither are left out."""
    rows = await session.rows(statement("provider_counts"), scope.params())
    return [ProviderCounts(upstream, tasks or 0, unknown or 0) for upstream, tasks, unknown in rows]


# Each is one request.
_MAX_TAKEN = 16
_SECONDS = 60.0


class AbandonedTask(msgspec.Struct, frozen=True):
    """A task whose batch has ended without it or was deleted. `item` names it to its provider."""

    upstream: str
    task_id: str
    attempts: int
    item: Item


async def take_abandoned(session: Session, scope: Scope) -> list[AbandonedTask]:
    """Tasks to cancel. They are due again after a minute, unless they are dropped before."""
    params = {**scope.params(), "limit": _MAX_TAKEN}
    rows = await session.rows(statement("take_abandoned_tasks"), params)
    return [
        AbandonedTask(upstream, task_id, attempts, _item(upstream, task_id, batch_id, lane_id, *of))
        for upstream, task_id, batch_id, lane_id, attempts, *of in rows
    ]


async def drop_abandoned(session: Session, tasks: Sequence[AbandonedTask]) -> None:
    params = {"upstreams": [task.upstream for task in tasks], "tasks": [task.task_id for task in tasks]}
    await session.rows(statement("drop_abandoned_tasks"), params)


def _item(
    upstream: str,
    task_id: str,
    batch_id: UUID,
    lane_id: int,
    url: str,
    model: str,
    settings: object,
) -> Item:
    run_settings = msgspec.convert(settings, RunSettings)
    claim = Claim(0, lane_id, batch_id, 1, task_id, 1, url, model, upstream, _SECONDS, run_settings)
    return Item(claim, 0, 0, b"", b"")
