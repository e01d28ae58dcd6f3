"""Says what became of a run: as text, as JSON, and as an exit code."""

from batchline.batches.batch_object import failure_objects
from batchline.batches.cost import cost_object
from batchline.batches.forecast import forecast_object
from batchline.cli.arrangement_options import duplicates_line
from batchline.cli.display.console import show_hook_delivery
from batchline.cli.display.pauses import pause_document, pause_message
from batchline.cli.options import Exit
from batchline.cli.reuse import reused_note
from batchline.cli.run.order import RunOrder, RunOutcome
from batchline.cli.spending import cost_lines
from batchline.model import Batch, BatchStatus, ids


def exit_code(batch: Batch) -> Exit:
    done = batch.status is BatchStatus.COMPLETED and batch.failed == 0
    return Exit.OK if done else Exit.SOME_FAILED


def exit_code_of(outcome: RunOutcome) -> Exit:
    if outcome.pause is not None:
        return Exit.PAUSED
    return Exit.INTERRUPTED if outcome.interrupted else exit_code(outcome.batch)


def _resume(order: RunOrder, outcome: RunOutcome) -> str:
    """The command to continue."""
    if not outcome.batch.sampling:
        return str(order.command.without_sample())
    after_sample = outcome.pause is not None and outcome.pause.rule == "sample"
    return order.command.plus(*(("--yes",) if after_sample and not order.yes else ()))


def summary_lines(order: RunOrder, outcome: RunOutcome) -> list[str]:
    """What was not sent, what the batch has cost, and how it stands."""
    identical = duplicates_line(outcome.batch)
    notes = [*([] if identical is None else [identical]), *cost_lines(outcome.cost)]
    return [*(f"  {line}" for line in notes), summary_line(order, outcome)]


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
        "duplicates": batch.duplicates,
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
