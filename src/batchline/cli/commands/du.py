"""`batchline du`: how much room the database, the output files and each batch take."""

from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import msgspec
import typer

from batchline.cli import options
from batchline.cli.display.console import out, print_json
from batchline.cli.display.tables import print_table
from batchline.cli.display.units import age, size
from batchline.cli.errors import reported_errors
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.cli.server_settings import read_settings
from batchline.model import ids
from batchline.store import batch_names, disk_use
from batchline.store.disk_use import BatchSize
from batchline.store.session import Session

_DISPLAYED_TABLES = 3


class DiskUse(msgspec.Struct, frozen=True):
    """Bytes of each place. `folder_bytes`: all of the data folder, if the database is embedded."""

    tables: dict[str, int]
    stored_files: int
    stored_bytes: int
    batches: list[BatchSize]
    short: dict[UUID, str]
    folder_bytes: int | None


def register(app: typer.Typer) -> None:
    app.command("du", rich_help_panel=options.PANEL_BATCHES)(show_use)


def show_use(
    limit: options.Limit = 10,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    objects: options.ObjectsUrl = None,
    as_json: options.Json = False,
) -> None:
    """Show how much disk space is used, and the batches with the largest files.

    `batchline delete` and `batchline prune` make room.
    """
    with reported_errors(as_json):
        located = read_settings({"config": config, "objects": objects}).server.objects
        with open_runtime(database, data_dir, objects=located) as runtime:
            use = run_async(_measure(runtime, limit))
            _tell(use, runtime, as_json)


async def _measure(runtime: Runtime, limit: int) -> DiskUse:
    async with Session(runtime.url, "du") as session:
        files, stored = await disk_use.stored(session)
        largest = await disk_use.largest_batches(session, limit)
        short = await batch_names.short(session, [each.id for each in largest])
        tables = await disk_use.table_sizes(session)
    folder = None if runtime.server is None else _bytes_below(runtime.server.data_dir)
    return DiskUse(tables, files, stored, largest, short, folder)


def _bytes_below(folder: Path) -> int:
    """Files that vanish meanwhile do not count: the server removes some all the time."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:
            continue
    return total


def _tell(use: DiskUse, runtime: Runtime, as_json: bool) -> None:
    if as_json:
        print_json(_document(use))
        return
    largest = list(use.tables.items())[:_DISPLAYED_TABLES]
    parts = ", ".join(f"{name} {size(taken)}" for name, taken in largest)
    out().print(f"database      {size(sum(use.tables.values())):>7}  {parts}", markup=False)
    out().print(
        f"files         {size(use.stored_bytes):>7}  {use.stored_files:,} in {runtime.objects.location}",
        markup=False,
    )
    if use.folder_bytes is not None and runtime.server is not None:
        out().print(
            f"data folder   {size(use.folder_bytes):>7}  {runtime.server.data_dir}, with both and the log",
            markup=False,
        )
    if not use.batches:
        return
    out().print()
    print_table(
        out(),
        ("id", "file", "lines", "input", "output", "ended"),
        [_row(use, each) for each in use.batches],
        cut=("file",),
        right=("lines", "input", "output", "ended"),
    )


def _row(use: DiskUse, batch: BatchSize) -> tuple[str, ...]:
    ended = batch.ended_at
    return (
        use.short[batch.id],
        batch.filename or "",
        f"{batch.lines:,}",
        size(batch.input_bytes),
        size(batch.output_bytes),
        "no" if ended is None else f"{age((datetime.now(UTC) - ended).total_seconds())} ago",
    )


def _document(use: DiskUse) -> dict[str, object]:
    return {
        "tables": use.tables,
        "database_bytes": sum(use.tables.values()),
        "stored_files": use.stored_files,
        "stored_bytes": use.stored_bytes,
        "data_folder_bytes": use.folder_bytes,
        "batches": [
            {
                "id": ids.show(ids.BATCH, each.id),
                "input_filename": each.filename,
                "lines": each.lines,
                "input_bytes": each.input_bytes,
                "output_bytes": each.output_bytes,
                "ended_at": None if each.ended_at is None else int(each.ended_at.timestamp()),
            }
            for each in use.batches
        ],
    }
