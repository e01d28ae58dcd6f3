"""`batchline doctor`: checks the database."""

from typing import Annotated
from uuid import UUID

import typer

from batchline.cli import options
from batchline.cli.batch_ids import batch_id_in
from batchline.cli.display.console import err, out, print_json
from batchline.cli.display.units import counted
from batchline.cli.errors import reported_errors
from batchline.cli.options import Exit
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.cli.server_settings import read_settings
from batchline.store.doctor import Report, examine
from batchline.store.session import Session


def register(app: typer.Typer) -> None:
    app.command("doctor", rich_help_panel=options.PANEL_SET_UP)(doctor)


def doctor(
    batch: Annotated[str | None, typer.Argument(metavar="[ID]", help="Default: all batches.")] = None,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    objects: options.ObjectsUrl = None,
    as_json: options.Json = False,
) -> None:
    """Check every lane, counter and file on the live database. Exit code 1: there are findings."""
    with reported_errors(as_json):
        located = read_settings({"config": config, "objects": objects}).server.objects
        with open_runtime(database, data_dir, objects=located) as runtime:
            report = run_async(_examine(runtime, None if batch is None else batch_id_in(runtime, batch)))
        _tell(report, as_json)
        raise typer.Exit(Exit.SOME_FAILED if report.findings else Exit.OK)


async def _examine(runtime: Runtime, batch_id: UUID | None) -> Report:
    async with Session(runtime.url, "doctor") as session:
        return await examine(session, batch_id=batch_id, object_exists=runtime.objects.exists)


def _tell(report: Report, as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    for finding in report.findings + report.notes:
        err().print(str(finding), markup=False)
    verdict = "clean" if not report.findings else counted(len(report.findings), "finding")
    out().print(
        f"{verdict}: {counted(report.batches, 'batch', 'batches')}, {counted(report.lanes, 'lane')},"
        f" {counted(report.results, 'result')}, {counted(report.spans, 'span')}",
        markup=False,
    )
