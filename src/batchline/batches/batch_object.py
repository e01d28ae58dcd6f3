"""A batch as OpenAI's clients know it: the API's answer, and what hooks read."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from batchline.model import Batch, BatchStatus, CauseCount, StepPlan, ids

_TIMES = (
    *("created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at"),
    *("expired_at", "cancelling_at", "cancelled_at"),
)


def batch_object(batch: Batch) -> dict[str, Any]:
    """OpenAI's clients have no paused batches, so those are in progress."""
    errors = [msgspec.structs.asdict(error) for error in batch.errors or ()]
    paused = batch.status is BatchStatus.PAUSED
    return {
        "id": ids.show(ids.BATCH, batch.id),
        "object": "batch",
        "endpoint": batch.endpoint or "",
        "model": batch.model,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": ids.show(ids.FILE, batch.file_id),
        "completion_window": batch.completion_window,
        "status": (BatchStatus.IN_PROGRESS if paused else batch.status).value,
        # While the batch runs, its finished lines can be read under the id of the future file.
        "output_file_id": _file(batch.output_file_id if batch.ended_at else batch.planned_output_id),
        "error_file_id": _file(batch.error_file_id),
        **{name: unix_seconds(getattr(batch, name)) for name in _TIMES},
        "request_counts": msgspec.structs.asdict(batch.counts),
        "usage": _usage(batch),
        "metadata": batch.metadata,
        "batchline": {
            "reused": batch.reused,
            "duplicates": batch.duplicates,
            "order": batch.settings.order,
            "paused": batch.paused_at is not None,
            "paused_by": batch.pause_rule,
            "steps": steps_object(batch.settings.steps, batch.step, batch.step_total, batch.next_step_at),
            "priority": batch.priority,
            "concurrency": batch.concurrency,
        },
    }


def steps_object(
    plan: StepPlan | None, step: int, step_total: int | None, next_step_at: datetime | None
) -> dict[str, Any] | None:
    """How a batch runs in steps; None: it does not."""
    if plan is None:
        return None
    return {
        "sizes": plan.text,
        "pause_seconds": plan.pause,
        "sample": plan.sample,
        "step": step,
        "lines_begun": step_total,
        "next_step_at": unix_seconds(next_step_at),
    }


def failure_objects(causes: Sequence[CauseCount]) -> list[dict[str, Any]]:
    """Why items failed, as the API and `--json` show it."""
    return [
        {
            "key": each.key,
            "code": each.code or None,
            "message": each.message,
            "count": each.count,
            "retrying": each.retrying,
            "example_custom_id": each.example,
        }
        for each in causes
    ]


def _usage(batch: Batch) -> dict[str, Any]:
    return {
        "input_tokens": batch.input_tokens,
        "input_tokens_details": {"cached_tokens": batch.cached_tokens},
        "output_tokens": batch.output_tokens,
        "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
        "total_tokens": batch.input_tokens + batch.output_tokens,
    }


def unix_seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())


def _file(file_id: UUID | None) -> str | None:
    return None if file_id is None else ids.show(ids.FILE, file_id)
