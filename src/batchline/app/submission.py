"""Submissions: a batch and all its items in one transaction."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from contextlib import AsyncExitStack, nullcontext
from datetime import timedelta
from typing import Any, Literal, TypedDict, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from batchline.app.item_blocks import ItemBlock, chained
from batchline.app.unique_keys import UniqueKeys
from batchline.batches.creation import NO_WINDOW
from batchline.batches.staging import InvalidStaging, with_max_failed
from batchline.model import MAX_CONCURRENCY, MAX_PRIORITY, MIN_PRIORITY, RunSettings
from batchline.model.batch import Collecting
from batchline.model.ids import new_id
from batchline.operations.catalog import OperationCatalog
from batchline.operations.errors import BatchClosed
from batchline.operations.operation import AnyOperation
from batchline.store import batches, feeding, files, small_batches
from batchline.store.batches import NewBatch
from batchline.store.files import FileLane, Incoming, LineWriter, NewFile
from batchline.store.guest import long_transaction
from batchline.store.session import InTransaction, Session

_MAX_NAME = 255
# Bytes of items that are inserted. More are copied.
_MAX_INSERTED = 2**16
_MAX_METADATA, _MAX_METADATA_KEY, _MAX_METADATA_VALUE = 16, 64, 512


class SubmitKeywords(TypedDict, total=False):
    """The keywords of `submit`."""

    name: str | None
    key: Callable[[Any], str] | None
    priority: int
    deadline: float | timedelta | None
    concurrency: int | None
    max_failed: int | str | None
    hold: bool
    keep_open: bool
    metadata: Mapping[str, str] | None
    unique: bool
    on_conflict: Literal["raise", "skip"]
    connection: object


class PythonSubmission(msgspec.Struct, frozen=True):
    """What to submit, without the items. `stages`: the operation, and those that may follow it."""

    tenant: str
    stages: tuple[AnyOperation, ...]
    collects: tuple[Collecting, ...] = ()
    name: str | None = None
    priority: int = 0
    deadline: float | timedelta | None = None
    concurrency: int | None = None
    max_failed: int | str | None = None
    hold: bool = False
    keep_open: bool = False
    metadata: Mapping[str, str] | None = None
    # Each key may be submitted once.
    unique: bool = False
    on_conflict: Literal["raise", "skip"] = "raise"

    @property
    def operation(self) -> AnyOperation:
        return self.stages[0]

    @property
    def accepting(self) -> bool:
        return self.hold or self.keep_open

    @property
    def displayed_name(self) -> str:
        return self.name or self.operation.name


def submission_of(
    catalog: OperationCatalog, tenant: str, operation: AnyOperation, keywords: SubmitKeywords
) -> PythonSubmission:
    """A submission with these keywords. Raises InvalidApp for wrong stages, and TypeError."""
    stages = catalog.stages_of(operation)
    given = {name: value for name, value in keywords.items() if name not in ("key", "connection")}
    if given.get("unique") and keywords.get("key") is None:
        raise TypeError("unique=True needs a key: key=lambda item: …")
    if given.get("unique") and (given.get("hold") or given.get("keep_open")):
        raise TypeError("unique=True cannot be used with hold or keep_open: `append` takes no unique keys")
    return PythonSubmission(tenant, stages, catalog.collecting(stages), **cast(dict[str, Any], given))


def new_batch(submission: PythonSubmission) -> NewBatch:
    """The batch to create. Raises ValueError and TypeError for wrong keywords."""
    seconds = _seconds(submission.deadline)
    _check_number("priority", submission.priority, MIN_PRIORITY, MAX_PRIORITY)
    if submission.concurrency is not None:
        _check_number("concurrency", submission.concurrency, 1, MAX_CONCURRENCY)
    if submission.name is not None and not 0 < len(submission.name) <= _MAX_NAME:
        raise ValueError(f"name must have 1 to {_MAX_NAME} characters")
    return NewBatch(
        id=new_id(),
        tenant=submission.tenant,
        file_id=new_id(),
        window=NO_WINDOW if seconds is None else f"{seconds:.3f}s",
        window_seconds=seconds,
        settings=_settings(submission),
        endpoint=submission.operation.url,
        metadata=_metadata(submission.metadata),
        priority=submission.priority,
        concurrency=submission.concurrency,
        accepting=submission.accepting,
        held=submission.hold,
    )


async def submit(
    session: Session,
    submission: PythonSubmission,
    new: NewBatch,
    blocks: AsyncGenerator[ItemBlock, None],
    *,
    one_block: bool,
) -> int:
    """As `store`, in one transaction of its own. If there is at most `one_block`, it takes one round trip."""
    if one_block and not submission.accepting and not submission.unique:
        block, more = await anext(blocks, None), None
        if block is not None and (more := await anext(blocks, None)) is not None:
            # The collection has grown meanwhile.
            blocks = chained(more, blocks)
        if block is not None and more is None and block.size <= _MAX_INSERTED:
            file = _file(submission, new, len(block), block.size)
            await small_batches.create(session, file, new, block.custom_ids(0), block.bodies)
            return 0
        blocks = blocks if block is None else chained(block, blocks)
    async with long_transaction(session) as inside:
        return await store(inside, submission, new, blocks)


def _file(submission: PythonSubmission, new: NewBatch, count: int, size: int) -> NewFile:
    """The file of the items, which are in the lane of the first stage. It has no digest: `run` finds its
    inputs by them."""
    totals = [count] + [0] * (len(submission.stages) - 1)
    lanes = [
        FileLane(stage.name, stage.url, total) for stage, total in zip(submission.stages, totals, strict=True)
    ]
    return NewFile(new.file_id, new.tenant, "batch", submission.displayed_name, size, b"", lanes)


async def store(
    session: InTransaction, submission: PythonSubmission, new: NewBatch, blocks: AsyncIterable[ItemBlock]
) -> int:
    """Store the batch and its items, within the transaction of the session. Returns how many items were
    left out, because their keys are taken. Raises DuplicateKey."""
    count = size = 0
    async with files.incoming(session) as incoming:
        keys = UniqueKeys(session, submission.tenant, submission.operation.name, incoming.no)
        if submission.unique:
            blocks = keys.free(blocks, skip=submission.on_conflict == "skip")
        if not submission.accepting:
            count, size = await _written(incoming, blocks, at_once=not submission.unique)
        await incoming.add(_file(submission, new, count, size))
    # Without items it ends when it is released.
    empty = not count and not submission.accepting
    await batches.create(session, replace(new, accepting=True) if empty else new)
    if empty:
        await feeding.release(session, new.id)
    elif submission.accepting:
        await append(session, new.id, submission.operation.url, blocks)
    return keys.skipped


async def _written(incoming: Incoming, blocks: AsyncIterable[ItemBlock], *, at_once: bool) -> tuple[int, int]:
    """Write the items; their number and bytes. Unless `at_once`, other statements run between two blocks."""
    count = size = 0
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(incoming.lines()) if at_once else None
        async for block in blocks:
            async with nullcontext(writer) if writer else incoming.lines() as opened:
                await _write(opened, block, count)
            count, size = count + len(block), size + block.size
    return count, size


async def _write(writer: LineWriter, block: ItemBlock, first: int) -> None:
    after = first + len(block)
    await writer.write(
        [0] * len(block),
        range(first, after),
        range(first + 1, after + 1),
        block.custom_ids(first),
        block.bodies,
    )


async def append(session: Session, batch_id: UUID, url: str, blocks: AsyncIterable[ItemBlock]) -> int:
    """Add items to a batch, within the transaction of the session, and return their number. Raises
    BatchClosed."""
    count = 0
    async for block in blocks:
        # Locks the batch's row until the transaction ends, so the position stays true.
        first = await feeding.append(session, batch_id, url, ())
        if first is None:
            raise BatchClosed("the batch accepts no more items: it was released, or has ended")
        items = list(zip(block.custom_ids(first), block.bodies, strict=True))
        await feeding.append(session, batch_id, url, items)
        count += len(block)
    return count


def _settings(submission: PythonSubmission) -> RunSettings:
    options = submission.operation.options
    settings = RunSettings(
        max_attempts=options.max_attempts,
        stages=tuple(stage.url for stage in submission.stages),
        collects=submission.collects,
    )
    if options.timeout is not None:
        settings = replace(settings, timeout=options.timeout)
    if submission.max_failed is None:
        return settings
    try:
        return with_max_failed(settings, str(submission.max_failed))
    except InvalidStaging as error:
        raise ValueError(f"max_failed: {error}") from None


def _seconds(deadline: float | timedelta | None) -> float | None:
    if deadline is None:
        return None
    seconds = deadline.total_seconds() if isinstance(deadline, timedelta) else float(deadline)
    if seconds <= 0:
        raise ValueError("deadline must be in the future: seconds, or a timedelta, from now")
    return seconds


def _check_number(name: str, value: object, minimum: int, maximum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise ValueError(f"{name} must be a whole number from {minimum} to {maximum}, not {value!r}")


def _metadata(given: Mapping[str, str] | None) -> dict[str, str] | None:
    if given is None:
        return None
    fits = all(
        isinstance(key, str)
        and isinstance(value, str)
        and 0 < len(key) <= _MAX_METADATA_KEY
        and len(value) <= _MAX_METADATA_VALUE
        and "\0" not in key + value
        for key, value in given.items()
    )
    if len(given) > _MAX_METADATA or not fits:
        raise ValueError(
            f"metadata has up to {_MAX_METADATA} pairs of strings: keys of up to {_MAX_METADATA_KEY}"
            f" characters, values of up to {_MAX_METADATA_VALUE}"
        )
    return dict(given)
