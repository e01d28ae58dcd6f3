"""`batchline run`: gets one result for every line of the inputs and writes an output file.

The same command again continues where the last one stopped. If that one had finished, it writes the output
again. If the input was edited, only lines without an answer are sent (batches/reuse.py).
"""

import asyncio
from dataclasses import replace

from batchline.batches.cost import cost_of
from batchline.batches.forecast import Forecast
from batchline.batches.pauses import pause_reason
from batchline.cli.display.console import CommandError
from batchline.cli.forecast import confirmed, forecast_lines, forecast_rest, sample_line
from batchline.cli.joining import JoinedInputs
from batchline.cli.options import Exit
from batchline.cli.run.files import Writing, followed, save
from batchline.cli.run.finding import find_or_create
from batchline.cli.run.hooks import run_hooks
from batchline.cli.run.order import RunOrder, RunOutcome
from batchline.cli.run.patience import patiently
from batchline.cli.run.working import cannot_end, work
from batchline.cli.runtime import Runtime
from batchline.cli.tracing import traced
from batchline.model import Batch
from batchline.store import batches, failures
from batchline.store.session import Session


async def run(order: RunOrder, runtime: Runtime) -> RunOutcome:
    async with traced(order.traces) as tracing:
        return await _run(replace(order, tracing=tracing), runtime)


async def _run(order: RunOrder, runtime: Runtime) -> RunOutcome:
    async with runtime.kept_running(patient=False), Session(runtime.url, "run") as session:
        known = await asyncio.to_thread(order.inputs.fingerprint)
        if order.join:
            order = replace(order, plan=order.plan.joined_to(JoinedInputs(order.inputs, known)))
        batch, resumed = await find_or_create(order, runtime, session, known)
        finished_before, interrupted, forecast = batch.ended_at is not None, False, None
        if not finished_before:
            async with followed(order, runtime, batch) as writing:
                if batch.sampling:
                    batch, forecast, interrupted = await _sample(order, runtime, session, batch, writing)
                if batch.ended_at is None and not interrupted:
                    batch, interrupted = await work(order, runtime, session, batch, writing)
        if cannot_end(batch):
            raise CommandError(
                f"cannot write the batch's files: {batch.finalize_error}; no result is lost;"
                f" remove the cause, then continue with\n  {order.command}",
                Exit.SOME_FAILED,
            )
        if not interrupted:
            written = order.follow and not finished_before
            await patiently(lambda: save(order, runtime, session, batch, written=written))
        delivered = await run_hooks(order.hooks, session, batch) if not interrupted else ()
        return RunOutcome(
            batch,
            resumed,
            finished_before,
            interrupted,
            delivered,
            causes=tuple(await patiently(lambda: failures.causes(session, batch))),
            pause=await patiently(lambda: pause_reason(session, batch)) if interrupted else None,
            cost=await patiently(lambda: cost_of(session, batch)),
            forecast=forecast,
        )


async def _sample(
    order: RunOrder, runtime: Runtime, session: Session, batch: Batch, writing: Writing | None
) -> tuple[Batch, Forecast | None, bool]:
    """Run the lines that were drawn, and show the forecast for the rest. Returns the batch, the forecast, and
    whether to stop here."""
    if batch.pause_rule != "sample":
        batch, unfinished = await work(order, runtime, session, batch, writing)
        if batch.pause_rule != "sample":
            return batch, None, unfinished
    forecast = await forecast_rest(session, batch, order.worker.concurrency)
    if not order.silent:
        order.console().print(sample_line(batch, forecast), markup=False)
        for line in forecast_lines(forecast) if forecast else ():
            order.console().print(f"  {line}", markup=False)
    if not confirmed(order.yes):
        return batch, forecast, True
    await patiently(lambda: batches.resume(session, batch.id))
    return await patiently(lambda: batches.get(session, batch.id)) or batch, forecast, False
