"""The batch of a client's calls with one model and one url: found by the client's name, or created."""

import hashlib

import msgspec
from msgspec.structs import replace

from batchline.batches.creation import NO_WINDOW
from batchline.model import DEFAULT_TENANT, Batch, RunSettings
from batchline.model.ids import new_id
from batchline.store import batches, files, python_results
from batchline.store.batches import AlreadyExists, NewBatch
from batchline.store.files import FileLane, NewFile
from batchline.store.guest import long_transaction
from batchline.store.python_results import ResultLane
from batchline.store.session import Session


class CallKind(msgspec.Struct, frozen=True):
    """Calls that share a batch. A lane of a batch has one model and url, and is known when it is created."""

    name: str
    model: str
    url: str


class CallBatch(msgspec.Struct, frozen=True):
    batch: Batch
    lane: ResultLane


async def open_call_batch(session: Session, kind: CallKind, settings: RunSettings) -> CallBatch:
    """Continue the batch of this name, or create it if there is none that accepts calls."""
    key = _resume_key(kind, settings.upstream or "")
    batch = await batches.find(session, DEFAULT_TENANT, key)
    if batch is not None and not _accepts(batch):
        # It was finished or cancelled: the name is free for a new one.
        await batches.retire(session, DEFAULT_TENANT, key)
        batch = None
    if batch is None:
        batch = await _created(session, kind, settings, key)
    else:
        await batches.change_settings(session, batch.id, settings)
        if batch.paused_at is not None:
            await batches.resume(session, batch.id)
    lane = await python_results.lane(session, batch.id, kind.url)
    assert lane is not None, "the batch was just there"
    return CallBatch(replace(batch, settings=settings), lane)


def _accepts(batch: Batch) -> bool:
    closing = batch.cancelling_at or batch.expiring_at or batch.finalizing_at or batch.ended_at
    return batch.accepting and closing is None


async def _created(session: Session, kind: CallKind, settings: RunSettings, key: str) -> Batch:
    new = NewBatch(
        id=new_id(),
        tenant=DEFAULT_TENANT,
        file_id=new_id(),
        window=NO_WINDOW,
        window_seconds=None,
        settings=settings,
        endpoint=kind.url,
        metadata={"name": kind.name},
        resume_key=key,
        accepting=True,
    )
    lanes = [FileLane(kind.model, kind.url, 0)]
    try:
        async with long_transaction(session) as inside:
            async with files.incoming(inside) as incoming:
                # It has no digest: `run` finds its inputs by them.
                await incoming.add(NewFile(new.file_id, new.tenant, "batch", kind.name, 0, b"", lanes))
            return await batches.create(inside, new)
    except AlreadyExists:
        # Another process with the same name was faster.
        found = await batches.find(session, DEFAULT_TENANT, key)
        if found is None:
            raise
        return found


def _resume_key(kind: CallKind, upstream: str) -> str:
    origin = upstream.removesuffix("/").removesuffix("/v1")
    parts = msgspec.json.encode(("calls", kind.name, origin, kind.model, kind.url))
    return hashlib.sha256(parts).hexdigest()
