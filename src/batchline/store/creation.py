"""Orders: the one transaction in which a batch comes to be, or is found to have been made before."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from batchline.model import Batch, ContentError
from batchline.store import batches, idempotency, steps
from batchline.store.batches import AlreadyExists, FileNotFound, NewBatch
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

    async def add_line(
        self, filename: str, model: str, url: str, body: bytes, expires_after: float | None
    ) -> None:
        """Create the batch's file, with one line."""
        params = {
            "file": self._new.file_id,
            "tenant": self._new.tenant,
            "filename": filename,
            "model": model,
            "url": url,
            "custom_id": filename,
            "body": body.decode(),
            "expires_after": expires_after,
        }
        await run(self._connection, statement("add_line"), params)

    async def create(self) -> Batch:
        try:
            return await self._made("create_batch", {})
        except UniqueViolation as error:
            raise AlreadyExists(f"there is a batch with resume key {self._new.resume_key}") from error

    async def reuse(self) -> Batch:
        """Give the created batch the answers of earlier ones, as far as their files are hashed."""
        await run(self._connection, statement("reuse"), {"batch": self._new.id})
        return await self._read()

    async def arrange(self) -> Batch:
        """Hold the duplicates of the created batch back, and put its lines in order."""
        await steps.arrange(self._connection, self._new.id)
        return await self._read()

    async def begin_steps(self) -> Batch:
        """Hold the lines of the created batch back, and begin its first step."""
        await steps.hold_back(self._connection, self._new.id)
        return await self._read()

    async def fail(self, errors: Sequence[ContentError], event_id: UUID) -> Batch:
        """The batch is there, and has failed while validating."""
        return await self._made(
            "fail_batch", {"errors": Jsonb(msgspec.to_builtins(errors)), "event": event_id}
        )

    async def _read(self) -> Batch:
        (record,) = await run_records(self._connection, statement("get_batch"), {"batch": self._new.id})
        return batches.batch_of(record)

    async def _made(self, how: str, more: dict[str, Any]) -> Batch:
        params = {**batches.created(self._new), **more}
        records = await run_records(self._connection, statement(how), params)
        if not records:
            raise FileNotFound(f"no input file {self._new.file_id}")
        return batches.batch_of(records[0])


@asynccontextmanager
async def creation(
    session: Session, new: NewBatch, *, extra_time: float = 0.0
) -> AsyncIterator[BatchCreation]:
    async with session.transaction(extra_time=extra_time) as connection:
        yield BatchCreation(connection, new)
