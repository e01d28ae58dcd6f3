"""Finalizing: writes the files of a frozen batch from its results, and ends it.

A worker claims the batch under its lease, streams both files into the object store, and then ends the batch
in one short statement, which takes effect only if the worker is still the finalizer. No lock is held during
the upload: two finalizers may both upload, but only one can commit, and the other deletes its objects. A
recorded file exists and has as many lines as the batch's counters.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from batchline.batches.cost import cost_object, cost_of
from batchline.files.objects import INPUTS, OUTPUTS, PARTS, Objects, ObjectStoreUnavailable
from batchline.model import Batch, File, ids
from batchline.secrets.masking import masked_text
from batchline.store import batches, outputs
from batchline.store import files as stored
from batchline.store.outputs import Which
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import WorkerId

# Contention usually ends within 30 ms.
_COMMIT_TRIES = 5
_COMMIT_PAUSE = 0.05
_MAX_REASON = 500


class Signals(Protocol):
    """Called at "claimed", "uploaded", "committing" and "contended", so that tests can pause the
    finalizer."""

    async def reached(self, point: str) -> None: ...


class FinalizeMismatch(Exception):
    """The number of results differs from the batch's counters. The batch stays finalizing."""

    def __init__(self, batch_id: UUID, what: str, expected: int, found: int) -> None:
        name = ids.show(ids.BATCH, batch_id)
        super().__init__(f"{name} should have {expected} {what}, but has {found}; it was not ended")
        self.batch_id = batch_id
        self.what = what
        self.expected = expected
        self.found = found


class _NoSignals:
    async def reached(self, point: str) -> None:
        return None


async def finalize_one(
    session: Session,
    objects: Objects,
    worker: WorkerId,
    batch_id: UUID | None = None,
    signals: Signals | None = None,
) -> Batch | None:
    """Claim a batch to finalize (or the given one) and end it.

    None if there was none, or if another finalizer took over. The caller renews the worker's lease meanwhile.
    A batch that fails can be claimed again after its back-off.
    """
    batch = await batches.claim_finalizing(session, worker, batch_id)
    if batch is None:
        return None
    try:
        return await finalize(session, objects, worker, batch, signals)
    except Exception as error:
        with suppress(StoreUnavailable):
            await put_off(session, worker, batch, error)
        raise


async def finalize(
    session: Session, objects: Objects, worker: WorkerId, batch: Batch, signals: Signals | None = None
) -> Batch | None:
    """End a batch that the worker has claimed; None if another finalizer took over.

    After an Exception, the worker still holds the batch; `put_off` releases it.
    """
    try:
        return await _Finalizing(session, objects, worker, batch, signals or _NoSignals()).run()
    except asyncio.CancelledError:
        # If the database is unavailable, the end of the lease frees the batch.
        with suppress(StoreUnavailable):
            await batches.yield_finalizing(session, worker.id, batch.id)
        raise


async def put_off(session: Session, worker: WorkerId, batch: Batch, error: Exception) -> float | None:
    """Release a batch that could not be finalized, and return the seconds of its back-off.

    The reason is stored with the batch, for operators. It is masked, because an error may quote a URL.
    """
    return await batches.put_off_finalizing(session, worker.id, batch.id, reason(error))


def reason(error: Exception) -> str:
    """Why a finalization failed, in one short line."""
    # PostgreSQL does not store NUL in text.
    lines = str(error).replace("\x00", "").strip().splitlines()
    return masked_text(lines[0] if lines else type(error).__name__)[:_MAX_REASON]


async def sweep_objects(session: Session, objects: Objects, older_than: timedelta) -> int:
    """Delete objects that no file needs: of lost or broken uploads, and of deleted files."""
    removed = 0
    for folder in (OUTPUTS, INPUTS, PARTS):
        async for page in objects.pages(folder):
            found = [(stored.key, _batch_of(stored.key), stored.modified) for stored in page]
            keys = await outputs.garbage(session, found, older_than)
            await objects.delete(keys)
            removed += len(keys)
    return removed


class _Files(msgspec.Struct, frozen=True):
    """The files of one attempt to finalize; None for an empty file."""

    output: File | None
    errors: File | None

    @property
    def made(self) -> list[File]:
        return [file for file in (self.output, self.errors) if file]


@dataclass(frozen=True, slots=True)
class _Finalizing:
    """One attempt to finalize one batch."""

    session: Session
    objects: Objects
    worker: WorkerId
    batch: Batch
    signals: Signals

    async def run(self) -> Batch | None:
        await self.signals.reached("claimed")
        files, summary = await self.prepare()
        # From here on, objects are deleted only if they are certainly not recorded.
        ended = await self.commit(files, summary) or await self.ended_by(files)
        if ended is None:
            await self.remove(files)
        return ended

    async def prepare(self) -> tuple[_Files, dict[str, object]]:
        """Everything before the commit. If it fails, no object is left."""
        batch = self.batch
        output, errors = _new_file(batch, "output"), _new_file(batch, "errors")
        try:
            files = _Files(
                await self.upload("output", output, batch.completed),
                await self.upload("errors", errors, batch.total - batch.completed),
            )
            await self.signals.reached("uploaded")
            summary = _summary(batch, await batches.summarize(self.session, batch.id))
            if (cost := await cost_of(self.session, batch)) is not None:
                summary["cost"] = cost_object(cost)
            await self.signals.reached("committing")
        except BaseException:
            await self.remove(_Files(output, errors))
            raise
        return files, summary

    async def upload(self, which: Which, file: File, expected: int) -> File | None:
        """Stream one file into the object store, unless it would be empty."""
        if expected == 0:
            return None
        lines = await outputs.lines(self.session, self.batch.id, which)
        async with aclosing(aiter(lines)) as blocks:
            size = await self.objects.write(_key(file), blocks)
        if lines.count != expected:
            raise FinalizeMismatch(self.batch.id, f"{which} lines", expected, lines.count)
        return msgspec.structs.replace(file, bytes=size, line_count=lines.count)

    async def commit(self, files: _Files, summary: dict[str, object]) -> Batch | None:
        """End the batch; None if another finalizer took over, or if an earlier try whose answer was lost
        ended it."""
        assert self.batch.finalizing_at is not None
        event_id = ids.new_id()
        for tries_left in reversed(range(_COMMIT_TRIES)):
            try:
                return await outputs.finish(
                    self.session,
                    self.worker.id,
                    self.batch.id,
                    output=files.output,
                    errors=files.errors,
                    summary=summary,
                    event_id=event_id,
                    finalizing_at=self.batch.finalizing_at,
                )
            except StoreUnavailable:
                if tries_left == 0:
                    raise
                await self.signals.reached("contended")
                await asyncio.sleep(_COMMIT_PAUSE)
        raise AssertionError("unreachable: the last try returns or raises")

    async def ended_by(self, files: _Files) -> Batch | None:
        """The batch, if it was ended with these files and only the answer was lost.

        Compares keys, because an output file has the same id for every finalizer.
        """
        for file in files.made:
            recorded = await stored.get(self.session, file.id)
            if recorded is not None and recorded.object_key == file.object_key:
                return await batches.get(self.session, self.batch.id)
        return None

    async def remove(self, files: _Files) -> None:
        # If that fails, the sweep deletes them later.
        with suppress(ObjectStoreUnavailable):
            await self.objects.delete([_key(file) for file in files.made])


def _summary(batch: Batch, outcomes: Sequence[tuple[str, int | None, int, int]]) -> dict[str, object]:
    assert batch.finalizing_at is not None
    for outcome, expected in (("completed", batch.completed), ("failed", batch.failed)):
        found = sum(items for name, _, items, _ in outcomes if name == outcome)
        if found != expected:
            raise FinalizeMismatch(batch.id, f"{outcome} results", expected, found)
    return {
        "total": batch.total,
        "completed": batch.completed,
        "failed": batch.failed,
        "reused": batch.reused,
        "duplicates": batch.duplicates,
        "never_run": batch.total - batch.finished,
        "tokens": {
            "input": batch.input_tokens,
            "cached": batch.cached_tokens,
            "output": batch.output_tokens,
            "reasoning": batch.reasoning_tokens,
        },
        "outcomes": [
            {"outcome": outcome, "status_code": status_code, "items": items, "highest_attempt": attempts}
            for outcome, status_code, items, attempts in outcomes
        ],
        "seconds": (batch.finalizing_at - batch.created_at).total_seconds(),
    }


def _new_file(batch: Batch, which: Which) -> File:
    """A new file.

    The id of the output may be planned, so that it can be read while the batch runs. Its key is always new,
    so that two finalizers never write the same object.
    """
    assert batch.finalizing_at is not None
    attempt = ids.new_id()
    file_id = (which == "output" and batch.planned_output_id) or attempt
    return File(
        id=file_id,
        tenant=batch.tenant,
        purpose="batch_output",
        filename=f"{ids.show(ids.BATCH, batch.id)}_{which}.jsonl",
        bytes=0,
        line_count=0,
        object_key=f"{OUTPUTS}{batch.id.hex}/{attempt.hex}-{which}.jsonl",
        created_at=batch.finalizing_at,
        expires_at=None,
    )


def _key(file: File) -> str:
    assert file.object_key is not None
    return file.object_key


def _batch_of(key: str) -> UUID | None:
    """The batch whose finalizer may be writing this object."""
    return ids.read(ids.BATCH, key.split("/")[1]) if key.startswith(OUTPUTS) else None
