"""Shared by the commands for operations, limits and keys: the actor, refusals, and how batches are printed.

Access to the database is full access: these commands act as an admin, under a name for the audit log.
"""

import getpass
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from batchline.batches.batch_object import steps_object
from batchline.cli.display.console import CommandError, out, print_json
from batchline.cli.options import Exit
from batchline.cli.server_settings import read_settings, registry
from batchline.governance.access import Actor
from batchline.governance.children import Reported
from batchline.governance.errors import LimitReached, Refused
from batchline.governance.operations import Operation
from batchline.governance.rules import Rules
from batchline.model import Child, GovernedBatch, Role, ids

Tenant = Annotated[str, typer.Option("--tenant", metavar="T", help="The tenant of the operations.")]
User = Annotated[
    str | None,
    typer.Option("--as", metavar="USER", help="The acting user, for the audit log. Default: your user name."),
]
Reason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="The reason, for the audit log.")
]


App = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        help="Also know the governed operations of this Python app.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class OpsSource:
    """Where the operations are defined, and the database with their batches."""

    config: Path | None
    app: str | None = None
    database: str | None = None
    data_dir: Path | None = None

    def rules(self, *, opens_database: bool = True) -> Rules:
        """The operations and limits of the settings and of the app. Raises CommandError, also if the command
        opens another database than the app."""
        settings = read_settings({"config": self.config})
        governed: Sequence[Operation] = ()
        if self.app is not None:
            # Only who names an app waits for the import.
            from batchline.cli.app_worker import check_database, served_app

            served = served_app(self.app)
            if opens_database:
                check_database(served.location, self.database or settings.database, self.data_dir)
            governed = served.governed
        server = settings.server
        return Rules(registry(server, governed), server.limits, server.operation_window)


def admin(tenant: str, user: str | None) -> Actor:
    return Actor(tenant, current_actor(user), Role.ADMIN)


def current_actor(user: str | None) -> str:
    """The acting user, for the audit log."""
    if user:
        return user
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a user without a name.
        return "command line"


@contextmanager
def refusing() -> Iterator[None]:
    """Turn a refusal into an error of the command, with the reason and its code."""
    try:
        yield
    except LimitReached as error:
        reported = f"{error.message} ({error.code}, {error.limit_type}; retry after {error.retry_after} s)"
        raise CommandError(reported, Exit.SOME_FAILED) from error
    except Refused as error:
        raise CommandError(f"{error.message} ({error.code})", Exit.SOME_FAILED) from error


def show_governed(batch: GovernedBatch) -> dict[str, Any]:
    """A governed batch as all commands print it, with the field names of the API."""
    counts = batch.counts
    return {
        "batch_id": ids.show(ids.BATCH, batch.id),
        "operation": batch.operation,
        "status": batch.status.value,
        "user_id": batch.user_id,
        "request_id": None if batch.request_id is None else str(batch.request_id),
        "reason": batch.reason,
        "approval": batch.approval.value,
        "decided_by": batch.decided_by,
        "decision_reason": batch.decision_reason,
        "content_digest": batch.decided_digest,
        "held": batch.held,
        "paused": batch.paused_at is not None,
        "paused_by": batch.paused_by if batch.paused_at is not None else None,
        "steps": steps_object(batch.settings.steps, batch.step, batch.step_total, batch.next_step_at),
        "child_count": counts.total,
        "pending_count": counts.pending,
        "success_count": counts.succeeded,
        "failed_count": counts.failed,
        "cancelled_count": counts.cancelled,
        "created_at": int(batch.created_at.timestamp()),
        "updated_at": int(batch.updated_at.timestamp()),
        "ended_at": None if batch.ended_at is None else int(batch.ended_at.timestamp()),
    }


def tell(batch: GovernedBatch, as_json: bool) -> None:
    """Print a governed batch at the end of a command."""
    if as_json:
        print_json(show_governed(batch))
        return
    counts = batch.counts
    out().print(
        f"{ids.show(ids.BATCH, batch.id)}: {batch.operation} of {batch.user_id}, {batch.status.value}:"
        f" {counts.succeeded} of {counts.total} done, {counts.failed} failed, {counts.pending} pending",
        markup=False,
    )
    if batch.step_total is not None and batch.step_total < batch.total:
        out().print(f"{batch.step_total} of {batch.total} children have begun", markup=False)
    if batch.paused_at is not None and batch.paused_by is not None:
        out().print(f"paused by {batch.paused_by}: batchline ops resume ID", markup=False)
    if batch.status.value == "PENDING_APPROVAL":
        digest = f" --digest {batch.decided_digest}" if batch.decided_digest else ""
        out().print(
            f"it waits for an approval by another user: batchline ops approve ID{digest}", markup=False
        )


def show_child(child: Child, reported: Reported) -> dict[str, Any]:
    error = reported.error
    return {
        "sequence_no": child.sequence_no,
        "custom_id": child.custom_id,
        "status": child.status.value,
        "attempt_count": child.attempt_count,
        "status_code": child.status_code,
        "last_attempt_at": None if child.last_attempt_at is None else int(child.last_attempt_at.timestamp()),
        "item": reported.item,
        "error": None if error is None else {"code": error.code, "message": error.message},
        "result": reported.result,
    }
