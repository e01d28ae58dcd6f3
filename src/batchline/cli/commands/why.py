"""`batchline why`: the life of one line, attempt by attempt, and where its time went."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer
from rich.table import Column, Table

from batchline.cli import options
from batchline.cli.batch_ids import batch_id_in
from batchline.cli.commands.attempts import read_item
from batchline.cli.display.chunks import chunk_line, room_lines
from batchline.cli.display.console import out, print_json
from batchline.cli.display.units import counted
from batchline.cli.errors import reported_errors
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.model import ItemHistory, Phases, phases
from batchline.store import provider_chunks
from batchline.store.session import Session

_NAMES = {
    "backoff": "back-off",
    "waiting": "waiting",
    "limit": "limit",
    "upstream": "upstream",
    "settling": "settling",
    "held": "in progress",
}
_MAX_MESSAGE = 200


def register(app: typer.Typer) -> None:
    app.command("why", rich_help_panel=options.PANEL_BATCHES)(why)


def why(
    batch: options.BatchId,
    custom_id: Annotated[str, typer.Argument(metavar="CUSTOM_ID", help="The custom_id of the line.")],
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Tell the life of one line attempt by attempt, and where its time went.

    back-off: the delay after a failed attempt. waiting: until a worker claimed it. limit: in the worker,
    until the limits on requests let it be sent. upstream: until the answer. settling: until the result was
    stored.
    """
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        batch_id = batch_id_in(runtime, batch)
        item = run_async(read_item(runtime, batch_id, custom_id))
        lived, at_provider = phases(item), run_async(_at_provider(runtime, batch_id, item))
        if as_json:
            print_json({**_document(item, lived), "provider": at_provider})
            return
        _tell(item, lived)
        for line in at_provider:
            out().print(f"  {line}", markup=False)


async def _at_provider(runtime: Runtime, batch_id: UUID, item: ItemHistory) -> list[str]:
    """Its chunk at a provider's batch API, or why it is in none."""
    if item.finished_at is not None:
        return []
    async with Session(runtime.url, "why") as session:
        if item.task_id is None:
            return room_lines(await provider_chunks.full(session, batch_id))
        line = chunk_line(await provider_chunks.listed(session, batch_id), item.task_id)
        return [] if line is None else [line]


def _document(item: ItemHistory, lived: Sequence[Phases]) -> dict[str, Any]:
    """Times in seconds, with three decimals, so that they add up as they do in milliseconds."""
    return {
        "custom_id": item.custom_id,
        "line": item.line_no,
        "model": item.model,
        "state": item.state,
        "status_code": item.status_code,
        "task_id": item.task_id,
        "seconds": _total(lived).total / 1000,
        "parts": _parts(_total(lived)),
        "attempts": [
            {
                "attempt": attempt,
                "ended_at": None if ended is None else ended.timestamp(),
                "error_code": code,
                "message": message,
                "seconds": each.total / 1000,
                "parts": _parts(each),
            }
            for each, (attempt, ended, code, message) in zip(lived, _events(item), strict=True)
        ],
    }


def _parts(of: Phases) -> dict[str, float]:
    return {name: value / 1000 for name, value in msgspec.structs.asdict(of).items()}


def _total(lived: Sequence[Phases]) -> Phases:
    return sum(lived, Phases())


def _events(item: ItemHistory) -> list[tuple[int, datetime | None, str | None, str | None]]:
    """Of each attempt: its number, its end, and what went wrong."""
    failed = [(each.attempt, each.created_at, each.error_code, each.message) for each in item.attempts]
    return [*failed, (item.attempt, item.finished_at, item.error_code, item.message)]


def _tell(item: ItemHistory, lived: Sequence[Phases]) -> None:
    whole = _total(lived)
    status = "" if item.status_code is None else f", status code {item.status_code}"
    tries = counted(item.attempt, "attempt")
    facts = f"line {item.line_no:,}, {item.state} after {_seconds(whole.total)}, {tries}{status}"
    out().print(f"{item.custom_id}  {facts}", markup=False)
    names = [name for name in _NAMES if name != "held" or whole.held]
    columns = [Column(_NAMES[name], justify="right", no_wrap=True) for name in names]
    table = Table(Column("attempt", justify="right"), "ended", *columns, "what happened", box=None)
    for each, (attempt, ended, code, message) in zip(lived, _events(item), strict=True):
        times = [_seconds(getattr(each, name)) for name in names]
        what = item.state if code is None else f"{code} {message or ''}".rstrip()[:_MAX_MESSAGE]
        table.add_row(str(attempt), "" if ended is None else f"{ended:%H:%M:%S}", *times, what)
    if len(lived) > 1:
        table.add_row("all", "", *(_seconds(getattr(whole, name)) for name in names), "")
    out().print(table)
    if item.task_id is not None:
        out().print("  waiting includes the time that the provider worked on its task")


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f} s"
