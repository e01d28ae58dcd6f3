"""`batchline delete`: deletes a batch with its results and files."""

from typing import Annotated
from uuid import UUID

import typer

from batchline.batches import deletion
from batchline.batches.deletion import Deleted, NotDeletable
from batchline.cli import options
from batchline.cli.batch_ids import batch_id_in
from batchline.cli.display.console import CommandError, out, print_json
from batchline.cli.display.units import counted
from batchline.cli.errors import reported_errors
from batchline.cli.options import Exit
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.cli.server_settings import read_settings
from batchline.model import ids
from batchline.store import batches
from batchline.store.session import Session


def register(app: typer.Typer) -> None:
    app.command("delete", rich_help_panel=options.PANEL_BATCHES)(delete)


def delete(
    batch: options.BatchId,
    force: Annotated[
        bool,
        typer.Option("--force", help="Cancel it first if it has not ended; answers in flight are discarded."),
    ] = False,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    objects: options.ObjectsUrl = None,
    as_json: options.Json = False,
) -> None:
    """Delete a batch that has ended, with its results and files. It cannot be undone."""
    with reported_errors(as_json):
        located = read_settings({"config": config, "objects": objects}).server.objects
        with open_runtime(database, data_dir, objects=located) as runtime:
            batch_id = batch_id_in(runtime, batch)
            deleted = run_async(_delete(runtime, batch_id, force))
        batch_name = ids.show(ids.BATCH, batch_id)
        if as_json:
            print_json(
                {"id": batch_name, "deleted": True, "rows": deleted.rows, "files": deleted.files}
                | {"later": deleted.later}
            )
            return
        out().print(
            f"{batch_name}  deleted: {counted(deleted.rows, 'row')}, {counted(deleted.files, 'file')}",
            markup=False,
        )
        if deleted.later is not None:
            out().print(f"  a worker deletes the rest later: {deleted.later}", markup=False)


async def _delete(runtime: Runtime, batch_id: UUID, force: bool) -> Deleted:
    async with Session(runtime.url, "delete") as session:
        batch = await batches.get(session, batch_id)
        if batch is None:
            raise CommandError(f"there is no batch {batch_id}; `batchline list` shows all")
        try:
            return await deletion.delete(session, runtime.objects, batch, force=force)
        except NotDeletable as error:
            raise CommandError(str(error), Exit.SOME_FAILED) from None
