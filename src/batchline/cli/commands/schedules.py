"""`batchline schedules`: the schedules of Python apps, as the database knows them."""

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import typer

from batchline.cli import options
from batchline.cli.display.console import CommandError, out, print_json
from batchline.cli.display.tables import print_table
from batchline.cli.display.units import age
from batchline.cli.errors import reported_errors
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.model import DEFAULT_TENANT, ids
from batchline.model.emission import PYTHON
from batchline.store import batch_names, schedules
from batchline.store.schedules import StoredSchedule
from batchline.store.session import Session

_COLUMNS = ("name", "state", "expression", "zone", "next", "last", "batch", "operation")
_CUT = ("name", "zone", "operation")
_NOTHING = "-"


class ScheduleList(msgspec.Struct, frozen=True):
    """Schedules, with the short ids of their last batches."""

    schedules: list[StoredSchedule]
    short: Mapping[UUID, str]


def register(app: typer.Typer) -> None:
    app.command("schedules", rich_help_panel=options.PANEL_SET_UP)(list_schedules)


def list_schedules(
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="T", help="The tenant of the apps.")
    ] = DEFAULT_TENANT,
    forget: Annotated[
        str | None,
        typer.Option("--forget", metavar="NAME", help="Remove a schedule that has left its app."),
    ] = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """List the schedules of Python apps: when each runs next, its last batch and its last error."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        found = run_async(_list(runtime, tenant, forget))
        if as_json:
            print_json({"data": [_object(each) for each in found.schedules]})
        elif found.schedules:
            _print(found)
        else:
            out().print(
                f"the tenant {tenant} has no schedules; a worker registers those of its app when it starts",
                markup=False,
            )


async def _list(runtime: Runtime, tenant: str, forget: str | None) -> ScheduleList:
    async with Session(runtime.url, "schedules") as session:
        if forget is not None and not await schedules.forget(session, tenant, forget):
            raise CommandError(
                f"--forget: the tenant {tenant} has no schedule {forget!r}; `batchline schedules` lists them"
            )
        found = await schedules.listed(session, tenant)
        last = [each.last_batch_id for each in found if each.last_batch_id is not None]
        return ScheduleList(found, await batch_names.short(session, last))


def _print(found: ScheduleList) -> None:
    rows = [_row(each, found.short) for each in found.schedules]
    print_table(out(), _COLUMNS, rows, cut=_CUT)
    for each in found.schedules:
        if each.last_error is not None:
            times = "once" if each.attempts == 1 else f"{each.attempts} times"
            out().print(f"\n{each.name} has failed {times}: {each.last_error}", markup=False)


def _row(schedule: StoredSchedule, short: Mapping[UUID, str]) -> tuple[str, ...]:
    displayed = _object(schedule)
    local = schedule.due_at.astimezone(ZoneInfo(displayed["timezone"]))
    last, batch = schedule.last_at, schedule.last_batch_id
    return (
        *(displayed[name] for name in ("name", "state", "expression", "timezone")),
        f"{local:%Y-%m-%d %H:%M:%S}".removesuffix(":00"),
        _NOTHING if last is None else f"{age((schedule.now - last).total_seconds())} ago",
        _NOTHING if batch is None else short.get(batch, batch.hex),
        displayed["operation"] or _NOTHING,
    )


def _object(schedule: StoredSchedule) -> dict[str, Any]:
    expression, _, timezone = schedule.definition.rpartition(" ")
    batch = schedule.last_batch_id
    return {
        "name": schedule.name,
        "state": schedule.state,
        "expression": expression,
        "timezone": timezone,
        "next_at": int(schedule.due_at.timestamp()),
        "last_at": None if schedule.last_at is None else int(schedule.last_at.timestamp()),
        "last_batch_id": None if batch is None else ids.show(ids.BATCH, batch),
        "operation": None if schedule.operation is None else schedule.operation.removeprefix(PYTHON),
        "attempts": schedule.attempts,
        "last_error": schedule.last_error,
    }
