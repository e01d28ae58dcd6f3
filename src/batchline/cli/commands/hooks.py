"""`batchline hooks`: the deliveries to completion hooks."""

from typing import Annotated
from uuid import UUID

import typer
from rich.table import Column, Table

from batchline.cli import options
from batchline.cli.batch_ids import batch_id_in
from batchline.cli.display.console import out, print_json, show_hook_delivery
from batchline.cli.errors import reported_errors
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.store import hooks
from batchline.store.hooks import HookDelivery
from batchline.store.session import Session


def register(app: typer.Typer) -> None:
    app.command("hooks", rich_help_panel=options.PANEL_SET_UP)(list_deliveries)


def list_deliveries(
    batch: Annotated[str | None, typer.Argument(metavar="[ID]", help="Default: all batches.")] = None,
    limit: options.Limit = 20,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """List deliveries to completion hooks, newest first: delivered, waiting, running or abandoned."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        found = run_async(_list(runtime, limit, None if batch is None else batch_id_in(runtime, batch)))
        if as_json:
            print_json({"data": [show_hook_delivery(each) for each in found]})
        else:
            _print(found)


async def _list(runtime: Runtime, limit: int, batch_id: UUID | None) -> list[HookDelivery]:
    async with Session(runtime.url, "hooks") as session:
        return await hooks.deliveries(session, limit=limit, batch_id=batch_id)


def _print(found: list[HookDelivery]) -> None:
    table = Table("hook", "event", Column("batch", no_wrap=True), "state", "attempts", "last error", box=None)
    for each in found:
        displayed = show_hook_delivery(each)
        columns = ("hook", "type", "batch_id", "state", "attempts")
        table.add_row(*(str(displayed[name]) for name in columns), each.last_error or "")
    out().print(table)
    for each in found:
        if each.delivered_at is None and each.last_output:
            out().print(
                f"\noutput of {each.hook}, attempt {each.attempts}:\n{each.last_output}", markup=False
            )
