"""`batchline attempts`: an item of a batch and its failed attempts."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer
from rich.table import Table

from batchline.cli import options
from batchline.cli.display.console import CommandError, out, print_json, read_batch_id
from batchline.cli.errors import reported_errors
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.model import ItemHistory, ids
from batchline.store import attempts as store_attempts
from batchline.store.session import Session

# What `batchline why` shows.
_OF_WHY = ("started_at", "until", "times", "error_code", "message", "task_id")


def register(app: typer.Typer) -> None:
    app.command("attempts")(attempts)


def attempts(
    batch: options.BatchId,
    custom_id: Annotated[str, typer.Argument(metavar="CUSTOM_ID", help="The custom_id of the line.")],
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show an item of a batch and its failed attempts."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        item = run_async(read_item(runtime, read_batch_id(batch), custom_id))
        if as_json:
            print_json(_document(item))
            return
        _tell(item)


async def read_item(runtime: Runtime, batch_id: UUID, custom_id: str) -> ItemHistory:
    async with Session(runtime.url, "attempts") as session:
        item = await store_attempts.of_item(session, batch_id, custom_id)
    if item is None:
        raise CommandError(
            f"{ids.show(ids.BATCH, batch_id)} has no item {custom_id!r}, or its results have been deleted;"
            " check the batch id and the custom_id"
        )
    return item


def _document(item: ItemHistory) -> dict[str, Any]:
    """Times in Unix seconds, as in a batch."""

    def seconds(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            name: int(value.timestamp()) if isinstance(value, datetime) else value
            for name, value in fields.items()
        }

    attempts = [_without(seconds(msgspec.structs.asdict(each)), "times") for each in item.attempts]
    of_item = _without(seconds(msgspec.structs.asdict(item)), *_OF_WHY)
    return of_item | {"attempts": attempts}


def _without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def _tell(item: ItemHistory) -> None:
    facts = [
        f"line {item.line_no:,}",
        item.state,
        f"attempt {item.attempt}",
        *(f"{name} {_time(at)}" for name, at in _times(item) if at is not None),
        *([] if item.status_code is None else [f"status code {item.status_code}"]),
    ]
    out().print(f"{item.custom_id}  {', '.join(facts)}", markup=False)
    if not item.attempts:
        return
    table = Table("attempt", "failed at", "code", "next not before", "message", box=None)
    for each in item.attempts:
        failed_at, not_before = _time(each.created_at), _time(each.not_before)
        table.add_row(str(each.attempt), failed_at, each.error_code, not_before, each.message)
    out().print(table)


def _times(item: ItemHistory) -> list[tuple[str, datetime | None]]:
    waits = item.not_before if item.state == "retrying" else None
    return [("claimed at", item.claimed_at), ("not before", waits), ("finished at", item.finished_at)]


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
