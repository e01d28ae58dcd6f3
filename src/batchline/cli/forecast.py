"""`run --estimate` and `run --sample`: what the batch will use and cost, before it is sent."""

import asyncio
import signal
import sys
from pathlib import Path

import typer

from batchline.batches.cost import spending_for
from batchline.batches.forecast import Forecast, Range, forecast_object, rough_forecast, sample_forecast
from batchline.cli.display.console import out, print_json
from batchline.cli.display.money import money
from batchline.cli.display.units import count, counted, duration
from batchline.cli.files import ingest_inputs
from batchline.cli.questions import confirmed_by_user
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.files.inputs.input_set import InputSet
from batchline.model import DEFAULT_TENANT, Batch, Spending
from batchline.model.concurrency import typical_concurrency
from batchline.store import files, forecasts
from batchline.store.session import Session


def estimate(
    inputs: InputSet, spending: Spending, database: str | None, data_dir: Path | None, as_json: bool
) -> None:
    """Print a rough forecast. The lines are stored, so that a run does not read the file again."""
    with open_runtime(database, data_dir) as runtime:
        forecast = run_async(_estimate(runtime, inputs, spending, silent=as_json))
    if as_json:
        print_json({"forecast": forecast_object(forecast)})
        return
    seen = forecast.learned_from
    learned = f"learned from {counted(seen, 'earlier request')}" if seen else "assumed"
    out().print(f"estimate: {counted(forecast.lines, 'line')}; rough, nothing was sent", markup=False)
    for line in forecast_lines(forecast):
        out().print(f"  {line}", markup=False)
    out().print(f"  bytes per token: {learned}; --sample N measures", markup=False)


async def _estimate(runtime: Runtime, inputs: InputSet, spending: Spending, *, silent: bool) -> Forecast:
    known = await asyncio.to_thread(inputs.fingerprint)
    async with Session(runtime.url, "estimate") as session:
        file = await files.find(session, DEFAULT_TENANT, known.digest)
        if file is None:
            file = await ingest_inputs(inputs, runtime.url, known=known, silent=silent)
        models = await files.models(session, file.id)
        priced = await spending_for(session, file.id, spending) or spending
        learned = await forecasts.learned(session, DEFAULT_TENANT, models)
        return rough_forecast(await forecasts.profile(session, file.id), learned, priced)


async def forecast_rest(session: Session, batch: Batch, concurrency: int) -> Forecast | None:
    """The forecast for the lines that are left, from those that are done."""
    sample = await forecasts.sampled(session, batch.id)
    left, at_once = batch.total - batch.finished, typical_concurrency(concurrency)
    return sample_forecast(sample, left, batch.settings.spending, at_once)


def forecast_lines(forecast: Forecast) -> list[str]:
    lines = [
        f"input: {_tokens(forecast.input_tokens)}",
        f"output: {_tokens(forecast.output_tokens)}",
    ]
    if forecast.cost is not None:
        low, likely, high = (money(round(each)) for each in _values(forecast.cost))
        lines.append(f"cost: about {likely} ({low} to {high})")
    else:
        lines.append("cost: unknown; add [[prices]] to batchline.toml")
    if forecast.seconds is not None:
        low, likely, high = (duration(each) for each in _values(forecast.seconds))
        short = forecast.seconds.high < 1
        lines.append("time: less than 1 s" if short else f"time: about {likely} ({low} to {high})")
    return lines


def sample_line(batch: Batch, forecast: Forecast | None) -> str:
    if forecast is None:
        return "sample: no line is done, so nothing is known"
    sent = batch.finished - batch.reused
    failed = f", {batch.failed:,} failed" if batch.failed else ""
    return f"sample: {counted(sent, 'line')} done{failed}; forecast for the other {forecast.lines:,}:"


def confirmed(yes: bool) -> bool | None:
    """Whether to run the rest; None: nobody can be asked."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    # The event loop's handler would wait for the answer.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return confirmed_by_user("run the rest?")
    except typer.Abort:
        return False
    finally:
        signal.signal(signal.SIGINT, before)


def _tokens(amount: Range) -> str:
    low, likely, high = (count(round(each)) for each in _values(amount))
    return f"about {likely} tokens ({low} to {high})"


def _values(amount: Range) -> tuple[float, float, float]:
    return amount.low, amount.likely, amount.high
