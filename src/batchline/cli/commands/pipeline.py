"""`batchline pipeline`: sends rows through the stages of batchline.toml, and writes them with the answers."""

import asyncio
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace

from batchline.app.batchline import Batchline
from batchline.app.core import AppLocation
from batchline.app.pipeline_run import PipelineRequest, run_pipeline
from batchline.app.pipeline_stages import pipeline_stages
from batchline.app.stage_app import stage_app
from batchline.cli import options
from batchline.cli.app_worker import reported_app_errors
from batchline.cli.display.console import CommandError, err, out, print_json
from batchline.cli.display.units import counted
from batchline.cli.errors import reported_errors
from batchline.cli.inputs import RowOptions, default_output, input_options, opened_inputs
from batchline.cli.options import Exit
from batchline.cli.output_plan import errors_at
from batchline.cli.pipeline_rows import PipelineRows, RowFailure
from batchline.cli.runtime import run_async, written_files
from batchline.cli.server_settings import read_settings
from batchline.cli.stage_worker import stages_of
from batchline.cli.targets import Outputs, OutputTarget, target_at
from batchline.config.settings import Settings
from batchline.files.inputs.errors import InputRefused
from batchline.files.inputs.formats import Format
from batchline.files.inputs.input_set import InputSet
from batchline.model import DEFAULT_TENANT
from batchline.operations.http_stage import HttpStage

# So many failures are printed. The file has all of them.
_PRINTED = 10
_NO_REQUESTS = (
    "its lines are complete requests; a pipeline takes rows: CSV, TSV, text, Parquet, Arrow, or JSON Lines of"
    " objects; use `batchline run` for requests"
)
_AGAIN = "nothing is lost: the same command again continues"


def register(app: typer.Typer) -> None:
    app.command("pipeline", rich_help_panel=options.PANEL_RUN)(run_rows)


def run_rows(
    context: typer.Context,
    inputs: options.Inputs,
    stage: Annotated[
        str, typer.Option("--stage", metavar="NAME", help="The first stage, as batchline.toml names it.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="A .jsonl file, or - for stdout. Default: INPUT.output.jsonl",
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, and send every row again.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="If it has ended, run the rows again that failed.")
    ] = False,
    input_format: Annotated[
        Format | None, typer.Option("--input-format", help="The format of the inputs, whatever their names.")
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option("--delimiter", metavar="CHAR", help="Between the fields of CSV.")
    ] = None,
    force: options.Force = False,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Send every row of INPUT through the stages of batchline.toml. The same command again continues.

    OUT has a line for each row that has reached a last stage, in the order of the rows: its columns and the
    answers. OUT.errors.jsonl has the rows that failed, with the stage and the reason. After a change of a
    prompt or a model, all rows are sent again.

    Exit code 0: all rows passed all stages. 1: some did not. 2: bad input or usage; nothing was sent.

    Examples:

        batchline pipeline articles.csv --stage summarize -o german.jsonl
        batchline pipeline articles.csv --stage summarize -o german.jsonl --retry-failed
    """
    with reported_errors(as_json), reported_app_errors():
        if fresh and retry_failed:
            raise CommandError("--fresh sends every row again, --retry-failed only failed ones; give one")
        settings = read_settings(context.params)
        stages = _stages(settings, stage)
        writing = _writing(output or default_output(inputs[0]), data_dir, force=force, as_json=as_json)
        how = input_options(RowOptions(model=stage, input_format=input_format, delimiter=delimiter))
        how = replace(how, requests_refused=_NO_REQUESTS)
        with opened_inputs(inputs, how, data_dir, writing.targets) as found, _explained():
            writing.check(found)
            order = _order(found, stages, fresh, retry_failed, as_json)
            report = run_async(_run(_app(settings, stages), order, writing))
        _print(report, as_json)
        raise typer.Exit(Exit.SOME_FAILED if report.failures else Exit.OK)


@dataclass(frozen=True, slots=True)
class PipelineWriting:
    """Where the rows go, and where the failures. Without `errors`, failures are only printed."""

    output: OutputTarget
    errors: OutputTarget | None
    outputs: Outputs

    @property
    def targets(self) -> list[OutputTarget]:
        return [each for each in (self.output, self.errors) if each is not None]

    def check(self, inputs: InputSet) -> None:
        for target in self.targets:
            self.outputs.check(target, inputs.originals)


class PipelineReport(msgspec.Struct, frozen=True):
    """`rows`: lines of the output. `complete`: those of them with the answers of all last stages. `failed`:
    rows that failed, of which one may have several failures."""

    id: str
    rows: int
    complete: int
    failed: int
    failures: list[RowFailure]
    output: str
    errors: str | None


def _stages(settings: Settings, first: str) -> list[HttpStage]:
    """The stages that rows go through. Raises CommandError and InvalidApp."""
    server = settings.server
    if first not in [stage.name for stage in server.stages]:
        known = ", ".join(stage.name for stage in server.stages) or "none"
        where = settings.config or "batchline.toml, which is not in this folder"
        raise CommandError(f"--stage {first}: declare it as [stages.{first}] in {where}; found {known}")
    return pipeline_stages(stages_of(server), first)


def _app(settings: Settings, stages: Sequence[HttpStage]) -> Batchline:
    location = AppLocation(settings.database, settings.data_dir, settings.server.objects, DEFAULT_TENANT)
    return stage_app(location, stages)


def _writing(path: Path, data_dir: Path | None, *, force: bool, as_json: bool) -> PipelineWriting:
    target = target_at(path)
    if target.is_stdout and as_json:
        raise CommandError("--json prints one document on stdout; give -o FILE for the rows")
    if target.is_file and path.suffix != ".jsonl":
        raise CommandError(f"{path}: rows are written as JSON Lines; give a name that ends in .jsonl")
    errors = errors_at(path.with_suffix(".errors.jsonl")) if target.is_file else None
    return PipelineWriting(target, errors, Outputs(written_files(data_dir), force))


def _order(
    found: InputSet, stages: Sequence[HttpStage], fresh: bool, retry_failed: bool, as_json: bool
) -> PipelineRequest:
    return PipelineRequest(
        stages,
        found.rows,
        found.fingerprint().digest,
        found.title,
        found.same_columns,
        fresh,
        retry_failed,
        progress=not as_json and sys.stderr.isatty(),
    )


async def _run(app: Batchline, order: PipelineRequest, writing: PipelineWriting) -> PipelineReport:
    # As Ctrl-C, also the second one.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    async with app:
        batch = await run_pipeline(app, order)
        with TemporaryFile() as file:
            rows = PipelineRows(file)
            await rows.read(batch, order.stages)
            await writing.outputs.write(writing.output, rows.lines())
            errors = writing.errors
            if errors is not None and rows.failures:
                await writing.outputs.write(errors, rows.failed_lines())
            elif errors is not None:
                writing.outputs.remove(errors)
            name = None if errors is None or not rows.failures else errors.name
            counts = rows.written, rows.complete, rows.failed
            return PipelineReport(batch.id, *counts, rows.failures, writing.output.name, name)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except InputRefused as error:
        raise CommandError(str(error)) from error
    except LookupError as error:
        raise CommandError(f"{error}; give --fresh to send all rows again") from error
    except KeyboardInterrupt:
        raise CommandError(f"interrupted; {_AGAIN}", Exit.INTERRUPTED) from None


def _print(report: PipelineReport, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(report))
        return
    console = err() if report.output == "stdout" else out()
    for failure in report.failures[:_PRINTED]:
        text = f"  row {failure.row}: {failure.stage}: {failure.code}: {failure.message}"
        console.print(text, markup=False)
    if (more := len(report.failures) - _PRINTED) > 0:
        where = f" in {report.errors}" if report.errors else ""
        console.print(f"  and {more:,} more{where}", markup=False)
    failed = f", {report.failed:,} failed; --retry-failed runs these again" if report.failures else ""
    console.print(f"{counted(report.rows, 'row')} in {report.output}{failed}", markup=False)
