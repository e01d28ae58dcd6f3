"""`batchline ops approve`, `reject`, `retry`, `release`, `pause` …: each changes one governed batch.

`approve` and `reject` have their own options. The others differ only in the act, so they share theirs.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, TypeAlias
from uuid import UUID

import typer

from batchline.cli import options
from batchline.cli.batch_ids import batch_id_in
from batchline.cli.errors import reported_errors
from batchline.cli.ops_context import App, OpsSource, Reason, Tenant, User, admin, refusing, tell
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.governance import changes, decisions
from batchline.governance.access import Actor
from batchline.governance.rules import Rules
from batchline.model import DEFAULT_TENANT, GovernedBatch
from batchline.store.session import Session

Ask: TypeAlias = Callable[[Rules, Session, Actor, UUID], Awaitable[GovernedBatch]]


@dataclass(frozen=True, slots=True)
class Change:
    name: str
    help: str
    ask: Ask


CHANGES = (
    Change("retry", "Retry the failed children of a batch that have attempts left.", changes.retry),
    Change(
        "release",
        "Release a batch that was submitted with --hold.",
        lambda _, session, actor, batch_id: changes.release(session, actor, batch_id),
    ),
    Change(
        "pause",
        "Pause a governed batch: requests in flight finish, the rest waits.",
        lambda _, session, actor, batch_id: changes.pause(session, actor, batch_id),
    ),
    Change(
        "resume",
        "Resume a paused governed batch.",
        lambda _, session, actor, batch_id: changes.resume(session, actor, batch_id),
    ),
    Change(
        "cancel",
        "Cancel a governed batch: requests in flight finish, the rest never runs.",
        lambda _, session, actor, batch_id: changes.cancel(session, actor, batch_id),
    ),
)


def approve(
    batch: options.BatchId,
    reason: Reason = None,
    children: Annotated[
        int | None,
        typer.Option("--children", min=1, metavar="N", help="Approve only if it has this many children."),
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest",
            metavar="HEX",
            help="Approve only what `ops show` shows with this digest. Needed if it may have changed.",
        ),
    ] = None,
    user: User = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: options.Config = None,
    app: App = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Approve a batch that waits for an approval. It then runs, or the rest of it after its sample."""

    def ask(rules: Rules, session: Session, actor: Actor, batch_id: UUID) -> Awaitable[GovernedBatch]:
        return decisions.approve(rules, session, actor, batch_id, reason, children, digest)

    _change(batch, ask, admin(tenant, user), OpsSource(config, app, database, data_dir), as_json)


def reject(
    batch: options.BatchId,
    reason: Reason = None,
    user: User = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: options.Config = None,
    app: App = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Reject a batch that waits for an approval. It never runs."""

    def ask(rules: Rules, session: Session, actor: Actor, batch_id: UUID) -> Awaitable[GovernedBatch]:
        return decisions.reject(session, actor, batch_id, reason)

    _change(batch, ask, admin(tenant, user), OpsSource(config, app, database, data_dir), as_json)


def change_command(change: Change) -> Callable[..., None]:
    def command(
        batch: options.BatchId,
        user: User = None,
        tenant: Tenant = DEFAULT_TENANT,
        config: options.Config = None,
        app: App = None,
        database: options.Database = None,
        data_dir: options.DataDir = None,
        as_json: options.Json = False,
    ) -> None:
        source = OpsSource(config, app, database, data_dir)
        _change(batch, change.ask, admin(tenant, user), source, as_json)

    return command


def _change(batch: str, ask: Ask, actor: Actor, source: OpsSource, as_json: bool) -> None:
    """Change the batch and print it."""
    with reported_errors(as_json):
        rules = source.rules()
        with open_runtime(source.database, source.data_dir) as runtime:
            batch_id = batch_id_in(runtime, batch, governed_of=actor.tenant)
            changed = run_async(_changed(runtime, lambda session: ask(rules, session, actor, batch_id)))
        tell(changed, as_json)


async def _changed(runtime: Runtime, change: Callable[[Session], Awaitable[GovernedBatch]]) -> GovernedBatch:
    async with Session(runtime.url, "ops") as session:
        with refusing():
            return await change(session)
