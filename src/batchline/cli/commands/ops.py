"""`batchline ops`: lists operations, and lists and shows their batches, directly in the database."""

from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer
from rich.table import Column, Table

from batchline.cli import options
from batchline.cli.batch_ids import batch_id_in
from batchline.cli.commands.ops_changes import CHANGES, approve, change_command, reject
from batchline.cli.commands.ops_submit import submit
from batchline.cli.display.console import CommandError, out, print_json
from batchline.cli.errors import reported_errors
from batchline.cli.ops_context import (
    App,
    OpsSource,
    Tenant,
    admin,
    refusing,
    show_child,
    show_governed,
    tell,
)
from batchline.cli.option_groups import grouped
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.governance import access, children
from batchline.governance.access import Actor
from batchline.governance.operations import Operation
from batchline.model import DEFAULT_TENANT, Approval, Child, ChildStatus, GovernedBatch, ParentStatus, ids
from batchline.store import operations
from batchline.store.session import Session

_MAX_CHILDREN = 1000
# Characters of an item in a table.
_MAX_ITEM = 200


def register(app: typer.Typer) -> None:
    ops = typer.Typer(help="Governed operations: list, submit, approve, retry.", no_args_is_help=True)
    ops.command("list")(list_operations)
    ops.command("submit")(grouped(submit))
    ops.command("batches")(list_batches)
    ops.command("show")(show)
    ops.command("approve")(approve)
    ops.command("reject")(reject)
    for change in CHANGES:
        ops.command(change.name, help=change.help)(change_command(change))
    app.add_typer(ops, name="ops", rich_help_panel=options.PANEL_OPERATIONS)


def list_operations(config: options.Config = None, app: App = None, as_json: options.Json = False) -> None:
    """List the operations of the settings, those of packs and [[operations]], and those of an app."""
    with reported_errors(as_json):
        found = OpsSource(config, app).rules(opens_database=False).registry.all()
        if as_json:
            print_json({"data": [_displayed(operation) for operation in found]})
            return
        if not found:
            raise CommandError(
                "no operations are configured; add [[operations]] or [packs] to batchline.toml, or name a"
                " Python app with governed operations: --app module:app"
            )
        table = Table(
            Column("operation", no_wrap=True),
            "largest batch",
            "attempts",
            "approval",
            "upstream",
            "",
            box=None,
        )
        for each in found:
            sizes = (str(each.largest_batch), str(each.max_attempts))
            table.add_row(each.name, *sizes, each.approval, each.upstream or each.executor, each.description)
        out().print(table, markup=False)


def _displayed(operation: Operation) -> dict[str, Any]:
    return {
        "name": operation.name,
        "description": operation.description,
        "schema": operation.schema,
        "largest_batch": operation.largest_batch,
        "max_attempts": operation.max_attempts,
        "approval": operation.approval,
        "self_approval": operation.self_approval,
        "submitters": None if operation.submitters is None else list(operation.submitters),
        "redact": list(operation.redact),
        "executor": operation.executor,
        "upstream": operation.upstream,
    }


def list_batches(
    pending: Annotated[bool, typer.Option("--pending", help="Only those that wait for an approval.")] = False,
    operation: Annotated[str | None, typer.Option("--operation", metavar="NAME")] = None,
    status: Annotated[
        ParentStatus | None,
        typer.Option("--status", case_sensitive=False, help="Only those with this status."),
    ] = None,
    limit: options.Limit = 20,
    tenant: Tenant = DEFAULT_TENANT,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """List governed batches, newest first."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        approval = Approval.PENDING if pending else None
        found = run_async(_page(runtime, tenant, approval, operation, status, limit))
        if as_json:
            print_json({"data": [show_governed(batch) for batch in found]})
            return
        table = Table(
            Column("batch", no_wrap=True),
            "operation",
            "status",
            "user",
            "done",
            "failed",
            "of",
            "reason",
            box=None,
        )
        for batch in found:
            counts = batch.counts
            numbers = (str(counts.succeeded), str(counts.failed), str(counts.total))
            table.add_row(
                ids.show(ids.BATCH, batch.id),
                batch.operation,
                batch.status.value,
                batch.user_id,
                *numbers,
                batch.reason or "",
            )
        out().print(table, markup=False)


async def _page(
    runtime: Runtime,
    tenant: str,
    approval: Approval | None,
    operation: str | None,
    status: ParentStatus | None,
    limit: int,
) -> list[GovernedBatch]:
    async with Session(runtime.url, "ops") as session:
        return await access.page(
            session,
            admin(tenant, None),
            limit=limit,
            operation=operation,
            approval=approval,
            status=status,
        )


def show(
    batch: options.BatchId,
    status: Annotated[
        ChildStatus | None,
        typer.Option("--status", case_sensitive=False, help="Only children with this status."),
    ] = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: options.Config = None,
    app: App = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show a governed batch and its children, with their items. Secrets are masked."""
    with reported_errors(as_json):
        registry = OpsSource(config, app, database, data_dir).rules().registry
        with open_runtime(database, data_dir) as runtime:
            batch_id = batch_id_in(runtime, batch, governed_of=tenant)
            found, rows = run_async(_show(runtime, admin(tenant, None), batch_id, status))
        operation = registry.find(found.operation)
        displayed = [(child, children.reported(child, found, operation)) for child in rows]
        if as_json:
            print_json({**show_governed(found), "children": [show_child(*each) for each in displayed]})
            return
        tell(found, as_json)
        table = Table("no", "status", "attempts", "item", "answer", "", box=None)
        for child, reported in displayed:
            code = "" if child.status_code is None else str(child.status_code)
            why = "" if reported.error is None else f"{reported.error.code}: {reported.error.message}"
            numbers = (str(child.sequence_no), child.status.value, str(child.attempt_count))
            table.add_row(*numbers, _short(reported.item), code, why)
        out().print(table, markup=False)


def _short(item: Any) -> str:
    text = msgspec.json.encode(item).decode()
    return text if len(text) <= _MAX_ITEM else f"{text[:_MAX_ITEM]}… (--json shows all)"


async def _show(
    runtime: Runtime, actor: Actor, batch_id: UUID, status: ChildStatus | None
) -> tuple[GovernedBatch, list[Child]]:
    async with Session(runtime.url, "ops") as session:
        with refusing():
            batch = await access.displayed(session, actor, batch_id)
        return batch, await operations.children(session, batch.id, status=status, limit=_MAX_CHILDREN)
