"""Commands on batches: submit, status, watch, results, cancel, pause, resume."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
import typer

from batchline.batches import creation as ordering
from batchline.cli import options
from batchline.cli.batch_ids import batch_id_in
from batchline.cli.commands.run import check_window, run_upstream
from batchline.cli.display.console import (
    CommandError,
    finalize_trouble,
    out,
    print_json,
    show_batch,
)
from batchline.cli.display.progress import Gauge
from batchline.cli.display.screen import display
from batchline.cli.errors import reported_errors
from batchline.cli.files import check_inputs, ingest_inputs, stored_lines
from batchline.cli.options import Exit
from batchline.cli.run_batch import exit_code
from batchline.cli.runtime import Runtime, open_runtime, run_async, written_files
from batchline.cli.targets import Outputs, OutputTarget, target_at
from batchline.model import DEFAULT_TENANT, Batch, RunSettings
from batchline.store import batch_names, batches, outputs, providers
from batchline.store.outputs import Which
from batchline.store.providers import ProviderCounts
from batchline.store.session import Session

Change: TypeAlias = Literal["cancel", "pause", "resume"]
CHANGES: dict[Change, str] = {
    "cancel": "Cancel a batch: requests in flight finish, the rest never runs, results so far are kept.",
    "pause": "Pause a batch: requests in flight finish, the rest waits.",
    "resume": "Resume a paused batch.",
}

_REFRESH = 0.5


def register(app: typer.Typer) -> None:
    app.command("submit", rich_help_panel=options.PANEL_RUN)(submit)
    app.command("status", rich_help_panel=options.PANEL_BATCHES)(status)
    app.command("watch", rich_help_panel=options.PANEL_BATCHES)(watch)
    app.command("results", rich_help_panel=options.PANEL_BATCHES)(results)
    for change, help in CHANGES.items():
        app.command(change, help=help, rich_help_panel=options.PANEL_BATCHES)(change_command(change))


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
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Create a batch from the lines of INPUT for `batchline worker` to run, and print its id.

    Example:

        batchline submit prompts.jsonl --upstream http://127.0.0.1:8000/v1
    """
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
        check_window(window)
        check_inputs(inputs)
        with open_runtime(database, data_dir) as runtime:
            batch = run_async(_submit(runtime, inputs, server.run_settings(), window, as_json))
        _tell(batch, as_json)


async def _submit(
    runtime: Runtime, inputs: list[Path], settings: RunSettings, window: str, silent: bool
) -> Batch:
    file = await ingest_inputs(inputs, runtime.url, silent=silent)
    async with Session(runtime.url, "submit") as session:
        return await ordering.create(
            session, tenant=DEFAULT_TENANT, file_id=file.id, window=window, settings=settings
        )


def status(
    batch: options.BatchId,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show a batch."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        found, counted = run_async(_get(runtime, batch_id_in(runtime, batch)))
        _tell(found, as_json, counted)


def watch(
    batch: Annotated[str | None, typer.Argument(metavar="[ID]", help="Default: the newest batch.")] = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show the progress of a batch until it has ended. Exit codes as for `run`."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        ended = run_async(_watch(runtime, None if batch is None else batch_id_in(runtime, batch), as_json))
        _tell(ended, as_json)
        raise typer.Exit(exit_code(ended))


async def _watch(runtime: Runtime, batch_id: UUID | None, silent: bool) -> Batch:
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
                screen.show(progress)
                if batch.ended_at is not None:
                    return batch
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
    """Write the output lines of a batch in input order, also while it runs.

    Examples:

        batchline results @1 -o answers.jsonl
        batchline results 01a1e816 --errors
    """
    with reported_errors(as_json):
        target = target_at(output or Path("-"))
        if as_json and target.is_stdout:
            raise CommandError("--json prints one document on stdout; give -o FILE for the lines")
        allowed = Outputs(written_files(data_dir), force)
        allowed.check(target)
        which: Which = "errors" if errors else "output"
        with open_runtime(database, data_dir) as runtime:
            written, complete = run_async(
                _results(runtime, batch_id_in(runtime, batch), which, target, allowed)
            )
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


async def _changed(runtime: Runtime, batch_id: UUID, change: Change) -> Batch:
    async with Session(runtime.url, change) as session:
        before = await _found(session, batch_id)
        if change == "resume":
            done = await batches.resume(session, batch_id)
        else:
            done = await batches.close(session, batch_id, change)
        if not done:
            raise CommandError(f"cannot {change} a batch that is {before.status}", Exit.SOME_FAILED)
        return await _found(session, batch_id)


async def _get(runtime: Runtime, batch_id: UUID) -> tuple[Batch, list[ProviderCounts]]:
    async with Session(runtime.url, "status") as session:
        return await _found(session, batch_id), await providers.counts(session, batch_id)


async def _found(session: Session, batch_id: UUID) -> Batch:
    batch = await batches.get(session, batch_id)
    if batch is None:
        raise CommandError(f"there is no batch {batch_id}; `batchline list` shows all")
    return batch


def _tell(batch: Batch, as_json: bool, providers: Sequence[ProviderCounts] = ()) -> None:
    displayed: dict[str, Any] = show_batch(batch)
    unknown = sum(each.submission_unknown for each in providers)
    if providers:
        processing = sum(each.processing for each in providers)
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
    if trouble := finalize_trouble(batch):
        out().print(f"  {trouble}", markup=False)
