"""Collects the answers of a batch over rows, in the order of the rows."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from batchline.app.runtime import Runtime
from batchline.batches.answers import CHECKED_ENDPOINTS
from batchline.model import Batch
from batchline.operations.errors import BatchlineError
from batchline.store import files, outputs
from batchline.store.outputs import Which
from batchline.store.session import Session
from batchline.tables.columns import OutputColumn, OutputRecord, SelectFaults, decode_record, reader

_EMBEDDINGS = "/v1/embeddings"


class RowAnswers:
    """One answer or one reason for each row."""

    def __init__(self, rows: int, endpoint: str) -> None:
        self.answers: list[Any] = [None] * rows
        self.errors: list[str | None] = ["no result is stored"] * rows
        named = "embedding" if endpoint == _EMBEDDINGS else "answer"
        columns = [OutputColumn(name) for name in (named, "error")]
        self._read = reader(columns, SelectFaults())
        # Other endpoints have no text: the answer is the whole body.
        self._whole = endpoint not in CHECKED_ENDPOINTS | {_EMBEDDINGS}

    def add(self, line: bytes) -> None:
        record = decode_record(line)
        index = int(record.custom_id.removeprefix("row-")) - 1
        self.answers[index], self.errors[index] = self._values(record)

    def _values(self, record: OutputRecord) -> tuple[Any, str | None]:
        answer, error = self._read(record)
        if not record.completed:
            return None, error
        return (record.body if self._whole else answer), None


async def collected(runtime: Runtime, session: Session, batch: Batch, rows: int, endpoint: str) -> RowAnswers:
    found = RowAnswers(rows, endpoint)
    kinds: tuple[Which, ...] = ("output", "errors")
    for which in kinds:
        async with aclosing(_lines(_blocks(runtime, session, batch, which))) as lines:
            async for line in lines:
                found.add(line)
    return found


async def _lines(blocks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


async def _blocks(
    runtime: Runtime, session: Session, batch: Batch, which: Which
) -> AsyncGenerator[bytes, None]:
    """From the database; or from the batch's file, if its results were deleted."""
    if batch.purging_at is None:
        async for block in await outputs.lines(session, batch.id, which):
            yield block
        return
    file_id = batch.output_file_id if which == "output" else batch.error_file_id
    file = None if file_id is None else await files.get(session, file_id)
    if file is None:
        return
    key = file.object_key
    if file.deleted_at is not None or key is None or not await runtime.objects.exists(key):
        raise BatchlineError("the results of an earlier call were deleted; give fresh=True to send all again")
    async for block in runtime.objects.read(key):
        yield block
