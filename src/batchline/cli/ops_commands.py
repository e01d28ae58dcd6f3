"""`batchline ops`: operations and their batches, on the database itself."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer
from rich.table import Column, Table

from batchline import ids
from batchline.cli import options
from batchline.cli.console import CommandError, out, print_json
from batchline.cli.failing import failing
from batchline.cli.governing import (
    Reason,
    Tenant,
    User,
    admin,
    governor,
    read_governed_id,
    refusing,
    show_child,
    show_governed,
)
from batchline.cli.place import Place, open_place, run_async
from batchline.engine import children, governance
from batchline.engine.governance import Actor, Governor, Submission
from batchline.engine.operations import Operation
from batchline.model import DEFAULT_TENANT, Approval, Child, GovernedBatch
from batchline.store.session import Session

_MOST_CHILDREN = 1000

_ops = typer.Typer(help="Governed operations: what there is, submit, decide, retry.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(_ops, name="ops")


@_ops.command("list")
def list_operations(config: options.Config = None, as_json: options.Json = False) -> None:
    """List the operations of the settings: those of packs, and their own."""
    with failing(as_json):
        found = governor(config)[0].registry.all()
        if as_json:
            print_json({"data": [_shown(operation) for operation in found]})
            return
        if not found:
            raise CommandError("no operation is registered: see [[operations]] and [packs] in batchline.toml")
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


def _shown(operation: Operation) -> dict[str, Any]:
    return {
        "name": operation.name,
        "description": operation.description,
        "schema": operation.schema,
        "largest_batch": operation.largest_batch,
        "max_attempts": operation.max_attempts,
        "approval": operation.approval,
        "self_approval": operation.self_approval,
        "redact": list(operation.redact),
        "executor": operation.executor,
        "upstream": operation.upstream,
    }


@_ops.command("submit")
def submit(
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="As `batchline ops list` shows it.")],
    items: Annotated[
        Path,
        typer.Argument(metavar="ITEMS", help="A JSON array of items, or one item a line. - is stdin."),
    ],
    request_id: Annotated[
        str | None,
        typer.Option("--request-id", metavar="UUID", help="Sent again with the same, it is one batch."),
    ] = None,
    reason: Reason = None,
    hold: Annotated[bool, typer.Option("--hold", help="Do not run it before it is released.")] = False,
    user: User = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Submit a batch of items: all of them, or none and why. The limits hold here as everywhere."""
    with failing(as_json):
        asked = Submission(operation, _items(items), _request_id(request_id), reason, hold)
        rules, _ = governor(config)
        with open_place(database, data_dir) as place:
            batch = run_async(_submit(place, rules, admin(tenant, user), asked))
        _tell(batch, as_json)


async def _submit(place: Place, rules: Governor, actor: Actor, asked: Submission) -> GovernedBatch:
    async with Session(place.url, "ops") as session:
        with refusing():
            return (await rules.submit(session, actor, asked)).batch


@_ops.command("batches")
def list_batches(
    pending: Annotated[bool, typer.Option("--pending", help="Only those that wait for an approval.")] = False,
    operation: Annotated[str | None, typer.Option("--operation", metavar="NAME")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000)] = 20,
    tenant: Tenant = DEFAULT_TENANT,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """List governed batches, newest first."""
    with failing(as_json), open_place(database, data_dir) as place:
        found = run_async(_page(place, tenant, pending, operation, limit))
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
    place: Place, tenant: str, pending: bool, operation: str | None, limit: int
) -> list[GovernedBatch]:
    async with Session(place.url, "ops") as session:
        return await governance.page(
            session,
            admin(tenant, None),
            limit=limit,
            operation=operation,
            approval=Approval.PENDING if pending else None,
        )


@_ops.command("show")
def show(
    batch: options.BatchId,
    tenant: Tenant = DEFAULT_TENANT,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show a governed batch and its children."""
    with failing(as_json):
        operations = governor(config)[0].registry
        with open_place(database, data_dir) as place:
            found, rows = run_async(_show(place, admin(tenant, None), read_governed_id(batch)))
        operation = operations.find(found.operation)
        shown = [(child, children.told(child, found, operation)) for child in rows]
        if as_json:
            print_json({**show_governed(found), "children": [show_child(*each) for each in shown]})
            return
        _tell(found, as_json)
        table = Table("no", "status", "attempts", "answer", "", box=None)
        for child, told in shown:
            code = "" if child.status_code is None else str(child.status_code)
            why = "" if told.error is None else f"{told.error.code}: {told.error.message}"
            table.add_row(str(child.sequence_no), child.status.value, str(child.attempt_count), code, why)
        out().print(table, markup=False)


async def _show(place: Place, actor: Actor, batch_id: UUID) -> tuple[GovernedBatch, list[Child]]:
    async with Session(place.url, "ops") as session:
        with refusing():
            batch = await governance.visible(session, actor, batch_id)
        return batch, await governance.children(session, batch, after=0, limit=_MOST_CHILDREN)


@_ops.command("approve")
def approve(
    batch: options.BatchId,
    reason: Reason = None,
    user: User = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Approve a batch that waits for it: it runs from now on."""
    actor = admin(tenant, user)
    _change(
        batch,
        config,
        database,
        data_dir,
        as_json,
        lambda rules, session, batch_id: rules.approve(session, actor, batch_id, reason),
    )


@_ops.command("reject")
def reject(
    batch: options.BatchId,
    reason: Reason = None,
    user: User = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Reject a batch that waits for an approval: none of it ever runs."""
    actor = admin(tenant, user)
    _change(
        batch,
        config,
        database,
        data_dir,
        as_json,
        lambda rules, session, batch_id: rules.reject(session, actor, batch_id, reason),
    )


@_ops.command("retry")
def retry(
    batch: options.BatchId,
    user: User = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Run the failed children of a batch again, those that have attempts left."""
    actor = admin(tenant, user)
    _change(
        batch,
        config,
        database,
        data_dir,
        as_json,
        lambda rules, session, batch_id: rules.retry(session, actor, batch_id),
    )


@_ops.command("release")
def release(
    batch: options.BatchId,
    user: User = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Release a batch that was submitted with --hold."""
    actor = admin(tenant, user)
    _change(
        batch,
        config,
        database,
        data_dir,
        as_json,
        lambda rules, session, batch_id: rules.release(session, actor, batch_id),
    )


@_ops.command("cancel")
def cancel(
    batch: options.BatchId,
    user: User = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Cancel a governed batch: what is in flight finishes, the rest never runs."""
    actor = admin(tenant, user)
    _change(
        batch,
        config,
        database,
        data_dir,
        as_json,
        lambda rules, session, batch_id: rules.cancel(session, actor, batch_id),
    )


def _change(
    shown: str,
    config: Path | None,
    database: str | None,
    data_dir: Path | None,
    as_json: bool,
    change: Callable[[Governor, Session, UUID], Awaitable[GovernedBatch]],
) -> None:
    with failing(as_json):
        batch_id = read_governed_id(shown)
        rules, _ = governor(config)
        with open_place(database, data_dir) as place:
            batch = run_async(_changed(place, lambda session: change(rules, session, batch_id)))
        _tell(batch, as_json)


async def _changed(place: Place, change: Callable[[Session], Awaitable[GovernedBatch]]) -> GovernedBatch:
    async with Session(place.url, "ops") as session:
        with refusing():
            return await change(session)


def _tell(batch: GovernedBatch, as_json: bool) -> None:
    if as_json:
        print_json(show_governed(batch))
        return
    counts = batch.counts
    out().print(
        f"{ids.show(ids.BATCH, batch.id)}: {batch.operation} of {batch.user_id}, {batch.status.value}:"
        f" {counts.succeeded} of {counts.total} done, {counts.failed} failed, {counts.pending} pending",
        markup=False,
    )
    if batch.status.value == "PENDING_APPROVAL":
        out().print("it waits for an approval: batchline ops approve ID, by somebody else", markup=False)


def _request_id(text: str | None) -> UUID | None:
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise CommandError(f"--request-id: {text!r} is no UUID") from None


def _items(path: Path) -> list[Any]:
    """A JSON array, an object with one under `items`, or JSON lines."""
    content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    try:
        read = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return _lines(path, content)
    if isinstance(read, dict) and isinstance(read.get("items"), list):
        read = read["items"]
    return read if isinstance(read, list) else [read]


def _lines(path: Path, content: bytes) -> list[Any]:
    items = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                items.append(msgspec.json.decode(line))
            except msgspec.DecodeError as error:
                raise CommandError(f"{path}, line {number}: it is not JSON: {error}") from None
    return items
