"""`batchline change`: another priority, concurrency or deadline for a batch that runs."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer
from msgspec import UNSET, UnsetType

from batchline.cli import options
from batchline.cli.batch_ids import batch_id_in
from batchline.cli.display.console import CommandError, out, print_json, show_batch
from batchline.cli.errors import reported_errors
from batchline.cli.ops_context import User, admin, refusing
from batchline.cli.options import Exit
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.config import durations
from batchline.config.settings import LimitSettings
from batchline.governance import batch_acts
from batchline.governance.batch_acts import ActKind, BatchAct
from batchline.governance.errors import InvalidSubmission
from batchline.governance.registry import Registry
from batchline.governance.rules import Rules
from batchline.model import Batch, BatchChange, ids
from batchline.store import batches
from batchline.store.session import Session

_NONE = "none"
# A change is the same whatever operations there are.
_RULES = Rules(Registry(()), LimitSettings())


def register(app: typer.Typer) -> None:
    app.command("change", rich_help_panel=options.PANEL_BATCHES)(change)


def change(
    batch: options.BatchId,
    priority: options.Priority = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            "--concurrency",
            "-c",
            metavar="N|none",
            help="Requests of the batch that one worker has in flight at most. none: no limit of its own.",
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline",
            metavar="TIME|none",
            help="Lines that are not done then expire: 6h from now on, 2026-11-20T18:00Z, or none.",
        ),
    ] = None,
    user: User = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Change a batch that has not ended. Workers and `run` follow within seconds.

    Examples:

        batchline change @1 --priority 10
        batchline change 01a1e816 --concurrency 8 --deadline 12h
    """
    with reported_errors(as_json):
        wanted = BatchChange(
            priority=UNSET if priority is None else priority,
            concurrency=_concurrency(concurrency),
            deadline=_deadline(deadline),
        )
        with open_runtime(database, data_dir) as runtime, refusing():
            changed = run_async(_change(runtime, batch_id_in(runtime, batch), wanted, user))
        if as_json:
            print_json(show_batch(changed))
            return
        limit = "no limit of its own" if changed.concurrency is None else f"concurrency {changed.concurrency}"
        until = "none" if changed.expires_at is None else f"{changed.expires_at:%Y-%m-%d %H:%M %Z}"
        out().print(
            f"{ids.show(ids.BATCH, changed.id)}  {changed.status}  priority {changed.priority}, {limit},"
            f" deadline {until}",
            markup=False,
        )


async def _change(runtime: Runtime, batch_id: UUID, wanted: BatchChange, user: str | None) -> Batch:
    act = BatchAct(ActKind.CHANGE, change=wanted)
    async with Session(runtime.url, "change") as session:
        found = await batches.get(session, batch_id)
        if found is None:
            raise CommandError(f"there is no batch {batch_id}; `batchline list` shows all")
        try:
            await batch_acts.perform(_RULES, session, admin(found.tenant, user), batch_id, act)
        except InvalidSubmission as error:
            raise CommandError(error.message, Exit.BAD_INPUT) from None
        return await batches.get(session, batch_id) or found


def _concurrency(text: str | None) -> int | UnsetType | None:
    if text is None:
        return UNSET
    if text in (_NONE, "auto"):
        return None
    if not text.isdecimal():
        raise CommandError(f"--concurrency {text!r}: give a number, or none")
    return int(text)


def _deadline(text: str | None) -> datetime | float | UnsetType | None:
    if text is None:
        return UNSET
    if text == _NONE:
        return None
    try:
        return durations.seconds(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise CommandError(
                f"--deadline {text!r}: give a time from now on, such as 6h or 2d, a moment such as"
                " 2026-11-20T18:00Z, or none"
            ) from None
    # Without a zone, it is the user's own.
    return moment.astimezone()
