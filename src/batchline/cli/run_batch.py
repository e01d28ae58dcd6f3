"""`batchline run`: gets one result for every line of the inputs and writes an output file.

The same command again continues where the last one stopped. If that one had finished, it writes the output
again. If the input was edited, only lines without an answer are sent (batches/reuse.py).
"""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import TypeAlias, TypeVar
from uuid import UUID

import msgspec
import structlog
from msgspec.structs import replace as replace_struct
from rich.console import Console

from batchline.batches import creation as ordering
from batchline.batches import reuse
from batchline.batches.batch_object import failure_objects
from batchline.batches.cost import BatchCost, cost_object, cost_of
from batchline.batches.forecast import Forecast, forecast_object
from batchline.batches.pauses import pause_reason
from batchline.cli.answer_options import check_endpoints
from batchline.cli.commands.retry import reopened
from batchline.cli.display.console import CommandError, err, out, show_hook_delivery
from batchline.cli.display.pauses import pause_document, pause_message
from batchline.cli.display.progress import BatchProgress, Gauge
from batchline.cli.display.screen import Display, display
from batchline.cli.display.units import counted
from batchline.cli.exit_guard import exit_guard
from batchline.cli.files import ingest_inputs, stored_lines
from batchline.cli.following import followed_lines
from batchline.cli.forecast import confirmed, forecast_lines, forecast_rest, sample_line
from batchline.cli.joining import JoinedInputs
from batchline.cli.manifest import ManifestFile, describe_run, write_manifest, written_file
from batchline.cli.model_check import warn_of_models
from batchline.cli.options import Exit
from batchline.cli.output_plan import OutputPlan
from batchline.cli.resuming import ResumeCommand
from batchline.cli.reuse import prepared, reused_note
from batchline.cli.runtime import Runtime
from batchline.cli.spending import cost_lines, settings_for
from batchline.cli.targets import Outputs, OutputTarget, WrittenOutput
from batchline.config.settings import WorkerSettings
from batchline.executors.http import HttpExecutor
from batchline.executors.provider import ProviderExecutor
from batchline.files.ingest import Fingerprint, InputUnreadable
from batchline.files.inputs.input_set import InputSet
from batchline.hooks.delivery import deliver, lease
from batchline.hooks.hook import Hooks
from batchline.host.disk import full_message, says_full
from batchline.model import (
    DEFAULT_TENANT,
    Batch,
    BatchStatus,
    CauseCount,
    PauseReason,
    RunSettings,
    ids,
)
from batchline.store import batches, failures, files, forecasts
from batchline.store import hooks as hook_store
from batchline.store.hooks import HookDelivery, TakenHook
from batchline.store.outputs import Which
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.memory import BodyMemory
from batchline.worker.pause import Pause
from batchline.worker.producer import ProducerScope
from batchline.worker.worker import Worker, WorkerOptions

Result = TypeVar("Result")
# Writes the output while the batch runs.
Writing: TypeAlias = asyncio.Task[tuple[WrittenOutput, int]]

_REFRESH = 0.25
_DISK_PATIENCE = 30.0
# `run` ends with an error when finalizing has failed this often, about half a minute after the first failure.
_FINALIZE_TRIES = 6
# How long `run` waits for the database before the work starts, and when it reads the output. A running worker
# waits without limit.
_PATIENCE = 120.0

_log = structlog.get_logger("batchline.run")


@dataclass(frozen=True, slots=True)
class RunOrder:
    """The arguments of the command, checked."""

    inputs: InputSet
    settings: RunSettings
    outputs: Outputs
    plan: OutputPlan
    # Write the output while the batch runs.
    follow: bool
    # Add the input's columns to the output.
    join: bool
    # Options that the manifest shows.
    how: dict[str, object]
    window: str
    worker: WorkerSettings
    fresh: bool
    retry_failed: bool
    hooks: Hooks
    as_json: bool
    command: ResumeCommand
    # Lines to run first, before the user decides about the rest.
    sample: int | None = None
    yes: bool = False

    @property
    def output(self) -> OutputTarget:
        return self.plan.output

    @property
    def errors(self) -> OutputTarget:
        """Where to look for lines that failed: the error file, or the table."""
        return self.plan.errors or self.plan.output

    def console(self) -> Console:
        """The console for messages: stdout, unless the lines go there."""
        return err() if self.output.is_stdout else out()

    @property
    def retry_command(self) -> str:
        command = self.command.without_sample()
        return command.plus(*(() if self.retry_failed else ("--retry-failed",)))

    @property
    def silent(self) -> bool:
        return self.as_json or self.output.is_stdout


@dataclass(frozen=True, slots=True)
class RunOutcome:
    batch: Batch
    resumed: bool
    finished_before: bool
    interrupted: bool
    hook_deliveries: tuple[HookDelivery, ...] = ()
    causes: tuple[CauseCount, ...] = ()
    # Why a rule has paused the batch.
    pause: PauseReason | None = None
    cost: BatchCost | None = None
    forecast: Forecast | None = None


async def run(order: RunOrder, runtime: Runtime) -> RunOutcome:
    async with runtime.kept_running(patient=False), Session(runtime.url, "run") as session:
        known = await asyncio.to_thread(order.inputs.fingerprint)
        if order.join:
            order = replace(order, plan=order.plan.joined_to(JoinedInputs(order.inputs, known)))
        batch, resumed = await _find_or_create(order, runtime, session, known)
        finished_before, interrupted, forecast = batch.ended_at is not None, False, None
        if not finished_before:
            async with _followed(order, runtime, batch) as writing:
                if batch.pause_rule == "sample":
                    batch, forecast, interrupted = await _sample(order, runtime, session, batch, writing)
                if batch.ended_at is None and not interrupted:
                    batch, interrupted = await _work(order, runtime, session, batch, writing)
        if _cannot_end(batch):
            raise CommandError(
                f"cannot write the batch's files: {batch.finalize_error}; no result is lost;"
                f" remove the cause, then continue with\n  {order.command}",
                Exit.SOME_FAILED,
            )
        if not interrupted:
            written = order.follow and not finished_before
            await _patiently(lambda: _save(order, runtime, session, batch, written=written))
        delivered = await _run_hooks(order.hooks, session, batch) if not interrupted else ()
        return RunOutcome(
            batch,
            resumed,
            finished_before,
            interrupted,
            delivered,
            causes=tuple(await _patiently(lambda: failures.causes(session, batch))),
            pause=await _patiently(lambda: pause_reason(session, batch)) if interrupted else None,
            cost=await _patiently(lambda: cost_of(session, batch)),
            forecast=forecast,
        )


async def _sample(
    order: RunOrder, runtime: Runtime, session: Session, batch: Batch, writing: Writing | None
) -> tuple[Batch, Forecast | None, bool]:
    """Run the lines that were drawn, and show the forecast for the rest. Returns the batch, the forecast, and
    whether to stop here."""
    first = replace(order, worker=replace(order.worker, drain=True))
    batch, unfinished = await _work(first, runtime, session, batch, writing, sample=True)
    if batch.pause_rule != "sample" or await forecasts.sample_left(session, batch.id):
        return batch, None, unfinished
    forecast = await forecast_rest(session, batch, order.worker.concurrency)
    if not order.silent:
        order.console().print(sample_line(batch, forecast), markup=False)
        for line in forecast_lines(forecast) if forecast else ():
            order.console().print(f"  {line}", markup=False)
    if not confirmed(order.yes):
        return batch, forecast, True
    await _patiently(lambda: batches.resume(session, batch.id))
    return batch, forecast, False


async def _run_hooks(hooks: Hooks, session: Session, batch: Batch) -> tuple[HookDelivery, ...]:
    """Run each hook once, after the files are written, unless it has had the event before.

    No worker needs to have these hooks: if this process dies, the same command again runs them. The batch is
    done, so not even a lost database makes the command fail here.
    """
    if not hooks.names:
        return ()
    try:
        await _patiently(lambda: hook_store.request(session, hooks.names, batch.id))
        while (taken := await _patiently(lambda: _take_hook(hooks, session, batch))) is not None:
            await deliver(session, hooks, taken)
        found = await _patiently(lambda: hook_store.deliveries(session, limit=1000, batch_id=batch.id))
    except StoreUnavailable as error:
        _log.error("hooks did not run; the same command again runs them", reason=str(error))
        return ()
    return tuple(each for each in found if each.hook in hooks.names)


async def _take_hook(hooks: Hooks, session: Session, batch: Batch) -> TakenHook | None:
    """A delivery to run now. Waits for one that another process runs: it may have been killed, and nobody
    knows before its lease ends."""
    said = False
    while True:
        taken = await hook_store.take(session, hooks.names, lease=lease(hooks), batch_id=batch.id)
        if taken is not None:
            return taken
        found = await hook_store.deliveries(session, limit=1000, batch_id=batch.id)
        busy = [each.hook for each in found if each.hook in hooks.names and each.state == "running"]
        if not busy:
            return None
        if not said:
            _log.warning("another process runs a hook of this batch; waiting for it", hooks=busy)
        said = True
        await asyncio.sleep(_REFRESH)


async def _patiently(act: Callable[[], Awaitable[Result]]) -> Result:
    """Retry while the database is unavailable, as in a failover. `act` must be repeatable."""
    pause = Pause()
    until = monotonic() + _PATIENCE
    while True:
        try:
            return await act()
        except StoreUnavailable as error:
            if monotonic() >= until:
                raise
            _log.warning("waiting for the database", reason=str(error))
            await pause.wait()


async def _find_or_create(
    order: RunOrder, runtime: Runtime, session: Session, known: Fingerprint
) -> tuple[Batch, bool]:
    key = _resume_key(order, known)
    found = None if order.fresh else await _patiently(lambda: batches.find(session, DEFAULT_TENANT, key))
    if found is not None and _is_done(order, found):
        return found, True
    await _check_upstream(order.settings)
    if found is not None:
        return await _patiently(lambda: _continue(order, session, found)), True
    # Forget the old batch only now that nothing prevents a new one.
    await _patiently(lambda: batches.retire(session, DEFAULT_TENANT, key))
    return await _patiently(lambda: _create(order, runtime, session, known, key)), False


def _resume_key(order: RunOrder, known: Fingerprint) -> str:
    return ordering.resume_key(known.digest, order.settings.upstream or "", order.settings.answers)


def _is_done(order: RunOrder, found: Batch) -> bool:
    return found.ended_at is not None and not (order.retry_failed and found.completed < found.total)


async def _continue(order: RunOrder, session: Session, found: Batch) -> Batch:
    sampling = order.sample is not None and found.pause_rule == "sample"
    # With --yes the rest runs after the sample: this is the same command again.
    if order.sample is not None and not sampling and not order.yes:
        raise CommandError(
            f"--sample is for a batch that has not begun: {found.finished:,} of {found.total:,} lines are"
            " done; leave it out to continue, or give --fresh"
        )
    settings = await settings_for(session, found.file_id, order.settings)
    await warn_of_models(session, found.file_id, order.settings)
    if found.ended_at is not None:
        found = await reopened(session, found, order.settings.max_attempts)
    await batches.change_settings(session, found.id, settings)
    if found.paused_at is not None and not sampling:
        await batches.resume(session, found.id)
    # The user has probably removed the cause of the failures.
    await batches.retry_finalizing(session, found.id)
    return await batches.get(session, found.id) or found


async def _create(order: RunOrder, runtime: Runtime, session: Session, known: Fingerprint, key: str) -> Batch:
    """Repeatable: after a lost answer it finds the file and the batch that it created."""
    file = await files.find(session, DEFAULT_TENANT, known.digest)
    if file is None:
        file = await ingest_inputs(order.inputs, runtime.url, known=known, silent=order.silent)
    await check_endpoints(session, file.id, order.settings)
    console = None if order.as_json else order.console()
    plan = reuse.NOTHING if order.fresh else await prepared(session, file, order.settings, console)
    settings = await settings_for(session, file.id, order.settings)
    # Before the batch exists: then a worker may send at once.
    await warn_of_models(session, file.id, order.settings)
    return await ordering.create(
        session,
        tenant=DEFAULT_TENANT,
        file_id=file.id,
        window=order.window,
        settings=settings,
        resume_key=key,
        plan=plan,
        sample=order.sample,
    )


async def _check_upstream(settings: RunSettings) -> None:
    """Check that the upstream answers, before anything is written."""
    upstream = Upstreams().get(settings.upstream or "")
    try:
        trouble = await upstream.check(settings.api_key_env)
    finally:
        await upstream.close()
    if trouble is not None:
        raise CommandError(f"{trouble}; nothing was sent")


async def _work(
    order: RunOrder,
    runtime: Runtime,
    session: Session,
    batch: Batch,
    writing: Writing | None,
    *,
    sample: bool = False,
) -> tuple[Batch, bool]:
    """Run the batch, or only its sample, until it has ended, the user stops it, or `writing` ends. Returns
    the batch and whether it was stopped."""
    ended = asyncio.Event()
    settings = order.worker
    memory = BodyMemory(settings.body_memory, settings.concurrency)
    upstreams = Upstreams()
    executor = ProviderExecutor(HttpExecutor(upstreams, memory=memory))
    provider = order.settings.provider
    worker = Worker(
        runtime.url,
        executor,
        runtime.objects,
        settings,
        scope := replace_struct(_scope(order, batch), sample=sample),
        WorkerOptions(
            producers=[
                ProducerScope(
                    scope,
                    settings.concurrency,
                    order.settings.upstream,
                    None if provider is None else provider.max_tasks,
                )
            ],
            upstreams=upstreams,
            memory=memory,
            cancel_task=executor.cancel,
            on_ended=lambda _: ended.set(),
        ),
    )
    if not order.as_json:
        order.console().print(
            f"{ids.show(ids.BATCH, batch.id)}: {counted(batch.total, 'line')}", markup=False
        )
    screen = display(order.console(), order.inputs.title, silent=order.as_json)
    working = asyncio.create_task(worker.run())
    try:
        async with exit_guard(worker):
            with screen, _Signals(worker, screen), _stopped_by(writing, worker):
                batch = await _watch(runtime, session, batch.id, screen, ended, working, upstreams, worker)
                worker.stop()
                await working
    finally:
        working.cancel()
        await executor.close()
    return batch, batch.ended_at is None


def _scope(order: RunOrder, batch: Batch) -> Scope:
    """The batch. Of a provider also its upstream, whose tasks are counted."""
    upstream = order.settings.upstream
    keys = None if order.settings.provider is None or upstream is None else (upstream,)
    return Scope(keys, batch.id)


async def _watch(
    runtime: Runtime,
    session: Session,
    batch_id: UUID,
    screen: Display,
    ended: asyncio.Event,
    working: asyncio.Task[None],
    upstreams: Upstreams,
    worker: Worker,
) -> Batch:
    """Show progress until the batch or the worker has ended."""
    gauge, room = Gauge(session, batch_id), _Room(runtime, worker)
    while True:
        room.check()
        over = working.done()
        try:
            batch, progress = await gauge.read()
            screen.show(_with_worker(progress, upstreams, worker))
            if batch.ended_at is not None or over or _cannot_end(batch):
                return batch
            # A batch that a user has paused may be resumed soon; the sample of a paused one runs.
            if batch.pause_rule not in (None, "sample") and not worker.holding():
                return batch
        except StoreUnavailable as error:
            if over:
                raise CommandError(
                    f"lost the database: {error}; no result is lost; run the same command again",
                    Exit.INTERRUPTED,
                ) from error
        waits = [working, asyncio.ensure_future(ended.wait())]
        await asyncio.wait(waits, timeout=_REFRESH, return_when=asyncio.FIRST_COMPLETED)
        waits[1].cancel()


def _cannot_end(batch: Batch) -> bool:
    return batch.ended_at is None and batch.finalize_failures >= _FINALIZE_TRIES


def _with_worker(progress: BatchProgress, upstreams: Upstreams, worker: Worker) -> BatchProgress:
    """The progress with what only the process that does the work knows. `run` has one upstream."""
    trouble = worker.finalizer.trouble or worker.settler.trouble or progress.trouble
    return msgspec.structs.replace(progress, upstream=next(iter(upstreams.views()), None), trouble=trouble)


@dataclass(slots=True)
class _Room:
    """Ends the run if a full disk is not cleared for a while."""

    runtime: Runtime
    worker: Worker
    full_since: float | None = None

    def check(self) -> None:
        where, now = self._full(), time.monotonic()
        self.full_since = None if where is None else self.full_since or now
        if self.full_since is not None and now - self.full_since > _DISK_PATIENCE:
            raise CommandError(full_message(where or ""))

    def _full(self) -> str | None:
        """The full disk that the worker waits for, if there is one."""
        if says_full(self.worker.settler.trouble or ""):
            return str(self.runtime.server.data_dir) if self.runtime.server else "the database"
        return self.runtime.objects.location if says_full(self.worker.finalizer.trouble or "") else None


@contextmanager
def _stopped_by(writing: Writing | None, worker: Worker) -> Iterator[None]:
    """Stop the worker if the output cannot be written any more: nobody would read the answers."""

    def stop(_: Writing) -> None:
        worker.stop()

    if writing is None:
        yield
        return
    writing.add_done_callback(stop)
    try:
        yield
    finally:
        writing.remove_done_callback(stop)


@asynccontextmanager
async def _followed(order: RunOrder, runtime: Runtime, batch: Batch) -> AsyncIterator[Writing | None]:
    """Write the output while the batch runs, and all that is left of it when the batch has ended."""
    if not order.follow:
        yield None
        return
    over = asyncio.Event()
    async with Session(runtime.url, "follow") as session:

        def open_followed(which: Sequence[Which]) -> AsyncGenerator[bytes, None]:
            return followed_lines(session, batch.id, which, over)

        writing = asyncio.create_task(order.plan.write_followed(order.outputs, open_followed))
        try:
            yield writing
            # Before the batch is over, only an error ends it.
            if writing.done() and isinstance(error := writing.exception(), BrokenPipeError | CommandError):
                raise _stopped(order, batch, error) from error
            over.set()
            await writing
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


def _stopped(order: RunOrder, batch: Batch, error: Exception) -> CommandError:
    reason = f"the reader of {order.output.name} has left" if isinstance(error, BrokenPipeError) else error
    return CommandError(
        f"{reason}; {ids.show(ids.BATCH, batch.id)} has stopped, nothing is lost; continue with\n"
        f"  {order.command}",
        Exit.SOME_FAILED,
    )


async def _save(order: RunOrder, runtime: Runtime, session: Session, batch: Batch, *, written: bool) -> None:
    """Write the files; the output only if it was not `written` before."""
    plan = order.plan

    def open_lines(which: Which) -> AsyncGenerator[bytes, None]:
        return stored_lines(runtime, session, batch, which)

    output = errors = None
    if not written:
        found, rows = await plan.write_output(order.outputs, open_lines)
        output = written_file(order.output, found, rows, str(plan.format))
    if plan.errors is not None and batch.error_file_id is not None:
        async with aclosing(open_lines("errors")) as blocks:
            found = await order.outputs.write(plan.errors, blocks)
        errors = written_file(plan.errors, found, found.lines)
    elif plan.errors is not None:
        order.outputs.remove(plan.errors)
    if plan.manifest is not None and output is not None:
        digests = await _input_digests(order, session, batch)
        manifest = describe_run(batch, digests, output, errors, order.how)
        await write_manifest(order.outputs, plan.manifest, manifest)


async def _input_digests(order: RunOrder, session: Session, batch: Batch) -> list[ManifestFile]:
    """The inputs, if they are still what the batch was created from."""
    try:
        known = await asyncio.to_thread(order.inputs.fingerprint)
    except InputUnreadable:
        return []
    key = _resume_key(order, known)
    same = await batches.find(session, DEFAULT_TENANT, key)
    if same is None or same.id != batch.id:
        return []
    found = zip(order.inputs.files, known.digests, known.versions, strict=True)
    return [
        ManifestFile(
            file.name,
            digest.hex(),
            size,
            format=file.format.value,
            delimiter=None if file.delimiter == "," else file.delimiter,
        )
        for file, digest, (_, size, _) in found
    ]


class _Signals:
    """Ctrl-C waits for requests in flight, a second one stops at once."""

    def __init__(self, worker: Worker, screen: Display) -> None:
        self._worker = worker
        self._screen = screen
        self._count = 0

    def __enter__(self) -> None:
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, self._received)

    def __exit__(self, *exc: object) -> None:
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(name)

    def _received(self) -> None:
        self._count += 1
        if self._count == 1:
            self._screen.say("stopping: waiting for requests in flight; press Ctrl-C again to stop now")
        self._worker.stop()


def exit_code(batch: Batch) -> Exit:
    done = batch.status is BatchStatus.COMPLETED and batch.failed == 0
    return Exit.OK if done else Exit.SOME_FAILED


def exit_code_of(outcome: RunOutcome) -> Exit:
    if outcome.pause is not None:
        return Exit.PAUSED
    return Exit.INTERRUPTED if outcome.interrupted else exit_code(outcome.batch)


def _resume(order: RunOrder, outcome: RunOutcome) -> str:
    """The command to continue."""
    if outcome.batch.pause_rule != "sample":
        return str(order.command.without_sample())
    after_sample = outcome.pause is not None and outcome.pause.rule == "sample"
    return order.command.plus(*(("--yes",) if after_sample and not order.yes else ()))


def summary_lines(order: RunOrder, outcome: RunOutcome) -> list[str]:
    """What the batch has cost, and how it stands."""
    return [*(f"  {line}" for line in cost_lines(outcome.cost)), summary_line(order, outcome)]


def summary_line(order: RunOrder, outcome: RunOutcome) -> str:
    batch = outcome.batch
    name = ids.show(ids.BATCH, batch.id)
    if outcome.pause is not None:
        return f"{name} {pause_message(outcome.pause, batch, _resume(order, outcome))}"
    if outcome.interrupted:
        return (
            f"{name} interrupted: {batch.finished:,} of {batch.total:,} done, nothing is lost;"
            f" continue with\n  {_resume(order, outcome)}"
        )
    before = "finished before; " if outcome.finished_before else ""
    done = f"{batch.completed:,} of {batch.total:,} completed"
    parts = [f"{name} {before}{batch.status}: {done}", *reused_note(batch)]
    if batch.completed:
        parts.append(f"output in {order.output.name}")
    missing = batch.total - batch.completed
    if missing:
        parts.append(f"{missing:,} not completed, see {order.errors.name}")
        parts.append(f"to run only these again:\n  {order.retry_command}")
    return "; ".join(parts)


def failed_hooks(order: RunOrder, outcome: RunOutcome) -> list[str]:
    """A line for each hook that failed. It changes neither the batch nor the exit code."""
    return [
        f"hook {each.hook} failed: {each.last_error}; `batchline hooks` shows its output; to run it again:\n"
        f"  {order.command}"
        for each in outcome.hook_deliveries
        if each.delivered_at is None
    ]


def describe(order: RunOrder, outcome: RunOutcome) -> dict[str, object]:
    batch = outcome.batch
    return {
        "batch_id": ids.show(ids.BATCH, batch.id),
        "status": batch.status.value,
        "interrupted": outcome.interrupted and outcome.pause is None,
        "paused": pause_document(outcome.pause),
        "failures": failure_objects(outcome.causes),
        "resumed": outcome.resumed,
        "total": batch.total,
        "completed": batch.completed,
        "failed": batch.failed,
        "reused": batch.reused,
        "input_tokens": batch.input_tokens,
        "output_tokens": batch.output_tokens,
        "cost": cost_object(outcome.cost),
        "forecast": None if outcome.forecast is None else forecast_object(outcome.forecast),
        "output": order.output.name if batch.output_file_id else None,
        "errors": order.errors.name if batch.error_file_id else None,
        "resume": _resume(order, outcome) if outcome.interrupted else None,
        "retry": order.retry_command if batch.ended_at and batch.completed < batch.total else None,
        "summary": batch.summary,
        "hooks": [show_hook_delivery(each) for each in outcome.hook_deliveries],
    }
