"""Retry: turns lines of an ended batch back into work and opens the batch again, in one transaction.

The batch's row is locked from before the first check until the commit. So of two retries one finds the batch
open, and a deletion, a purge or a cancel comes before or after. A process that dies in between changes
nothing.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec

from batchline.model import Batch
from batchline.model.ids import new_id
from batchline.store.batches import batch_of
from batchline.store.session import Session, StoreConnection, run, run_records
from batchline.store.statements import statement

# Ordinals that one span covers at most.
_SPAN_ITEMS = 10_000
# Seconds that a line takes at most, with a margin.
_TIME_PER_LINE = 1e-3
_MAX_CODES = 10


class PutBack(msgspec.Struct, frozen=True):
    """What to put back. The rest of the batch stays as it is."""

    # The new completion window of a batch that has a deadline.
    window_seconds: float | None
    # Failed lines, if they have one of these codes (None: any) and fewer than so many attempts (None: any).
    failed: bool = True
    codes: Sequence[str] | None = None
    # The keys of failure causes; None: any.
    causes: Sequence[str] | None = None
    max_attempts: int | None = None
    # Lines that never ran.
    unrun: bool = False
    # The attempts so far do not count.
    anew: bool = False
    # The maximum of attempts from now on; None: as before.
    new_max_attempts: int | None = None


class Kept(msgspec.Struct, frozen=True):
    """What is known of the files of a batch whose input exists."""

    # Part of an adoption that can be rolled back.
    adopted: bool
    # Its output and error files are deleted, so its results are about to be.
    results_deleted: bool


class Retrying:
    """A retry in progress. The batch's row is locked, so `batch` stays true until the transaction ends."""

    def __init__(self, connection: StoreConnection, batch: Batch) -> None:
        self._connection = connection
        self.batch = batch

    async def keep_input(self) -> Kept | None:
        """What a retry needs; None if the input file does not exist. If it does, it does so until the
        transaction ends."""
        params = {"file": self.batch.file_id, "batch": self.batch.id}
        rows = await run(self._connection, statement("keep_input"), params)
        return Kept(*rows[0]) if rows else None

    async def failure_codes(self) -> list[tuple[str, int]]:
        """The most frequent codes of failed lines, and how many lines have each."""
        params = {"batch": self.batch.id, "limit": _MAX_CODES}
        return [
            (code, lines) for code, lines in await run(self._connection, statement("failure_codes"), params)
        ]

    async def stale_collections(self) -> list[str]:
        """The urls of stages that have collected results which the lines that were put back would change."""
        if not self.batch.settings.collects:
            return []
        rows = await run(self._connection, statement("stale_collections"), {"batch": self.batch.id})
        return [url for (url,) in rows]

    async def put_back(self, wanted: PutBack) -> int:
        return await put_back(
            self._connection, self.batch.id, wanted, unrun=self.batch.total - self.batch.finished
        )


@asynccontextmanager
async def retrying(session: Session, batch: Batch, tenant: str | None) -> AsyncIterator[Retrying | None]:
    """Lock a batch's row; None if it is gone, governed, or another tenant's."""
    async with session.transaction(extra_time=batch.total * _TIME_PER_LINE) as connection:
        params = {"batch": batch.id, "tenant": tenant}
        if not await run(connection, statement("lock_ordinary_batch"), params):
            yield None
            return
        (now,) = await run_records(connection, statement("get_batch"), params)
        yield Retrying(connection, batch_of(now))


async def put_back(connection: StoreConnection, batch_id: UUID, wanted: PutBack, *, unrun: int = 0) -> int:
    """Put lines back and open the batch, unless there are none. Return their number.

    The caller has locked the row of the batch, which has ended. `unrun`: how many of its lines never ran.
    """
    params = {"batch": batch_id, "anew": wanted.anew, "span_items": _SPAN_ITEMS}
    more = unrun if wanted.unrun else 0
    if more:
        await run(connection, statement("put_back_unrun"), params)
    failed = 0
    if wanted.failed:
        codes = None if wanted.codes is None else list(wanted.codes)
        causes = None if wanted.causes is None else list(wanted.causes)
        chosen = {**params, "codes": codes, "causes": causes, "max_attempts": wanted.max_attempts}
        ((failed,),) = await run(connection, statement("put_back_failed"), chosen)
    if failed + more:
        opened = {
            "batch": batch_id,
            "failed": failed,
            "unrun": wanted.unrun,
            "max_attempts": wanted.new_max_attempts,
            "planned_output": new_id(),
            "window_seconds": wanted.window_seconds,
        }
        await run(connection, statement("reopen_batch"), opened)
        await run(connection, statement("hold_duplicates"), {"batch": batch_id})
        await run(connection, statement("note_failures"), {"batch": batch_id})
    return int(failed) + more
