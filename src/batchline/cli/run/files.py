"""Writes the output, the error file and the manifest: when the batch has ended, or while it runs."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TypeAlias

from batchline.cli.display.console import CommandError
from batchline.cli.files import stored_lines
from batchline.cli.following import followed_lines
from batchline.cli.manifest import ManifestFile, describe_run, write_manifest, written_file
from batchline.cli.options import Exit
from batchline.cli.run.finding import resume_key
from batchline.cli.run.order import RunOrder
from batchline.cli.runtime import Runtime
from batchline.cli.targets import WrittenOutput
from batchline.files.ingest import InputUnreadable
from batchline.model import DEFAULT_TENANT, Batch, ids
from batchline.store import batches
from batchline.store.outputs import Which
from batchline.store.session import Session

# Writes the output while the batch runs.
Writing: TypeAlias = asyncio.Task[tuple[WrittenOutput, int]]


@asynccontextmanager
async def followed(order: RunOrder, runtime: Runtime, batch: Batch) -> AsyncIterator[Writing | None]:
    """Write the output while the batch runs, and all that is left of it when the batch has ended."""
    if not order.follow:
        yield None
        return
    over = asyncio.Event()
    async with Session(runtime.url, "follow") as session:

        def open_followed(which: Sequence[Which]) -> AsyncGenerator[bytes, None]:
            return followed_lines(session, batch.id, which, over)

        writing = asyncio.create_task(order.plan.write_followed(order.outputs, open_followed))
        try:
            yield writing
            # Before the batch is over, only an error ends it.
            if writing.done() and isinstance(error := writing.exception(), BrokenPipeError | CommandError):
                raise _stopped(order, batch, error) from error
            over.set()
            await writing
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


def _stopped(order: RunOrder, batch: Batch, error: Exception) -> CommandError:
    reason = f"the reader of {order.output.name} has left" if isinstance(error, BrokenPipeError) else error
    return CommandError(
        f"{reason}; {ids.show(ids.BATCH, batch.id)} has stopped, nothing is lost; continue with\n"
        f"  {order.command}",
        Exit.SOME_FAILED,
    )


async def save(order: RunOrder, runtime: Runtime, session: Session, batch: Batch, *, written: bool) -> None:
    """Write the files; the output only if it was not `written` before."""
    plan = order.plan

    def open_lines(which: Which) -> AsyncGenerator[bytes, None]:
        return stored_lines(runtime, session, batch, which)

    output = errors = None
    if not written:
        found, rows = await plan.write_output(order.outputs, open_lines)
        output = written_file(order.output, found, rows, str(plan.format))
    if plan.errors is not None and batch.error_file_id is not None:
        async with aclosing(open_lines("errors")) as blocks:
            found = await order.outputs.write(plan.errors, blocks)
        errors = written_file(plan.errors, found, found.lines)
    elif plan.errors is not None:
        order.outputs.remove(plan.errors)
    if plan.manifest is not None and output is not None:
        digests = await _input_digests(order, session, batch)
        manifest = describe_run(batch, digests, output, errors, order.how)
        await write_manifest(order.outputs, plan.manifest, manifest)


async def _input_digests(order: RunOrder, session: Session, batch: Batch) -> list[ManifestFile]:
    """The inputs, if they are still what the batch was created from."""
    try:
        known = await asyncio.to_thread(order.inputs.fingerprint)
    except InputUnreadable:
        return []
    key = resume_key(order, known)
    same = await batches.find(session, DEFAULT_TENANT, key)
    if same is None or same.id != batch.id:
        return []
    found = zip(order.inputs.files, known.digests, known.versions, strict=True)
    return [
        ManifestFile(
            file.name,
            digest.hex(),
            size,
            format=file.format.value,
            delimiter=None if file.delimiter == "," else file.delimiter,
        )
        for file, digest, (_, size, _) in found
    ]
