"""Files between the user's folders and the store."""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from batchline.cli.console import CommandError, out
from batchline.cli.place import Place
from batchline.engine.ingest import FileRefused, InputUnreadable, Source, check_readable, ingest
from batchline.engine.reading import ReadingRules
from batchline.model import DEFAULT_TENANT, File
from batchline.store import files
from batchline.store.session import Session

_SHOWN = 20


def check_inputs(paths: Sequence[Path]) -> None:
    try:
        check_readable(paths)
    except InputUnreadable as error:
        raise CommandError(str(error)) from error


async def ingest_inputs(paths: Sequence[Path], url: str, *, silent: bool) -> File:
    """Take the files in, with a bar; a refused one ends the command with its errors."""
    total = sum(path.stat().st_size for path in paths)
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = out()
    with Progress(
        *columns, console=console, transient=True, disable=silent or not console.is_terminal
    ) as bar:
        task = bar.add_task("reading", total=total)
        try:
            return await ingest(
                url,
                [Source(path.name, path) for path in paths],
                tenant=DEFAULT_TENANT,
                filename=paths[0].name,
                rules=ReadingRules(),
                on_progress=lambda done: bar.update(task, completed=done),
            )
        except FileRefused as error:
            raise CommandError(str(error), details=_shown(error)) from error
        except InputUnreadable as error:
            raise CommandError(str(error)) from error


def _shown(error: FileRefused) -> list[str]:
    lines = [f"{e.source}:{e.line}: {e.code}: {e.message}" for e in error.errors[:_SHOWN]]
    if len(error.errors) > _SHOWN:
        lines.append(f"and {len(error.errors) - _SHOWN} more")
    return lines


async def save_file(place: Place, session: Session, file_id: UUID | None, target: Path) -> None:
    """Write a stored file to `target`, all of it or nothing; an absent one becomes an empty file."""
    file = None if file_id is None else await files.get(session, file_id)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            if file is not None and file.object_key is not None:
                async for block in place.objects.read(file.object_key):
                    await asyncio.to_thread(stream.write, block)
        # mkstemp makes files for the owner alone; give it the permissions any new file has.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
