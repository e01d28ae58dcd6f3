"""Batches for those who order them: find the one that a command has made before, or make it."""

import hashlib
from uuid import UUID

import msgspec

from batchline import durations
from batchline.engine import reading
from batchline.engine.reading import MOST_ERRORS
from batchline.ids import new_id
from batchline.model import Batch, ContentError, RunSettings
from batchline.store import batches, orders
from batchline.store.batches import AlreadyThere, NewBatch
from batchline.store.idempotency import Ticket
from batchline.store.session import Session


class InvalidWindow(ValueError):
    """A completion window that cannot be read."""


def window_seconds(window: str) -> float:
    """`24h`, `90m`, `30s`, `7d`."""
    try:
        return durations.seconds(window)
    except ValueError as error:
        raise InvalidWindow(f"completion window {window!r}: {error}") from None


def resume_key(digest: bytes, upstream: str) -> str:
    """The same input sent to the same upstream is the same run, whatever else was asked for."""
    place = upstream.removesuffix("/").removesuffix("/v1")
    return hashlib.sha256(digest + place.encode()).hexdigest()


class Order(msgspec.Struct, frozen=True):
    """A batch that a caller of the server asks for."""

    tenant: str
    file_id: UUID
    endpoint: str
    window: str
    metadata: dict[str, str] | None = None
    output_expires_after: int | None = None
    # The models that can be run; None: any.
    served: frozenset[str] | None = None
    ticket: Ticket | None = None


async def order(session: Session, asked: Order) -> Batch:
    """A new batch: in progress, or failed where its file has lines that cannot be run.

    Raises FileNotFound, WrongPurpose, and MadeBefore where the caller's key stands for a batch already.
    """
    new = NewBatch(
        id=new_id(),
        tenant=asked.tenant,
        file_id=asked.file_id,
        window=asked.window,
        window_seconds=window_seconds(asked.window),
        settings=RunSettings(),
        endpoint=asked.endpoint,
        metadata=asked.metadata,
        output_expires_after=asked.output_expires_after,
        planned_output_id=new_id(),
    )
    async with orders.placing(session, new) as placing:
        if asked.ticket is not None:
            await placing.remember(asked.ticket)
        file = await placing.file()
        errors = file.errors or tuple(
            _unfit(line, asked) for line in await placing.unfit_lines(file, asked.served, MOST_ERRORS)
        )
        if errors:
            return await placing.fail(errors, event_id=new_id())
        return await placing.create()


def _unfit(line: orders.UnfitLine, asked: Order) -> ContentError:
    mismatch = line.url != asked.endpoint
    fault = reading.url_mismatch(asked.endpoint) if mismatch else reading.model_not_found(line.model)
    return ContentError(fault.code, fault.message, fault.param, line.line_no)


async def create(
    session: Session,
    *,
    tenant: str,
    file_id: UUID,
    window: str,
    settings: RunSettings,
    endpoint: str | None = None,
    metadata: dict[str, str] | None = None,
    resume_key: str | None = None,
) -> Batch:
    """A new batch; or, where another process was quicker with the same `resume_key`, its batch."""
    new = NewBatch(
        id=new_id(),
        tenant=tenant,
        file_id=file_id,
        window=window,
        window_seconds=window_seconds(window),
        settings=settings,
        endpoint=endpoint,
        metadata=metadata,
        resume_key=resume_key,
    )
    try:
        return await batches.create(session, new)
    except AlreadyThere:
        found = await batches.find(session, tenant, new.resume_key or "")
        if found is None:
            raise
        return found
