"""`batchline list`: the batches, newest first, in a table that fits 80 columns."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import msgspec
import typer

from batchline.cli import options
from batchline.cli.batch_ids import batch_id_in
from batchline.cli.display.console import CommandError, err, finalize_trouble, out, print_json, show_batch
from batchline.cli.display.tables import print_table
from batchline.cli.display.units import age, percent
from batchline.cli.errors import reported_errors
from batchline.cli.resuming import continued_by, how_to_continue
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.model import DEFAULT_TENANT, Batch, BatchStatus
from batchline.secrets.addresses import public_url
from batchline.store import batch_names, batches
from batchline.store.batch_names import BatchOrigin
from batchline.store.session import Session

_COLUMNS = ("id", "file", "model", "upstream", "state", "done", "failed", "age")
_LEFT = "left by run"


class BatchPage(msgspec.Struct, frozen=True):
    """Batches, with their short ids and where they come from."""

    batches: list[Batch]
    short: Mapping[UUID, str]
    origins: Mapping[UUID, BatchOrigin]

    def left(self, batch: Batch) -> bool:
        """Whether `run` left it unfinished, and no worker works on it."""
        unfinished = batch.status is BatchStatus.IN_PROGRESS and batch.settings.reserved
        return unfinished and not self.origins[batch.id].held


def register(app: typer.Typer) -> None:
    app.command("list", rich_help_panel=options.PANEL_BATCHES)(list_batches)


def list_batches(
    limit: options.Limit = 20,
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="The page after this batch.")
    ] = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """List batches, newest first.

    The id is as short as it can be. Every command takes it, and also @1 for the first row, @2 for the second.
    """
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        page = run_async(_page(runtime, limit, None if after is None else batch_id_in(runtime, after)))
        if as_json:
            print_json({"data": [_document(page, batch) for batch in page.batches]})
            return
        if not page.batches:
            err().print("no batches; `batchline run` and `batchline submit` create them")
            return
        rows = [_row(page, batch) for batch in page.batches]
        print_table(out(), _COLUMNS, rows, cut=("file", "model", "upstream"), right=("done", "failed", "age"))
        for batch in page.batches:
            if trouble := finalize_trouble(batch):
                out().print(f"{page.short[batch.id]}: {trouble}", markup=False)
        for batch in filter(page.left, page.batches):
            out().print(f"{page.short[batch.id]} was {_LEFT}; {how_to_continue(batch)}", markup=False)


async def _page(runtime: Runtime, limit: int, after: UUID | None) -> BatchPage:
    async with Session(runtime.url, "list") as session:
        last = None if after is None else await batches.get(session, after)
        if after is not None and last is None:
            raise CommandError(f"there is no batch {after}; `batchline list` shows all")
        found = await batches.list_newest(session, DEFAULT_TENANT, limit=limit, after=last)
        listed = [batch.id for batch in found]
        return BatchPage(
            found, await batch_names.short(session, listed), await batch_names.origins(session, listed)
        )


def _document(page: BatchPage, batch: Batch) -> dict[str, object]:
    origin = page.origins[batch.id]
    return {
        **show_batch(batch),
        "short_id": page.short[batch.id],
        "input_filename": origin.filename,
        "left_by_run": page.left(batch),
        "resume": continued_by(batch) if page.left(batch) else None,
    }


def _row(page: BatchPage, batch: Batch) -> tuple[str, ...]:
    upstream = batch.settings.upstream
    return (
        page.short[batch.id],
        page.origins[batch.id].filename or "",
        batch.model or "several",
        "" if upstream is None else _host(upstream),
        _LEFT if page.left(batch) else batch.status.value.replace("_", " "),
        percent(batch.finished, batch.total),
        f"{batch.failed:,}",
        age((datetime.now(UTC) - batch.created_at).total_seconds()),
    )


def _host(upstream: str) -> str:
    """Without the scheme and secrets."""
    return public_url(upstream).partition("://")[2]
