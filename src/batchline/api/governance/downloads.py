"""GET /api/v1/batches/{id}/download: the children that failed, or that never started, as a file."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Response

from batchline.api.context import ApiContext, InContext
from batchline.api.downloads import InDownloads
from batchline.api.governance.dependencies import CurrentActor, InRules
from batchline.api.governance.errors import governed_responses
from batchline.api.governance.operations import BatchId
from batchline.api.governance.schemas import PREFIX, read_id
from batchline.api.routing import AuthenticatedRoute
from batchline.api.streaming import Blocks, Streamed, attachment
from batchline.governance import access, children
from batchline.governance.operations import Operation
from batchline.model import Child, ChildStatus, GovernedBatch, ids
from batchline.store import operations
from batchline.tables.encoding import CsvEncoder, Encoder, JsonlEncoder

router = APIRouter(prefix=PREFIX, tags=["operations"], route_class=AuthenticatedRoute)

Which = Literal["failed", "unstarted"]
Format = Literal["jsonl", "csv"]

_PAGE = 100
_COLUMNS = (
    *("sequence_no", "custom_id", "status", "attempt_count", "status_code"),
    *("error_code", "error_message", "item"),
)


@router.get("/batches/{batch_id}/download", responses=governed_responses(404, 503))
async def download_children(
    batch_id: BatchId,
    actor: CurrentActor,
    context: InContext,
    rules: InRules,
    downloads: InDownloads,
    which: Annotated[
        Which, Query(description="`failed` children, or those of which no attempt has begun: `unstarted`.")
    ],
    format: Annotated[Format, Query(description="One JSON object per line, or CSV.")] = "jsonl",
) -> Response:
    """Children that failed, or that never started, as a file. Secrets are masked."""
    async with context.sessions.one() as session:
        batch = await access.visible(session, actor, read_id(batch_id))
    encoder: Encoder = CsvEncoder(_COLUMNS) if format == "csv" else JsonlEncoder(_COLUMNS)
    blocks = _blocks(context, batch, rules.registry.find(batch.operation), which, encoder)
    name = f"{ids.show(ids.BATCH, batch.id)}_{which}.{format}"
    return Streamed(downloads.slot(actor.tenant), blocks, 200, attachment(name))


async def _blocks(
    context: ApiContext, batch: GovernedBatch, operation: Operation | None, which: Which, encoder: Encoder
) -> Blocks:
    """No connection is held while a page is encoded or sent."""
    yield encoder.end()
    async for page in _pages(context, batch, which):
        yield await asyncio.to_thread(_encoded, page, batch, operation, encoder)


async def _pages(context: ApiContext, batch: GovernedBatch, which: Which) -> AsyncIterator[list[Child]]:
    """Children that wait become cancelled ones when the batch is frozen, so both are read, in this order."""
    statuses = [ChildStatus.FAILED] if which == "failed" else [ChildStatus.PENDING, ChildStatus.CANCELLED]
    for status in statuses:
        after = 0
        while True:
            async with context.sessions.stream() as session:
                page = await operations.children(session, batch.id, status=status, after=after, limit=_PAGE)
            if not page:
                break
            yield [child for child in page if which == "failed" or child.attempt_count == 0]
            after = page[-1].sequence_no


def _encoded(
    page: Sequence[Child], batch: GovernedBatch, operation: Operation | None, encoder: Encoder
) -> bytes:
    return encoder.add([_row(child, children.reported(child, batch, operation)) for child in page], 0)


def _row(child: Child, reported: children.Reported) -> tuple[object, ...]:
    error = reported.error
    return (
        *(child.sequence_no, child.custom_id, child.status.value, child.attempt_count, child.status_code),
        None if error is None else error.code,
        None if error is None else error.message,
        msgspec.to_builtins(reported.item),
    )
