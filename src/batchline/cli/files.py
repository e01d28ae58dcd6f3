"""Reads input files into the store, and output lines from it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from batchline.cli.display.console import CommandError, out
from batchline.cli.display.screen import can_redraw
from batchline.cli.runtime import Runtime
from batchline.files.ingest import (
    FileRefused,
    Fingerprint,
    InputSource,
    InputUnreadable,
    check_readable,
    ingest,
)
from batchline.files.parsing import ReadingRules
from batchline.model import DEFAULT_TENANT, Batch, File
from batchline.store import files, outputs
from batchline.store.outputs import Which
from batchline.store.session import Session

_DISPLAYED = 20
_NAMES: dict[Which, str] = {"output": "output file", "errors": "error file"}


def check_inputs(paths: Sequence[Path]) -> None:
    try:
        check_readable(paths)
    except InputUnreadable as error:
        raise CommandError(str(error)) from error


async def ingest_inputs(
    paths: Sequence[Path], url: str, *, known: Fingerprint | None = None, silent: bool
) -> File:
    """Ingest the files and show a progress bar. A refused file ends the command with its errors."""
    total = sum(path.stat().st_size for path in paths)
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = out()
    with Progress(
        *columns, console=console, transient=True, disable=silent or not can_redraw(console)
    ) as bar:
        task = bar.add_task("reading", total=total)
        try:
            return await ingest(
                url,
                [InputSource(path.name, path) for path in paths],
                tenant=DEFAULT_TENANT,
                filename=paths[0].name,
                rules=ReadingRules(),
                known=known,
                on_progress=lambda done: bar.update(task, completed=done),
            )
        except FileRefused as error:
            raise CommandError(str(error), details=_displayed(error)) from error
        except InputUnreadable as error:
            raise CommandError(str(error)) from error


def _displayed(error: FileRefused) -> list[str]:
    lines = [
        f"{e.source if e.line is None else f'{e.source}:{e.line}'}: {e.code}: {e.message}"
        for e in error.errors[:_DISPLAYED]
    ]
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
