"""Commands on batches: submit, status, watch, results, cancel, pause, resume, list."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
import typer
from rich.table import Column, Table

from batchline.batches import creation as ordering
from batchline.batches.batch_object import failure_objects
from batchline.batches.cost import BatchCost, cost_object, cost_of
from batchline.batches.pauses import pause_reason
from batchline.cli import options
from batchline.cli.commands.run import check_window, run_upstream
from batchline.cli.display import progress
from batchline.cli.display.console import (
    CommandError,
    err,
    finalize_trouble,
    out,
    print_json,
    read_batch_id,
    show_batch,
)
from batchline.cli.display.failures import failure_lines
from batchline.cli.display.pauses import pause_document, pause_message
from batchline.cli.errors import reported_errors
from batchline.cli.failure_limits import with_failure_limits
from batchline.cli.files import check_inputs, ingest_inputs, stored_lines
from batchline.cli.model_check import model_warnings
from batchline.cli.options import Exit
from batchline.cli.run_batch import exit_code
from batchline.cli.runtime import Runtime, open_runtime, run_async, written_files
from batchline.cli.spending import cost_lines, raise_caps, requested_spending, settings_for, with_spending
from batchline.cli.targets import Outputs, OutputTarget, target_at
from batchline.model import (
    DEFAULT_TENANT,
    Batch,
    CauseCount,
    ItemCounts,
    PauseReason,
    RunSettings,
    ids,
)
from batchline.store import batches, failures, outputs, providers
from batchline.store.outputs import Which
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
_TABLE_WIDTH = 160


class _BatchReport(msgspec.Struct, frozen=True):
    """A batch, and what else a command shows of it."""

    batch: Batch
    providers: tuple[ProviderCounts, ...] = ()
    # None: the command has not read them.
    causes: tuple[CauseCount, ...] | None = None
    pause: PauseReason | None = None
    cost: BatchCost | None = None


def register(app: typer.Typer) -> None:
    app.command("submit")(submit)
    app.command("status")(status)
    app.command("watch")(watch)
    app.command("results")(results)
    app.command("list")(list_batches)
    for change, help in CHANGES.items():
        command = resume if change == "resume" else change_command(change)
        app.command(change, help=help)(command)


def submit(
    inputs: options.Inputs,
    upstream: options.Upstream = None,
    api_key_env: options.ApiKeyEnv = None,
    max_attempts: options.MaxAttempts = None,
    timeout: options.Timeout = None,
    provider: options.Provider = None,
    provider_recovery: options.ProviderRecovery = None,
    provider_max_tasks: options.ProviderMaxTasks = None,
    provider_recheck: options.ProviderRecheck = None,
    window: options.Window = options.DEFAULT_WINDOW,
    max_cost: options.MaxCost = None,
    max_tokens: options.MaxTokens = None,
    max_failed: options.MaxFailed = None,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Create a batch from the lines of INPUT for `batchline worker` to run, and print its id."""
    with reported_errors(as_json):
        server = run_upstream(
            upstream,
            api_key_env=api_key_env,
            max_attempts=max_attempts,
            timeout=timeout,
            provider=provider,
            provider_recovery=provider_recovery,
            provider_max_tasks=provider_max_tasks,
            provider_recheck=provider_recheck,
        )
        settings = with_failure_limits(server.run_settings(), max_failed)
        settings = with_spending(settings, requested_spending(config, max_cost, max_tokens))
        check_window(window)
        check_inputs(inputs)
        with open_runtime(database, data_dir) as runtime:
            batch = run_async(_submit(runtime, inputs, settings, window, as_json))
        _tell(_BatchReport(batch), as_json)


async def _submit(
    runtime: Runtime, inputs: list[Path], settings: RunSettings, window: str, silent: bool
) -> Batch:
    file = await ingest_inputs(inputs, runtime.url, silent=silent)
    async with Session(runtime.url, "submit") as session:
        priced = await settings_for(session, file.id, settings)
        batch = await ordering.create(
            session, tenant=DEFAULT_TENANT, file_id=file.id, window=window, settings=priced
        )
        for warning in await model_warnings(session, batch.id, settings):
            err().print(f"warning: {warning}", markup=False)
        return batch


def status(
    batch: options.BatchId,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show a batch."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        _tell(run_async(_get(runtime, read_batch_id(batch))), as_json)


def watch(
    batch: Annotated[str | None, typer.Argument(metavar="[ID]", help="Default: the newest batch.")] = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show the progress of a batch until it has ended, or a rule has paused it. Exit codes as for `run`."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        ended = run_async(_watch(runtime, None if batch is None else read_batch_id(batch), as_json))
        _tell(ended, as_json)
        raise typer.Exit(Exit.PAUSED if ended.pause is not None else exit_code(ended.batch))


async def _watch(runtime: Runtime, batch_id: UUID | None, silent: bool) -> _BatchReport:
    async with Session(runtime.url, "watch") as session:
        if batch_id is None:
            newest = await batches.list_newest(session, DEFAULT_TENANT, limit=1)
            if not newest:
                raise CommandError("there is no batch yet; create one with `run` or `submit`")
            batch_id = newest[0].id
        gauge = progress.Gauge(session, batch_id)
        with progress.display(out(), f"batch …{batch_id.hex[-8:]}", silent=silent) as screen:
            while True:
                batch, snapshot = await gauge.read()
                screen.show(snapshot)
                if batch.ended_at is not None or batch.pause_rule is not None:
                    return _BatchReport(
                        batch,
                        causes=snapshot.causes,
                        pause=await pause_reason(session, batch),
                        cost=await cost_of(session, batch),
                    )
                await asyncio.sleep(_REFRESH)


def results(
    batch: options.BatchId,
    errors: Annotated[bool, typer.Option("--errors", help="Write the error lines instead.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write to this file instead of stdout.")
    ] = None,
    force: options.Force = False,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Write the output lines of a batch in input order, also while it runs."""
    with reported_errors(as_json):
        target = target_at(output or Path("-"))
        if as_json and target.is_stdout:
            raise CommandError("--json prints one document on stdout; give -o FILE for the lines")
        allowed = Outputs(written_files(data_dir), force)
        allowed.check(target)
        which: Which = "errors" if errors else "output"
        with open_runtime(database, data_dir) as runtime:
            written, complete = run_async(_results(runtime, read_batch_id(batch), which, target, allowed))
        if as_json:
            print_json({"lines": written, "complete": complete, "output": str(output)})


async def _results(
    runtime: Runtime,
    batch_id: UUID,
    which: Which,
    target: OutputTarget,
    allowed: Outputs,
) -> tuple[int, bool]:
    async with Session(runtime.url, "results") as session:
        batch = await _found(session, batch_id)
        async with aclosing(_lines(runtime, session, batch, which)) as blocks:
            return await allowed.write(target, blocks), batch.ended_at is not None


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


def list_batches(
    limit: options.Limit = 20,
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="The page after this batch.")
    ] = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """List batches, newest first."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        found = run_async(_list(runtime, limit, None if after is None else read_batch_id(after)))
        if as_json:
            print_json({"data": [show_batch(batch) for batch in found]})
            return
        states = [name.replace("_", " ") for name in ItemCounts.__struct_fields__]
        table = Table(Column("id", no_wrap=True), "status", *states, "created", box=None)
        for batch in found:
            table.add_row(
                ids.show(ids.BATCH, batch.id),
                batch.status.value,
                *(f"{items:,}" for items in msgspec.structs.astuple(batch.counts)),
                f"{batch.created_at:%Y-%m-%d %H:%M:%S}",
            )
        # Rather lines that the terminal wraps than columns that are cut.
        out().print(table, width=max(out().width, _TABLE_WIDTH))
        for batch in found:
            if trouble := finalize_trouble(batch):
                out().print(f"{ids.show(ids.BATCH, batch.id)}: {trouble}", markup=False)


async def _list(runtime: Runtime, limit: int, after: UUID | None) -> list[Batch]:
    async with Session(runtime.url, "list") as session:
        last = None if after is None else await _found(session, after)
        return await batches.list_newest(session, DEFAULT_TENANT, limit=limit, after=last)


def change_command(change: Change) -> Callable[..., None]:
    """The command that cancels, pauses or resumes a batch."""

    def command(
        batch: options.BatchId,
        database: options.Database = None,
        data_dir: options.DataDir = None,
        as_json: options.Json = False,
    ) -> None:
        with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
            _tell(_BatchReport(run_async(_changed(runtime, read_batch_id(batch), change))), as_json)

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
        _tell(_BatchReport(run_async(_changed(runtime, read_batch_id(batch), "resume", caps))), as_json)


async def _changed(
    runtime: Runtime,
    batch_id: UUID,
    change: Change,
    caps: tuple[float | None, int | None] = (None, None),
) -> Batch:
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
        return await _found(session, batch_id)


async def _get(runtime: Runtime, batch_id: UUID) -> _BatchReport:
    async with Session(runtime.url, "status") as session:
        batch = await _found(session, batch_id)
        return _BatchReport(
            batch,
            tuple(await providers.counts(session, Scope(batch_id=batch_id))),
            tuple(await failures.causes(session, batch)),
            await pause_reason(session, batch),
            await cost_of(session, batch),
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
    if as_json:
        print_json(displayed)
        return
    counts = msgspec.structs.asdict(batch.counts)
    total = counts.pop("total")
    states = ", ".join(f"{items:,} {name.replace('_', ' ')}" for name, items in counts.items())
    out().print(f"{displayed['id']}  {displayed['status']}  {states} of {total:,}", markup=False)
    if unknown:
        out().print(f"  {unknown:,} submission unknown: the provider may have accepted them", markup=False)
    for line in cost_lines(found.cost):
        out().print(f"  {line}", markup=False)
    if trouble := finalize_trouble(batch):
        out().print(f"  {trouble}", markup=False)
    for line in failure_lines(found.causes or ()):
        out().print(f"  {line}", markup=False)
    if found.pause is not None:
        message = pause_message(found.pause, batch, f"batchline resume {displayed['id']}")
        out().print(indent(message, "  "), markup=False)
