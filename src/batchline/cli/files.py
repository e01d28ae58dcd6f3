"""Reads input files into the store, and output lines from it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from batchline.cli.display.console import CommandError, out
from batchline.cli.display.screen import can_redraw
from batchline.cli.runtime import Runtime
from batchline.files.ingest import (
    FileRefused,
    Fingerprint,
    InputUnreadable,
    ingest,
)
from batchline.files.inputs.errors import InputRefused
from batchline.files.inputs.input_set import InputSet
from batchline.files.parsing import LineError, ReadingRules
from batchline.model import DEFAULT_TENANT, Batch, File
from batchline.model.endpoints import ANY_ENDPOINT
from batchline.store import files, outputs
from batchline.store.outputs import Which
from batchline.store.session import Session

_DISPLAYED = 20
_NAMES: dict[Which, str] = {"output": "output file", "errors": "error file"}


async def ingest_inputs(
    inputs: InputSet, url: str, *, known: Fingerprint | None = None, silent: bool
) -> File:
    """Ingest the files and show a progress bar. A refused file ends the command with its errors."""
    # How large rendered lines become is not known before.
    total = sum(path.stat().st_size for path in inputs.paths) if inputs.is_plain else None
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = out()
    with Progress(
        *columns, console=console, transient=True, disable=silent or not can_redraw(console)
    ) as bar:
        task = bar.add_task("reading", total=total)
        try:
            async with inputs.sources() as sources:
                return await ingest(
                    url,
                    sources,
                    tenant=DEFAULT_TENANT,
                    filename=inputs.files[0].name,
                    rules=ReadingRules(ANY_ENDPOINT),
                    known=known,
                    on_progress=lambda done: bar.update(task, completed=done),
                )
        except FileRefused as error:
            raise CommandError(str(error), details=_displayed(error)) from error
        except (InputUnreadable, InputRefused) as error:
            raise CommandError(str(error)) from error


def _where(error: LineError) -> str:
    """A line as editors write it, `FILE:LINE`. A row is not a line of the file."""
    if error.line is None:
        return error.source
    return f"{error.source}:{error.line}" if error.unit == "line" else f"{error.source}, row {error.line}"


def _displayed(error: FileRefused) -> list[str]:
    lines = [f"{_where(each)}: {each.code}: {each.message}" for each in error.errors[:_DISPLAYED]]
    if len(error.errors) > _DISPLAYED:
        lines.append(f"and {len(error.errors) - _DISPLAYED} more")
    return lines


async def stored_lines(
    runtime: Runtime, session: Session, batch: Batch, which: Which
) -> AsyncGenerator[bytes, None]:
    """The lines of the batch's file, or from the database if a worker with another data folder wrote it."""
    file_id = batch.output_file_id if which == "output" else batch.error_file_id
    file = None if file_id is None else await files.get(session, file_id)
    if file is None:
        return
    if file.deleted_at is not None:
        raise _gone(f"the {_NAMES[which]} of this batch was deleted on {file.deleted_at:%Y-%m-%d}")
    if file.object_key is not None and await runtime.objects.exists(file.object_key):
        async for block in runtime.objects.read(file.object_key):
            yield block
        return
    elsewhere = f"the {_NAMES[which]} of this batch is not in this object store"
    if batch.purging_at is not None:
        raise _gone(f"{elsewhere}, and its results were deleted on {batch.purging_at:%Y-%m-%d}")
    if which == "errors" and batch.finished < batch.total and await _without_input(session, batch):
        raise _gone(f"{elsewhere}, and its input, which is needed to rebuild it, was deleted")
    async with aclosing(aiter(await outputs.lines(session, batch.id, which))) as lines:
        async for block in lines:
            yield block


async def _without_input(session: Session, batch: Batch) -> bool:
    file = await files.get(session, batch.file_id)
    return file is None or file.deleted_at is not None


def _gone(reason: str) -> CommandError:
    return CommandError(f"{reason}; run the batch again (`run --fresh`)")
