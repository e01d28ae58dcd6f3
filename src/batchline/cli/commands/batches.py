"""Commands on batches: submit, status, watch, results, cancel, pause, resume."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
import typer

from batchline.batches import creation as ordering
from batchline.batches.batch_object import failure_objects
from batchline.batches.cost import BatchCost, cost_object, cost_of
from batchline.batches.pauses import pause_reason
from batchline.cli import options
from batchline.cli.answer_options import AnswerOptions, check_endpoints, with_rules
from batchline.cli.arrangement_options import ArrangementOptions, duplicates_line
from batchline.cli.batch_ids import batch_id_in
from batchline.cli.display.chunks import chunk_lines, chunk_objects, room_lines
from batchline.cli.display.console import (
    CommandError,
    finalize_trouble,
    out,
    print_json,
    show_batch,
)
from batchline.cli.display.failures import failure_lines
from batchline.cli.display.pauses import pause_document, pause_message
from batchline.cli.display.progress import DisplayedProgress, Gauge
from batchline.cli.display.screen import display
from batchline.cli.display.steps import step_line
from batchline.cli.errors import reported_errors
from batchline.cli.failure_limits import with_failure_limits
from batchline.cli.files import ingest_inputs, stored_lines
from batchline.cli.inputs import RowOptions, input_options, opened_inputs
from batchline.cli.model_check import warn_of_models
from batchline.cli.option_groups import grouped
from batchline.cli.options import Exit
from batchline.cli.output_plan import FormatOption, OutputPlan, SelectOption, plan_output
from batchline.cli.resuming import continued_by, how_to_continue
from batchline.cli.run.report import exit_code
from batchline.cli.runtime import Runtime, open_runtime, run_async, written_files
from batchline.cli.spending import SpendingOptions, cost_lines, raise_caps, settings_for, with_spending
from batchline.cli.step_options import StepOptions
from batchline.cli.targets import Outputs
from batchline.cli.tracing import submitting, trace_settings, traced
from batchline.cli.upstream_options import UpstreamOptions, check_window
from batchline.config.settings import TraceSettings
from batchline.files.inputs.input_set import InputSet
from batchline.model import (
    DEFAULT_TENANT,
    Batch,
    BatchStatus,
    CauseCount,
    PauseReason,
    RunSettings,
    ids,
)
from batchline.store import batch_names, batches, failures, outputs, provider_chunks, providers
from batchline.store.outputs import Which
from batchline.store.provider_chunks import FullProvider, ListedChunk
from batchline.store.providers import ProviderCounts
from batchline.store.session import Session
from batchline.store.spans import Scope

Change: TypeAlias = Literal["cancel", "pause", "resume"]
CHANGES: dict[Change, str] = {
    "cancel": "Cancel a batch: requests in flight finish, the rest never runs, results so far are kept.",
    "pause": "Pause a batch: requests in flight finish, the rest waits.",
    "resume": "Resume a paused batch.",
}

_REFRESH = 0.5


class _BatchReport(msgspec.Struct, frozen=True):
    """A batch, and what else a command shows of it."""

    batch: Batch
    providers: tuple[ProviderCounts, ...] = ()
    # None: the command has not read them.
    causes: tuple[CauseCount, ...] | None = None
    pause: PauseReason | None = None
    cost: BatchCost | None = None
    # It is of `run`, and no worker has lines of it.
    idle: bool = False
    chunks: tuple[ListedChunk, ...] = ()
    full: tuple[FullProvider, ...] = ()


def register(app: typer.Typer) -> None:
    app.command("submit", rich_help_panel=options.PANEL_RUN)(grouped(submit))
    app.command("status", rich_help_panel=options.PANEL_BATCHES)(status)
    app.command("watch", rich_help_panel=options.PANEL_BATCHES)(watch)
    app.command("results", rich_help_panel=options.PANEL_BATCHES)(results)
    for change, help in CHANGES.items():
        command = resume if change == "resume" else change_command(change)
        app.command(change, help=help, rich_help_panel=options.PANEL_BATCHES)(command)


def submit(
    inputs: options.Inputs,
    *,
    sending: UpstreamOptions,
    rows: RowOptions,
    window: options.Window = options.DEFAULT_WINDOW,
    priority: options.Priority = None,
    answers: AnswerOptions,
    caps: SpendingOptions,
    max_failed: options.MaxFailed = None,
    staging: StepOptions,
    arranging: ArrangementOptions,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Create a batch from the lines of INPUT for `batchline worker` to run, and print its id.

    Example:

        batchline submit prompts.jsonl --upstream http://127.0.0.1:8000/v1
    """
    with reported_errors(as_json):
        server = sending.settings()
        settings = staging.applied(with_failure_limits(server.run_settings(), max_failed), max_failed)
        settings = arranging.applied(settings)
        settings = with_rules(with_spending(settings, caps.spending()), answers.rules())
        check_window(window)
        traces = trace_settings(caps.config)
        how = input_options(rows)
        with (
            opened_inputs(inputs, how, data_dir) as found,
            open_runtime(database, data_dir) as runtime,
        ):
            work = _submit(runtime, found, settings, window, as_json, priority or 0, traces)
            batch = run_async(work)
        _tell(_BatchReport(batch), as_json)


async def _submit(
    runtime: Runtime,
    inputs: InputSet,
    settings: RunSettings,
    window: str,
    silent: bool,
    priority: int,
    traces: TraceSettings,
) -> Batch:
    # Request lines are hashed while they are read.
    known = None if inputs.is_plain else await asyncio.to_thread(inputs.fingerprint)
    file = await ingest_inputs(inputs, runtime.url, known=known, silent=silent)
    async with Session(runtime.url, "submit") as session:
        await check_endpoints(session, file.id, settings)
        priced = await settings_for(session, file.id, settings)
        # Before the batch exists: then a worker may send at once.
        await warn_of_models(session, file.id, settings)
        async with traced(traces) as tracing:
            with submitting(tracing, "submit"):
                return await ordering.create(
                    session,
                    tenant=DEFAULT_TENANT,
                    file_id=file.id,
                    window=window,
                    settings=priced,
                    priority=priority,
                )


def status(
    batch: options.BatchId,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show a batch."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        _tell(run_async(_get(runtime, batch_id_in(runtime, batch))), as_json)


def watch(
    batch: Annotated[str | None, typer.Argument(metavar="[ID]", help="Default: the newest batch.")] = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show the progress of a batch until it has ended, or a rule has paused it. Exit codes as for `run`."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        ended = run_async(_watch(runtime, None if batch is None else batch_id_in(runtime, batch), as_json))
        _tell(ended, as_json)
        raise typer.Exit(Exit.PAUSED if ended.pause is not None else exit_code(ended.batch))


async def _watch(runtime: Runtime, batch_id: UUID | None, silent: bool) -> _BatchReport:
    async with Session(runtime.url, "watch") as session:
        if batch_id is None:
            newest = await batches.list_newest(session, DEFAULT_TENANT, limit=1)
            if not newest:
                raise CommandError("there is no batch yet; create one with `run` or `submit`")
            batch_id = newest[0].id
        gauge, short = Gauge(session, batch_id), await batch_names.short(session, [batch_id])
        with display(out(), f"batch {short.get(batch_id, batch_id.hex)}", silent=silent) as screen:
            while True:
                batch, progress = await gauge.read()
                pause = await pause_reason(session, batch)
                screen.show(progress if pause else await _with_left(session, batch, progress))
                if batch.ended_at is not None or pause is not None:
                    return _BatchReport(
                        batch,
                        causes=progress.causes,
                        pause=pause,
                        cost=await cost_of(session, batch),
                    )
                await asyncio.sleep(_REFRESH)


async def _with_left(session: Session, batch: Batch, progress: DisplayedProgress) -> DisplayedProgress:
    """The progress. If `run` has left the batch or its sample, nothing happens, and it says so."""
    if progress.rate or not await _idle(session, batch):
        return progress
    left = "left by run: nothing works on it; `batchline status` says how to continue it"
    trouble = progress.trouble or left
    return msgspec.structs.replace(progress, trouble=trouble)


async def _idle(session: Session, batch: Batch) -> bool:
    """Whether a batch of `run` could go on, and no worker has lines of it."""
    unfinished = batch.status in (BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING)
    if not batch.settings.reserved or not unfinished:
        return False
    return not (await batch_names.origins(session, [batch.id]))[batch.id].held


def results(
    batch: options.BatchId,
    errors: Annotated[bool, typer.Option("--errors", help="Write the error lines instead.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write to this file instead of stdout.")
    ] = None,
    format: FormatOption = None,
    select: SelectOption = None,
    force: options.Force = False,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Write the output lines of a batch in input order, also while it runs; or all its lines as a table.

    Examples:

        batchline results @1 -o answers.jsonl
        batchline results @1 -o answers.csv
        batchline results 01a1e816 --errors
    """
    with reported_errors(as_json):
        plan = plan_output(output or Path("-"), None, format=format, select=select)
        if as_json and plan.output.is_stdout:
            raise CommandError("--json prints one document on stdout; give -o FILE for the lines")
        if errors and plan.is_table:
            raise CommandError("--errors writes lines; a table has the failed lines, too: leave --errors out")
        allowed = Outputs(written_files(data_dir), force)
        allowed.check(plan.output)
        with open_runtime(database, data_dir) as runtime:
            batch_id = batch_id_in(runtime, batch)
            written, complete = run_async(_results(runtime, batch_id, errors, plan, allowed))
        if as_json:
            print_json({"lines": written, "complete": complete, "output": str(output)})


async def _results(
    runtime: Runtime, batch_id: UUID, errors: bool, plan: OutputPlan, allowed: Outputs
) -> tuple[int, bool]:
    async with Session(runtime.url, "results") as session:
        batch = await _found(session, batch_id)

        def open_lines(which: Which) -> AsyncGenerator[bytes, None]:
            return _lines(runtime, session, batch, "errors" if errors else which)

        _, rows = await plan.write_output(allowed, open_lines)
        return rows, batch.ended_at is not None


async def _lines(
    runtime: Runtime, session: Session, batch: Batch, which: Which
) -> AsyncGenerator[bytes, None]:
    """The lines so far, from the database; for a batch that has ended, the lines of its file."""
    if batch.ended_at is not None:
        async with aclosing(stored_lines(runtime, session, batch, which)) as blocks:
            async for block in blocks:
                yield block
        return
    async with aclosing(aiter(await outputs.lines(session, batch.id, which))) as lines:
        async for block in lines:
            yield block


def change_command(change: Change) -> Callable[..., None]:
    """The command that cancels, pauses or resumes a batch."""

    def command(
        batch: options.BatchId,
        database: options.Database = None,
        data_dir: options.DataDir = None,
        as_json: options.Json = False,
    ) -> None:
        with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
            _tell(run_async(_changed(runtime, batch_id_in(runtime, batch), change)), as_json)

    return command


def resume(
    batch: options.BatchId,
    max_cost: options.MaxCost = None,
    max_tokens: options.MaxTokens = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        caps = (max_cost, max_tokens)
        changed = _changed(runtime, batch_id_in(runtime, batch), "resume", caps)
        _tell(run_async(changed), as_json)


async def _changed(
    runtime: Runtime,
    batch_id: UUID,
    change: Change,
    caps: tuple[float | None, int | None] = (None, None),
) -> _BatchReport:
    async with Session(runtime.url, change) as session:
        before = await _found(session, batch_id)
        if change == "resume":
            if before.paused_at is not None:
                await raise_caps(session, before, *caps)
            done = await batches.resume(session, batch_id)
        else:
            done = await batches.close(session, batch_id, change)
        if not done:
            raise CommandError(f"cannot {change} a batch that is {before.status}", Exit.SOME_FAILED)
        now = await _found(session, batch_id)
        return _BatchReport(now, idle=await _idle(session, now))


async def _get(runtime: Runtime, batch_id: UUID) -> _BatchReport:
    async with Session(runtime.url, "status") as session:
        batch = await _found(session, batch_id)
        return _BatchReport(
            batch,
            tuple(await providers.counts(session, Scope(batch_id=batch_id))),
            tuple(await failures.causes(session, batch)),
            await pause_reason(session, batch),
            await cost_of(session, batch),
            await _idle(session, batch),
            tuple(await provider_chunks.listed(session, batch_id)),
            tuple(await provider_chunks.full(session, batch_id)),
        )


async def _found(session: Session, batch_id: UUID) -> Batch:
    batch = await batches.get(session, batch_id)
    if batch is None:
        raise CommandError(f"there is no batch {batch_id}; `batchline list` shows all")
    return batch


def _tell(found: _BatchReport, as_json: bool) -> None:
    batch = found.batch
    displayed: dict[str, Any] = show_batch(batch)
    if found.causes is not None:
        displayed["failures"] = failure_objects(found.causes)
        displayed["paused"] = pause_document(found.pause)
    if found.cost is not None:
        displayed["cost"] = cost_object(found.cost)
    unknown = sum(each.submission_unknown for each in found.providers)
    if found.providers:
        processing = sum(each.processing for each in found.providers)
        displayed["provider"] = {"processing": processing, "submission_unknown": unknown}
    if found.chunks:
        displayed["chunks"] = chunk_objects(found.chunks)
    if found.full:
        displayed["full_providers"] = [msgspec.structs.asdict(each) for each in found.full]
    if as_json:
        print_json(displayed)
        return
    counts = msgspec.structs.asdict(batch.counts)
    total = counts.pop("total")
    states = ", ".join(f"{items:,} {name.replace('_', ' ')}" for name, items in counts.items())
    out().print(f"{displayed['id']}  {displayed['status']}  {states} of {total:,}", markup=False)
    if unknown:
        out().print(f"  {unknown:,} submission unknown: the provider may have accepted them", markup=False)
    for line in (*chunk_lines(found.chunks), *room_lines(found.full)):
        out().print(f"  {line}", markup=False)
    for note in (step_line(batch), duplicates_line(batch)):
        if note is not None:
            out().print(f"  {note}", markup=False)
    for line in cost_lines(found.cost):
        out().print(f"  {line}", markup=False)
    if trouble := finalize_trouble(batch):
        out().print(f"  {trouble}", markup=False)
    for line in failure_lines(found.causes or ()):
        out().print(f"  {line}", markup=False)
    if found.pause is not None:
        message = pause_message(found.pause, batch, _resume_command(batch, found.pause))
        out().print(indent(message, "  "), markup=False)
    elif found.idle:
        hint = f"no process works on it, unless its `run` does; {how_to_continue(batch)}"
        out().print(indent(hint, "  "), markup=False)


def _resume_command(batch: Batch, pause: PauseReason) -> str:
    """Only its own `run` works on a batch of `run`."""
    flags = ("--yes",) if pause.rule == "sample" else ()
    own = continued_by(batch, *flags) if batch.settings.reserved else None
    return own or f"batchline resume {ids.show(ids.BATCH, batch.id)}"
