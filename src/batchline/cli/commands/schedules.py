"""`batchline schedules`: the schedules of Python apps, as the database knows them."""

from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from batchline.cli import options
from batchline.cli.display.console import CommandError, out, print_json
from batchline.cli.display.tables import print_table
from batchline.cli.errors import reported_errors
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.model import DEFAULT_TENANT, ids
from batchline.model.emission import PYTHON
from batchline.store import schedules
from batchline.store.schedules import StoredSchedule
from batchline.store.session import Session

_COLUMNS = ("name", "state", "expression", "time zone", "next", "last", "operation", "last batch")
_CUT = ("last batch", "operation", "time zone", "last")
_NOTHING = "-"


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
            print_json({"data": [_object(each) for each in found]})
        elif found:
            _print(found)
        else:
            out().print(
                f"the tenant {tenant} has no schedules; a worker registers those of its app when it starts",
                markup=False,
            )


async def _list(runtime: Runtime, tenant: str, forget: str | None) -> list[StoredSchedule]:
    async with Session(runtime.url, "schedules") as session:
        if forget is not None and not await schedules.forget(session, tenant, forget):
            raise CommandError(
                f"--forget: the tenant {tenant} has no schedule {forget!r}; `batchline schedules` lists them"
            )
        return await schedules.listed(session, tenant)


def _print(found: list[StoredSchedule]) -> None:
    rows = [_row(each) for each in found]
    print_table(out(), _COLUMNS, rows, cut=_CUT)
    for each in found:
        if each.last_error is not None:
            times = "once" if each.attempts == 1 else f"{each.attempts} times"
            out().print(f"\n{each.name} has failed {times}: {each.last_error}", markup=False)


def _row(schedule: StoredSchedule) -> tuple[str, ...]:
    displayed = _object(schedule)
    zone = ZoneInfo(displayed["timezone"])
    return (
        *(displayed[name] for name in ("name", "state", "expression", "timezone")),
        _local(schedule.due_at, zone),
        _local(schedule.last_at, zone),
        *(displayed[name] or _NOTHING for name in ("operation", "last_batch_id")),
    )


def _local(at: datetime | None, zone: ZoneInfo) -> str:
    return _NOTHING if at is None else f"{at.astimezone(zone):%Y-%m-%d %H:%M:%S}".removesuffix(":00")


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
