"""Runs lines of an ended batch again, in the same batch.

They keep their attempts and their history. When the batch ends again, one output file has the old and the new
answers in input order. The files of its earlier end stay as they are.
"""

import re

from batchline.batches.creation import InvalidWindow, window_or_none
from batchline.model import Batch, BatchStatus, RetrySelection, Unfinished
from batchline.model.emission import PYTHON
from batchline.store import retry as store_retry
from batchline.store import steps
from batchline.store.outputs import NEVER_RUN
from batchline.store.retry import PutBack, Retrying
from batchline.store.session import Session

_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_CAUSE = re.compile(r"[0-9a-f]{12}")
_RUNNING = "batch_in_progress"
_USUAL_WINDOW = "24h"


class InvalidSelection(ValueError):
    """A retry names lines in a way that has no meaning. The message is for a person."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class NotRetryable(Exception):
    """The batch cannot be retried now, or no line matches. The message is for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def running(self) -> bool:
        """Whether the batch has not ended, perhaps because another retry was faster."""
        return self.code == _RUNNING


class BatchGone(Exception):
    """The batch was deleted meanwhile, or is governed."""


def check(selection: RetrySelection) -> None:
    """Raises InvalidSelection."""
    for cause in selection.causes or ():
        if not _CAUSE.fullmatch(cause):
            raise InvalidSelection(
                "causes",
                f"{cause[:64]!r} is not the key of a cause; `batchline.failures` of the batch lists them",
            )
    for code in selection.codes or ():
        if not _CODE.fullmatch(code):
            raise InvalidSelection(
                "codes",
                f"{code[:64]!r} is not an error code; codes are http_ and a status, such as http_401, and the"
                " codes in the error file, such as timeout or batch_expired",
            )


async def retry(
    session: Session,
    batch: Batch,
    selection: RetrySelection,
    *,
    tenant: str | None = None,
    max_attempts: int | None = None,
) -> int:
    """Put the selected lines back and open the batch. Return their number.

    The attempts so far do not count: each has as many as before, or `max_attempts`. Raises InvalidSelection,
    NotRetryable and BatchGone.
    """
    check(selection)
    async with store_retry.retrying(session, batch, tenant) as held:
        if held is None:
            raise BatchGone("the batch does not exist any more")
        await _check(held)
        wanted = _wanted(held.batch, selection, max_attempts)
        lines = await held.put_back(wanted)
        if lines == 0:
            raise NotRetryable("nothing_to_retry", await _no_match(held))
        if stale := await held.stale_collections():
            # What was put back is rolled back.
            raise NotRetryable(
                "already_collected",
                f"its stage {stale[0].removeprefix(PYTHON)!r} has collected the results already, and does not"
                " collect again; submit the items that failed in a new batch",
            )
    # If nothing else is left of its last step.
    await steps.begin_part(session, batch.id)
    return lines


async def _check(held: Retrying) -> None:
    """Raises NotRetryable, unless the batch has ended and all it needs is there."""
    batch = held.batch
    if batch.status is BatchStatus.FAILED:
        raise NotRetryable(
            "batch_failed", "its file was refused, so no line can run; correct it, and create a new batch"
        )
    if batch.ended_at is None:
        doing = (
            "it is writing its files" if batch.finalizing_at is not None else f"it is {batch.status.value}"
        )
        raise NotRetryable(_RUNNING, f"{doing}; wait until it has ended")
    kept = await held.keep_input()
    if batch.purging_at is not None or (kept is not None and kept.results_deleted):
        raise NotRetryable(
            "results_deleted", "its results were deleted, when their retention time ended or with its files"
        )
    if kept is None:
        raise NotRetryable(
            "input_deleted",
            "its input file was deleted or has expired; upload it again, and create a new batch",
        )
    if kept.adopted:
        raise NotRetryable(
            "adoption_unfinished",
            "it was adopted, and a rollback needs its results; run `batchline adopt finish` first",
        )


def _wanted(batch: Batch, selection: RetrySelection, max_attempts: int | None) -> PutBack:
    ending = Unfinished.CANCELLED if batch.cancelling_at is not None else Unfinished.EXPIRED
    code = f"batch_{ending.value}"
    assert code in NEVER_RUN
    return PutBack(
        _window(batch),
        failed=selection.includes(Unfinished.FAILED),
        codes=selection.codes,
        causes=selection.causes,
        # Lines that never ran have no cause.
        unrun=selection.includes(ending)
        and selection.causes is None
        and (selection.codes is None or code in selection.codes),
        anew=True,
        new_max_attempts=max_attempts,
    )


def _window(batch: Batch) -> float | None:
    """The completion window again. That of an adopted batch may be one that this program does not know."""
    try:
        return window_or_none(batch.completion_window)
    except InvalidWindow:
        return window_or_none(_USUAL_WINDOW)


async def _no_match(held: Retrying) -> str:
    counts = held.batch.counts
    existing = [f"{lines:,} {code}" for code, lines in await held.failure_codes()]
    existing += [
        f"{lines:,} batch_{ending}"
        for ending, lines in (("cancelled", counts.cancelled), ("expired", counts.expired))
        if lines
    ]
    if not existing:
        return "every line is completed"
    return f"no line matches; the lines that are not completed have the codes: {', '.join(existing)}"
