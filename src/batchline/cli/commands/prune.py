"""`batchline prune`: deletes batches that ended long ago."""

import sys
from datetime import timedelta
from typing import Annotated
from uuid import UUID

import typer

from batchline.batches import deletion
from batchline.batches.deletion import NotDeletable
from batchline.cli import options
from batchline.cli.display.console import CommandError, err, out, print_json
from batchline.cli.display.units import counted
from batchline.cli.errors import reported_errors
from batchline.cli.questions import confirmed_by_user
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.cli.server_settings import read_settings
from batchline.config import durations
from batchline.model import DEFAULT_TENANT, ids
from batchline.store import batches
from batchline.store.session import Session


def register(app: typer.Typer) -> None:
    app.command("prune", rich_help_panel=options.PANEL_BATCHES)(prune)


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Batches that ended before: 7d, 12h, 90m.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the ids.")] = False,
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="T", help="Batches of this tenant.")
    ] = DEFAULT_TENANT,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    objects: options.ObjectsUrl = None,
    as_json: options.Json = False,
) -> None:
    """Delete batches that ended long ago, with their results and files. It cannot be undone.

    Batches that have not ended and governed batches are kept.

    Examples:

        batchline prune --older-than 7d --dry-run
        batchline prune --older-than 7d
    """
    with reported_errors(as_json):
        age = _age(older_than)
        located = read_settings({"config": config, "objects": objects}).server.objects
        with open_runtime(database, data_dir, objects=located) as runtime:
            found = run_async(_ended_before(runtime, tenant, age))
            if found and not dry_run and not yes:
                _confirm(f"delete {_batches(len(found))} that ended more than {older_than} ago?")
            deleted, rows = (0, 0) if dry_run else run_async(_delete(runtime, found))
        if as_json:
            names = [ids.show(ids.BATCH, each) for each in found]
            print_json({"batches": names, "deleted": deleted, "rows": rows, "dry_run": dry_run})
            return
        if dry_run:
            for each in found:
                out().print(ids.show(ids.BATCH, each), markup=False)
            err().print(f"{_batches(len(found))} would be deleted", markup=False)
            return
        out().print(f"deleted {_batches(deleted)}, {counted(rows, 'row')}", markup=False)


def _batches(number: int) -> str:
    return counted(number, "batch", "batches")


def _age(text: str) -> timedelta:
    try:
        return timedelta(seconds=durations.seconds(text))
    except (ValueError, OverflowError) as error:
        raise CommandError(f"--older-than {text!r}: {error}") from None


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Give --yes to delete them, or --dry-run to list them")
    if not confirmed_by_user(question):
        raise CommandError("nothing was deleted")


async def _ended_before(runtime: Runtime, tenant: str, age: timedelta) -> list[UUID]:
    async with Session(runtime.url, "prune") as session:
        return await batches.ended_before(session, tenant, age)


async def _delete(runtime: Runtime, found: list[UUID]) -> tuple[int, int]:
    """How many batches and rows were deleted. Others may delete the same batches meanwhile."""
    deleted = rows = 0
    async with Session(runtime.url, "prune") as session:
        for batch_id in found:
            batch = await batches.get(session, batch_id)
            if batch is None:
                continue
            try:
                gone = await deletion.delete(session, runtime.objects, batch, force=False)
            except NotDeletable:
                # It runs again, or another command has deleted it just now.
                continue
            deleted, rows = deleted + 1, rows + gone.rows
    return deleted, rows
