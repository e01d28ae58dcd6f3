"""Rows through the stages of batchline.toml, in this process: the same run again continues its batch."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from batchline.app.batch_wait import BatchWait
from batchline.app.batchline import Batchline
from batchline.app.core import AppCore
from batchline.app.errors import translated
from batchline.app.item_blocks import errors_of_sources, item_blocks
from batchline.app.pipeline_stages import encoded_definitions
from batchline.app.stage_requests import check_stage_keys
from batchline.app.submission import new_batch, store, submission_of
from batchline.app.submitted_batch import SubmittedBatch
from batchline.model import Batch
from batchline.operations.codec import TypeMismatch
from batchline.operations.errors import BatchlineError, InvalidItem
from batchline.operations.http_stage import HttpStage
from batchline.store import batches
from batchline.store.batches import AlreadyExists
from batchline.store.guest import long_transaction
from batchline.upstreams.http_upstream import Upstreams

_STOPPING = (
    "finishing what is in flight; press Ctrl-C again to stop at once; the same command continues the batch"
)

NumberedRows: TypeAlias = Iterator[tuple[int, dict[str, Any]]]


class PipelineRequest(msgspec.Struct, frozen=True):
    """The rows, and the stages that they go through. `digest` is that of the rows. `same_columns`: all rows
    have the same columns, so that the first one stands for all."""

    stages: Sequence[HttpStage]
    rows: Callable[[], NumberedRows]
    digest: bytes
    name: str
    same_columns: bool
    fresh: bool = False
    retry_failed: bool = False
    progress: bool = False


async def run_pipeline(app: Batchline, order: PipelineRequest) -> SubmittedBatch[Any, Any]:
    """The batch of the rows, when it has ended. The key of an item is the number of its row.

    Raises BatchlineError, and what reading the rows raises.
    """
    core, stages = app._core, order.stages
    check_stage_keys(stages)
    key = _resume_key(order.digest, stages)
    found = None if order.fresh else await _found(core, key)
    if found is None:
        await _check_upstreams(stages)
        found = await _created(core, order, stages[0], key)
    batch = SubmittedBatch(core, found.id, stages[0])
    if found.ended_at is not None and order.retry_failed:
        await batch.retry()
    if found.ended_at is None and found.paused_at is not None:
        await batch.resume()
    await BatchWait(core, found.id, here=True, advice=_STOPPING).ended(bar=order.progress, timeout=None)
    return batch


async def _found(core: AppCore, key: str) -> Batch | None:
    async with core.session() as session:
        return await batches.find(session, core.location.tenant, key)


async def _created(core: AppCore, order: PipelineRequest, first: HttpStage, key: str) -> Batch:
    tenant, numbers = core.location.tenant, deque[str]()

    def rows() -> Iterator[dict[str, Any]]:
        for index, (number, row) in enumerate(order.rows()):
            if index == 0 and order.same_columns:
                _check_row(first, number, row)
            numbers.append(str(number))
            yield row

    submission = submission_of(core.catalog, tenant, first, {"name": order.name})
    new = replace(new_batch(submission), resume_key=key)
    sessions = (await core.resources()).sessions
    # Keys are requested in the order of the rows.
    blocks = item_blocks(first, rows(), lambda _: numbers.popleft())
    with translated(), errors_of_sources():
        async with aclosing(blocks), sessions.stream() as session:
            try:
                async with long_transaction(session) as inside:
                    if order.fresh:
                        # Here: if the rows are refused, the old batch can still be continued.
                        await batches.retire(inside, tenant, key)
                    await store(inside, submission, new, blocks)
            except AlreadyExists:
                # Another process with the same rows was faster.
                pass
            batch = await batches.find(session, tenant, key)
    if batch is None:
        raise BatchlineError("the batch was deleted meanwhile; run the same command again")
    return batch


def _check_row(first: HttpStage, number: int, row: dict[str, Any]) -> None:
    """Raises InvalidItem. Rows of a table have the same columns, so the first one has a wrong name, too."""
    try:
        first.request(first.codec.encode_item(row))
    except TypeMismatch as error:
        where = f"row {number}: stage {first.settings.name!r}"
        raise InvalidItem(None, f"{where}: {error}; nothing was sent") from None


async def _check_upstreams(stages: Sequence[HttpStage]) -> None:
    """Before anything is stored. Raises BatchlineError."""
    upstreams = Upstreams()
    try:
        for base_url, variable in dict.fromkeys(
            (stage.upstream.base_url, stage.upstream.api_key_env) for stage in stages
        ):
            if trouble := await upstreams.get(base_url).check(variable):
                raise BatchlineError(f"{trouble}; nothing was sent")
    finally:
        await upstreams.close()


def _resume_key(digest: bytes, stages: Sequence[HttpStage]) -> str:
    """The same for the same rows and requests."""
    # The names of the stages are part of it: a batch with other names cannot be continued.
    names = msgspec.json.encode([stage.name for stage in stages])
    return hashlib.sha256(b"pipeline" + digest + names + encoded_definitions(stages)).hexdigest()
