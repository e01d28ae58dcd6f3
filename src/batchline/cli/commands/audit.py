"""`batchline audit`: exports the audit log as JSON lines."""

import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer

from batchline.cli import options
from batchline.cli.batch_ids import batch_id_in
from batchline.cli.display.console import CommandError, print_json
from batchline.cli.errors import reported_errors
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.config import durations
from batchline.model import DEFAULT_TENANT, ids
from batchline.store import audit
from batchline.store.audit import Entry
from batchline.store.session import Session

_PAGE = 1000


def register(app: typer.Typer) -> None:
    app.command("audit", rich_help_panel=options.PANEL_OPERATIONS)(export)


def export(
    tenant: options.OnlyTenant = None,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="ID", help="Only entries about this batch.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="2026-01-31, 2026-01-31T12:00:00Z, or 24h for a day ago."
        ),
    ] = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document instead of one per line.")
    ] = False,
) -> None:
    """Export the audit log, oldest first, one JSON object per line. It contains no secrets."""
    with reported_errors(as_json):
        begin = None if since is None else _moment(since)
        with open_runtime(database, data_dir) as runtime:
            governed_of = tenant or DEFAULT_TENANT
            batch_id = None if batch is None else batch_id_in(runtime, batch, governed_of=governed_of)
            run_async(_export(runtime, tenant, batch_id, begin, as_json))


async def _export(
    runtime: Runtime, tenant: str | None, batch_id: UUID | None, since: datetime | None, as_json: bool
) -> None:
    async with Session(runtime.url, "audit") as session:
        entries = _entries(session, tenant, batch_id, since)
        if as_json:
            print_json({"data": [_displayed(entry) async for entry in entries]})
            return
        async for entry in entries:
            sys.stdout.buffer.write(msgspec.json.encode(_displayed(entry)) + b"\n")
        sys.stdout.buffer.flush()


async def _entries(
    session: Session, tenant: str | None, batch_id: UUID | None, since: datetime | None
) -> AsyncIterator[Entry]:
    after = 0
    while True:
        page = await audit.page(
            session, tenant=tenant, batch_id=batch_id, since=since, after=after, limit=_PAGE
        )
        for entry in page:
            yield entry
        if len(page) < _PAGE:
            return
        after = page[-1].id


def _displayed(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "at": entry.at.astimezone(UTC).isoformat(),
        "tenant": entry.tenant,
        "actor": entry.actor,
        "action": entry.action,
        "batch_id": None if entry.batch_id is None else ids.show(ids.BATCH, entry.batch_id),
        "sequence_no": entry.sequence_no,
        "subject": entry.subject,
        "detail": entry.detail,
    }


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.fromtimestamp(datetime.now(UTC).timestamp() - durations.seconds(text), UTC)
    except ValueError:
        raise CommandError(f"--since: {text!r} is neither a date nor a time such as 24h") from None
