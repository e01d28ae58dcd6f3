"""Orders: the one transaction in which a batch comes to be, or is found to have been made before."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
from psycopg.types.json import Jsonb

from batchline.model import Batch, ContentError
from batchline.store import batches, idempotency
from batchline.store.batches import FileNotFound, NewBatch
from batchline.store.idempotency import IdempotencyKey
from batchline.store.session import Session, StoreConnection, run, run_records
from batchline.store.statements import statement

_INPUT = "batch"


class WrongPurpose(Exception):
    """The file exists, but has another purpose."""

    def __init__(self, purpose: str) -> None:
        super().__init__(f"the file was uploaded for {purpose}, not for {_INPUT}")
        self.purpose = purpose


class UnfitLine(msgspec.Struct, frozen=True):
    """A line that the batch cannot run."""

    line_no: int
    url: str
    model: str


class OrderedFile(msgspec.Struct, frozen=True):
    """The file of an order, kept from deletion until the transaction ends."""

    no: int
    # Why no batch can run over it; none if one can.
    errors: tuple[ContentError, ...]


class BatchCreation:
    """A batch creation in one transaction: if it fails, nothing was created."""

    def __init__(self, connection: StoreConnection, new: NewBatch) -> None:
        self._connection = connection
        self._new = new

    async def remember(self, idempotency_key: IdempotencyKey) -> None:
        """Record the caller's key for this batch; raises IdempotencyConflict if the key is in use."""
        await idempotency.remember(self._connection, idempotency_key, self._new.id)

    async def file(self) -> OrderedFile:
        params = {"file": self._new.file_id, "tenant": self._new.tenant}
        rows = await run(self._connection, statement("ordered_file"), params)
        if not rows:
            raise FileNotFound(f"no input file {self._new.file_id}")
        ((no, purpose, errors),) = rows
        if purpose != _INPUT:
            raise WrongPurpose(purpose)
        return OrderedFile(no, msgspec.convert(errors or (), tuple[ContentError, ...]))

    async def unfit_lines(
        self, file: OrderedFile, served: Collection[str] | None, maximum: int
    ) -> list[UnfitLine]:
        """The first lines with another url than the batch's endpoint, or a model that is not served."""
        params = {
            "file_no": file.no,
            "endpoint": self._new.endpoint,
            "served": None if served is None else list(served),
            "max_errors": maximum,
        }
        return [UnfitLine(*row) for row in await run(self._connection, statement("unfit_lines"), params)]

    async def create(self) -> Batch:
        return await self._made("create_batch", {})

    async def fail(self, errors: Sequence[ContentError], event_id: UUID) -> Batch:
        """The batch is there, and has failed while validating."""
        return await self._made(
            "fail_batch", {"errors": Jsonb(msgspec.to_builtins(errors)), "event": event_id}
        )

    async def _made(self, how: str, more: dict[str, Any]) -> Batch:
        params = {**batches.created(self._new), **more}
        (record,) = await run_records(self._connection, statement(how), params)
        return batches.batch_of(record)


@asynccontextmanager
async def creation(session: Session, new: NewBatch) -> AsyncIterator[BatchCreation]:
    async with session.transaction() as connection:
        yield BatchCreation(connection, new)
